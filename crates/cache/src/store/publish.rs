//! Publishing a file in named stages, so that a row is visible whole or not at all.
//!
//! Reserve the key; write a temporary file; check the reservation; link the file to its final name; sync the
//! folder, validate, announce. Called by the writer threads for one row at a time. It must never replace a good
//! file, leave a temporary behind on an error, or announce a row that does not read back.

use std::cell::OnceCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::job::{Job, RowDraft};
use super::shared_index::SharedIndex;
use super::tier::FileTier;
use crate::config::{CacheConfig, Stage, StageObserver};
use crate::folder::scan::{PrefixError, read_prefix};
use crate::format::{self, FormatError, NewPart, PrefixDraft, RowPrefix, crc32c};
use crate::identity::key::Key;
use crate::index::reservation::Token;
use crate::index::rows::{FileSpot, Payload, PayloadPart, RowId};
use crate::io::clock::Clock;
use crate::io::fs::{Fs, NewFile};
use crate::kinds::Tier;
use crate::stats::Counters;

/// Why a row was not published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    #[error("another writer or a removal holds the key")]
    Conflict,
    #[error("the reservation expired and was taken over")]
    ReservationLost,
    #[error("the row it builds on was not published")]
    ParentLost,
    #[error("the row left the index meanwhile")]
    RowLost,
    #[error("the row cannot be written as a file: {0}")]
    Format(#[from] FormatError),
    #[error("the published file does not read back: {0}")]
    ReadBack(String),
    #[error("its name is taken by something that cannot be replaced: {0}")]
    InTheWay(String),
    #[error("cannot {action}: {source}")]
    Io { action: &'static str, source: io::Error },
}

/// Ends the reservation whatever happens to the writer, a panic included.
struct Held<'a> {
    index: &'a SharedIndex,
    key: Key,
    tier: Tier,
    token: Token,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.index.lock().reservations.release(self.key, self.tier, self.token);
    }
}

/// Removes the temporary file whatever happens to the writer, a panic included.
struct Temporary<'a> {
    fs: &'a dyn Fs,
    path: PathBuf,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // It may never have been created; a leftover is removed when the folder is opened next.
        let _ = self.fs.remove(&self.path);
    }
}

/// How a file came to its final name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placed {
    /// The name was free.
    Created,
    /// The file that was there is the same row, and stays.
    Adopted,
    /// Another file was there and is gone.
    Replaced,
}

/// The final name while the row is not announced. A writer that does not get that far, because of a panic too, removes
/// the file only if this writer created it. A file that was there before stays, or the file that took its place: the row
/// is found in it when the folder is opened next. A row that was dropped meanwhile leaves no file, wherever it is from;
/// the reservation keeps others from removing or writing it until then.
struct Linked<'a> {
    publisher: &'a Publisher,
    row: RowId,
    path: &'a Path,
    is_ours: bool,
    announced: bool,
}

impl Drop for Linked<'_> {
    fn drop(&mut self) {
        if !self.announced && (self.is_ours || self.publisher.is_dropped(self.row)) {
            let _ = self.publisher.fs.remove(self.path);
        }
    }
}

/// The right to write a key, and what was there before.
struct Reserved<'a> {
    held: Held<'a>,
    was_published: bool,
}

/// See the module.
pub(crate) struct Publisher {
    index: Arc<SharedIndex>,
    counters: Arc<Counters>,
    fs: Arc<dyn Fs>,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn StageObserver>>,
    reservation_ttl: Duration,
    /// Makes the names of temporary files unique within the process.
    next_writer: AtomicU64,
}

impl Publisher {
    pub(crate) fn new(config: &CacheConfig, index: Arc<SharedIndex>, counters: Arc<Counters>) -> Self {
        Self {
            index,
            counters,
            fs: Arc::clone(&config.fs),
            clock: Arc::clone(&config.clock),
            observer: config.observer.clone(),
            reservation_ttl: Duration::from_millis(config.reservation_ttl_ms),
            next_writer: AtomicU64::new(0),
        }
    }

