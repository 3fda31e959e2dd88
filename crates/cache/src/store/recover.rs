//! Opening a folder: which files are whole rows, and which belong together.
//!
//! Called once by the handle before anything else uses the store. Temporary files are removed, torn files moved aside,
//! files of versions that are not restored left alone, rows with a broken chain dropped. Rows are registered parents
//! first, each key checked against its tokens. It must never delete a file that a later release might understand.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::evict::Evictor;
use super::removal::Remover;
use super::tier::FileTier;
use crate::error::CacheError;
use crate::folder::parents_first::ParentsFirst;
use crate::folder::scan::{Scanned, scan};
use crate::format::{self, RowPrefix, VERSION_CHAINED};
use crate::identity::key::{Key, KeyHasher};
use crate::index::stored::NotEntered;
use crate::kinds::{EvictionCause, Tier};

/// A readable row of a folder.
struct Candidate {
    key: Key,
    tier: Tier,
    prefix: Box<RowPrefix>,
}

/// Rows that may come back with another release or a repaired device. The files of rows that build on them stay.
#[derive(Default)]
struct Untouchable {
    keys: HashSet<Key>,
    folders: HashSet<PathBuf>,
}

/// Scans all file tiers, registers the rows that are whole, and evicts down to the quotas.
pub(crate) fn recover(evictor: &Evictor) -> Result<(), CacheError> {
    let mut recovery =
        Recovery { remover: &evictor.remover, candidates: Vec::new(), untouchable: Untouchable::default() };
    // The disk first: memory files may build on rows of the disk.
    for tier in recovery.remover.tiers.all().iter().rev() {
        let wrap = |source| CacheError::Folder { action: "list", path: tier.root().to_path_buf(), source };
        for scanned in scan(recovery.remover.tiers.fs(), tier.root()).map_err(wrap)? {
            recovery.sort_out(tier, scanned);
        }
    }
    recovery.register();
    evictor.shrink_to_quotas();
    Ok(())
}

struct Recovery<'a> {
    remover: &'a Remover,
    candidates: Vec<Candidate>,
    untouchable: Untouchable,
}

