//! Giving bytes back on request: `clear`, `gc`, `evict_bytes` and the pressure watcher.
//!
//! The index chooses, this file removes the files of the rows that it chose. It must never touch a leased row or one that
//! is being written.

use std::sync::Arc;

use super::removal::Remover;
use crate::format::{self, FileNameKind};
use crate::identity::owner::OwnerId;
use crate::kinds::{EvictionCause, Tier};

/// See the module.
pub(crate) struct Evictor {
    pub(crate) remover: Arc<Remover>,
}

impl Evictor {
    /// Frees at least `bytes` in the given tiers, oldest rows first within each tier, fastest tier first. Returns
    /// the bytes freed, which is less only if nothing more could be freed.
    ///
    /// With an owner only rows go that are its own and nobody else's.
    pub(crate) fn evict_bytes(&self, bytes: u64, tiers: &[Tier], owner: Option<OwnerId>, cause: EvictionCause) -> u64 {
        let evicted = self.remover.index.lock().evict(bytes, tiers, owner);
        self.remover.count(&evicted, cause);
        self.remover.remove_files(&evicted.dropped);
        self.remover.index.notify();
        evicted.bytes
    }

    /// Evicts until every tier is within its quota, which may have been lowered since its folder was written.
    pub(crate) fn shrink_to_quotas(&self) {
        let unpinned = self.remover.index.lock().drop_excess_pins();
        if unpinned > 0 {
            tracing::warn!(rows = unpinned, "pinned rows take more than half of their tier; these are not pinned now");
        }
        for tier in Tier::ALL {
            let excess = {
                let index = self.remover.index.lock();
                index.used(tier).saturating_sub(index.quota(tier))
            };
            self.evict_bytes(excess, &[tier], None, EvictionCause::Quota);
        }
    }

    /// Drops every row that nothing holds, and the files that were moved aside. Returns the bytes freed.
    pub(crate) fn clear(&self) -> u64 {
        self.evict_bytes(u64::MAX, &Tier::ALL, None, EvictionCause::Asked) + self.gc()
    }

    /// Removes the files that were moved aside as damaged. Returns the bytes freed.
    pub(crate) fn gc(&self) -> u64 {
        let fs = self.remover.tiers.fs();
        let mut freed = 0;
        for tier in self.remover.tiers.all() {
            let folders = fs.list(tier.root()).unwrap_or_default();
            for folder in folders.into_iter().filter(|entry| entry.is_folder) {
                let folder = tier.root().join(folder.name);
                for file in fs.list(&folder).unwrap_or_default() {
                    if format::classify(file.name.as_ref()) == FileNameKind::Bad {
                        let path = folder.join(file.name);
                        let length = fs.open(&path).and_then(|file| file.length()).unwrap_or(0);
                        if fs.remove(&path).is_ok() {
                            freed += length;
                        }
                    }
                }
            }
        }
        freed
    }
}
