//! Rows of files that enter the index: when a folder is opened, and when one is listed.
//!
//! Called by recovery and by the index of a listed folder, parents first. It must never enter a row with a chain that the
//! index does not hold.

use super::rows::{FileSpot, RowId};
use super::table::Index;
use crate::format::{RowMeta, RowPrefix};
use crate::identity::key::Key;
use crate::kinds::Tier;

/// Why the file of a row was not entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotEntered {
    /// The row is there already and builds on another row. One copy is enough.
    OtherChain,
    /// It has no tokens, or the index is full.
    NoPlace,
}

/// The rows above a stored row.
#[derive(Debug)]
pub(crate) struct Above {
    /// The row it builds on; `None` for a row that holds all its tokens itself.
    pub(crate) parent: Option<RowId>,
    /// The tokens before its start.
    pub(crate) tokens: Vec<u32>,
    /// Whether the parent ends at its start.
    pub(crate) is_adjacent: bool,
}

impl Index {
    /// The rows above a stored row of a tier. `None` if its parent is not there, is another model's, does not reach its
    /// start, or is less durable.
    pub(crate) fn above(&self, meta: &RowMeta, tier: Tier) -> Option<Above> {
        let Some(key) = meta.parent else {
            return Some(Above { parent: None, tokens: Vec::new(), is_adjacent: false });
        };
        let id = self.by_key(&key)?;
        let parent = self.row(id);
        let fits = parent.meta.namespace == meta.namespace
            && meta.start <= parent.meta.token_count
            && parent.is_as_durable_as(tier);
        fits.then(|| {
            let mut tokens = self.tokens_of(id);
            tokens.truncate(meta.start as usize);
            Above { parent: Some(id), tokens, is_adjacent: parent.meta.token_count == meta.start }
        })
    }

    /// Enters the file of a row. A last use after `now` was noted while the clock was wrong, or no checksum covers what
    /// damaged it: such a row counts as used now. Otherwise it would outlive every row that is saved until then.
    pub(crate) fn enter_file(
        &mut self,
        key: Key,
        tier: Tier,
        prefix: &RowPrefix,
        tokens: &[u32],
        parent: Option<RowId>,
        now: u64,
    ) -> Result<(), NotEntered> {
        let meta = RowMeta { last_used: prefix.meta.last_used.min(now), ..prefix.meta };
        let id = match self.by_key(&key) {
            None => self.insert(key, meta, tokens, &prefix.owners, parent).map_err(|_| NotEntered::NoPlace)?,
            // The same row in the other file tier.
            Some(id) if self.row(id).meta.start == prefix.meta.start && self.row(id).parent == parent => id,
            Some(_) => return Err(NotEntered::OtherChain),
        };
        self.set_spot(id, tier, FileSpot::of(prefix));
        Ok(())
    }
}
