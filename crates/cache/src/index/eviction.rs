//! Age and room: touching rows on use, and choosing what a tier gives up.
//!
//! Called by the store when a plan is made, a save needs room, or a caller asks for bytes. It must never drop a leased
//! row, a row that somebody pinned, a row that is being written, or a row that a stored row still builds on.

use std::collections::HashSet;
use std::ops::Bound;

use super::rows::{Row, RowId};
use super::table::{DroppedFile, Index};
use crate::identity::key::Key;
use crate::identity::owner::OwnerId;
use crate::kinds::Tier;

/// Hits and last use of a row that its files do not have yet.
#[derive(Debug)]
pub(crate) struct Touched {
    pub(crate) key: Key,
    /// The file tiers that hold it.
    pub(crate) tiers: Vec<Tier>,
    pub(crate) hits: u32,
    pub(crate) last_used: u64,
}

/// A row used now, and whether that counts as a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A request was served from it.
    Hit,
    /// Another row was built on it.
    Extended,
}

/// The result of an eviction.
#[derive(Debug, Default)]
pub(crate) struct Evicted {
    /// Files to remove.
    pub(crate) dropped: Vec<DroppedFile>,
    /// Bytes given up, in memory and in files.
    pub(crate) bytes: u64,
    /// How many rows left the tiers.
    pub(crate) rows: u64,
    /// Rows and bytes by tier, in the order of the tiers.
    pub(crate) by_tier: [(u64, u64); 3],
    /// Whether that was as much as was asked for.
    pub(crate) enough: bool,
}

/// Rows that a tier can do without.
#[derive(Debug, Default)]
struct Chosen {
    rows: Vec<RowId>,
    bytes: u64,
}

impl Index {
    /// Notes a use of the row and of every row of its chain.
    pub(crate) fn touch_chain(&mut self, id: RowId, now: u64, kind: Use) {
        let now = now.max(self.latest_use);
        self.latest_use = now;
        let mut next = Some(id);
        while let Some(id) = next {
            let row = self.row_mut(id);
            next = row.parent;
            let before = row.lru_key(id);
            row.meta.last_used = row.meta.last_used.max(now);
            if kind == Use::Hit {
                row.meta.hits = row.meta.hits.saturating_add(1);
            }
            let after = row.lru_key(id);
            let resides = Tier::ALL.map(|tier| row.resides_in(tier));
            self.mark_dirty(id);
            for (tier, resides) in Tier::ALL.into_iter().zip(resides) {
                if resides {
                    self.ledger_mut(tier).reorder(&before, after);
                }
            }
        }
    }

    /// Rows with hits or a last use that changed since the last call.
    pub(crate) fn take_touched(&mut self) -> Vec<Touched> {
        let marked = self.take_marked();
        let mut touched = Vec::with_capacity(marked.len());
        for id in marked {
            if self.live(id).is_none_or(|row| !row.dirty) {
                continue;
            }
            let row = self.row_mut(id);
            if row.pending.is_some() {
                // Its file is still to come, and will know nothing of this use.
                self.keep_mark(id);
                continue;
            }
            row.dirty = false;
            let tiers: Vec<Tier> = Tier::FILES.into_iter().filter(|tier| row.resides_in(*tier)).collect();
            if !tiers.is_empty() {
                touched.push(Touched { key: row.key, tiers, hits: row.meta.hits, last_used: row.meta.last_used });
            }
        }
        touched
    }

    /// Makes room for `bytes` more in `tier`; gives up nothing if that is impossible now.
    pub(crate) fn make_room(&mut self, tier: Tier, bytes: u64) -> Evicted {
        let Some(excess) = self.ledger(tier).excess(bytes) else { return Evicted::default() };
        let chosen = self.choose(tier, excess, None);
        if chosen.bytes < excess {
            return Evicted::default();
        }
        Evicted { enough: true, ..self.give_up(tier, &chosen) }
    }

    /// Gives up at least `bytes` of these tiers, fastest tier first and oldest rows first within each, or all that can be
    /// given up. With an owner only rows that are its own and nobody else's.
    pub(crate) fn evict(&mut self, bytes: u64, tiers: &[Tier], owner: Option<OwnerId>) -> Evicted {
        let mut sum = Evicted::default();
        for tier in Tier::ALL.into_iter().filter(|tier| tiers.contains(tier)) {
            let chosen = self.choose(tier, bytes.saturating_sub(sum.bytes), owner);
            let evicted = self.give_up(tier, &chosen);
            sum.bytes = sum.bytes.saturating_add(evicted.bytes);
            sum.rows += evicted.rows;
            for (sum, more) in sum.by_tier.iter_mut().zip(evicted.by_tier) {
                *sum = (sum.0 + more.0, sum.1.saturating_add(more.1));
            }
            sum.dropped.extend(evicted.dropped);
        }
        sum.enough = sum.bytes >= bytes;
        sum
    }

    /// The rows to give up for `bytes` of a tier, in their order; all that can go if that is not enough.
    fn choose(&self, tier: Tier, bytes: u64, owner: Option<OwnerId>) -> Chosen {
        let is_open = |id: RowId| owner.is_none_or(|owner| self.row(id).owners == [owner]);
        let mut chosen = Chosen::default();
        let mut leaving = HashSet::new();
        let mut from = Bound::Unbounded;
        while chosen.bytes < bytes {
            let mut older_first = self.ledger(tier).from(from);
            let next = older_first.find(|entry| {
                !leaving.contains(&entry.3) && is_open(entry.3) && self.can_leave(entry.3, tier, &leaving)
            });
            let Some(entry) = next.copied() else { break };
            let row = self.row(entry.3);
            // A row mostly sorts before the row it builds on, which is met further on. But a parent may be longer
            // than its child, and uses are written into files by best effort, so that it may seem older.
            let parent = row.parent.map(|parent| self.row(parent).lru_key(parent));
            from = parent.filter(|parent| *parent < entry).map_or(Bound::Excluded(entry), Bound::Included);
            chosen.bytes += row.bytes_in(tier);
            chosen.rows.push(entry.3);
            leaving.insert(entry.3);
        }
        chosen
    }

    fn give_up(&mut self, tier: Tier, chosen: &Chosen) -> Evicted {
        let (bytes, rows) = (chosen.bytes, chosen.rows.len() as u64);
        let by_tier = Tier::ALL.map(|other| if other == tier { (rows, bytes) } else { (0, 0) });
        let mut evicted = Evicted { bytes, rows, by_tier, ..Evicted::default() };
        for &id in &chosen.rows {
            evicted.dropped.extend(self.drop_copy(id, tier));
        }
        evicted
    }

    /// Whether a row may leave a tier once the rows `leaving` have left it.
    fn can_leave(&self, id: RowId, tier: Tier, leaving: &HashSet<RowId>) -> bool {
        let row = self.row(id);
        let is_held = row.pins > 0 || row.pending.is_some() || self.is_kept_in(id, tier);
        if is_held || self.reservations.is_busy(row.key, tier) {
            return false;
        }
        row.children.iter().all(|child_id| {
            let child: &Row = self.row(*child_id);
            let leaves = |other| other == tier && leaving.contains(child_id);
            let stays = |other| child.pending == Some(other) || (child.resides_in(other) && !leaves(other));
            let needed = Tier::ALL.into_iter().rev().find(|other| stays(*other));
            let holds =
                |needed| Tier::ALL.into_iter().any(|other| other != tier && other >= needed && row.resides_in(other));
            needed.is_none_or(holds)
        })
    }
}
