//! Small summaries of token lists that tell how much two lists share, wherever it stands in them.
//!
//! Made when somebody asks for an explanation, never for a request. A list is cut into overlapping windows; a summary is
//! the smallest hashes of all windows and those of the first few thousand tokens. Two lists that share windows share
//! small hashes, so the number of shared ones estimates the shared tokens. It must never decide: tokens do.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::identity::key::Key;
use crate::io::sync::Mutex;

/// Tokens of a window.
pub(super) const WINDOW: usize = 8;
/// Hashes of each of the two summaries: 1 KiB.
const KEPT: usize = 128;
/// Tokens of the first summary. A short prompt has too few of the smallest hashes of a long one; beginnings compare
/// well, and a cached beginning is what a prompt can use.
const HEAD: usize = 4096;
/// The most summaries in memory: 4 MiB.
const MOST_SKETCHES: usize = 2048;

/// The hashes of all windows.
pub(super) fn hashes(tokens: &[u32]) -> impl Iterator<Item = u64> + '_ {
    tokens.windows(WINDOW).map(|window| {
        let mixed = window.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, token| {
            (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        // The small hashes are kept, so all bits have to be mixed.
        let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    })
}

/// The smallest hashes of a list, in order.
#[derive(Debug)]
struct Smallest {
    hashes: Vec<u64>,
    /// Whether these are all hashes of the list.
    is_whole: bool,
}

impl Smallest {
    fn of(tokens: &[u32]) -> Self {
        let mut kept = BTreeSet::new();
        let mut is_whole = true;
        for hash in hashes(tokens) {
            if kept.len() == KEPT && kept.last().is_some_and(|last| hash >= *last) {
                is_whole &= kept.last() == Some(&hash);
                continue;
            }
            if kept.insert(hash) && kept.len() > KEPT {
                kept.pop_last();
                is_whole = false;
            }
        }
        Self { hashes: kept.into_iter().collect(), is_whole }
    }

    /// Up to which hash both lists have kept all of theirs.
    fn bound(&self) -> u64 {
        if self.is_whole { u64::MAX } else { self.hashes.last().copied().unwrap_or(u64::MAX) }
    }

    /// About how many windows two lists share.
    fn shared_with(&self, other: &Self) -> usize {
        let bound = self.bound().min(other.bound());
        let kept = |hash: &&u64| **hash <= bound;
        let shared = self.hashes.iter().filter(kept).filter(|hash| other.hashes.binary_search(hash).is_ok()).count();
        let estimate = shared as u128 * u128::from(u64::MAX) / u128::from(bound.max(1));
        usize::try_from(estimate).unwrap_or(usize::MAX)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sketch {
    head: Smallest,
    whole: Smallest,
}

impl Sketch {
    pub(crate) fn of(tokens: &[u32]) -> Self {
        Self { head: Smallest::of(tokens.get(..HEAD).unwrap_or(tokens)), whole: Smallest::of(tokens) }
    }

    /// About how many windows two lists share.
    pub(crate) fn shared_with(&self, other: &Self) -> usize {
        self.head.shared_with(&other.head).max(self.whole.shared_with(&other.whole))
    }
}

/// The summaries of rows that were compared before. A key stands for its tokens, so a summary never gets old.
#[derive(Default)]
pub(crate) struct Sketches {
    by_key: Mutex<HashMap<Key, Arc<Sketch>>>,
}

impl Sketches {
    /// The summaries of some rows; those that are not known are made with `tokens_of`. Rows without tokens are left out.
    pub(crate) fn of(&self, keys: &[Key], tokens_of: impl Fn(&Key) -> Option<Vec<u32>>) -> Vec<(Key, Arc<Sketch>)> {
        let known: Vec<Option<Arc<Sketch>>> = {
            let by_key = self.by_key.lock();
            keys.iter().map(|key| by_key.get(key).cloned()).collect()
        };
        // Without the lock: this takes long.
        let made = |(key, known): (&Key, Option<Arc<Sketch>>)| {
            let sketch = known.or_else(|| tokens_of(key).map(|tokens| Arc::new(Sketch::of(&tokens))))?;
            Some((*key, sketch))
        };
        let all: Vec<(Key, Arc<Sketch>)> = keys.iter().zip(known).filter_map(made).collect();
        let mut by_key = self.by_key.lock();
        by_key.extend(all.iter().map(|(key, sketch)| (*key, Arc::clone(sketch))));
        if by_key.len() > MOST_SKETCHES {
            *by_key = all.iter().take(MOST_SKETCHES).cloned().collect();
        }
        all
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_key.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(from: u32, length: u32) -> Vec<u32> {
        (0..length).map(|at| (from * 7919 + at).wrapping_mul(2_654_435_761) % 50_000).collect()
    }

    fn shared(one: &[u32], other: &[u32]) -> usize {
        Sketch::of(one).shared_with(&Sketch::of(other))
    }

    #[test]
    fn short_lists_are_compared_exactly_and_long_ones_nearly() {
        let (short, long) = (text(1, 100), text(2, 20_000));
        assert_eq!(shared(&short, &short), 93);
        assert_eq!(shared(&short, &text(3, 100)), 0);
        let changed = [&[1, 2, 3][..], &long].concat();
        let found = shared(&long, &changed);
        assert!((17_000..23_000).contains(&found), "{found}");
        let half = [&text(4, 10_000)[..], &long[10_000..]].concat();
        let found = shared(&long, &half);
        assert!((6_000..14_000).contains(&found), "{found}");
        assert_eq!(shared(&long, &text(5, 20_000)), 0);
        assert_eq!(shared(&[], &long), 0);
    }

    #[test]
    fn a_short_prompt_is_found_in_the_beginning_of_a_long_one() {
        let long = text(2, 100_000);
        let found = shared(&long, &[&[9][..], &long[..500]].concat());
        assert!(found > 250, "{found}");
    }

    #[test]
    fn the_number_of_summaries_is_bounded() {
        let keys = |from: u32| -> Vec<Key> {
            (from..from + 1000).map(|at| Key::from_bytes([at.to_le_bytes(); 8].concat().try_into().unwrap())).collect()
        };
        let sketches = Sketches::default();
        for from in [0, 1000, 2000, 3000] {
            assert_eq!(sketches.of(&keys(from), |_| Some(text(1, 10))).len(), 1000);
            assert!(sketches.len() <= MOST_SKETCHES);
        }
        assert_eq!(sketches.of(&keys(3000), |_| panic!("known")).len(), 1000);
        assert!(sketches.of(&keys(9000), |_| None).is_empty());
    }
}
