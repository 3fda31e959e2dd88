//! Stamps: they distinguish two states of a file without reading it: size, inode, and the times of its last changes.
//!
//! Stored beside every remembered hash (the cache's memo, the registry's `hashed/`), and compared by the engine while a
//! model is loaded. The change time (ctime) is part of it because no program can set it: a file that was overwritten in
//! place and got its old modification time back still has a new change time. The device number is left out: it differs
//! between two mounts of the same file system.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// The coarsest times in use (FAT) tick every two seconds: a file younger than that could be changed again without a
/// trace, so its hash is not remembered yet.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// See the module. Two equal stamps of one path mean the same bytes, unless both changes fell into one tick of the file
/// system's clock (some milliseconds on Linux).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileStamp {
    /// Size in bytes.
    pub bytes: u64,
    /// Modification time, seconds since 1970.
    pub modified_seconds: i64,
    /// Its nanoseconds.
    pub modified_nanos: i64,
    /// Change time (ctime), seconds since 1970.
    pub changed_seconds: i64,
    /// Its nanoseconds.
    pub changed_nanos: i64,
    /// The inode.
    pub inode: u64,
}

impl FileStamp {
    /// The stamp of the file that a path leads to.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|metadata| Self::of_metadata(&metadata))
    }

    /// The stamp of an opened file.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn of_file(file: &File) -> io::Result<Self> {
        file.metadata().map(|metadata| Self::of_metadata(&metadata))
    }

    fn of_metadata(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            modified_seconds: metadata.mtime(),
            modified_nanos: metadata.mtime_nsec(),
            changed_seconds: metadata.ctime(),
            changed_nanos: metadata.ctime_nsec(),
            inode: metadata.ino(),
        }
    }

    /// Whether it is the same file with the same bytes, renamed at most: a rename sets the change time.
    #[must_use]
    pub fn is_renamed(&self, other: &Self) -> bool {
        let rest = |stamp: &Self| Self { changed_seconds: 0, changed_nanos: 0, ..*stamp };
        rest(self) == rest(other)
    }

    /// Whether any change after `at` would show in the stamp.
    #[must_use]
    pub fn is_settled(&self, at: SystemTime) -> bool {
        let is_old = |seconds: i64, nanos: i64| {
            let time = u64::try_from(seconds).ok().zip(u64::try_from(nanos).ok()).and_then(|(seconds, nanos)| {
                SystemTime::UNIX_EPOCH
                    .checked_add(Duration::from_secs(seconds))?
                    .checked_add(Duration::from_nanos(nanos))
            });
            time.is_some_and(|time| at.duration_since(time).is_ok_and(|age| age > SETTLED_AFTER))
        };
        is_old(self.modified_seconds, self.modified_nanos) && is_old(self.changed_seconds, self.changed_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: FileStamp =
        FileStamp { bytes: 1, modified_seconds: 2, modified_nanos: 3, changed_seconds: 4, changed_nanos: 5, inode: 6 };

    #[test]
    fn a_rename_changes_the_change_time_alone() {
        assert!(STAMP.is_renamed(&FileStamp { changed_seconds: 9, changed_nanos: 9, ..STAMP }));
        assert!(!STAMP.is_renamed(&FileStamp { inode: 9, ..STAMP }));
        assert!(!STAMP.is_renamed(&FileStamp { modified_nanos: 9, ..STAMP }));
    }

    #[test]
    fn a_file_settles_two_seconds_after_both_times() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(!STAMP.is_settled(at(3)) && !STAMP.is_settled(at(6)) && STAMP.is_settled(at(7)));
        assert!(!FileStamp { changed_seconds: -1, ..STAMP }.is_settled(at(100)), "a time before 1970 is not believed");
    }

    /// Stamps are stored by the registry.
    #[test]
    fn stamps_keep_their_form_in_json() {
        let json =
            r#"{"bytes":1,"modified_seconds":2,"modified_nanos":3,"changed_seconds":4,"changed_nanos":5,"inode":6}"#;
        assert_eq!(serde_json::to_string(&STAMP).unwrap(), json);
        assert_eq!(serde_json::from_str::<FileStamp>(json).unwrap(), STAMP);
    }
}
