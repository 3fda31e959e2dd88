//! Removes what a crash left in a registry folder.
//!
//! Called when the folder is opened. It must never remove what another process works on: the process that fills an
//! incoming file keeps it locked, and files without a name appear and vanish only under the folder's lock. Interrupted
//! downloads stay, so that they can be resumed. A failure never prevents opening: a folder that cannot be cleaned can
//! still be read.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::error::RegistryError;

use super::layout::{LOCK_NAME, Layout, digest_of_name};
use super::{lock, store};

/// How long a file that a client sent waits for its create request.
const UPLOAD_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Removes leftovers, unless another process is changing the folder.
pub(super) fn clean(layout: &Layout) {
    // No folder, no manifests: nothing of ours is there, and a lock file would be the first thing in it.
    if layout.incoming().is_dir()
        && let Ok(Some(_writing)) = layout.try_lock_for_writing()
    {
        let _ = clean_incoming(layout);
        let _ = clean_blobs(layout);
        let _ = clean_hashed(layout);
        let _ = clean_uploads(layout);
    }
}

fn for_each_name(folder: &Path, mut each: impl FnMut(&Path, &str)) -> Result<(), RegistryError> {
    for entry in fs::read_dir(folder).map_err(|source| RegistryError::io("read", folder, source))?.flatten() {
        each(&entry.path(), &entry.file_name().to_string_lossy());
    }
    Ok(())
}

fn clean_incoming(layout: &Layout) -> Result<(), RegistryError> {
    for_each_name(&layout.incoming(), |path, name| {
        let lock_file = path.join(LOCK_NAME);
        if name == store::TEMPORARY_MANIFEST {
            let _ = fs::remove_file(path);
        } else if path.is_dir() && (lock::is_free(&lock_file) || !lock_file.exists()) {
            let _ = fs::remove_dir_all(path);
        }
    })
}

fn clean_blobs(layout: &Layout) -> Result<(), RegistryError> {
    // A manifest that cannot be read may need any of them.
    let Some(needed) = store::read_all(layout)?.needed() else { return Ok(()) };
    for_each_name(&layout.blobs(), |path, name| {
        if let Some(digest) = digest_of_name(name).filter(|digest| !needed.contains(digest)) {
            let _ = fs::remove_file(path);
            store::forget(layout, &digest);
        }
    })
}

/// What is remembered about files that are gone.
fn clean_hashed(layout: &Layout) -> Result<(), RegistryError> {
    for_each_name(&layout.hashed(), |path, name| {
        if digest_of_name(name).is_none_or(|digest| !layout.blob(&digest).exists()) {
            let _ = fs::remove_file(path);
        }
    })
}

fn clean_uploads(layout: &Layout) -> Result<(), RegistryError> {
    for_each_name(&layout.uploads(), |path, name| {
        let age = fs::metadata(path)
            .and_then(|metadata| metadata.modified())
            .map(|then| SystemTime::now().duration_since(then));
        let is_old = matches!(age, Ok(Ok(age)) if age > UPLOAD_LIFE);
        if digest_of_name(name).is_some() && is_old {
            let _ = fs::remove_file(path);
        }
    })
}
