//! The tokens of stored rows of one namespace and owner, and an index of them.
//!
//! Filled by the library's thread, asked by the worker. Rows of one conversation begin alike: of each row only those tokens
//! are kept that no other row has, with some before them for matches that reach back. What only a removed row had is
//! overwritten at once; what it shared stays as long as one of the others. It must never return a token that no row has.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use poncho_cache::Key;

use crate::backend::Token;
use crate::draft::ngrams::{BARRIER, LONGEST_MATCH, Ngrams};
use crate::draft::{Draft, Source};

/// Shared beginnings are recognised at multiples of this.
const BLOCK: usize = 32;

/// What a row has in the corpus.
#[derive(Debug, Clone)]
struct Part {
    /// Its tokens after the last whole block, up to the barrier; with those before them if no block stands there.
    tail: Range<usize>,
    /// Its last block.
    last: Option<u64>,
}

/// Tokens that one row or several have at the same place, after the same ones.
#[derive(Debug, Clone)]
struct Block {
    /// These tokens, with those before them if the block before stands elsewhere.
    range: Range<usize>,
    /// The block before.
    before: Option<u64>,
    /// Blocks that follow it, and rows of which it is the last one.
    users: usize,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Corpus {
    /// The parts of all rows, each between barriers.
    tokens: Vec<Token>,
    ngrams: Ngrams,
    parts: HashMap<Key, Part>,
    /// The rows, oldest first; some may have left.
    order: VecDeque<Key>,
    /// The blocks of all rows, by the digest of all tokens up to their ends at multiples of [`BLOCK`].
    blocks: HashMap<u64, Block>,
    /// Tokens of rows that were removed.
    dead: usize,
}

impl Corpus {
    /// Whether a row is in it.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.parts.contains_key(key)
    }

    /// The rows in it.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.parts.keys()
    }

    /// Tokens that it holds, those of removed rows included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it holds no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether most of it is of rows that were removed.
    #[must_use]
    pub fn is_mostly_dead(&self) -> bool {
        self.dead * 2 > self.tokens.len()
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let parts = self.parts.capacity() * (size_of::<(Key, Part)>() + 1);
        let blocks = self.blocks.capacity() * (size_of::<(u64, Block)>() + 1);
        let order = self.order.capacity() * size_of::<Key>();
        self.tokens.capacity() * size_of::<Token>() + self.ngrams.heap_bytes() + parts + blocks + order
    }

    /// Adds a row that is not in it, with all its tokens.
    pub fn add(&mut self, key: Key, tokens: &[Token]) {
        let mut digest = 0;
        let mut digests = Vec::with_capacity(tokens.len() / BLOCK);
        for block in tokens.chunks_exact(BLOCK) {
            digest = block.iter().fold(digest, |digest, token| mix(digest, *token));
            digests.push(digest);
        }
        let known = digests.iter().rposition(|digest| self.blocks.contains_key(digest)).map_or(0, |last| last + 1);
        let start = (known * BLOCK).saturating_sub(LONGEST_MATCH);
        if self.tokens.is_empty() {
            self.tokens.push(BARRIER);
        }
        let first = self.tokens.len();
        // A row without tokens of its own is kept all the same: it is found to be there.
        if known * BLOCK < tokens.len() {
            self.tokens.extend(tokens.iter().skip(start));
            self.tokens.push(BARRIER);
        }
        let mut last = known.checked_sub(1).and_then(|last| digests.get(last).copied());
        let mut from = first;
        for (digest, end) in digests.into_iter().zip((BLOCK..).step_by(BLOCK)).skip(known) {
            let range = from..first + end - start;
            from = range.end;
            self.use_block(last);
            self.blocks.insert(digest, Block { range, before: last, users: 0 });
            last = Some(digest);
        }
        self.use_block(last);
        self.parts.insert(key, Part { tail: from..self.tokens.len(), last });
        self.order.push_back(key);
        self.ngrams.extend(&self.tokens, usize::MAX);
    }

    fn use_block(&mut self, digest: Option<u64>) {
        if let Some(block) = digest.and_then(|digest| self.blocks.get_mut(&digest)) {
            block.users += 1;
        }
    }

    /// Removes a row: nothing that no other row has is found from now on.
    pub fn remove(&mut self, key: &Key) {
        let Some(part) = self.parts.remove(key) else { return };
        self.erase(part.tail);
        let mut last = part.last;
        while let Some(digest) = last {
            let Some(block) = self.blocks.get_mut(&digest) else { return };
            block.users = block.users.saturating_sub(1);
            if block.users > 0 {
                return;
            }
            last = block.before;
            if let Some(block) = self.blocks.remove(&digest) {
                self.erase(block.range);
            }
        }
    }

    fn erase(&mut self, range: Range<usize>) {
        if let Some(tokens) = self.tokens.get_mut(range) {
            tokens.fill(BARRIER);
            self.dead += tokens.len();
        }
    }

    /// Removes the rows that were added first until at most `most` tokens of rows are left.
    pub fn shrink_to(&mut self, most: usize) {
        while self.tokens.len() - self.dead > most {
            let Some(oldest) = self.order.pop_front() else { break };
            self.remove(&oldest);
        }
    }

    /// The same without the rows that were removed.
    #[must_use]
    pub fn compacted(&self) -> Self {
        let mut compacted =
            Self { tokens: vec![BARRIER], blocks: self.blocks.clone(), parts: self.parts.clone(), ..Self::default() };
        let Self { tokens, blocks, parts, order, .. } = &mut compacted;
        let blocks = blocks.values_mut().map(|block| &mut block.range);
        let mut live: Vec<&mut Range<usize>> = blocks.chain(parts.values_mut().map(|part| &mut part.tail)).collect();
        live.sort_unstable_by_key(|range| (range.start, range.end));
        let mut end = 0;
        for range in live {
            // What stood between them was erased.
            if range.start != end && tokens.last() != Some(&BARRIER) {
                tokens.push(BARRIER);
            }
            end = range.end;
            let first = tokens.len();
            tokens.extend(self.tokens.get(range.clone()).unwrap_or_default());
            *range = first..tokens.len();
        }
        if tokens.last() != Some(&BARRIER) {
            tokens.push(BARRIER);
        }
        let mut seen = HashSet::new();
        order.extend(self.order.iter().filter(|key| parts.contains_key(key) && seen.insert(**key)));
        compacted.ngrams.extend(&compacted.tokens, usize::MAX);
        compacted
    }

    /// Guesses how `tokens` go on.
    #[must_use]
    pub fn draft(&self, tokens: &[Token], most: usize) -> Option<Draft> {
        let found = self.ngrams.find(&self.tokens, tokens)?;
        let next = self.tokens.iter().skip(found.next).take(most);
        let guessed: Vec<Token> = next.copied().take_while(|token| *token != BARRIER).collect();
        (!guessed.is_empty()).then_some(Draft { tokens: guessed, matched: found.length, source: Source::Stored })
    }
}

