//! The index under its lock, and the signal that it has changed.
//!
//! Shared by everything in this folder. The lock is held for memory work only: nothing may do I/O under it.

use std::time::Duration;

use crate::identity::key::Key;
use crate::index::Index;
use crate::io::sync::{Condvar, Mutex, MutexGuard};
use crate::kinds::Tier;
use crate::stats::CounterSnapshot;

/// See the module.
pub(crate) struct SharedIndex {
    index: Mutex<Index>,
    /// Notified whenever a row appears, is published or leaves.
    changed: Condvar,
}

impl SharedIndex {
    /// An index without rows, for tiers with these quotas.
    pub(crate) fn new(quotas: [u64; 3]) -> Self {
        Self { index: Mutex::new(Index::new(quotas)), changed: Condvar::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }

    /// Wakes everybody who waits for a change.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits for the next change; may wake early.
    pub(crate) fn wait<'a>(&self, index: MutexGuard<'a, Index>) -> MutexGuard<'a, Index> {
        self.changed.wait(index)
    }

    /// Waits until a row is there, at most for `wait`. Returns whether it is.
    pub(crate) fn wait_for_row(&self, key: &Key, wait: Duration) -> bool {
        self.changed.wait_until(self.lock(), wait, |index| index.by_key(key).is_some()).1
    }

    /// Fills in what the tiers hold.
    pub(crate) fn count_tiers(&self, snapshot: &mut CounterSnapshot) {
        let index = self.lock();
        snapshot.tier_bytes = Tier::ALL.map(|tier| index.used(tier));
        snapshot.tier_rows = Tier::ALL.map(|tier| index.rows_in(tier) as u64);
    }
}
