//! A lease: rows that cannot be evicted while somebody reads them.
//!
//! Made by lookups and by `Cache::base_for`; ends when it is dropped, also when its holder panics. It pins rows
//! in the index and nothing else; it must never be kept while a reply is generated.

use std::fmt;
use std::sync::Arc;

use crate::index::Index;
use crate::index::rows::RowId;
use crate::store::store::Store;

/// Pins rows while it lives.
pub(crate) struct Lease {
    store: Arc<Store>,
    rows: Vec<RowId>,
}

impl Lease {
    /// Pins the rows. The caller holds the index lock, so that no row can leave in between.
    pub(crate) fn take(store: &Arc<Store>, index: &mut Index, rows: Vec<RowId>) -> Self {
        for row in &rows {
            index.pin(*row);
        }
        Self { store: Arc::clone(store), rows }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut index = self.store.index.lock();
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
