//! The files of models, each named by the SHA-256 of its bytes, and the way of a new file to its place.
//!
//! A file arrives in a folder of its own under `incoming/`, locked by whoever fills it, is checked there, and is given its
//! name by a rename: a file under `blobs/` is always whole. It must never be changed afterwards.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use poncho_gguf::file::{self, FileStamp, Links};
use serde::{Deserialize, Serialize};

use crate::digest::{Hasher, Sha256, for_each_piece};
use crate::error::RegistryError;
use crate::lock::{self, HeldLock};
use crate::progress::{Progress, ProgressSink};
use crate::stamp;

/// A file by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Its hash, which is its name too.
    pub sha256: Sha256,
    /// Its size.
    pub bytes: u64,
}

/// Where things are in a registry folder.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
}

impl Layout {
    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    pub(crate) fn incoming(&self) -> PathBuf {
        self.root.join("incoming")
    }

    /// How the files in `blobs/` were when they were hashed.
    pub(crate) fn stamp(&self, digest: &Sha256) -> PathBuf {
        self.hashed().join(blob_name(digest))
    }

    pub(crate) fn hashed(&self) -> PathBuf {
        self.root.join("hashed")
    }

    /// Bytes that may still be written; `None` if the file system does not say.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let facts = rustix::fs::statvfs(&self.root).ok()?;
        Some(facts.f_bavail.saturating_mul(facts.f_frsize))
    }

    /// Interrupted downloads, kept to go on with.
    pub(crate) fn partial(&self) -> PathBuf {
        self.root.join("partial")
    }

    /// Files that a client sent before it creates a model from them.
    pub(crate) fn uploads(&self) -> PathBuf {
        self.root.join("uploads")
    }

    fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(crate) fn blob(&self, digest: &Sha256) -> PathBuf {
        self.blobs().join(blob_name(digest))
    }

    pub(crate) fn upload(&self, digest: &Sha256) -> PathBuf {
        self.uploads().join(blob_name(digest))
    }

    /// Makes the folders that are missing.
    pub(crate) fn prepare(&self) -> Result<(), RegistryError> {
        for folder in [self.blobs(), self.manifests(), self.incoming(), self.partial(), self.uploads()] {
            fs::create_dir_all(&folder).map_err(|source| RegistryError::io("create", &folder, source))?;
        }
        Ok(())
    }

    /// Waits for the lock of everybody who changes the folder. Make the folders first.
    pub(crate) fn lock_for_writing(&self) -> Result<HeldLock, RegistryError> {
        lock::wait_for(&self.lock())
    }

    /// The same without waiting.
    pub(crate) fn try_lock_for_writing(&self) -> Result<Option<HeldLock>, RegistryError> {
        lock::try_take(&self.lock())
    }

    /// A folder for one file that arrives. Made under the folder's lock, so that nobody takes it for a leftover before
    /// its own lock is held.
    pub(crate) fn receive(&self) -> Result<Incoming, RegistryError> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        self.prepare()?;
        let _writing = self.lock_for_writing()?;
        let unique = format!("{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let folder = self.incoming().join(unique);
        // A process of the same number may have died here.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).map_err(|source| RegistryError::io("create", &folder, source))?;
        let lock = lock::try_take(&folder.join(LOCK_NAME))?.ok_or(RegistryError::Stopped)?;
        Ok(Incoming { folder, _lock: lock })
    }
}

/// The lock in a folder of `incoming/` and `partial/`.
pub(crate) const LOCK_NAME: &str = "lock";
/// The bytes in such a folder.
pub(crate) const DATA_NAME: &str = "data";

fn blob_name(digest: &Sha256) -> String {
    format!("sha256-{digest}")
}

/// The hash that a file in `blobs/` is named after.
pub(crate) fn digest_of_name(name: &str) -> Option<Sha256> {
    let digest = Sha256::parse(name.strip_prefix("sha256-")?)?;
    (blob_name(&digest) == name).then_some(digest)
}

/// The folder of one arriving file; it goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Incoming {
    folder: PathBuf,
    _lock: HeldLock,
}

