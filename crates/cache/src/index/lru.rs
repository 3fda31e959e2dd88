//! Age and room: touching rows on use, and choosing what a tier gives up.
//!
//! Called by the store when a plan is made, a save needs room, or somebody asks for bytes. Never drops a
//! pinned row, a row that is being written, or a row that a stored row still builds on.

use std::collections::HashSet;
use std::ops::Bound;

use super::table::{Gone, Index};
use crate::identity::owner::OwnerId;
use crate::index::rows::{Row, RowId};
use crate::kinds::Tier;

/// A row used now, and whether that counts as a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A request was served from it.
    Hit,
    /// Another row was built on it.
    Extended,
}

/// What making room came to.
#[derive(Debug, Default)]
pub(crate) struct Evicted {
    /// Files to remove.
    pub(crate) gone: Vec<Gone>,
    /// Bytes given up, in memory and in files.
    pub(crate) bytes: u64,
    /// How many rows left the tier.
    pub(crate) rows: u64,
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
        let mut next = Some(id);
        while let Some(id) = next {
            let Some(row) = self.row_mut(id) else { break };
            next = row.parent;
            let before = row.lru_key(id);
            row.last_used = row.last_used.max(now);
            if kind == Use::Hit {
                row.hits = row.hits.saturating_add(1);
            }
            let after = row.lru_key(id);
            let resides = Tier::ALL.map(|tier| row.resides_in(tier));
            let newly_dirty = !std::mem::replace(&mut row.dirty, true);
            if newly_dirty {
                self.dirty.push(id);
            }
            for (lru, resides) in self.lru.iter_mut().zip(resides) {
                if resides && lru.remove(&before) {
                    lru.insert(after);
                }
            }
        }
    }

    /// Rows whose hits or last use changed since the last call: key, file tiers, hits, last use.
    pub(crate) fn take_dirty(&mut self) -> Vec<(crate::identity::key::Key, Vec<Tier>, u32, u64)> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut touched = Vec::with_capacity(dirty.len());
        for id in dirty {
            let Some(row) = self.row_mut(id).filter(|row| row.dirty) else { continue };
            if row.pending.is_some() && !row.doomed {
                // Its file is still to come, and will know nothing of this use.
                self.dirty.push(id);
                continue;
            }
            row.dirty = false;
            let tiers: Vec<Tier> =
                [Tier::RamFile, Tier::Disk].into_iter().filter(|tier| row.resides_in(*tier)).collect();
            if !tiers.is_empty() && !row.doomed {
                touched.push((row.key, tiers, row.hits, row.last_used));
            }
        }
        touched
    }

    /// Makes room for `bytes` more in `tier`; gives up nothing if that is impossible now.
    pub(crate) fn make_room(&mut self, tier: Tier, bytes: u64) -> Evicted {
        if bytes > self.quota(tier) {
            return Evicted::default();
        }
        let wanted = self.used(tier).saturating_add(self.incoming(tier)).saturating_add(bytes);
        let excess = wanted.saturating_sub(self.quota(tier));
        let chosen = self.choose(tier, excess, None);
        if chosen.bytes < excess {
            return Evicted::default();
        }
        Evicted { enough: true, ..self.give_up(tier, &chosen) }
    }

    /// Gives up at least `bytes` of a tier, oldest first, or all that can be given up.
    /// With an owner only rows that are its own and nobody else's.
    pub(crate) fn evict(&mut self, tier: Tier, bytes: u64, owner: Option<OwnerId>) -> Evicted {
        let chosen = self.choose(tier, bytes, owner);
        Evicted { enough: chosen.bytes >= bytes, ..self.give_up(tier, &chosen) }
    }

    /// The rows to give up for `bytes` of a tier, in their order; all that can go if that is not enough.
    fn choose(&self, tier: Tier, bytes: u64, owner: Option<OwnerId>) -> Chosen {
        let is_open = |id: RowId| owner.is_none_or(|owner| self.row(id).is_some_and(|row| row.owners == [owner]));
        let mut chosen = Chosen::default();
        let mut leaving = HashSet::new();
        let mut from = Bound::Unbounded;
        let Some(lru) = self.lru.get(tier.index()) else { return chosen };
        while chosen.bytes < bytes {
            let mut older_first = lru.range((from, Bound::Unbounded));
            let next = older_first.find(|entry| {
                !leaving.contains(&entry.3) && is_open(entry.3) && self.can_leave(entry.3, tier, &leaving)
            });
            let Some(entry) = next.copied() else { break };
            let id = entry.3;
            // A row mostly sorts before the row it builds on, which is met further on. But a parent may be longer
            // than its child, and uses are written into files by best effort, so that it may seem older.
            let parent = self.row(id).and_then(|row| row.parent);
            let parent = parent.and_then(|parent| self.row(parent).map(|row| row.lru_key(parent)));
            from = parent.filter(|parent| *parent < entry).map_or(Bound::Excluded(entry), Bound::Included);
            chosen.bytes += self.row(id).map_or(0, |row| row.bytes_in(tier));
            chosen.rows.push(id);
            leaving.insert(id);
        }
        chosen
    }

    fn give_up(&mut self, tier: Tier, chosen: &Chosen) -> Evicted {
        let mut evicted = Evicted { bytes: chosen.bytes, rows: chosen.rows.len() as u64, ..Evicted::default() };
        for &id in &chosen.rows {
            evicted.gone.extend(self.leave_tier(id, tier));
            if !self.row(id).is_some_and(Row::is_stored) {
                evicted.gone.extend(self.remove_with_descendants(id));
            }
        }
        evicted
    }

    /// Whether a row may leave a tier once the rows `leaving` have left it.
    fn can_leave(&self, id: RowId, tier: Tier, leaving: &HashSet<RowId>) -> bool {
        let Some(row) = self.row(id) else { return false };
        if row.pins > 0 || row.pending.is_some() || self.reservations.is_busy(row.key, tier) {
            return false;
        }
        row.children.iter().filter_map(|child| self.row(*child).map(|row| (child, row))).all(|(child_id, child)| {
            let leaves = |other| other == tier && leaving.contains(child_id);
            let stays = |other| child.pending == Some(other) || (child.resides_in(other) && !leaves(other));
            let needed = Tier::ALL.into_iter().rev().find(|other| stays(*other));
            let holds =
                |needed| Tier::ALL.into_iter().any(|other| other != tier && other >= needed && row.resides_in(other));
            needed.is_none_or(holds)
        })
    }
}