    /// Takes one row through all stages. Returns the bytes of its file.
    pub(crate) fn publish(&self, tier: &FileTier, job: &Job) -> Result<u64, PublishError> {
        let Job { row, draft, payload, .. } = job;
        let key = draft.key;
        let Reserved { held, was_published } = self.reserve(tier, *row, key)?;
        self.reached(Stage::Reserved, &key);

        // The sums in the prefix are made while the payload is on its way to the device.
        let length = encode(draft, payload, |_| 0)?.len();
        let encoded: OnceCell<Vec<u8>> = OnceCell::new();
        let prefix = || -> io::Result<&[u8]> {
            if let Some(prefix) = encoded.get() {
                return Ok(prefix);
            }
            let made = encode(draft, payload, crc32c).map_err(io::Error::other)?;
            Ok(encoded.get_or_init(|| made))
        };
        let path = tier.row_path(&key);
        let temporary = Temporary { fs: &*self.fs, path: self.tmp_path(tier, &key) };
        let pieces: Vec<&[u8]> = payload.iter().map(|part| &part.bytes[..]).collect();
        self.write_tmp(tier, &temporary.path, &NewFile::with_head(&pieces, length, &prefix))?;
        let prefix = prefix().map_err(|source| io_error("sum up", source))?;
        self.reached(Stage::TmpWritten, &key);

        if !self.index.lock().reservations.confirm(key, tier.tier(), held.token) {
            return Err(PublishError::ReservationLost);
        }
        self.reached(Stage::Checked, &key);

        let file_length = prefix.len() as u64 + pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let ours = format::decode_prefix(prefix, file_length)?;
        let placed = self.put_in_place(&temporary.path, &path, &ours)?;
        if was_published && placed != Placed::Adopted {
            // The old file is gone, so the row is in the new one, however the rest of the stages ends.
            self.index.lock().set_spot(*row, tier.tier(), FileSpot::of(&ours));
        }
        let is_ours = placed == Placed::Created && !was_published;
        let mut linked = Linked { publisher: self, row: *row, path: &path, is_ours, announced: false };
        self.reached(Stage::Linked, &key);
        drop(temporary);
        self.reached(Stage::TmpRemoved, &key);

        if tier.is_durable()
            && let Some(folder) = path.parent()
            && let Err(source) = self.fs.sync_folder(folder)
            // A row that was there before is durable already: whichever of its files a crash leaves is whole.
            && !was_published
        {
            return Err(io_error("sync the folder of a row", source));
        }
        self.reached(Stage::FolderSynced, &key);

        let written = match read_prefix(&*self.fs, &path) {
            // It was announced long ago, and its old place in the file is gone: the prefix that was written is used.
            Err(PrefixError::Io(_)) if was_published => ours,
            result => result.map_err(|error| PublishError::ReadBack(error.to_string()))?,
        };
        if !self.announce(*row, &held, &written) {
            // The row was dropped while it was written (its parent was found damaged): the file goes too.
            return Err(PublishError::RowLost);
        }
        linked.announced = true;
        self.reached(Stage::Announced, &key);
        Ok(file_length)
    }

