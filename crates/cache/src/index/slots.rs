//! The table of rows: numbered slots, used again once their row has left.
//!
//! Used by `Index` alone. A row id names its row from insertion until the slot is freed, and the
//! holder of an id keeps the row pinned or in the index. So an id that names no row is a defect, and asking for one panics.

use crate::index::rows::{Row, RowId};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RowSlots {
    rows: Vec<Option<Row>>,
    free: Vec<RowId>,
}

impl RowSlots {
    /// The id that the next added row gets. `None` if all ids are taken.
    pub(super) fn next_id(&self) -> Option<RowId> {
        self.free.last().copied().or_else(|| u32::try_from(self.rows.len()).ok().map(RowId))
    }

    /// Adds a row under `next_id`.
    pub(super) fn add(&mut self, row: Row) {
        match self.free.pop() {
            Some(id) => *self.slot_mut(id) = Some(row),
            None => self.rows.push(Some(row)),
        }
    }

    /// Frees the slot of a row.
    pub(super) fn remove(&mut self, id: RowId) {
        let removed = self.slot_mut(id).take();
        assert!(removed.is_some(), "invariant: a freed slot held a row");
        self.free.push(id);
    }

    #[expect(clippy::expect_used, reason = "an id that names no row is a defect of the index")]
    pub(super) fn get(&self, id: RowId) -> &Row {
        self.find(id).expect("invariant: a row id names a row")
    }

    #[expect(clippy::expect_used, reason = "an id that names no row is a defect of the index")]
    pub(super) fn get_mut(&mut self, id: RowId) -> &mut Row {
        self.slot_mut(id).as_mut().expect("invariant: a row id names a row")
    }

    #[expect(clippy::expect_used, reason = "an id that names no slot is a defect of the index")]
    fn slot_mut(&mut self, id: RowId) -> &mut Option<Row> {
        self.rows.get_mut(id.0 as usize).expect("invariant: a row id names a slot")
    }

    /// The row of an id that may be out of date.
    pub(super) fn find(&self, id: RowId) -> Option<&Row> {
        self.rows.get(id.0 as usize).and_then(Option::as_ref)
    }

    /// All rows, also those that have left the index and are still pinned.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().flatten()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Option<Row>>() + self.free.capacity() * size_of::<RowId>()
    }
}
