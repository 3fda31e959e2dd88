//! The lock on a cache folder: one process owns it, and says who it is.
//!
//! Taken when a cache is opened for writing, released when the file handle closes, however the process
//! ends. Reading tools do without it. It must never be taken for a sign that the folder is healthy.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::CacheError;
use crate::format::LOCK_FILE_NAME;
use crate::io::files::{self, Links};

/// Holds the lock while it lives.
#[derive(Debug)]
pub(crate) struct FolderLock {
    file: File,
    process: u32,
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started at this moment holds a copy of the handle.
        let _ = self.file.unlock();
    }
}

impl FolderLock {
    /// Takes the lock of a folder for a process, which is named to others.
    pub(crate) fn take(folder: &Path, process: u32) -> Result<Self, CacheError> {
        let path = folder.join(LOCK_FILE_NAME);
        let wrap = |action, source| CacheError::Folder { action, path: path.clone(), source };
        let mut file = files::open_or_create_private(OpenOptions::new().read(true).write(true).truncate(false), &path)
            .map_err(|source| wrap("open", source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(CacheError::Locked { pid: holder(&mut file), path: folder.to_path_buf() });
            }
            Err(TryLockError::Error(source)) => return Err(wrap("lock", source)),
        }
        // Who holds it, for people; the lock itself is the kernel's.
        let note = format!("{process}\n");
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(note.as_bytes()));
        Ok(Self { file, process })
    }

    /// Whether the folder still has the file that is locked. If somebody removed it, the lock keeps nobody out.
    pub(crate) fn is_in_place(&self, folder: &Path) -> bool {
        let there = folder.join(LOCK_FILE_NAME).symlink_metadata();
        let held = self.file.metadata();
        matches!((there, held), (Ok(there), Ok(held)) if (there.dev(), there.ino()) == (held.dev(), held.ino()))
    }

    /// Takes the lock of the same folder once more, for the same process.
    pub(crate) fn take_again(&self, folder: &Path) -> Result<Self, CacheError> {
        Self::take(folder, self.process)
    }

    /// The process that holds the lock of a folder, if one does.
    pub(crate) fn holder_of(folder: &Path) -> Option<String> {
        let path: PathBuf = folder.join(LOCK_FILE_NAME);
        let mut file = files::open_regular(&path, Links::Refuse).ok()?;
        // Shared, so that two readers never take each other for the owner.
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Some(holder(&mut file)),
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }
}

fn holder(file: &mut File) -> String {
    let mut note = String::new();
    let read = file.rewind().and_then(|()| file.take(64).read_to_string(&mut note));
    match note.trim() {
        pid if read.is_ok() && !pid.is_empty() => pid.to_owned(),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_refused_with_the_pid_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path(), std::process::id()).unwrap();
        let refused = FolderLock::take(folder.path(), std::process::id()).unwrap_err();
        let pid = std::process::id().to_string();
        assert!(
            matches!(&refused, CacheError::Locked { pid: held, path } if *held == pid && path == folder.path()),
            "{refused}"
        );
        assert!(refused.to_string().contains(&pid));
        assert_eq!(FolderLock::holder_of(folder.path()), Some(pid));
        drop(lock);
        assert_eq!(FolderLock::holder_of(folder.path()), None);
        FolderLock::take(folder.path(), std::process::id()).unwrap();
    }

    #[test]
    fn a_lock_that_was_removed_is_noticed_and_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path(), 7).unwrap();
        assert!(lock.is_in_place(folder.path()));
        std::fs::remove_file(folder.path().join(LOCK_FILE_NAME)).unwrap();
        assert!(!lock.is_in_place(folder.path()));
        let again = lock.take_again(folder.path()).unwrap();
        assert!(again.is_in_place(folder.path()) && !lock.is_in_place(folder.path()));
        drop(lock);
        assert_eq!(FolderLock::holder_of(folder.path()), Some("7".to_owned()));
    }
}