impl Incoming {
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join(DATA_NAME)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // What stays is removed when the registry is opened next.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Brings a file of this machine into `incoming`: by sharing its blocks, else by a copy. Never by a second name for it:
/// a file in `blobs/` is never changed, and the user's own may be.
pub(crate) fn bring(
    layout: &Layout,
    from: &Path,
    incoming: &Incoming,
    progress: ProgressSink<'_>,
) -> Result<(), RegistryError> {
    let to = incoming.data();
    let source = file::open_regular(from, Links::Follow).map_err(|source| RegistryError::io("open", from, source))?;
    let stamp = |file| FileStamp::of_file(file).map_err(|source| RegistryError::io("look at", from, source));
    let before = stamp(&source)?;
    let target = File::create(&to).map_err(|source| RegistryError::io("create", &to, source))?;
    if clone_blocks(&source, &target).is_err() {
        check_room(layout, before.bytes)?;
        copy(&source, from, target, &to, progress)?;
    }
    // Half of one file and half of another would be a model of its own.
    if stamp(&source)? != before {
        return Err(RegistryError::SourceChanged { path: from.to_owned() });
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn clone_blocks(from: &File, to: &File) -> io::Result<()> {
    Ok(rustix::fs::ioctl_ficlone(to, from)?)
}

#[cfg(not(target_os = "linux"))]
fn clone_blocks(_from: &File, _to: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether so many bytes fit into the registry's folder.
pub(crate) fn check_room(layout: &Layout, needed: u64) -> Result<(), RegistryError> {
    match layout.free_bytes() {
        Some(free) if free < needed => Err(RegistryError::NoRoom { needed, free, folder: layout.root.clone() }),
        _ => Ok(()),
    }
}

fn copy(
    source: &File,
    from: &Path,
    mut target: File,
    to: &Path,
    progress: ProgressSink<'_>,
) -> Result<(), RegistryError> {
    let total = source.metadata().map_or(0, |metadata| metadata.len());
    pieces(source, from, |piece, done| {
        target.write_all(piece).map_err(|source| RegistryError::io("write", to, source))?;
        tell(progress, Progress::Copying { done, total })
    })?;
    Ok(())
}

/// Whether a file has a second name, under which somebody may change it.
pub(crate) fn is_linked(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.nlink() > 1)
}

/// Reads a file piece by piece with errors that name it.
pub(crate) fn pieces(
    reader: impl Read,
    path: &Path,
    mut each: impl FnMut(&[u8], u64) -> Result<(), RegistryError>,
) -> Result<u64, RegistryError> {
    struct Wrapped(Result<io::Error, RegistryError>);
    impl From<io::Error> for Wrapped {
        fn from(error: io::Error) -> Self {
            Self(Ok(error))
        }
    }
    for_each_piece(reader, |piece, done| each(piece, done).map_err(|error| Wrapped(Err(error)))).map_err(
        |Wrapped(error)| match error {
            Ok(source) => RegistryError::io("read", path, source),
            Err(error) => error,
        },
    )
}

/// Tells the caller, and stops if it wants to.
pub(crate) fn tell(progress: ProgressSink<'_>, step: Progress) -> Result<(), RegistryError> {
    if progress(step).is_break() { Err(RegistryError::Stopped) } else { Ok(()) }
}

/// A file's hash and size, and how the file was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hashed {
    pub(crate) blob: Blob,
    pub(crate) stamp: FileStamp,
}

/// The hash and size of a file that does not change meanwhile.
pub(crate) fn hash_file(path: &Path, progress: ProgressSink<'_>) -> Result<Hashed, RegistryError> {
    let look = |file| FileStamp::of_file(file).map_err(|source| RegistryError::io("look at", path, source));
    let file = file::open_regular(path, Links::Follow).map_err(|source| RegistryError::io("open", path, source))?;
    let stamp = look(&file)?;
    let total = stamp.bytes;
    let mut hasher = Hasher::default();
    let bytes = pieces(&file, path, |piece, done| {
        hasher.update(piece);
        tell(progress, Progress::Verifying { done, total })
    })?;
    // The change time aside: another process may give the name to a new file meanwhile, which takes it from this one.
    if !look(&file)?.is_renamed(&stamp) {
        return Err(RegistryError::SourceChanged { path: path.to_owned() });
    }
    Ok(Hashed { blob: Blob { sha256: hasher.finish(), bytes }, stamp })
}

/// Makes a file's bytes last.
pub(crate) fn sync_file(path: &Path) -> Result<(), RegistryError> {
    let synced = file::open_regular(path, Links::Follow).and_then(|file| file.sync_all());
    synced.map_err(|source| RegistryError::io("sync", path, source))
}

/// Makes the names in a folder last.
pub(crate) fn sync_folder(path: &Path) -> Result<(), RegistryError> {
    let synced = file::open_folder(path, Links::Follow).and_then(|folder| folder.sync_all());
    synced.map_err(|source| RegistryError::io("sync", path, source))
}

/// Gives a whole, checked file its name, and remembers how it was when it was hashed (`None` if that was not seen). The
/// caller holds the folder's lock and has synced the file. A file that has the name already is replaced: the new bytes
/// were just checked, the old ones were not.
pub(crate) fn place(
    layout: &Layout,
    data: &Path,
    blob: &Blob,
    hashed: Option<&FileStamp>,
) -> Result<(), RegistryError> {
    let target = layout.blob(&blob.sha256);
    match fs::rename(data, &target) {
        Ok(()) => {}
        // An upload that another model took meanwhile: it has its name.
        Err(error) if error.kind() == io::ErrorKind::NotFound && target.is_file() => return Ok(()),
        Err(source) => return Err(RegistryError::io("rename", &target, source)),
    }
    sync_folder(&layout.blobs())?;
    // Taken again: the rename changed it.
    let now = FileStamp::of(&target);
    let stamp_path = layout.stamp(&blob.sha256);
    match (now, hashed) {
        (Ok(now), Some(hashed)) if hashed.is_renamed(&now) => {
            // Without it the file is read once more when it is loaded.
            let _ = stamp::write(&now, &stamp_path);
        }
        _ => {
            let _ = fs::remove_file(&stamp_path);
        }
    }
    Ok(())
}
