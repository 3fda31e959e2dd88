//! The last changes of the index, for readers that keep something in step with it.
//!
//! Written by the index under its lock. A reader remembers how far it has read and asks for what came after; one that fell
//! behind the bounded list learns that and lists all rows again. It must never grow with the number of changes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::identity::key::Key;

/// Changes that are kept. A reader that is further behind lists all rows, which is as fast.
const KEPT: usize = 4096;

/// The changes after a point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// The point up to which these changes reach: ask from here the next time.
    pub next: u64,
    /// Rows that were removed by then, since the cache was opened; see `Cache::removals`.
    pub removals: u64,
    /// The rows that appeared, moved to another tier, got an owner or left, in that order; a row may be named more than
    /// once. `None` if the journal has dropped some of them: list all rows.
    pub keys: Option<Vec<Key>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Changes so far.
    next: u64,
    last: VecDeque<Key>,
    removals: Arc<AtomicU64>,
}

impl Journal {
    /// A row appeared, moved to another tier, or got an owner.
    pub(super) fn note(&mut self, key: Key) {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(key);
        self.next += 1;
    }

    /// A row left.
    pub(super) fn note_removal(&mut self, key: Key) {
        self.note(key);
        self.removals.fetch_add(1, Ordering::Release);
    }

    /// The number of removals, readable without the lock of the index.
    pub(crate) fn removals(&self) -> &Arc<AtomicU64> {
        &self.removals
    }

    /// The changes after a point.
    pub(crate) fn since(&self, point: u64) -> Changes {
        let first = self.next - self.last.len() as u64;
        let skip = point.checked_sub(first).and_then(|skip| usize::try_from(skip).ok());
        let keys =
            skip.filter(|skip| *skip <= self.last.len()).map(|skip| self.last.iter().skip(skip).copied().collect());
        Changes { next: self.next, removals: self.removals.load(Ordering::Acquire), keys }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gets_what_came_after_and_one_that_fell_behind_learns_it() {
        let key = |number: u8| Key::from_bytes([number; 32]);
        let mut journal = Journal::default();
        assert_eq!(journal.since(0), Changes { next: 0, removals: 0, keys: Some(vec![]) });
        journal.note(key(1));
        journal.note_removal(key(2));
        assert_eq!(journal.since(0).keys, Some(vec![key(1), key(2)]));
        assert_eq!(journal.since(1), Changes { next: 2, removals: 1, keys: Some(vec![key(2)]) });
        assert_eq!(journal.since(2).keys, Some(vec![]));
        assert_eq!(journal.since(3).keys, None, "a point that was never reached");
        for _ in 0..KEPT {
            journal.note(key(3));
        }
        assert_eq!(journal.since(1).keys, None);
        assert_eq!(journal.since(2).keys.map(|keys| keys.len()), Some(KEPT));
    }
}
