//! Publishing a file in named stages, so that a row is visible whole or not at all.
//!
//! Reserve the key; write a temporary file; check the reservation; link the file to its final name; sync the
//! folder, validate, announce. Called by the writer threads for one row at a time. It must never replace a good
//! file, leave a temporary behind on an error, or announce a row that does not read back.

use std::cell::OnceCell;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::format::{self, FormatError, NewPart, RowPrefix, crc32c};
use crate::io::fs::{Fs, NewFile};
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::store::recover::{PrefixError, read_prefix};
use crate::index::reservation::Token;
use crate::index::rows::{FileSpot, Payload, PayloadPart, RowId};
use crate::store::store::Store;
use crate::store::tier::FileTier;
use crate::kinds::{FingerprintMode, SaveReason, Tier};

/// A point in the life of a file that is being published, told right after it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The key is reserved; nothing is on the disk yet.
    Reserved,
    /// The temporary file is complete and synced.
    TmpWritten,
    /// The reservation was still ours, and stays so.
    Checked,
    /// The final name exists; the temporary name too.
    Linked,
    /// The temporary name is gone.
    TmpRemoved,
    /// The folder is synced.
    FolderSynced,
    /// The row is announced.
    Announced,
}

impl Stage {
    /// All stages in their order.
    pub const ALL: [Self; 7] = [
        Self::Reserved,
        Self::TmpWritten,
        Self::Checked,
        Self::Linked,
        Self::TmpRemoved,
        Self::FolderSynced,
        Self::Announced,
    ];
}

/// Is told at each stage. Tests kill the process or fail there.
pub trait StageObserver: Send + Sync + Debug {
    /// `key` has just reached `stage`.
    fn reached(&self, stage: Stage, key: &Key);
}

/// Everything that a file says about its row besides the payload.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) key: Key,
    pub(crate) namespace: Namespace,
    pub(crate) mode: FingerprintMode,
    pub(crate) reason: SaveReason,
    pub(crate) reason_detail: Option<String>,
    /// Who has sent all of its tokens.
    pub(crate) owners: Vec<OwnerId>,
    pub(crate) flags: u16,
    pub(crate) context_size: u32,
    pub(crate) created: u64,
    pub(crate) parent: Option<Key>,
    pub(crate) start: u32,
    /// The tokens from `start` on.
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
}

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
    store: &'a Store,
    key: Key,
    tier: Tier,
    token: Token,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.store.index.lock().reservations.release(self.key, self.tier, self.token);
    }
}

/// Removes the temporary file whatever happens to the writer, a panic included.
struct Temporary<'a> {
    fs: &'a dyn Fs,
    path: PathBuf,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // It may never have been created; what remains is dealt with when the folder is opened next.
        let _ = self.fs.remove(&self.path);
    }
}

/// How a file came to its final name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placed {
    /// The name was free.
    Created,
    /// The file that was there is this very row, and stays.
    Adopted,
    /// Another file was there and is gone.
    Replaced,
}

/// The final name while the row is not announced. A writer that does not come that far, because of a panic too,
/// takes back what it alone brought. Whatever was there before stays, or the file that took its place: the row is
/// found in it when the folder is opened next. A row that was dropped meanwhile leaves no file, wherever it is from;
/// the reservation keeps others from removing or writing it until then.
struct Linked<'a> {
    store: &'a Store,
    row: RowId,
    path: &'a Path,
    is_ours: bool,
    announced: bool,
}

impl Drop for Linked<'_> {
    fn drop(&mut self) {
        if !self.announced && (self.is_ours || self.store.is_dropped(self.row)) {
            let _ = self.store.config.fs.remove(self.path);
        }
    }
}

impl Store {
    /// Takes one row through all stages. Returns the bytes of its file.
    pub(crate) fn publish(
        &self,
        tier: &FileTier,
        row: RowId,
        draft: &Draft,
        payload: &Payload,
    ) -> Result<u64, PublishError> {
        let key = draft.key;
        let ttl = Duration::from_millis(self.config.reservation_ttl_ms);
        let (token, was_published) = {
            let mut index = self.index.lock();
            let row = index.row(row).filter(|row| !row.doomed).ok_or(PublishError::RowLost)?;
            if let Some(parent) = row.parent {
                let published = index.row(parent).is_some_and(|row| row.is_as_durable_as(tier.tier()));
                if !published {
                    return Err(PublishError::ParentLost);
                }
            }
            let was_published = row.resides_in(tier.tier());
            let now = self.config.clock.now();
            let token = index.reservations.reserve(key, tier.tier(), now, ttl).map_err(|_| PublishError::Conflict)?;
            (token, was_published)
        };
        let held = Held { store: self, key, tier: tier.tier(), token };
        self.reached(Stage::Reserved, &key);

        // The sums in the prefix are made while the payload is on its way to the device.
        let length = encode(draft, payload, |_| 0)?.len();
        let encoded = OnceCell::new();
        let prefix = || -> io::Result<&[u8]> {
            if encoded.get().is_none() {
                let _ = encoded.set(encode(draft, payload, crc32c).map_err(io::Error::other)?);
            }
            Ok(encoded.get().map_or(&[], Vec::as_slice))
        };
        let path = tier.row_path(&key);
        let temporary = Temporary { fs: &*self.config.fs, path: self.tmp_path(tier, &key) };
        let pieces: Vec<&[u8]> = payload.iter().map(|part| &part.bytes[..]).collect();
        self.write_tmp(tier, &temporary.path, &NewFile::with_head(&pieces, length, &prefix))?;
        let prefix = prefix().map_err(|source| io_error("sum up", source))?;
        self.reached(Stage::TmpWritten, &key);

        if !self.index.lock().reservations.confirm(key, tier.tier(), token) {
            return Err(PublishError::ReservationLost);
        }
        self.reached(Stage::Checked, &key);

        let file_length = prefix.len() as u64 + pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let ours = format::decode_prefix(prefix, file_length)?;
        let placed = self.put_in_place(&temporary.path, &path, &ours)?;
        if was_published && placed != Placed::Adopted {
            // The old file is gone, so this is where the row stands, however the rest of the stages ends.
            self.index.lock().set_spot(row, tier.tier(), spot_of(&ours));
        }
        let is_ours = placed == Placed::Created && !was_published;
        let mut linked = Linked { store: self, row, path: &path, is_ours, announced: false };
        self.reached(Stage::Linked, &key);
        drop(temporary);
        self.reached(Stage::TmpRemoved, &key);

        if tier.is_durable()
            && let Some(folder) = path.parent()
            && let Err(source) = self.config.fs.sync_folder(folder)
            // A row that was there before is durable already: whichever of its files a crash leaves is whole.
            && !was_published
        {
            return Err(io_error("sync the folder of", source));
        }
        self.reached(Stage::FolderSynced, &key);

        let written = match read_prefix(&*self.config.fs, &path) {
            // It was announced long ago, and its old place in the file is gone: what was written has to do.
            Err(PrefixError::Io(_)) if was_published => ours,
            result => result.map_err(|error| PublishError::ReadBack(error.to_string()))?,
        };
        if !self.announce(row, &held, &written) {
            // The row was dropped while it was written (its parent was found damaged): the file goes too.
            return Err(PublishError::RowLost);
        }
        linked.announced = true;
        self.reached(Stage::Announced, &key);
        Ok(file_length)
    }

