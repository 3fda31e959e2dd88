//! The tokens of stored rows of one namespace and owner, and an index of them.
//!
//! Filled by the library's thread, asked by the worker. Rows of one conversation begin alike: of each row only those tokens
//! are kept that no other row has, with some before them for matches that reach back. A row that is removed is overwritten at
//! once. It must never return a token of a row that was removed.

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
    /// Its tokens, with those before them.
    range: Range<usize>,
    /// The blocks that it was the first to have.
    blocks: Vec<u64>,
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
    /// Digests of the beginnings of rows, at multiples of [`BLOCK`].
    blocks: HashSet<u64>,
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
        let blocks = (self.blocks.capacity() + self.parts.values().map(|part| part.blocks.capacity()).sum::<usize>())
            * (size_of::<u64>() + 1);
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
        let known = digests.iter().rposition(|digest| self.blocks.contains(digest)).map_or(0, |last| last + 1);
        let blocks: Vec<u64> = digests.into_iter().skip(known).collect();
        self.blocks.extend(&blocks);
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
        self.parts.insert(key, Part { range: first..self.tokens.len(), blocks });
        self.order.push_back(key);
        self.ngrams.extend(&self.tokens, usize::MAX);
    }

    /// Removes a row: nothing of it is found from now on. Rows that were added after it and begin like it keep what is their
    /// own.
    pub fn remove(&mut self, key: &Key) {
        let Some(part) = self.parts.remove(key) else { return };
        if let Some(tokens) = self.tokens.get_mut(part.range) {
            tokens.fill(BARRIER);
            self.dead += tokens.len();
        }
        for block in &part.blocks {
            self.blocks.remove(block);
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
        let mut compacted = Self { tokens: vec![BARRIER], blocks: self.blocks.clone(), ..Self::default() };
        for key in &self.order {
            let Some(part) = self.parts.get(key).filter(|_| !compacted.parts.contains_key(key)) else { continue };
            let first = compacted.tokens.len();
            compacted.tokens.extend(self.tokens.get(part.range.clone()).unwrap_or_default());
            let range = first..compacted.tokens.len();
            compacted.parts.insert(*key, Part { range, blocks: part.blocks.clone() });
            compacted.order.push_back(*key);
        }
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
