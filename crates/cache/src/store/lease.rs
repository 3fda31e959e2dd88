//! Leases: rows that cannot be evicted while they are read, written or built on.
//!
//! Made by lookups, by `Cache::base_for` and by compactions; a lease ends when it is dropped, also when its holder
//! panics. It pins rows in the index and nothing else; it must never be kept while a reply is generated.

use std::fmt;
use std::sync::Arc;

use super::shared_index::SharedIndex;
use crate::identity::key::Key;
use crate::index::Index;
use crate::index::rows::RowId;

/// Pins rows while it lives.
pub(crate) struct Lease {
    index: Arc<SharedIndex>,
    rows: Vec<RowId>,
}

impl Lease {
    /// Pins the rows. The caller holds the index lock, so that no row can leave in between.
    pub(crate) fn take(shared: &Arc<SharedIndex>, index: &mut Index, rows: Vec<RowId>) -> Self {
        for row in &rows {
            index.pin(*row);
        }
        Self { index: Arc::clone(shared), rows }
    }

    /// Ends the lease for a caller that holds the index lock.
    pub(crate) fn end(mut self, index: &mut Index) {
        for row in std::mem::take(&mut self.rows) {
            index.unpin(row);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Ended before, and the caller may hold the lock.
        if self.rows.is_empty() {
            return;
        }
        let mut index = self.index.lock();
        for row in &self.rows {
            index.unpin(*row);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lease").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// A stored row that a new one builds on, held until the save is made.
#[derive(Debug)]
pub struct SaveBase {
    /// Keeps the row; dropped with the base.
    _lease: Lease,
    pub(super) row: RowId,
    pub(super) key: Key,
    pub(super) start: u32,
}

impl SaveBase {
    /// Holds a row, of which the first `start` tokens are used.
    pub(super) fn hold(shared: &Arc<SharedIndex>, index: &mut Index, row: RowId, start: u32) -> Self {
        let key = index.row(row).key;
        Self { _lease: Lease::take(shared, index, vec![row]), row, key, start }
    }

    /// The first token that the new row has to store itself.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.start
    }

    /// The row.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// The same row, of which less is used: the new one stores the tokens from `start` on itself. `None` if nothing of
    /// it is used then.
    #[must_use]
    pub fn starting_at(mut self, start: u32) -> Option<Self> {
        self.start = self.start.min(start);
        (self.start > 0).then_some(self)
    }
}
