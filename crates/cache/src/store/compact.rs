//! Shortening chains: a row that hangs on many small ones takes their tokens over, under its own name.
//!
//! The engine asks `long_chain` after a save, joins the bytes in the background, since only it knows their form, and hands
//! them to `compact`. The file is replaced in one step and the old chain is held until then, so that there is no moment,
//! a crash included, in which the row is missing. Rows that nothing builds on any more, and whose tokens the row now
//! holds itself, leave afterwards. Never touches a row that somebody reads or writes.

use std::sync::Arc;

use crate::error::CacheError;
use crate::format::Part;
use crate::index::{Gone, Index, Needs};
use crate::identity::key::Key;
use crate::store::lease::Lease;
use crate::store::publish::Draft;
use crate::index::rows::{Payload, PayloadPart, Row, RowId, payload_bytes};
use crate::store::save::{DropReason, SaveOutcome, file_bytes, owner_bytes};
use crate::store::store::Store;
use crate::kinds::{PartKind, Tier};
use crate::store::writer::{Job, JobEnd};

/// Where a row hung before it was compacted, held until the new file is in its place.
#[derive(Debug)]
pub(crate) struct OldPlace {
    start: u32,
    parent: Option<RowId>,
    /// `None` if the row hung on nothing.
    _hold: Option<Lease>,
    give_up: Vec<Key>,
    /// The parts of the file that it had. `None` if it had none.
    parts: Option<Arc<[Part]>>,
}

/// A row whose chain is to become shorter.
#[derive(Debug)]
pub struct Compaction<'a> {
    /// The row.
    pub key: Key,
    /// Its own attention part covers the tokens from here on afterwards.
    pub start: u32,
    /// That part, and whatever other parts the row has.
    pub parts: Vec<PayloadPart>,
    /// Rows of its chain that may leave although a model could go on from their partial state. Others with one stay.
    pub give_up: &'a [Key],
}

impl Store {
    /// If the chain of a row has at least `limit` links: the token from which on they are better joined. A link that is
    /// a large part of the row and larger than all that follows, or that other rows build on too, stays as it is.
    pub(crate) fn long_chain(&self, key: &Key, limit: usize) -> Option<u32> {
        let index = self.index.lock();
        let id = index.by_key(key)?;
        let row = index.row(id)?;
        let links = index.chain(id, row.token_count, Needs::ATTENTION)?.links;
        if links.len() < limit.max(2) {
            return None;
        }
        let (mut start, mut joined, mut count) = (row.token_count, 0_u32, 0);
        for link in links.iter().rev() {
            let tokens = link.to.saturating_sub(link.from);
            let stays = |row: &Row| row.children.len() > 1 || !row.has_part(PartKind::Attention);
            let stays = link.row != id && index.row(link.row).is_none_or(stays);
            let is_large = tokens > joined && tokens > row.token_count / 4;
            if count > 0 && (stays || is_large) {
                break;
            }
            (start, joined, count) = (link.from, joined.saturating_add(tokens), count + 1);
        }
        // Less would not shorten the chain by much.
        (count > limit / 2 && count >= 2).then_some(start)
    }

    /// Gives a row the attention state of all its tokens from `start` on, and hangs it on the row that ends there.
    pub(crate) fn compact(self: &Arc<Self>, compaction: Compaction<'_>) -> Result<SaveOutcome, CacheError> {
        let Compaction { key, start, parts, give_up } = compaction;
        let payload: Payload = Arc::from(parts);
        let mut index = self.index.lock();
        let dropped = |reason| Ok(SaveOutcome::Dropped(reason));
        let Some(id) = index.by_key(&key) else { return dropped(DropReason::ParentGone) };
        let Some(row) = index.row(id) else { return dropped(DropReason::ParentGone) };
        if row.pins > 0 || row.pending.is_some() || !has_all(row, &payload) || row.start <= start {
            return dropped(DropReason::Conflict);
        }
        let Some(parent) = ancestor_at(&index, row, start) else { return dropped(DropReason::ParentGone) };
        let tier = match (row.in_ram, row.spot(Tier::RamFile).is_some(), row.spot(Tier::Disk).is_some()) {
            (_, true, false) => Tier::RamFile,
            (_, false, true) => Tier::Disk,
            (true, false, false) => Tier::Ram,
            // In two files, or in none: not worth the trouble.
            _ => return dropped(DropReason::Conflict),
        };
        let suffix = index.tokens_of(id).and_then(|tokens| tokens.get(start as usize..).map(<[u32]>::to_vec));
        let (Some(tokens), Some(namespace)) = (suffix, index.namespace_of(row)) else {
            return dropped(DropReason::ParentGone);
        };
        let draft = Draft {
            key,
            namespace,
            mode: row.mode,
            reason: row.reason,
            reason_detail: None,
            owners: row.owners.clone(),
            flags: row.flags,
            context_size: row.context_size,
            created: row.created,
            parent: parent.and_then(|parent| index.row(parent)).map(|parent| parent.key),
            start,
            tokens,
            text: String::new(),
        };
        let bytes = match tier {
            Tier::Ram => payload_bytes(&payload).saturating_sub(row.bytes_in(Tier::Ram)),
            Tier::RamFile | Tier::Disk => file_bytes(&payload, draft.tokens.len(), owner_bytes(&draft.owners)),
        };
        let (old_start, old_parent) = (row.start, row.parent);
        if tier != Tier::Ram && index.reservations.is_taken(key, tier, self.config.clock.now()) {
            return dropped(DropReason::Conflict);
        }
        if tier != Tier::Ram && !self.queue.has_room(false) {
            return dropped(DropReason::QueueFull);
        }
        let hold = old_parent.map(|parent| Lease::take(self, &mut index, vec![parent]));
        // It must not be evicted to make room for itself.
        index.pin(id);
        let evicted = index.make_room(tier, bytes);
        index.unpin(id);
        self.counters.evictions.add(evicted.rows);
        let mut gone = evicted.gone;
        if !evicted.enough {
            drop(index);
            drop(hold);
            self.remove_files(&gone);
            return dropped(DropReason::NoRoom);
        }
        let parts = parts_in(&index, id, tier);
        let was = OldPlace { start: old_start, parent: old_parent, _hold: hold, give_up: give_up.to_vec(), parts };
        index.rehang(id, start, parent);
        if tier == Tier::Ram {
            index.set_ram(id, Some(payload));
            drop(index);
            let OldPlace { _hold: hold, .. } = was;
            drop(hold);
            gone.extend(remove_covered(&mut self.index.lock(), old_parent, start, give_up));
            self.remove_files(&gone);
            return Ok(SaveOutcome::Published);
        }
        index.leave_ram(id);
        index.set_pending(id, tier, Arc::clone(&payload), bytes);
        self.queue.push(Job { row: id, tier, draft, payload, bytes, done: None, was: Some(was) });
        drop(index);
        self.remove_files(&gone);
        Ok(SaveOutcome::Queued)
    }

