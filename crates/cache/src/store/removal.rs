//! Removing the files of rows that left the index, and giving up files that cannot be used.
//!
//! Called after an eviction, by readers that found a damaged file and by the writers. The index drops a row first and
//! keeps its key reserved until the file is gone; a removal that panics frees the key all the same. It must never touch
//! the file of a row that is still in the index.

use std::io;
use std::sync::Arc;

use super::shared_index::SharedIndex;
use super::tier::FileTiers;
use crate::format;
use crate::identity::key::Key;
use crate::index::DroppedFile;
use crate::index::eviction::Evicted;
use crate::index::rows::RowId;
use crate::io::clock::Clock;
use crate::kinds::{EvictionCause, Tier};
use crate::stats::Counters;
use crate::stats::evictions::EvictionLog;

/// See the module.
pub(crate) struct Remover {
    pub(super) index: Arc<SharedIndex>,
    pub(super) tiers: Arc<FileTiers>,
    pub(super) counters: Arc<Counters>,
    pub(super) evictions: Arc<EvictionLog>,
    pub(super) clock: Arc<dyn Clock>,
}

/// What happens to the files of rows that build on a lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Descendants {
    /// They can never be used again.
    Remove,
    /// They may be usable after a restart.
    Keep,
}

/// Frees the keys of removed files for writers, also when the removal panics.
struct KeysHeld<'a> {
    index: &'a SharedIndex,
    files: &'a [DroppedFile],
}

impl Drop for KeysHeld<'_> {
    fn drop(&mut self) {
        let mut index = self.index.lock();
        for file in self.files {
            index.reservations.end_removal(file.key, file.tier);
        }
        drop(index);
        self.index.notify();
    }
}

impl Remover {
    pub(crate) fn new(
        index: &Arc<SharedIndex>,
        tiers: &Arc<FileTiers>,
        counters: &Arc<Counters>,
        evictions: &Arc<EvictionLog>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        Self {
            index: Arc::clone(index),
            tiers: Arc::clone(tiers),
            counters: Arc::clone(counters),
            evictions: Arc::clone(evictions),
            clock: Arc::clone(clock),
        }
    }

    /// Counts rows that left their tiers.
    pub(super) fn count(&self, evicted: &Evicted, cause: EvictionCause) {
        for (tier, (rows, bytes)) in Tier::ALL.into_iter().zip(evicted.by_tier) {
            self.count_in(tier, cause, rows, bytes);
        }
    }

    /// Counts rows that left one tier.
    pub(super) fn count_in(&self, tier: Tier, cause: EvictionCause, rows: u64, bytes: u64) {
        if rows == 0 {
            return;
        }
        self.counters.evictions.add(rows);
        self.evictions.add(self.clock.unix_seconds(), tier, cause, rows, bytes);
    }

    /// Removes files that the index has dropped, then frees their keys for writers.
    pub(super) fn remove_files(&self, files: &[DroppedFile]) {
        if files.is_empty() {
            return;
        }
        let _held = KeysHeld { index: &self.index, files };
        for file in files {
            match self.tiers.fs().remove(&self.tiers.of(file.tier).row_path(&file.key)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // The file stays and is registered again when the folder is opened next.
                Err(error) => tracing::warn!(key = %file.key, %error, "cannot remove a cache file"),
            }
        }
    }

    /// A file that failed its check is moved aside. Unless its row has a copy in another tier, it leaves with all
    /// rows that build on it.
    pub(crate) fn condemn(&self, row: RowId, key: &Key, tier: Tier) {
        let Some(dropped) = self.index.lock().lose(row, key, tier) else { return };
        self.counters.corrupt_files.increment();
        tracing::warn!(%key, tier = tier.as_str(), rows = dropped.len(), "cache file damaged; moved aside and computed again");
        self.counters.orphans_dropped.add((dropped.len() as u64).saturating_sub(1));
        let path = self.tiers.of(tier).row_path(key);
        if let Err(error) = self.tiers.fs().rename(&path, &format::bad_path(&path)) {
            tracing::debug!(%key, %error, "a damaged cache file could not be moved aside");
        }
        // The file that was moved is no longer there, which counts as removed.
        self.remove_files(&dropped);
        self.index.notify();
    }

    /// The row's file is gone or cannot be read. Without a copy in another tier, the row and all that build on it leave.
    pub(super) fn forget(&self, row: RowId, key: &Key, tier: Tier, descendants: Descendants) {
        let Some(dropped) = self.index.lock().lose(row, key, tier) else { return };
        let (removed, kept): (Vec<_>, Vec<_>) =
            dropped.into_iter().partition(|file| descendants == Descendants::Remove && file.key != *key);
        self.counters.orphans_dropped.add(removed.len() as u64);
        self.remove_files(&removed);
        drop(KeysHeld { index: &self.index, files: &kept });
    }
}
