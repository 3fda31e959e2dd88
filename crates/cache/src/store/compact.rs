//! Shortening chains: a row that builds on many small ones takes their tokens over, under its own name.
//!
//! The engine asks `long_chain` after a save, joins the bytes in the background, since only it knows their form, and hands
//! them to `compact`. The file is replaced in one step and the old chain is held until then, so that there is no moment,
//! a crash included, in which the row is missing. Rows that nothing builds on afterwards, and with tokens that the row now
//! holds itself, leave. It must never touch a row that is being read or written.

use std::sync::Arc;

use super::job::{Job, JobEnd, OldBase, RowDraft};
use super::lease::Lease;
use super::queue::WriteQueue;
use super::removal::Remover;
use super::save::{DropReason, SaveOutcome};
use crate::format::{FilePart, RowMeta};
use crate::identity::key::Key;
use crate::index::rows::{Payload, PayloadPart, Row, RowId, payload_bytes};
use crate::index::{DroppedFile, Index, Needs};
use crate::io::clock::Clock;
use crate::kinds::{EvictionCause, PartKind, Tier};

/// A row with a chain that is to become shorter.
#[derive(Debug)]
pub struct Compaction<'a> {
    /// The row.
    pub key: Key,
    /// Its own attention part covers the tokens from here on afterwards.
    pub start: u32,
    /// That part, and all other parts that the row has.
    pub parts: Vec<PayloadPart>,
    /// Rows of its chain that may leave although a model could go on from their partial state. Others with one stay.
    pub give_up: &'a [Key],
}