    /// Stage 5: the row is in the tier, and everybody who waits for it hears so. The reservation ends in the same
    /// step: from here on whoever drops the row may remove its file.
    fn announce(&self, row: RowId, held: &Held<'_>, written: &RowPrefix) -> bool {
        let mut index = self.index.lock();
        if index.row(row).is_none_or(|row| row.doomed) {
            return false;
        }
        index.set_spot(row, held.tier, spot_of(written));
        index.reservations.release(held.key, held.tier, held.token);
        drop(index);
        self.changed.notify_all();
        true
    }

    fn is_dropped(&self, row: RowId) -> bool {
        self.index.lock().row(row).is_none_or(|row| row.doomed)
    }

    fn write_tmp(&self, tier: &FileTier, path: &Path, file: &NewFile<'_>) -> Result<(), PublishError> {
        let fs = &*self.config.fs;
        let durable = tier.is_durable();
        match fs.write_new(path, file, durable) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result.map_err(|source| io_error("write", source)),
        }
        // The first row of its sub-folder, or somebody removed the folder underneath.
        let folder = path.parent().unwrap_or(tier.root());
        fs.create_folder(folder).map_err(|source| io_error("create the folder of", source))?;
        if durable {
            fs.sync_folder(tier.root()).map_err(|source| io_error("sync the folder of", source))?;
        }
        fs.write_new(path, file, durable).map_err(|source| io_error("write", source))
    }

    /// Stage 4: an existing file is adopted if it is this very row, and replaced otherwise. Never ignored.
    fn put_in_place(&self, from: &Path, to: &Path, ours: &RowPrefix) -> Result<Placed, PublishError> {
        let fs = &*self.config.fs;
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
        let number = self.next_writer.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format::tmp_path(tier.root(), key, &format!("{}-{number}", std::process::id()))
    }

    fn reached(&self, stage: Stage, key: &Key) {
        if let Some(observer) = &self.config.observer {
            observer.reached(stage, key);
        }
    }
}

/// The bytes before the payload, whose parts have these sums.
fn encode(draft: &Draft, payload: &Payload, sum: impl Fn(&[u8]) -> u32) -> Result<Vec<u8>, FormatError> {
    let part = |part: &PayloadPart| NewPart { kind: part.kind, length: part.bytes.len() as u64, crc: sum(&part.bytes) };
    let parts: Vec<NewPart> = payload.iter().map(part).collect();
    format::encode_prefix(&format::NewRow {
        reason: draft.reason,
        flags: draft.flags,
        hits: 0,
        context_size: draft.context_size,
        created: draft.created,
        last_used: draft.created,
        namespace: draft.namespace,
        fingerprint_mode: draft.mode,
        parent: draft.parent,
        start: draft.start,
        tokens: &draft.tokens,
        parts: &parts,
        text: &draft.text,
        host: host_name().as_deref(),
        writer: Some(concat!("poncho ", env!("CARGO_PKG_VERSION"))),
        reason_detail: draft.reason_detail.as_deref(),
        owners: &draft.owners,
    })
}

fn spot_of(prefix: &RowPrefix) -> FileSpot {
    FileSpot {
        file_length: prefix.file_length(),
        payload_offset: prefix.payload_offset,
        parts: Arc::from(prefix.parts.as_slice()),
    }
}

/// Whether a file holds our row: same identity, tokens and parts. The parts' checksums are part of that, so an equal
/// file has an equal payload unless it was damaged since, which the check at loading finds.
fn is_same_row(there: &RowPrefix, ours: &RowPrefix) -> bool {
    there.version == ours.version
        && there.namespace == ours.namespace
        && there.parent == ours.parent
        && there.start == ours.start
        && there.tokens == ours.tokens
        && there.parts == ours.parts
}

fn io_error(action: &'static str, source: io::Error) -> PublishError {
    PublishError::Io { action, source }
}

fn host_name() -> Option<String> {
    rustix::system::uname().nodename().to_str().ok().map(str::to_owned)
}
