//! Age and room: touching rows on use, and choosing what a tier gives up.
//!
//! Called by the store when a plan is made, a save needs room, or somebody asks for bytes. Never drops a
//! pinned row, a row that is being written, or a row that a stored row still builds on.

use std::ops::Bound;

use super::{Gone, Index};
use crate::rows::{Row, RowId};
use crate::words::Tier;

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
    pub(crate) fn take_dirty(&mut self) -> Vec<(crate::key::Key, Vec<Tier>, u32, u64)> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut touched = Vec::with_capacity(dirty.len());
        for id in dirty {
            let Some(row) = self.row_mut(id).filter(|row| row.dirty) else { continue };
            row.dirty = false;
            let tiers: Vec<Tier> =
                [Tier::RamFile, Tier::Disk].into_iter().filter(|tier| row.resides_in(*tier)).collect();
            if !tiers.is_empty() && !row.doomed {
                touched.push((row.key, tiers, row.hits, row.last_used));
            }
        }
        touched
    }

    /// Makes room for `bytes` more in `tier`. `None` if that is impossible now.
    pub(crate) fn make_room(&mut self, tier: Tier, bytes: u64) -> Option<Evicted> {
        let wanted = self.used(tier).saturating_add(self.incoming(tier)).saturating_add(bytes);
        let excess = wanted.saturating_sub(self.quota(tier));
        if bytes > self.quota(tier) {
            return None;
        }
        let evicted = self.evict(tier, excess);
        (evicted.bytes >= excess).then_some(evicted)
    }

    /// Gives up at least `bytes` of a tier, oldest first, or all that can be given up.
    pub(crate) fn evict(&mut self, tier: Tier, bytes: u64) -> Evicted {
        let mut evicted = Evicted::default();
        let mut from = Bound::Unbounded;
        while evicted.bytes < bytes {
            let Some(lru) = self.lru.get(tier.index()) else { break };
            // A row sorts before the rows it builds on, so what this pass frees is met further on, never behind.
            let next =
                lru.range((from, Bound::Unbounded)).find(|entry| self.can_leave(entry.3, tier)).copied();
            let Some(entry) = next else { break };
            from = Bound::Excluded(entry);
            let id = entry.3;
            evicted.bytes += self.row(id).map_or(0, |row| row.bytes_in(tier));
            evicted.rows += 1;
            evicted.gone.extend(self.leave_tier(id, tier));
            if !self.row(id).is_some_and(Row::is_stored) {
                evicted.gone.extend(self.remove_with_descendants(id));
            }
        }
        evicted
    }

    fn can_leave(&self, id: RowId, tier: Tier) -> bool {
        let Some(row) = self.row(id) else { return false };
        if row.pins > 0 || row.pending.is_some() || self.reservations.is_busy(row.key, tier) {
            return false;
        }
        row.children.iter().filter_map(|child| self.row(*child)).all(|child| {
            let needed = Tier::ALL
                .into_iter()
                .rev()
                .find(|other| child.resides_in(*other) || child.pending == Some(*other))
                .unwrap_or(Tier::Ram);
            Tier::ALL.into_iter().any(|other| other != tier && other >= needed && row.resides_in(other))
        })
    }
}
