//! Positions by the tokens before them: an index of a growing list of tokens, without a copy of any token.
//!
//! Used for the tokens of a request and for stored rows. A position is filed under the hash of the [`SHORT`] tokens before
//! it and under that of the [`LONG`] tokens before it, the latest first. A lookup compares the tokens themselves, so an equal
//! hash is never taken for an equal text. Twelve to sixteen bytes for each position and hash; it never allocates in a lookup.

use crate::backend::Token;

/// The fewest tokens that must agree.
pub const SHORT: usize = 1;
/// A second index finds long matches behind many short ones.
pub const LONG: usize = 4;
/// The most tokens that are compared: a longer match says no more.
pub const LONGEST_MATCH: usize = 32;
/// Positions with an equal hash that one lookup visits.
const VISITS: usize = 32;
/// Buckets of an empty index.
const FIRST_BUCKETS: usize = 64;

/// A token that no vocabulary has: it ends matches and drafts.
pub const BARRIER: Token = Token::MAX;

/// A place where the same tokens stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The position of the token that followed.
    pub next: usize,
    /// How many tokens before it agree, at most [`LONGEST_MATCH`].
    pub length: usize,
}

/// Positions under the hash of the `width` tokens before them.
#[derive(Debug, Clone)]
struct Table {
    width: usize,
    /// For each bucket the last position in it, plus one; 0 for none.
    heads: Vec<u32>,
    /// For each position the one before it in its bucket, plus one; 0 for none.
    before: Vec<u32>,
}

impl Table {
    fn new(width: usize) -> Self {
        Self { width, heads: vec![0; FIRST_BUCKETS], before: Vec::new() }
    }

    fn bucket(&self, gram: &[Token]) -> usize {
        // The number of buckets is a power of two.
        usize::try_from(hash(gram)).unwrap_or(usize::MAX) & (self.heads.len() - 1)
    }

    /// Files the position after these tokens, which must be the next one.
    fn push(&mut self, tokens: &[Token]) {
        let position = self.before.len();
        let filed = u32::try_from(position + 1).ok().zip(gram(tokens, self.width));
        let Some((number, gram)) = filed.filter(|(_, gram)| !gram.contains(&BARRIER)) else {
            self.before.push(0);
            return;
        };
        let bucket = self.bucket(gram);
        let head = self.heads.get_mut(bucket).map_or(0, |head| std::mem::replace(head, number));
        self.before.push(head);
    }

    /// Doubles the buckets and files all positions again.
    fn grow(&mut self, tokens: &[Token], positions: usize) {
        self.heads = vec![0; positions.next_power_of_two().max(FIRST_BUCKETS)];
        let count = std::mem::take(&mut self.before).len();
        self.before.reserve_exact(positions);
        for position in 0..count {
            self.push(tokens.get(..position).unwrap_or_default());
        }
    }

    fn find(&self, tokens: &[Token], query: &[Token]) -> Option<Match> {
        let gram = gram(query, self.width)?;
        let mut best: Option<Match> = None;
        let mut number = self.heads.get(self.bucket(gram)).copied().unwrap_or(0);
        for _ in 0..VISITS {
            let Some(next) = number.checked_sub(1).map(|position| position as usize) else { break };
            let length = common_end(tokens.get(..next).unwrap_or_default(), query);
            let goes_on = tokens.get(next).is_some_and(|token| *token != BARRIER);
            if goes_on && length >= self.width && best.is_none_or(|best| length > best.length) {
                best = Some(Match { next, length });
                if length == LONGEST_MATCH {
                    break;
                }
            }
            number = self.before.get(next).copied().unwrap_or(0);
        }
        best
    }

