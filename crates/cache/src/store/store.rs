//! The store behind a `Cache`: settings, index, tiers, counters and the write queue, shared by the handle, its
//! leases and the writer threads.
//!
//! `save.rs`, `plan.rs`, `publish.rs`, `writer.rs`, `evict.rs` and `recover.rs` each add their part of it. The
//! index lock is held for memory work only; nothing here does I/O under it.

use std::io;
use std::sync::atomic::AtomicU64;

use crate::config::CacheConfig;
use crate::error::CacheError;
use crate::format;
use crate::io::fs::Fs;
use crate::index::{Gone, Index};
use crate::identity::key::Key;
use crate::folder::lock::FolderLock;
use crate::policy::Policy;
use crate::index::rows::RowId;
use crate::stats::{CounterSnapshot, Counters};
use crate::io::sync::{Condvar, Mutex};
use crate::store::tier::FileTier;
use crate::kinds::Tier;
use crate::store::writer::Queue;

/// Frees the keys of removed files for writers, also when the removal panics.
struct Removal<'a> {
    store: &'a Store,
    gone: &'a [Gone],
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut index = self.store.index.lock();
        for file in self.gone {
            index.reservations.end_removal(file.key, file.tier);
        }
        drop(index);
        self.store.changed.notify_all();
    }
}

/// See the module.
pub(crate) struct Store {
    pub(crate) config: CacheConfig,
    pub(crate) policy: Policy,
    pub(crate) index: Mutex<Index>,
    /// Notified whenever a row appears, is published or leaves.
    pub(crate) changed: Condvar,
    pub(crate) queue: Queue,
    pub(crate) counters: Counters,
    /// Makes the names of temporary files unique within the process.
    pub(crate) next_writer: AtomicU64,
    /// Held while hit counts are written into files; never taken under the index lock.
    touching: Mutex<()>,
    tiers: Vec<FileTier>,
    /// Held for as long as any part of the store lives.
    _locks: Vec<FolderLock>,
}

impl Store {
    /// Checks the settings, takes the folders, and knows no row yet.
    pub(crate) fn new(config: CacheConfig) -> Result<Self, CacheError> {
        config.check()?;
        let policy = Policy::new(config.gates)?;
        let mut tiers = Vec::new();
        let mut locks = Vec::new();
        for tier in [Tier::RamFile, Tier::Disk] {
            let Some(settings) = config.file_tier(tier) else { continue };
            let folder = &settings.folder;
            let wrap = |source| CacheError::Folder { action: "create", path: folder.clone(), source };
            config.fs.create_folder(folder).map_err(wrap)?;
            match config.fs.shield(folder) {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!(folder = %folder.display(), "others could read the cache folder; closed to them")
                }
                // It works all the same, and what is written from now on is closed to others by itself.
                Err(error) => tracing::warn!(
                    folder = %folder.display(), %error,
                    "others may read what older releases put into the cache folder; run `poncho cache verify --repair` as its owner"
                ),
            }
            if config.fs.has_locks() {
                locks.push(FolderLock::take(folder)?);
            }
            tiers.push(FileTier::new(tier, folder.clone()));
        }
        Ok(Self {
            policy,
            index: Mutex::new(Index::new(Tier::ALL.map(|tier| config.quota(tier)))),
            changed: Condvar::default(),
            queue: Queue::new(config.queue),
            counters: Counters::default(),
            next_writer: AtomicU64::new(0),
            touching: Mutex::new(()),
            tiers,
            _locks: locks,
            config,
        })
    }

    pub(crate) fn fs(&self) -> &dyn Fs {
        &*self.config.fs
    }

    /// The file tiers that are configured.
    pub(crate) fn file_tiers(&self) -> &[FileTier] {
        &self.tiers
    }

    pub(crate) fn file_tier(&self, tier: Tier) -> Option<&FileTier> {
        self.tiers.iter().find(|candidate| candidate.tier() == tier)
    }

    /// Removes files that the index has given up, then frees their keys for writers.
    pub(crate) fn remove_files(&self, gone: &[Gone]) {
        if gone.is_empty() {
            return;
        }
        let _removal = Removal { store: self, gone };
        for file in gone {
            let Some(tier) = self.file_tier(file.tier) else { continue };
            match self.fs().remove(&tier.row_path(&file.key)) {
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
        let Some(gone) = self.index.lock().lose(row, key, tier) else { return };
        self.counters.corrupt_files.increment();
        tracing::warn!(%key, tier = tier.as_str(), rows = gone.len(), "cache file damaged; moved aside and computed again");
        self.counters.orphans_dropped.add((gone.len() as u64).saturating_sub(1));
        if let Some(file_tier) = self.file_tier(tier) {
            let path = file_tier.row_path(key);
            if let Err(error) = self.fs().rename(&path, &format::bad_path(&path)) {
                tracing::debug!(%key, %error, "a damaged cache file could not be moved aside");
            }
        }
        // What was moved is not there any more, which removal takes for done.
        self.remove_files(&gone);
        self.changed.notify_all();
    }

    /// Writes hit counts and last uses into the files, in place. Best effort: they only order evictions.
    pub(crate) fn write_touches(&self) {
        // One at a time: older counts must not be written over newer ones, and who waits for it finds them written.
        let _turn = self.touching.lock();
        let touched = self.index.lock().take_dirty();
        for (key, tiers, hits, last_used) in touched {
            let touch = format::encode_touch(hits, last_used);
            for tier in tiers.into_iter().filter_map(|tier| self.file_tier(tier)) {
                let path = tier.row_path(&key);
                for (offset, bytes) in touch.writes() {
                    if let Err(error) = self.fs().write_at(&path, bytes, offset) {
                        tracing::trace!(%key, %error, "hit count not written");
                    }
                }
            }
        }
    }

    pub(crate) fn snapshot(&self) -> CounterSnapshot {
        let mut snapshot = self.counters.snapshot();
        let index = self.index.lock();
        snapshot.tier_bytes = Tier::ALL.map(|tier| index.used(tier));
        snapshot.tier_rows = Tier::ALL.map(|tier| index.rows_in(tier) as u64);
        snapshot
    }
}
