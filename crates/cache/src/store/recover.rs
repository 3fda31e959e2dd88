//! Opening a folder: what is there, what of it is whole, and what belongs together.
//!
//! Headers and records are read, payloads are not. Temporary files are removed, torn files moved aside, files of
//! unknown versions left alone, rows whose chain is broken dropped. The folders are scanned by several threads; rows
//! are then registered parents first, each key checked against its tokens. It must never delete a file that a
//! later release might understand.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::CacheError;
use crate::io::files::NotRegular;
use crate::format::{self, FileNameKind, FormatError, HEADER_LENGTH, RowPrefix};
use crate::io::fs::{Fs, ReadFile};
use crate::index::NewRow;
use crate::identity::key::{Key, KeyHasher};
use crate::index::rows::FileSpot;
use crate::store::store::Store;
use crate::io::sync::Mutex;
use crate::store::tier::FileTier;
use crate::kinds::Tier;

/// What is read of a file at first: header, records and some hundred tokens fit, so most rows take one read.
const FIRST_READ: usize = 4096;

/// Why the prefix of a file is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrefixError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Reads everything of a file before its payload, and checks it.
pub(crate) fn read_prefix(fs: &dyn Fs, path: &Path) -> Result<RowPrefix, PrefixError> {
    read_prefix_of(&*fs.open(path)?)
}

/// The same for a file that somebody else may have put there: one that is mostly a hole promises more bytes than anybody
/// wrote, and a reader that allocates for them runs out of memory.
pub(crate) fn read_found_prefix(fs: &dyn Fs, path: &Path) -> Result<RowPrefix, PrefixError> {
    let file = fs.open(path)?;
    if file.is_hollow() {
        return Err(FormatError::Hollow { length: file.length()? }.into());
    }
    read_prefix_of(&*file)
}

fn read_prefix_of(file: &dyn ReadFile) -> Result<RowPrefix, PrefixError> {
    let length = file.length()?;
    let first = usize::try_from(length).unwrap_or(usize::MAX).min(FIRST_READ);
    let mut bytes = vec![0; first];
    file.read_exact_at(&mut bytes, 0)?;
    if first >= HEADER_LENGTH {
        let needed = format::prefix_length(&bytes, length)?;
        bytes.truncate(needed);
        if needed > first {
            bytes.resize(needed, 0);
            if let Some(rest) = bytes.get_mut(first..) {
                file.read_exact_at(rest, first as u64)?;
            }
        }
    }
    Ok(format::decode_prefix(&bytes, length)?)
}

/// One file of a folder, as a scan sees it.
#[derive(Debug)]
pub(crate) enum Scanned {
    /// A readable row.
    Row { key: Key, prefix: Box<RowPrefix> },
    /// Left by a writer that did not finish.
    Temporary(PathBuf),
    /// Moved aside earlier.
    Bad(PathBuf),
    /// A row that this release cannot read; not ours to touch.
    LeftAlone { key: Key, path: PathBuf, error: FormatError },
    /// Not a whole row.
    Torn { path: PathBuf, error: FormatError },
    /// Something else than a file has the name of a row.
    NotAFile { path: PathBuf, error: io::Error },
    /// The file system does not give it.
    Unreadable { key: Key, path: PathBuf, error: io::Error },
    /// A folder whose names the file system does not give.
    Unlisted { path: PathBuf, error: io::Error },
}

/// Looks at every file of a cache folder, with several threads.
pub(crate) fn scan(fs: &dyn Fs, root: &Path) -> io::Result<Vec<Scanned>> {
    let folders: Vec<PathBuf> = fs
        .list(root)?
        .into_iter()
        .filter(|entry| entry.is_folder && format::is_row_folder_name(entry.name.as_ref()))
        .map(|entry| root.join(entry.name))
        .collect();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let work = || {
        while let Some(folder) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
            let scanned = scan_folder(fs, folder);
            found.lock().extend(scanned);
        }
    };
    // Reading headers waits for the disk more than it computes, so more threads than cores help.
    let parallel = || std::thread::available_parallelism().map_or(2, usize::from).saturating_mul(2);
    // Shuttle knows its own threads only.
    let threads = if cfg!(feature = "shuttle") { 1 } else { parallel().min(folders.len()) };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    Ok(std::mem::take(&mut *found.lock()))
}

fn scan_folder(fs: &dyn Fs, folder: &Path) -> Vec<Scanned> {
    let entries = match fs.list(folder) {
        Ok(entries) => entries,
        Err(error) => return vec![Scanned::Unlisted { path: folder.to_path_buf(), error }],
    };
    entries
        .into_iter()
        .filter_map(|entry| match entry.is_folder {
            false => scan_file(fs, folder, &entry.name),
            true => matches!(format::classify(entry.name.as_ref()), FileNameKind::Row(_)).then(|| Scanned::NotAFile {
                path: folder.join(&entry.name),
                error: NotRegular { kind: "a folder" }.into(),
            }),
        })
        .collect()
}