fn mix(digest: u64, token: Token) -> u64 {
    (digest ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> Key {
        Key::from_bytes([number; 32])
    }

    fn guess(corpus: &Corpus, tokens: &[Token]) -> Vec<Token> {
        corpus.draft(tokens, 4).map_or_else(Vec::new, |draft| draft.tokens)
    }

    #[test]
    fn rows_of_one_conversation_are_kept_once_and_matches_reach_over_their_ends() {
        let mut corpus = Corpus::default();
        let tokens: Vec<Token> = (0..1000).collect();
        corpus.add(key(1), &tokens[..500]);
        corpus.add(key(2), &tokens);
        assert!(corpus.len() < 1000 + 3 * BLOCK + 3, "{}", corpus.len());
        assert_eq!(guess(&corpus, &tokens[..500]), [500, 501, 502, 503]);
        assert_eq!(corpus.draft(&tokens[..520], 1).unwrap().matched, LONGEST_MATCH);
        assert_eq!(guess(&corpus, &tokens), [0; 0], "nothing follows");
        corpus.add(key(3), &tokens[..320]);
        assert!(corpus.contains(&key(3)) && corpus.len() < 1000 + 3 * BLOCK + 3, "it has nothing of its own");
    }

    #[test]
    fn nothing_of_a_removed_row_is_found() {
        let mut corpus = Corpus::default();
        let (one, two): (Vec<Token>, Vec<Token>) = ((0..100).collect(), (1000..1100).collect());
        corpus.add(key(1), &one);
        corpus.add(key(2), &two);
        corpus.remove(&key(1));
        assert_eq!(guess(&corpus, &one[..50]), [0; 0]);
        assert_eq!(guess(&corpus, &two[..50]), [1050, 1051, 1052, 1053]);
        assert!(!corpus.tokens.iter().any(|token| *token < 100), "not even in memory");
        corpus.add(key(1), &one);
        assert_eq!(guess(&corpus, &one[..50]), [50, 51, 52, 53], "it may come back");
    }

    /// Rows of a long conversation are joined into its newest one, which has all their tokens.
    #[test]
    fn what_a_row_shared_is_found_until_the_last_row_that_has_it_leaves() {
        let mut corpus = Corpus::default();
        let tokens: Vec<Token> = (0..1000).collect();
        let branch: Vec<Token> = (0..200).chain(5000..5100).collect();
        for (number, end) in [(1, 300), (2, 600), (3, 1000)] {
            corpus.add(key(number), &tokens[..end]);
        }
        corpus.add(key(4), &branch);
        corpus.remove(&key(1));
        corpus.remove(&key(2));
        let all_is_found = |corpus: &Corpus, end: usize| {
            // After 200 tokens the branch is the newer one.
            (40..end - 4).filter(|at| *at != 200).all(|at| guess(corpus, &tokens[..at]).first() == Some(&tokens[at]))
        };
        assert!(all_is_found(&corpus, 1000) && all_is_found(&corpus.compacted(), 1000));
        corpus.remove(&key(3));
        for corpus in [&corpus, &corpus.compacted()] {
            assert!(all_is_found(corpus, 192), "the branch still has it");
            assert!(corpus.tokens.iter().all(|token| *token < 200 || *token >= 5000), "and nothing else is left");
            assert_eq!(guess(corpus, &branch[..250]), branch[250..254]);
        }
        corpus.remove(&key(4));
        assert!(corpus.tokens.iter().all(|token| *token == BARRIER) && corpus.blocks.is_empty());
        assert_eq!((corpus.dead, corpus.compacted().tokens), (corpus.tokens.len() - 1, vec![BARRIER]));
    }

    #[test]
    fn the_oldest_rows_leave_first_and_their_room_is_given_back() {
        let mut corpus = Corpus::default();
        let tokens = |number: u32| (number * 1000..number * 1000 + 100).collect::<Vec<Token>>();
        for number in 0..8 {
            corpus.add(key(u8::try_from(number).unwrap()), &tokens(number));
        }
        corpus.shrink_to(350);
        assert!(corpus.is_mostly_dead());
        let compacted = corpus.compacted();
        assert!(compacted.len() < 350 && compacted.heap_bytes() < corpus.heap_bytes());
        for number in 0..8 {
            let expected = if number < 5 { vec![] } else { tokens(number)[50..54].to_vec() };
            assert_eq!(guess(&corpus, &tokens(number)[..50]), expected);
            assert_eq!(guess(&compacted, &tokens(number)[..50]), expected);
        }
    }
}
