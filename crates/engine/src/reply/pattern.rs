//! One pattern searched in a stream: how much of it the stream's end matches, after every item.
//!
//! The automaton of Knuth, Morris and Pratt, over bytes for stop sequences and over tokens for markers. Each item costs
//! constant time on average, and nothing is ever compared twice with the text before it. It must never hold the text:
//! its callers keep what is undecided.

/// A non-empty pattern and its failure table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern<T> {
    items: Vec<T>,
    /// For each matched length, less one: the longest proper prefix that is also a suffix of the matched part.
    failure: Vec<usize>,
}

impl<T: Copy + Eq> Pattern<T> {
    /// Prepares a pattern; an empty one matches everywhere and is none.
    #[must_use]
    pub fn new(items: &[T]) -> Option<Self> {
        if items.is_empty() {
            return None;
        }
        let mut pattern = Self { items: items.to_vec(), failure: vec![0] };
        let mut matched = 0;
        for &item in items.iter().skip(1) {
            matched = pattern.advance(matched, item);
            pattern.failure.push(matched);
        }
        Some(pattern)
    }

    /// The matched length after one more item. `matched` is what the last call returned, 0 at the start; the pattern
    /// is complete when the result equals its length.
    #[must_use]
    pub fn advance(&self, mut matched: usize, item: T) -> usize {
        loop {
            if self.items.get(matched) == Some(&item) {
                return matched + 1;
            }
            match matched.checked_sub(1).and_then(|last| self.failure.get(last)) {
                Some(&shorter) => matched = shorter,
                None => return 0,
            }
        }
    }

    /// The pattern itself.
    #[must_use]
    pub fn items(&self) -> &[T] {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_pattern_is_none() {
        assert_eq!(Pattern::<u8>::new(&[]), None);
    }

    proptest! {
        #[test]
        fn it_knows_the_longest_match_at_every_item(
            items in prop::collection::vec(0_u8..3, 1..7), text in prop::collection::vec(0_u8..3, 0..60)
        ) {
            let pattern = Pattern::new(&items).unwrap();
            let mut matched = 0;
            for end in 1..=text.len() {
                matched = pattern.advance(matched, text[end - 1]);
                let longest = (0..=items.len().min(end)).rev().find(|&len| text[..end].ends_with(&items[..len]));
                prop_assert_eq!(Some(matched), longest);
            }
        }
    }
}