fn scan_file(fs: &dyn Fs, folder: &Path, name: &str) -> Option<Scanned> {
    let path = folder.join(name);
    let key = match format::classify(name.as_ref()) {
        FileNameKind::Row(key) => key,
        FileNameKind::Temporary => return Some(Scanned::Temporary(path)),
        FileNameKind::Bad => return Some(Scanned::Bad(path)),
        FileNameKind::Lock | FileNameKind::Other => return None,
    };
    Some(match read_found_prefix(fs, &path) {
        Ok(prefix) => Scanned::Row { key, prefix: Box::new(prefix) },
        Err(PrefixError::Format(error)) if error.leave_alone() => Scanned::LeftAlone { key, path, error },
        Err(PrefixError::Format(error)) => Scanned::Torn { path, error },
        Err(PrefixError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Scanned::Torn { path, error: FormatError::FileLength { expected: FIRST_READ as u64, got: 0 } }
        }
        Err(PrefixError::Io(error)) if NotRegular::is_cause_of(&error) => Scanned::NotAFile { path, error },
        Err(PrefixError::Io(error)) => Scanned::Unreadable { key, path, error },
    })
}

struct Candidate {
    key: Key,
    tier: Tier,
    prefix: Box<RowPrefix>,
}

/// What may come back with another release or a mended device, and the rows that build on it with it.
#[derive(Default)]
struct Untouchable {
    keys: HashSet<Key>,
    folders: HashSet<PathBuf>,
}

impl Store {
    /// Scans all file tiers and registers what is whole.
    pub(crate) fn recover(&self) -> Result<(), CacheError> {
        let mut candidates = Vec::new();
        let mut untouchable = Untouchable::default();
        // The disk first: memory files may build on rows of the disk.
        for tier in self.file_tiers().iter().rev() {
            let wrap = |source| CacheError::Folder { action: "list", path: tier.root().to_path_buf(), source };
            for scanned in scan(self.fs(), tier.root()).map_err(wrap)? {
                self.sort_out(tier, scanned, &mut candidates, &mut untouchable);
            }
        }
        self.register(candidates, &untouchable);
        self.shrink_to_quotas();
        Ok(())
    }

    fn sort_out(
        &self,
        tier: &FileTier,
        scanned: Scanned,
        candidates: &mut Vec<Candidate>,
        untouchable: &mut Untouchable,
    ) {
        match scanned {
            // One that is larger than all that the tier may hold: the oldest rows would leave first to make room for it.
            Scanned::Row { key, prefix } if prefix.file_length() > self.config.quota(tier.tier()) => {
                tracing::warn!(%key, bytes = prefix.file_length(), "a row does not fit into its tier's quota; removed");
                self.counters.evictions.increment();
                self.remove_leftover(&tier.row_path(&key));
            }
            Scanned::Row { key, prefix } => candidates.push(Candidate { key, tier: tier.tier(), prefix }),
            Scanned::Temporary(path) => self.remove_leftover(&path),
            Scanned::Bad(_) => {}
            Scanned::LeftAlone { key, path, error } => {
                tracing::info!(path = %path.display(), %error, "cache file left alone");
                self.counters.unknown_files.increment();
                untouchable.keys.insert(key);
            }
            Scanned::Torn { path, error } => self.move_aside(&path, &error.to_string()),
            Scanned::NotAFile { path, error } => self.move_aside(&path, &error.to_string()),
            Scanned::Unreadable { key, path, error } => {
                tracing::warn!(path = %path.display(), %error, "cache file unreadable; left alone");
                untouchable.keys.insert(key);
            }
            Scanned::Unlisted { path, error } => {
                tracing::warn!(path = %path.display(), %error, "cache folder cannot be listed; its rows are not used");
                untouchable.folders.insert(path);
            }
        }
    }

    /// Registers rows parents first; what no root leads to is dropped.
    fn register(&self, candidates: Vec<Candidate>, untouchable: &Untouchable) {
        let mut by_key: HashMap<Key, Vec<Candidate>> = HashMap::new();
        let mut children: HashMap<Key, HashSet<Key>> = HashMap::new();
        let mut ready = Vec::new();
        for candidate in candidates {
            match candidate.prefix.parent {
                Some(parent) => drop(children.entry(parent).or_default().insert(candidate.key)),
                None => ready.push((candidate.key, None)),
            }
            by_key.entry(candidate.key).or_default().push(candidate);
        }
        while let Some((key, above)) = ready.pop() {
            // A row may be in both file tiers; its children need to see both.
            let copies = by_key.remove(&key).unwrap_or_default();
            let hashers: Vec<KeyHasher> =
                copies.into_iter().filter_map(|copy| self.register_one(&copy, above.as_ref(), untouchable)).collect();
            let Some(hasher) = hashers.into_iter().next() else { continue };
            for child in children.remove(&key).unwrap_or_default() {
                ready.push((child, Some(hasher.clone())));
            }
        }
        for orphan in by_key.values().flatten() {
            // The row that breaks the chain is the first one above that was not read. A circle has none.
            let above =
                |key: &Key| by_key.get(key).and_then(|copies| copies.first()).and_then(|copy| copy.prefix.parent);
            let missing = std::iter::successors(orphan.prefix.parent, above).take(by_key.len() + 1).last();
            self.drop_orphan(orphan, missing.as_ref(), untouchable);
        }
    }

