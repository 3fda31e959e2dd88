//! The files of models, each named by the SHA-256 of its bytes, and how a new file gets its name.
//!
//! A file arrives in its own folder under `incoming/`, which the process that fills it keeps locked. The file is
//! checked there and then renamed, so a file under `blobs/` is always complete. It must never change afterwards.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use poncho_gguf::file::{self, FileStamp, Links};
use serde::{Deserialize, Serialize};

use crate::digest::{Hasher, Sha256, for_each_piece};
use crate::error::RegistryError;
use crate::progress::{Progress, ProgressSink};

use super::layout::{Incoming, Layout};
use super::stamp;

/// A file by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Its hash, which is its name too.
    pub sha256: Sha256,
    /// Its size.
    pub bytes: u64,
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
        layout.check_room(before.bytes)?;
        copy(&source, from, target, &to, progress)?;
    }
    // A copy with bytes from before and after a change would be a model that never existed.
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

/// Whether a file has a second hard link, through which it may be changed.
pub(crate) fn is_linked(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.nlink() > 1)
}

/// Reads a file piece by piece; errors name the file.
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

/// Reports a step to the caller; an error if the caller asks to stop.
pub(crate) fn tell(progress: ProgressSink<'_>, step: Progress) -> Result<(), RegistryError> {
    if progress(step).is_break() { Err(RegistryError::Stopped) } else { Ok(()) }
}

/// A file's hash and size, and how the file was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hashed {
    pub(crate) blob: Blob,
    pub(crate) stamp: FileStamp,
}

/// The hash and size of a file; an error if it changes while it is read.
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
    // The change time may differ: it changes if another process renames a new file over this one.
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
        // Another model took the same upload first: the file already has its name.
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