    /// Takes out a row that nobody holds and nothing builds on. Says whether it left.
    pub(crate) fn remove_row(&self, key: &Key) -> bool {
        let mut index = self.index.lock();
        let Some(id) = index.by_key(key) else { return false };
        let Some(row) = index.row(id) else { return false };
        if row.pins > 0 || row.pending.is_some() || !row.children.is_empty() {
            return false;
        }
        let gone = index.remove_with_descendants(id);
        drop(index);
        self.counters.evictions.increment();
        self.remove_files(&gone);
        true
    }

    /// The new file of a compacted row is in its place, or will never be.
    pub(crate) fn end_compaction(&self, job: &Job, was: OldPlace, end: JobEnd) {
        let mut index = self.index.lock();
        // A writer may have failed with the new file in its place already; then the row is what that file is.
        let parts = parts_in(&index, job.row, job.tier);
        let is_replaced = match (&parts, &was.parts) {
            (Some(now), Some(before)) => !Arc::ptr_eq(now, before),
            _ => false,
        };
        if end == JobEnd::Failed && !is_replaced {
            // Its old file is what it has, unless its old chain was found damaged meanwhile.
            index.rehang(job.row, was.start, was.parent);
            let is_broken = was.parent.is_some_and(|parent| index.row(parent).is_none_or(|row| row.doomed));
            let gone = if is_broken { index.remove_with_descendants(job.row) } else { Vec::new() };
            drop(index);
            self.remove_files(&gone);
            return;
        }
        drop(index);
        let OldPlace { parent, _hold: hold, give_up, .. } = was;
        drop(hold);
        index = self.index.lock();
        let gone = remove_covered(&mut index, parent, job.draft.start, &give_up);
        drop(index);
        self.remove_files(&gone);
    }
}

/// The parts of a row's file in a tier: the same ones, and not only equal ones, until the file is another.
fn parts_in(index: &Index, id: RowId, tier: Tier) -> Option<Arc<[Part]>> {
    index.row(id)?.spot(tier).map(|spot| Arc::clone(&spot.parts))
}

/// Whether a payload has every part that the row has.
fn has_all(row: &Row, payload: &Payload) -> bool {
    let given = |kind| payload.iter().any(|part| part.kind == kind);
    given(PartKind::Attention) && PartKind::ALL.into_iter().all(|kind| !row.has_part(kind) || given(kind))
}

/// The row that holds the tokens before `start` in this row's chain: `Some(None)` if there are none.
#[expect(clippy::option_option, reason = "nothing found, and nothing needed")]
fn ancestor_at(index: &Index, row: &Row, start: u32) -> Option<Option<RowId>> {
    if start == 0 {
        return Some(None);
    }
    let mut next = row.parent;
    while let Some(id) = next {
        let ancestor = index.row(id)?;
        if ancestor.start < start && start <= ancestor.token_count {
            return Some(Some(id));
        }
        next = ancestor.parent;
    }
    None
}

/// Takes rows out that nothing builds on and whose tokens from `start` on another row now holds. One with a partial
/// state stays unless it was named: a model that cannot be cut can go on from nowhere else.
fn remove_covered(index: &mut Index, from: Option<RowId>, start: u32, give_up: &[Key]) -> Vec<Gone> {
    let mut gone = Vec::new();
    let mut next = from;
    while let Some(id) = next {
        let Some(row) = index.row(id).filter(|row| !row.doomed) else { break };
        let in_use = row.pins > 0 || row.pending.is_some() || !row.children.is_empty();
        let is_boundary = row.has_part(PartKind::Partial) && !give_up.contains(&row.key);
        if in_use || row.start < start || is_boundary || row.has_part(PartKind::Whole) {
            break;
        }
        next = row.parent;
        gone.extend(index.remove_with_descendants(id));
    }
    gone
}
