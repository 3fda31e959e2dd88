//! What one tier holds: its rows in the order of eviction, and its bytes.
//!
//! Used by `Index`, one for each tier. The order is by last use, then hits, then length, and eviction walks it from any
//! point on, skipping rows that are held. A recency list (the crate `lru`) has neither the second and third key nor such
//! a walk, and the times come out of files, in any order; so this is a sorted set. The bytes must always be the sum over
//! the rows.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::index::rows::LruKey;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct TierLedger {
    rows: BTreeSet<LruKey>,
    used: u64,
    /// Bytes of queued and running writes, so that they find room when they are done.
    incoming: u64,
    quota: u64,
}

impl TierLedger {
    pub(super) fn new(quota: u64) -> Self {
        Self { quota, ..Self::default() }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn quota(&self) -> u64 {
        self.quota
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// A row is in the tier now.
    pub(super) fn enter(&mut self, key: LruKey, bytes: u64) {
        let is_new = self.rows.insert(key);
        assert!(is_new, "invariant: a row enters a tier once");
        self.used += bytes;
    }

    /// A row is no longer in the tier.
    pub(super) fn leave(&mut self, key: &LruKey, bytes: u64) {
        let was_there = self.rows.remove(key);
        assert!(was_there, "invariant: a row that leaves a tier was in it");
        self.used -= bytes;
    }

    /// A row of the tier was used.
    pub(super) fn reorder(&mut self, before: &LruKey, after: LruKey) {
        let was_there = self.rows.remove(before);
        assert!(was_there, "invariant: a row that is used in a tier is in it");
        self.rows.insert(after);
    }

    /// A row of the tier has other bytes now.
    pub(super) fn resize(&mut self, before: u64, after: u64) {
        self.used = self.used - before + after;
    }

    /// Sets bytes aside for a write.
    pub(super) fn expect_write(&mut self, bytes: u64) {
        self.incoming += bytes;
    }

    /// The write is over.
    pub(super) fn end_write(&mut self, bytes: u64) {
        self.incoming -= bytes;
    }

    /// How many bytes have to leave before `bytes` more fit. `None` if they never fit.
    pub(super) fn excess(&self, bytes: u64) -> Option<u64> {
        let wanted = self.used.saturating_add(self.incoming).saturating_add(bytes);
        (bytes <= self.quota).then(|| wanted.saturating_sub(self.quota))
    }

    /// The rows from a point on, in the order of eviction.
    pub(super) fn from(&self, from: Bound<LruKey>) -> impl Iterator<Item = &LruKey> {
        self.rows.range((from, Bound::Unbounded))
    }

    /// Approximate heap bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.rows.len() * size_of::<LruKey>() * 3 / 2
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;
    use crate::index::rows::RowId;
    use crate::testing::broken_invariant;

    const KEY: LruKey = (5, 1, Reverse(9), RowId(0));

    #[test]
    fn a_row_that_leaves_a_tier_it_is_not_in_is_loud() {
        let mut ledger = TierLedger::new(100);
        ledger.enter(KEY, 10);
        ledger.leave(&KEY, 10);
        assert!(broken_invariant(|| TierLedger::new(100).leave(&KEY, 0)).contains("was in it"));
        assert!(broken_invariant(|| TierLedger::new(100).reorder(&KEY, KEY)).contains("is in it"));
        assert!(broken_invariant(|| ledger.end_write(1)).contains("overflow"), "more ends than was begun");
    }

    #[test]
    fn room_counts_what_is_being_written() {
        let mut ledger = TierLedger::new(100);
        ledger.enter(KEY, 60);
        ledger.expect_write(30);
        assert_eq!((ledger.excess(10), ledger.excess(11), ledger.excess(101)), (Some(0), Some(1), None));
        ledger.end_write(30);
        ledger.resize(60, 80);
        assert_eq!((ledger.used(), ledger.excess(40)), (80, Some(20)));
    }
}