impl Recovery<'_> {
    fn sort_out(&mut self, tier: &FileTier, scanned: Scanned) {
        let counters = &self.remover.counters;
        match scanned {
            Scanned::Row { key, prefix } if prefix.meta.version < VERSION_CHAINED => {
                let version = prefix.meta.version;
                tracing::info!(%key, version, "cache file left alone; rows of this version are listed, not restored");
                counters.unknown_files.increment();
                self.untouchable.keys.insert(key);
            }
            // One that is larger than all that the tier may hold: the oldest rows would leave first to make room for it.
            Scanned::Row { key, prefix } if prefix.file_length() > self.remover.index.lock().quota(tier.tier()) => {
                tracing::warn!(%key, bytes = prefix.file_length(), "a row does not fit into its tier's quota; removed");
                self.remover.count_in(tier.tier(), EvictionCause::Quota, 1, prefix.file_length());
                self.remove_leftover(&tier.row_path(&key));
            }
            Scanned::Row { key, prefix } => self.candidates.push(Candidate { key, tier: tier.tier(), prefix }),
            Scanned::Temporary(path) => self.remove_leftover(&path),
            Scanned::Bad(_) => {}
            Scanned::LeftAlone { key, path, error } => {
                tracing::info!(path = %path.display(), %error, "cache file left alone");
                counters.unknown_files.increment();
                self.untouchable.keys.insert(key);
            }
            Scanned::Torn { path, error } => self.move_aside(&path, &error.to_string()),
            Scanned::NotAFile { path, error } => self.move_aside(&path, &error.to_string()),
            Scanned::Unreadable { key, path, error } => {
                tracing::warn!(path = %path.display(), %error, "cache file unreadable; left alone");
                self.untouchable.keys.insert(key);
            }
            Scanned::Unlisted { path, error } => {
                tracing::warn!(path = %path.display(), %error, "cache folder cannot be listed; its rows are not used");
                self.untouchable.folders.insert(path);
            }
        }
    }

    /// Registers rows parents first; rows that no root leads to are dropped.
    fn register(&mut self) {
        let candidates = std::mem::take(&mut self.candidates).into_iter();
        let mut rows =
            ParentsFirst::new(candidates.map(|candidate| (candidate.key, candidate.prefix.meta.parent, candidate)));
        while let Some((key, copies, above)) = rows.next() {
            // A row may be in both file tiers; its children need to see both.
            let hashers: Vec<KeyHasher> =
                copies.into_iter().filter_map(|copy| self.register_one(&copy, above.as_ref())).collect();
            if let Some(hasher) = hashers.first() {
                rows.accept(&key, hasher);
            }
        }
        let orphans: HashMap<Key, Vec<Candidate>> = rows.into_rest();
        for orphan in orphans.values().flatten() {
            // The row that breaks the chain is the first one above that was not read. A circle has none.
            let above =
                |key: &Key| orphans.get(key).and_then(|copies| copies.first()).and_then(|copy| copy.prefix.meta.parent);
            let missing = std::iter::successors(orphan.prefix.meta.parent, above).take(orphans.len() + 1).last();
            self.drop_orphan(orphan, missing.as_ref());
        }
    }

    /// Gives up a row with a chain that ends at `missing`, and its file unless the missing row may come back.
    fn drop_orphan(&self, orphan: &Candidate, missing: Option<&Key>) {
        let Remover { tiers, counters, .. } = self.remover;
        let keep_file = missing.is_some_and(|key| {
            let folder = |tier: &FileTier| format::row_folder(tier.root(), key);
            self.untouchable.keys.contains(key)
                || tiers.all().iter().any(|tier| self.untouchable.folders.contains(&folder(tier)))
        });
        tracing::debug!(key = %orphan.key, keep_file, "a row's chain is broken");
        counters.orphans_dropped.increment();
        if !keep_file {
            self.remove_leftover(&tiers.of(orphan.tier).row_path(&orphan.key));
        }
    }

    /// Registers one row with a parent that is registered. Returns the hash of all its tokens, for its children.
    fn register_one(&self, candidate: &Candidate, parent_hash: Option<&KeyHasher>) -> Option<KeyHasher> {
        let Candidate { key, tier, prefix } = candidate;
        let path = self.remover.tiers.of(*tier).row_path(key);
        let now = self.remover.clock.unix_seconds();
        let mut index = self.remover.index.lock();
        let Some(above) = index.above(&prefix.meta, *tier) else {
            drop(index);
            self.drop_orphan(candidate, prefix.meta.parent.as_ref());
            return None;
        };
        let mut hasher = match parent_hash.filter(|_| above.is_adjacent) {
            // The parent's hash goes on where the parent ends.
            Some(hasher) => hasher.clone(),
            None => {
                let mut hasher = prefix.meta.namespace.hasher();
                hasher.update(&above.tokens);
                hasher
            }
        };
        hasher.update(&prefix.tokens);
        if hasher.key() != *key {
            drop(index);
            self.move_aside(&path, "its name is not the key of its tokens");
            return None;
        }
        let mut tokens = above.tokens;
        tokens.extend_from_slice(&prefix.tokens);
        let entered = index.enter_file(*key, *tier, prefix, &tokens, above.parent, now);
        drop(index);
        match entered {
            Ok(()) => Some(hasher),
            Err(NotEntered::NoPlace) => None,
            Err(NotEntered::OtherChain) => {
                self.remover.counters.duplicate_dropped.increment();
                self.remove_leftover(&path);
                None
            }
        }
    }

    fn remove_leftover(&self, path: &Path) {
        if let Err(error) = self.remover.tiers.fs().remove(path) {
            tracing::warn!(path = %path.display(), %error, "a leftover cache file cannot be removed");
        }
    }

    fn move_aside(&self, path: &Path, why: &str) {
        self.remover.counters.corrupt_files.increment();
        tracing::warn!(path = %path.display(), why, "cache file moved aside");
        if let Err(error) = self.remover.tiers.fs().rename(path, &format::bad_path(path)) {
            tracing::warn!(path = %path.display(), %error, "a damaged cache file cannot be moved aside");
        }
    }
}
