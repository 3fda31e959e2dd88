//! How a file of the registry was when it was hashed: size, inode, and the times of its last changes.
//!
//! Written to `hashed/` when a file gets its name, read by whoever loads the model: a file that is still so need not be
//! read again to know its hash. The change time (ctime) is part of it because nobody can set it. A stamp that cannot be
//! written or read costs one more reading of the file and must never fail anything.

use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::files::{self, Links};

/// Far more than a stamp has.
const MOST_BYTES: u64 = 4096;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
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

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
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
    pub(crate) fn is_renamed(&self, other: &Self) -> bool {
        let rest = |stamp: &Self| Self { changed_seconds: 0, changed_nanos: 0, ..*stamp };
        rest(self) == rest(other)
    }

    /// Reads a stamp; `None` if there is none or it is damaged.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let mut bytes = Vec::new();
        files::open_regular(path, Links::Refuse).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Writes a stamp beside its place and renames it there. The caller holds the folder's lock. Not synced: after a crash
    /// a torn one is not read, and the price is one more reading of the file.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, serde_json::to_vec(self)?)?;
        fs::rename(&temporary, path)
    }
}
