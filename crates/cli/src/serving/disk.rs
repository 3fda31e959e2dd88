//! The file system that a folder is on: its kind and its free space.
//!
//! Used by the server, by `doctor` and by `poncho cache`.

use std::path::Path;

/// With less free space, a few long prompts fill the disk.
pub(crate) const LITTLE_SPACE: u64 = 1 << 30;

/// Whether a folder is on a memory file system.
#[cfg(target_os = "linux")]
pub(crate) fn is_in_memory(path: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::statfs(path).is_ok_and(|facts| [TMPFS, RAMFS].contains(&facts.f_type))
}

/// Whether a folder is on a memory file system; only Linux reports it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_in_memory(_path: &Path) -> bool {
    false
}

/// Bytes that this user may still write.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().map(|facts| facts.f_bavail.saturating_mul(facts.f_frsize))
}
