//! Giving bytes back on request: `gc` and `evict_bytes`, and the pressure watcher's hand on the store.
//!
//! The index chooses, this file removes what it chose. Never touches a leased row or one that is being written.

use crate::format::{self, FileNameKind};
use crate::identity::owner::OwnerId;
use crate::store::store::Store;
use crate::kinds::Tier;

impl Store {
    /// Frees at least `bytes` in the given tiers, oldest rows first within each tier, fastest tier first. Returns
    /// the bytes freed, which is less only if nothing more could be freed.
    ///
    /// With an owner only rows go that are its own and nobody else's.
    pub(crate) fn evict_bytes(&self, bytes: u64, tiers: &[Tier], owner: Option<OwnerId>) -> u64 {
        let mut freed = 0_u64;
        for tier in Tier::ALL.into_iter().filter(|tier| tiers.contains(tier)) {
            let evicted = self.index.lock().evict(tier, bytes.saturating_sub(freed), owner);
            freed = freed.saturating_add(evicted.bytes);
            self.counters.evictions.add(evicted.rows);
            self.remove_files(&evicted.gone);
            if freed >= bytes {
                break;
            }
        }
        self.changed.notify_all();
        freed
    }

    /// Drops every row that nobody holds, and the files that were moved aside. Returns the bytes freed.
    pub(crate) fn gc(&self) -> u64 {
        self.evict_bytes(u64::MAX, &Tier::ALL, None) + self.remove_bad_files()
    }

    fn remove_bad_files(&self) -> u64 {
        let mut freed = 0;
        for tier in self.file_tiers() {
            let folders = self.fs().list(tier.root()).unwrap_or_default();
            for folder in folders.into_iter().filter(|entry| entry.is_folder) {
                let folder = tier.root().join(folder.name);
                for file in self.fs().list(&folder).unwrap_or_default() {
                    if format::classify(file.name.as_ref()) == FileNameKind::Bad {
                        let path = folder.join(file.name);
                        let length = self.fs().open(&path).and_then(|file| file.length()).unwrap_or(0);
                        if self.fs().remove(&path).is_ok() {
                            freed += length;
                        }
                    }
                }
            }
        }
        freed
    }
}