    /// Stage 1: the key is ours, the row is still there and the row it builds on is published.
    fn reserve(&self, tier: &FileTier, row: RowId, key: Key) -> Result<Reserved<'_>, PublishError> {
        let mut index = self.index.lock();
        let row = index.live(row).ok_or(PublishError::RowLost)?;
        if row.parent.is_some_and(|parent| !index.row(parent).is_as_durable_as(tier.tier())) {
            return Err(PublishError::ParentLost);
        }
        let was_published = row.resides_in(tier.tier());
        let now = self.clock.now();
        let reserved = index.reservations.reserve(key, tier.tier(), now, self.reservation_ttl);
        let token = reserved.map_err(|_| PublishError::Conflict)?;
        Ok(Reserved { held: Held { index: &self.index, key, tier: tier.tier(), token }, was_published })
    }

    /// Stage 5: the row is in the tier, and everybody who waits for it is woken. The reservation ends in the same step:
    /// from here on the file may be removed when the row is dropped.
    fn announce(&self, row: RowId, held: &Held<'_>, written: &RowPrefix) -> bool {
        let mut index = self.index.lock();
        if index.live(row).is_none() {
            return false;
        }
        index.set_spot(row, held.tier, FileSpot::of(written));
        index.reservations.release(held.key, held.tier, held.token);
        drop(index);
        self.index.notify();
        true
    }

    fn is_dropped(&self, row: RowId) -> bool {
        self.index.lock().live(row).is_none()
    }

    fn write_tmp(&self, tier: &FileTier, path: &Path, file: &NewFile<'_>) -> Result<(), PublishError> {
        let fs = &*self.fs;
        let durable = tier.is_durable();
        tier.keep_lock(fs).map_err(|source| io_error("lock the folder", source))?;
        match fs.write_new(path, file, durable) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result.map_err(|source| io_error("write", source)),
        }
        // The first row of its sub-folder, or the folder was removed from outside.
        let folder = path.parent().unwrap_or(tier.root());
        fs.create_folder(folder).map_err(|source| io_error("create the folder of a row", source))?;
        if durable {
            fs.sync_folder(tier.root()).map_err(|source| io_error("sync the folder of a row", source))?;
        }
        fs.write_new(path, file, durable).map_err(|source| io_error("write", source))
    }

    /// Stage 4: an existing file is adopted if it is the same row, and replaced otherwise. Never ignored.
    fn put_in_place(&self, from: &Path, to: &Path, ours: &RowPrefix) -> Result<Placed, PublishError> {
        let fs = &*self.fs;
        match fs.link(from, to) {
            Ok(()) => return Ok(Placed::Created),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(io_error("link", source)),
        }
        match read_prefix(fs, to) {
            Ok(there) if is_same_row(&there, ours) => {
                self.counters.duplicate_dropped.increment();
                return Ok(Placed::Adopted);
            }
            // A later release may understand it, and only that one may touch it.
            Err(PrefixError::Format(error)) if error.leave_alone() => {
                return Err(PublishError::InTheWay(error.to_string()));
            }
            Ok(_) | Err(_) => {}
        }
        // In one step: the row may be published already, and then it must not be missing for a moment.
        match fs.rename(from, to) {
            Ok(()) => Ok(Placed::Replaced),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => Err(PublishError::InTheWay(error.to_string())),
            Err(source) => Err(io_error("replace", source)),
        }
    }

    fn tmp_path(&self, tier: &FileTier, key: &Key) -> PathBuf {
        let number = self.next_writer.fetch_add(1, Ordering::Relaxed);
        format::tmp_path(tier.root(), key, &format!("{}-{number}", std::process::id()))
    }

    fn reached(&self, stage: Stage, key: &Key) {
        if let Some(observer) = &self.observer {
            observer.reached(stage, key);
        }
    }
}

/// The bytes before the payload, with the sums of its parts made by `sum`.
fn encode(draft: &RowDraft, payload: &Payload, sum: impl Fn(&[u8]) -> u32) -> Result<Vec<u8>, FormatError> {
    let part = |part: &PayloadPart| NewPart { kind: part.kind, length: part.bytes.len() as u64, crc: sum(&part.bytes) };
    let parts: Vec<NewPart> = payload.iter().map(part).collect();
    format::encode_prefix(&PrefixDraft {
        owners: &draft.owners,
        text: &draft.text,
        host: host_name().as_deref(),
        writer: Some(concat!("poncho ", env!("CARGO_PKG_VERSION"))),
        ..PrefixDraft::new(draft.meta, &draft.tokens, &parts)
    })
}

/// Whether a file holds our row: same identity, tokens and parts. The parts' checksums are part of that, so an equal
/// file has an equal payload unless it was damaged since, which the check at loading finds.
fn is_same_row(there: &RowPrefix, ours: &RowPrefix) -> bool {
    there.meta.version == ours.meta.version
        && there.meta.namespace == ours.meta.namespace
        && there.meta.parent == ours.meta.parent
        && there.meta.start == ours.meta.start
        && there.tokens == ours.tokens
        && there.parts == ours.parts
}

fn io_error(action: &'static str, source: io::Error) -> PublishError {
    PublishError::Io { action, source }
}

fn host_name() -> Option<String> {
    rustix::system::uname().nodename().to_str().ok().map(str::to_owned)
}