    fn heap_bytes(&self) -> usize {
        (self.heads.capacity() + self.before.capacity()) * size_of::<u32>()
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Ngrams {
    short: Table,
    long: Table,
}

impl Default for Ngrams {
    fn default() -> Self {
        Self { short: Table::new(SHORT), long: Table::new(LONG) }
    }
}

impl Ngrams {
    /// Positions that are filed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.short.before.len()
    }

    /// Whether nothing is filed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes room for this number of positions in all.
    pub fn reserve(&mut self, tokens: &[Token], positions: usize) {
        for table in [&mut self.short, &mut self.long] {
            if positions > table.heads.len() {
                table.grow(tokens, positions);
            }
        }
    }

    /// Files up to `most` further positions of a list that has grown at its end, and the position after its last token.
    pub fn extend(&mut self, tokens: &[Token], most: usize) {
        let end = (tokens.len() + 1).min(self.len().saturating_add(most));
        if end > self.short.heads.len() {
            let room = end.saturating_mul(2).min((tokens.len() + 1).max(end));
            self.reserve(tokens, room.max(end));
        }
        for position in self.len()..end {
            let before = tokens.get(..position).unwrap_or_default();
            self.short.push(before);
            self.long.push(before);
        }
    }

    /// The longest match of the end of `query` among the positions that are filed, the latest of equals. `tokens` is the list
    /// that they are positions of.
    #[must_use]
    pub fn find(&self, tokens: &[Token], query: &[Token]) -> Option<Match> {
        self.long.find(tokens, query).or_else(|| self.short.find(tokens, query))
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.short.heap_bytes() + self.long.heap_bytes()
    }
}

/// The last `width` tokens.
fn gram(tokens: &[Token], width: usize) -> Option<&[Token]> {
    tokens.get(tokens.len().checked_sub(width)?..)
}

fn hash(gram: &[Token]) -> u64 {
    // Multiplying spreads the low bits upwards, and the shift brings them back.
    let mixed = gram.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |hash, token| {
        (hash ^ u64::from(*token)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
    });
    mixed ^ (mixed >> 32)
}

/// How many tokens at the end of both agree, at most [`LONGEST_MATCH`].
fn common_end(one: &[Token], two: &[Token]) -> usize {
    let pairs = one.iter().rev().zip(two.iter().rev());
    pairs.take(LONGEST_MATCH).take_while(|(one, two)| one == two).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexed(tokens: &[Token]) -> Ngrams {
        let mut ngrams = Ngrams::default();
        ngrams.extend(tokens, usize::MAX);
        ngrams
    }

    #[test]
    fn the_longest_match_wins_and_of_equals_the_latest() {
        let tokens = [1, 2, 3, 4, 10, 9, 2, 3, 4, 11, 8, 2, 3, 4, 12];
        let ngrams = indexed(&tokens);
        assert_eq!(ngrams.find(&tokens, &[7, 2, 3, 4]), Some(Match { next: 14, length: 3 }));
        assert_eq!(ngrams.find(&tokens, &[1, 2, 3, 4]), Some(Match { next: 4, length: 4 }));
        assert_eq!(ngrams.find(&tokens, &[7, 3, 4]), Some(Match { next: 14, length: 2 }));
        assert_eq!(ngrams.find(&tokens, &[5, 6, 7]), None);
    }

    #[test]
    fn a_long_match_is_found_behind_many_short_ones() {
        let mut tokens: Vec<Token> = (100..120).collect();
        tokens.push(7);
        for number in 0..1000 {
            tokens.extend([117, 118, 119, 200 + number]);
        }
        let query: Vec<Token> = (100..120).collect();
        assert_eq!(indexed(&tokens).find(&tokens, &query), Some(Match { next: 20, length: 20 }));
    }

    #[test]
    fn nothing_is_found_across_a_barrier_or_at_the_end() {
        let tokens = [1, 2, BARRIER, 3, 4, 5, BARRIER];
        let ngrams = indexed(&tokens);
        assert_eq!(ngrams.find(&tokens, &[2, 3, 4]), Some(Match { next: 5, length: 2 }));
        assert_eq!(ngrams.find(&tokens, &[3, 4, 5]), None, "nothing follows");
    }

    #[test]
    fn steps_of_any_size_file_the_same_positions() {
        let tokens: Vec<Token> = (0..5000_u32).map(|number| number * number % 97).collect();
        let whole = indexed(&tokens);
        let mut stepwise = Ngrams::default();
        for end in 0..=tokens.len() {
            stepwise.extend(&tokens[..end], 3);
        }
        stepwise.extend(&tokens, usize::MAX);
        assert_eq!(whole.len(), stepwise.len());
        for end in (10..tokens.len()).step_by(37) {
            let query = &tokens[..end];
            assert_eq!(whole.find(&tokens, query), stepwise.find(&tokens, query));
        }
    }
}
