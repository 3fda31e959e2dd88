//! Finding the stored rows that serve a prompt, and pinning them.
//!
//! The engine walks the rows of a plan in order, copies each into its sequence, and drops the plan before it generates. A
//! lookup takes the lock of the index for memory work only; it must never read a file.

pub(crate) mod export;

use std::sync::Arc;
use std::time::Instant;

use super::lease::{Lease, SaveBase};
use super::pinned_row::{PinnedRow, RowReader};
use super::shared_index::SharedIndex;
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::index::rows::RowId;
use crate::index::{Found, Index, Link, Needs, Use};
use crate::kinds::{PartKind, Tier};
use crate::stats::Counters;

/// Stored rows that serve the first `reach` tokens of a prompt.
#[derive(Debug)]
pub struct RestorePlan {
    rows: Vec<PinnedRow>,
    reach: u32,
    ends_on_row: bool,
    /// Keeps the rows; dropped with the plan.
    _lease: Lease,
}

impl RestorePlan {
    /// The rows, first tokens first. Together their ranges cover `0..reach`. Where there is a `boundary`, it is the last
    /// one (its range may be empty).
    #[must_use]
    pub fn rows(&self) -> &[PinnedRow] {
        &self.rows
    }

    /// How many leading tokens of the prompt are covered.
    #[must_use]
    pub fn reach(&self) -> u32 {
        self.reach
    }

    /// The row that ends exactly at `reach`: its partial state and logits fit.
    #[must_use]
    pub fn boundary(&self) -> Option<&PinnedRow> {
        self.rows.last().filter(|_| self.ends_on_row)
    }

    /// Whether the logits after the last covered token are stored.
    #[must_use]
    pub fn has_logits(&self) -> bool {
        self.boundary().is_some_and(|row| row.length(PartKind::Logits).is_some())
    }
}

/// A whole row, held, with everything that its file would say of it.
pub(crate) struct HeldRow {
    pub(crate) row: PinnedRow,
    /// The tokens of its own segment.
    pub(crate) tokens: Vec<u32>,
    pub(crate) owners: Vec<OwnerId>,
    /// Keeps the row.
    _lease: Lease,
}

/// See the module.
pub(crate) struct Lookup {
    reader: Arc<RowReader>,
}

impl Lookup {
    pub(crate) fn new(reader: RowReader) -> Self {
        Self { reader: Arc::new(reader) }
    }

    fn index(&self) -> &Arc<SharedIndex> {
        &self.reader.remover.index
    }

    fn counters(&self) -> &Counters {
        &self.reader.remover.counters
    }

    /// The longest stored prefix of a prompt, pinned.
    pub(crate) fn longest(&self, namespace: &Namespace, tokens: &[u32], needs: Needs) -> Option<RestorePlan> {
        let started = Instant::now();
        let counters = self.counters();
        counters.probes.increment();
        let mut index = self.index().lock();
        let found = index.find(namespace, tokens, needs);
        let plan = found.map(|found| self.plan(&mut index, found, Use::Hit));
        drop(index);
        counters.lookup_nanos.add_nanos(started.elapsed());
        match &plan {
            Some(plan) if plan.reach as usize == tokens.len() && plan.ends_on_row => counters.hits_exact.increment(),
            Some(_) => counters.hits_longest_prefix.increment(),
            None => counters.misses.increment(),
        }
        plan
    }

    /// The named row, if it is stored and all its tokens begin the prompt.
    pub(crate) fn resume(&self, namespace: &Namespace, tokens: &[u32], key: &Key, needs: Needs) -> Option<RestorePlan> {
        let started = Instant::now();
        let plan = self.named_row(namespace, tokens, key, needs);
        self.counters().lookup_nanos.add_nanos(started.elapsed());
        if plan.is_some() {
            self.counters().hits_resume.increment();
        }
        plan
    }

    fn named_row(&self, namespace: &Namespace, tokens: &[u32], key: &Key, needs: Needs) -> Option<RestorePlan> {
        self.counters().probes.increment();
        let mut index = self.index().lock();
        let id = index.by_key(key)?;
        let meta = &index.row(id).meta;
        if meta.namespace != *namespace || !tokens.starts_with(&index.tokens_of(id)) {
            return None;
        }
        let found = index.chain(id, meta.token_count, needs)?;
        Some(self.plan(&mut index, found, Use::Hit))
    }

    /// The attention state of all tokens of a row. Does not count as a hit.
    pub(crate) fn chain_of(&self, key: &Key) -> Option<RestorePlan> {
        let mut index = self.index().lock();
        let id = index.by_key(key)?;
        let found = index.chain(id, index.row(id).meta.token_count, Needs::ATTENTION)?;
        Some(self.plan(&mut index, found, Use::Extended))
    }

    /// A row, held whole. Does not count as a hit.
    pub(crate) fn hold(&self, key: &Key) -> Option<HeldRow> {
        let mut index = self.index().lock();
        let id = index.by_key(key)?;
        Some(self.hold_id(&mut index, id))
    }

    /// A row and all rows that it builds on, root first, held whole. Does not count as a hit.
    pub(crate) fn ancestry(&self, key: &Key) -> Option<Vec<HeldRow>> {
        let mut index = self.index().lock();
        let mut next = Some(index.by_key(key)?);
        let mut rows = Vec::new();
        while let Some(id) = next {
            next = index.row(id).parent;
            rows.push(self.hold_id(&mut index, id));
        }
        drop(index);
        rows.reverse();
        Some(rows)
    }

    fn hold_id(&self, index: &mut Index, id: RowId) -> HeldRow {
        let row = index.row(id);
        let std::ops::Range { start: from, end: to } = row.meta.own_range();
        let pinned = PinnedRow::new(&self.reader, row, Link { row: id, from, to });
        let owners = row.owners.clone();
        let tokens = index.tokens_of(id).split_off(from as usize);
        HeldRow { row: pinned, tokens, owners, _lease: Lease::take(self.index(), index, vec![id]) }
    }

    /// A named row for a new one that stores the tokens from `start` on itself, pinned. `None` if the row is gone or ends
    /// before.
    pub(crate) fn base_at(&self, key: &Key, start: u32) -> Option<SaveBase> {
        let mut index = self.index().lock();
        let id = index.by_key(key).filter(|id| start <= index.row(*id).meta.token_count)?;
        Some(SaveBase::hold(self.index(), &mut index, id, start))
    }

    /// The row that a new one should build on, pinned.
    pub(crate) fn base_for(&self, namespace: &Namespace, tokens: &[u32], tier: Tier) -> Option<SaveBase> {
        let mut index = self.index().lock();
        let (row, start) = index.base(namespace, tokens, tier)?;
        Some(SaveBase::hold(self.index(), &mut index, row, start))
    }

    fn plan(&self, index: &mut Index, found: Found, kind: Use) -> RestorePlan {
        let Found { mut links, reach, boundary } = found;
        // A boundary row without tokens of its own still brings its partial state and logits.
        if let Some(boundary) = boundary
            && links.last().is_none_or(|link| link.row != boundary)
        {
            links.push(Link { row: boundary, from: reach, to: reach });
        }
        let rows = links.iter().map(|link| PinnedRow::new(&self.reader, index.row(link.row), *link)).collect();
        let ids: Vec<RowId> = links.iter().map(|link| link.row).collect();
        if let Some(last) = ids.last() {
            index.touch_chain(*last, self.reader.clock.unix_seconds(), kind);
        }
        let lease = Lease::take(self.index(), index, ids);
        RestorePlan { rows, reach, ends_on_row: boundary.is_some(), _lease: lease }
    }
}
