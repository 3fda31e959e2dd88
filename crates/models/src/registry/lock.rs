//! Locks between processes: one for all changes to the folder, and one on each temporary file while it is written.
//!
//! The kernel drops them with the process, however it ends, so a free lock on a temporary file means a leftover. Locks
//! are held for short work only; copying and downloading happen without the folder's lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use poncho_gguf::file::{self, Links};

use crate::error::RegistryError;

/// Holds the lock of a file while it lives.
#[derive(Debug)]
pub(crate) struct HeldLock {
    file: File,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started at this moment holds a copy of the handle.
        let _ = self.file.unlock();
    }
}

fn open(path: &Path) -> Result<File, RegistryError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    file::open_regular_with(&mut options, path, Links::Refuse).map_err(|source| RegistryError::io("open", path, source))
}

/// Waits until the lock is free: its holders do short work.
pub(crate) fn wait_for(path: &Path) -> Result<HeldLock, RegistryError> {
    let file = open(path)?;
    file.lock().map_err(|source| RegistryError::io("lock", path, source))?;
    Ok(HeldLock { file })
}

/// Takes the lock; `None` if another holder has it.
pub(crate) fn try_take(path: &Path) -> Result<Option<HeldLock>, RegistryError> {
    let file = open(path)?;
    match file.try_lock() {
        // If its folder was removed between opening and locking, the lock no longer protects anything.
        Ok(()) => Ok(is_same_file(&file, path).then_some(HeldLock { file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(RegistryError::io("lock", path, source)),
    }
}

fn is_same_file(file: &File, path: &Path) -> bool {
    let (Ok(held), Ok(named)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (held.dev(), held.ino()) == (named.dev(), named.ino())
}

/// Whether a file exists and its lock is free.
pub(crate) fn is_free(path: &Path) -> bool {
    file::open_regular(path, Links::Refuse).is_ok_and(|file| file.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_taken_once_and_free_after_the_drop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert!(!is_free(&path), "a file that is not there has no lock");
        let held = wait_for(&path).unwrap();
        assert!(try_take(&path).unwrap().is_none());
        assert!(!is_free(&path));
        drop(held);
        assert!(is_free(&path));
        assert!(try_take(&path).unwrap().is_some());
    }
}
