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

/// The disk of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    /// All bytes.
    pub(crate) total: u64,
    /// Bytes that this user may still write.
    pub(crate) free: u64,
    /// Bytes of the files in the folder.
    pub(crate) taken: u64,
}

/// The disk of a folder that may not exist yet; `None` if the system does not report it.
pub(crate) fn disk_space(folder: &Path) -> Option<DiskSpace> {
    let existing = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let facts = rustix::fs::statvfs(existing).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
    Some(DiskSpace { total: bytes(facts.f_blocks), free: bytes(facts.f_bavail), taken: taken(folder) })
}

/// Bytes of the files of a folder and of the folders in it.
fn taken(folder: &Path) -> u64 {
    let bytes_in = |folder: &Path| -> (u64, Vec<std::path::PathBuf>) {
        let (mut bytes, mut folders) = (0_u64, Vec::new());
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(facts) if facts.is_dir() => folders.push(entry.path()),
                Ok(facts) => bytes = bytes.saturating_add(facts.len()),
                Err(_) => {}
            }
        }
        (bytes, folders)
    };
    let (bytes, folders) = bytes_in(folder);
    folders.iter().map(|folder| bytes_in(folder).0).fold(bytes, u64::saturating_add)
}

/// Bytes that this user may still write.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().map(|facts| facts.f_bavail.saturating_mul(facts.f_frsize))
}