    /// Gives up a row whose chain ends at `missing`, and its file unless the missing row may come back.
    fn drop_orphan(&self, orphan: &Candidate, missing: Option<&Key>, untouchable: &Untouchable) {
        let keep_file = missing.is_some_and(|key| {
            let folder = |tier: &FileTier| format::row_folder(tier.root(), key);
            untouchable.keys.contains(key)
                || self.file_tiers().iter().any(|tier| untouchable.folders.contains(&folder(tier)))
        });
        tracing::debug!(key = %orphan.key, keep_file, "a row's chain is broken");
        self.counters.orphans_dropped.increment();
        if let Some(tier) = self.file_tier(orphan.tier).filter(|_| !keep_file) {
            self.remove_leftover(&tier.row_path(&orphan.key));
        }
    }

    /// Registers one row whose parent is registered. Returns the hash of all its tokens, for its children.
    fn register_one(
        &self,
        candidate: &Candidate,
        above: Option<&KeyHasher>,
        untouchable: &Untouchable,
    ) -> Option<KeyHasher> {
        let Candidate { key, tier, prefix } = candidate;
        let mut index = self.index.lock();
        let mut tokens = Vec::new();
        let mut hasher = prefix.namespace.hasher();
        let parent = prefix.parent.and_then(|parent| index.by_key(&parent));
        if let Some(row) = parent.and_then(|parent| index.row(parent)) {
            let start = prefix.start as usize;
            let same_model = index.namespace_of(row) == Some(prefix.namespace);
            if !same_model || start > row.token_count as usize || !row.is_as_durable_as(*tier) {
                drop(index);
                self.drop_orphan(candidate, prefix.parent.as_ref(), untouchable);
                return None;
            }
            let ends_there = row.token_count as usize == start;
            tokens = parent.and_then(|parent| index.tokens_of(parent)).unwrap_or_default();
            tokens.truncate(start);
            match above.filter(|_| ends_there) {
                // The parent's hash goes on where the parent ends.
                Some(above) => hasher = above.clone(),
                None => hasher.update(&tokens),
            }
        }
        hasher.update(&prefix.tokens);
        tokens.extend_from_slice(&prefix.tokens);
        if hasher.key() != *key {
            drop(index);
            let path = self.file_tier(*tier)?.row_path(key);
            self.move_aside(&path, "its name is not the key of its tokens");
            return None;
        }
        let new = NewRow {
            key: *key,
            namespace: prefix.namespace,
            tokens: &tokens,
            start: prefix.start,
            parent,
            version: prefix.version,
            reason: prefix.reason,
            flags: prefix.flags,
            mode: prefix.fingerprint_mode,
            context_size: prefix.context_size,
            created: prefix.created,
            last_used: prefix.last_used,
            hits: prefix.hits,
            owners: &prefix.owners,
        };
        let id = match index.by_key(key) {
            None => index.insert(&new).ok()?,
            // The same row in the other file tier. If it hangs on another chain there, one copy is enough.
            Some(id) if index.row(id).is_some_and(|row| row.start == new.start && row.parent == parent) => id,
            Some(_) => {
                drop(index);
                self.counters.duplicate_dropped.increment();
                let path = self.file_tier(*tier)?.row_path(key);
                self.remove_leftover(&path);
                return None;
            }
        };
        let spot = FileSpot {
            file_length: prefix.file_length(),
            payload_offset: prefix.payload_offset,
            parts: Arc::from(prefix.parts.as_slice()),
        };
        index.set_spot(id, *tier, spot);
        Some(hasher)
    }

    /// A quota may have been lowered since the folder was written.
    fn shrink_to_quotas(&self) {
        for tier in Tier::ALL {
            let evicted = {
                let mut index = self.index.lock();
                let excess = index.used(tier).saturating_sub(index.quota(tier));
                index.evict(tier, excess, None)
            };
            self.counters.evictions.add(evicted.rows);
            self.remove_files(&evicted.gone);
        }
    }

    fn remove_leftover(&self, path: &Path) {
        if let Err(error) = self.fs().remove(path) {
            tracing::warn!(path = %path.display(), %error, "a leftover cache file cannot be removed");
        }
    }

    fn move_aside(&self, path: &Path, why: &str) {
        self.counters.corrupt_files.increment();
        tracing::warn!(path = %path.display(), why, "cache file moved aside");
        if let Err(error) = self.fs().rename(path, &format::bad_path(path)) {
            tracing::warn!(path = %path.display(), %error, "a damaged cache file cannot be moved aside");
        }
    }
}
