//! The stamp of a file when it was hashed, stored on disk.
//!
//! Written to `hashed/` when a file gets its name, read when the model is loaded: a file that still has this stamp need
//! not be hashed again. A stamp that cannot be written or read costs one more reading of the file and must never cause
//! an error.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use poncho_gguf::file::{FileStamp, Links, open_regular};

/// Far more than a stamp has.
const MOST_BYTES: u64 = 4096;

/// Reads a stamp; `None` if there is none or it is damaged.
pub(crate) fn read(path: &Path) -> Option<FileStamp> {
    let mut bytes = Vec::new();
    open_regular(path, Links::Refuse).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Writes a stamp beside its place and renames it there. The caller holds the folder's lock. Not synced: after a crash
/// a torn one is not read, and the price is one more reading of the file.
pub(crate) fn write(stamp: &FileStamp, path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, serde_json::to_vec(stamp)?)?;
    fs::rename(&temporary, path)
}