/// See the module.
pub(crate) struct Compactor {
    pub(crate) queue: Arc<WriteQueue>,
    pub(crate) remover: Arc<Remover>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Compactor {
    /// If the chain of a row has at least `limit` links: the token from which on they are better joined. A link that is
    /// a large part of the row and larger than all that follows, or that other rows build on too, stays as it is.
    pub(crate) fn long_chain(&self, key: &Key, limit: usize) -> Option<u32> {
        let index = self.remover.index.lock();
        let id = index.by_key(key)?;
        let count_of_row = index.row(id).meta.token_count;
        let links = index.chain(id, count_of_row, Needs::ATTENTION)?.links;
        if links.len() < limit.max(2) {
            return None;
        }
        let (mut start, mut joined, mut count) = (count_of_row, 0_u32, 0);
        for link in links.iter().rev() {
            let tokens = link.to - link.from;
            let stays = |row: &Row| row.children.len() > 1 || !row.has_part(PartKind::Attention);
            let stays = link.row != id && stays(index.row(link.row));
            let is_large = tokens > joined && tokens > count_of_row / 4;
            if count > 0 && (stays || is_large) {
                break;
            }
            (start, joined, count) = (link.from, joined + tokens, count + 1);
        }
        // Less would not shorten the chain by much.
        (count > limit / 2 && count >= 2).then_some(start)
    }

    /// Gives a row the attention state of all its tokens from `start` on, and builds it on the row that ends there.
    pub(crate) fn compact(&self, compaction: Compaction<'_>) -> SaveOutcome {
        let Compaction { key, start, parts, give_up } = compaction;
        let payload: Payload = Arc::from(parts);
        let shared = &self.remover.index;
        let mut index = shared.lock();
        let (id, tier, parent) = match self.check(&index, &key, start, &payload) {
            Ok(checked) => checked,
            Err(reason) => return SaveOutcome::Dropped(reason),
        };
        let row = index.row(id);
        let tokens = index.tokens_of(id).split_off(start as usize);
        let parent_key = parent.map(|parent| index.row(parent).key);
        let meta = RowMeta { parent: parent_key, start, hits: 0, last_used: row.meta.created, ..row.meta };
        let draft = RowDraft { key, meta, owners: row.owners.clone(), tokens, text: String::new() };
        let bytes = match tier {
            Tier::Ram => payload_bytes(&payload).saturating_sub(row.bytes_in(Tier::Ram)),
            Tier::RamFile | Tier::Disk => draft.file_bytes(&payload),
        };
        let (old_start, old_parent) = (row.meta.start, row.parent);
        let hold = old_parent.map(|parent| Lease::take(shared, &mut index, vec![parent]));
        // It must not be evicted to make room for itself.
        index.pin(id);
        let evicted = index.make_room(tier, bytes);
        index.unpin(id);
        self.remover.count(&evicted, EvictionCause::Room);
        let mut dropped = evicted.dropped;
        if !evicted.enough {
            drop(index);
            drop(hold);
            self.remover.remove_files(&dropped);
            return SaveOutcome::Dropped(DropReason::NoRoom);
        }
        let parts = parts_in(&index, id, tier);
        let old = OldBase { start: old_start, parent: old_parent, hold, give_up: give_up.to_vec(), parts };
        index.rebase(id, start, parent);
        if tier == Tier::Ram {
            index.set_ram(id, payload);
            dropped.extend(leave_old_base(&mut index, old, start));
            drop(index);
            self.remover.remove_files(&dropped);
            return SaveOutcome::Published;
        }
        index.leave_ram(id);
        index.set_pending(id, tier, Arc::clone(&payload), bytes);
        self.queue.push(Job { row: id, tier, draft, payload, bytes, done: None, old_base: Some(old) });
        drop(index);
        self.remover.remove_files(&dropped);
        SaveOutcome::Queued
    }

    /// The row, its tier and the row that holds the tokens before `start`, if the row can be compacted now.
    fn check(
        &self,
        index: &Index,
        key: &Key,
        start: u32,
        payload: &Payload,
    ) -> Result<(RowId, Tier, Option<RowId>), DropReason> {
        let id = index.by_key(key).ok_or(DropReason::ParentGone)?;
        let row = index.row(id);
        let has_attention = payload.iter().any(|part| part.kind == PartKind::Attention);
        let is_free = row.pins == 0 && row.pending.is_none();
        if !is_free || !has_attention || !row.is_covered_by(payload) || row.meta.start <= start {
            return Err(DropReason::Conflict);
        }
        let parent = ancestor_at(index, row, start);
        let tier = match (row.in_ram, row.spot(Tier::RamFile).is_some(), row.spot(Tier::Disk).is_some()) {
            (_, true, false) => Tier::RamFile,
            (_, false, true) => Tier::Disk,
            (true, false, false) => Tier::Ram,
            // In two files, or in none: not worth the trouble.
            _ => return Err(DropReason::Conflict),
        };
        if tier != Tier::Ram && index.reservations.is_taken(*key, tier, self.clock.now()) {
            return Err(DropReason::Conflict);
        }
        if tier != Tier::Ram && !self.queue.has_room(false) {
            return Err(DropReason::QueueFull);
        }
        Ok((id, tier, parent))
    }

    /// Takes out a row that nothing holds and nothing builds on, and that nobody pinned. Returns whether it left.
    pub(crate) fn remove_row(&self, key: &Key, cause: EvictionCause) -> bool {
        let mut index = self.remover.index.lock();
        let is_free = |id: &RowId| index.row(*id).is_idle() && !index.user_pins.contains(key);
        let Some(id) = index.by_key(key).filter(is_free) else { return false };
        let row = index.row(id);
        // Counted once, in the tier that it lasted in.
        let (tier, bytes) = row.durable_tier().map_or((Tier::Ram, 0), |tier| (tier, row.bytes_in(tier)));
        let dropped = index.remove_with_descendants(id);
        drop(index);
        self.remover.count_in(tier, cause, 1, bytes);
        self.remover.remove_files(&dropped);
        true
    }
}

/// The new file of a compacted row is in its place, or will never be.
pub(super) fn end_compaction(remover: &Remover, job: &Job, old: OldBase, end: JobEnd) {
    let mut index = remover.index.lock();
    // A writer may have failed with the new file in its place already; then the row is what that file is.
    let is_replaced = match (&parts_in(&index, job.row, job.tier), &old.parts) {
        (Some(now), Some(before)) => !Arc::ptr_eq(now, before),
        _ => false,
    };
    let dropped = if end == JobEnd::Failed && !is_replaced {
        // It keeps its old file, unless its old chain was found damaged meanwhile.
        index.rebase(job.row, old.start, old.parent);
        let is_broken = old.parent.is_some_and(|parent| index.row(parent).doomed);
        let dropped = if is_broken { index.remove_with_descendants(job.row) } else { Vec::new() };
        old.hold.into_iter().for_each(|hold| hold.end(&mut index));
        dropped
    } else {
        leave_old_base(&mut index, old, job.draft.meta.start)
    };
    drop(index);
    remover.remove_files(&dropped);
}

/// Lets go of the row that a compacted row was built on, and takes the rows of the old chain out that nothing needs.
fn leave_old_base(index: &mut Index, old: OldBase, start: u32) -> Vec<DroppedFile> {
    let is_there = old.parent.is_some_and(|parent| !index.row(parent).doomed);
    old.hold.into_iter().for_each(|hold| hold.end(index));
    remove_covered(index, old.parent.filter(|_| is_there), start, &old.give_up)
}

/// The parts of a row's file in a tier: the same ones, and not only equal ones, until the file is another.
fn parts_in(index: &Index, id: RowId, tier: Tier) -> Option<Arc<[FilePart]>> {
    index.row(id).spot(tier).map(|spot| Arc::clone(&spot.parts))
}

/// The row that holds the tokens before `start` in this row's chain. `None` if there are none.
fn ancestor_at(index: &Index, row: &Row, start: u32) -> Option<RowId> {
    let mut next = row.parent.filter(|_| start > 0)?;
    while index.row(next).meta.start >= start {
        next = above(index.row(next));
    }
    assert!(start <= index.row(next).meta.token_count, "invariant: a chain has no gap");
    Some(next)
}

#[expect(clippy::expect_used, reason = "a row that starts after the first token builds on another")]
fn above(row: &Row) -> RowId {
    row.parent.expect("invariant: a chain begins at the first token")
}

/// Takes rows out that nothing builds on and with tokens from `start` on that another row now holds. One with a partial
/// state stays unless it was named: a model that cannot be cut can go on from nowhere else.
fn remove_covered(index: &mut Index, from: Option<RowId>, start: u32, give_up: &[Key]) -> Vec<DroppedFile> {
    let mut dropped = Vec::new();
    let mut next = from;
    while let Some(id) = next {
        let row = index.row(id);
        let is_boundary = row.has_part(PartKind::Partial) && !give_up.contains(&row.key);
        if !row.is_idle() || row.meta.start < start || is_boundary || index.user_pins.contains(&row.key) {
            break;
        }
        next = row.parent;
        dropped.extend(index.remove_with_descendants(id));
    }
    dropped
}
