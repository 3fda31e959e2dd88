//! Who may read a cache folder: finding what others have rights on, and taking those rights away.
//!
//! Rows hold the texts of conversations. New files and folders are created for their owner alone (`files.rs`); here are those
//! of older releases. `Cache::open` shields a folder, `poncho doctor` and `poncho cache verify` report, `--repair` closes every
//! file. It must never change the rights of a folder that holds anything but a cache.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::format::{self, FileNameKind};
use crate::identity::memo::SUFFIX as MEMO_SUFFIX;
use crate::io::files::{self, Links};

/// The rights of everybody but the owner.
const OF_OTHERS: u32 = 0o077;
/// A folder in which everybody creates files, such as `/tmp`.
const STICKY: u32 = 0o1000;

/// A file or folder of a cache that others than its owner have rights on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenToOthers {
    /// Which one.
    pub path: PathBuf,
    /// Its rights, such as `0o644`.
    pub mode: u32,
    /// Whether a folder above it keeps others out all the same.
    pub is_shielded: bool,
}

/// What [`close_cache_folder`] did.
#[derive(Debug, Default)]
pub struct Closed {
    /// Files and folders that others had rights on, and now have none.
    pub closed: usize,
    /// Files and folders with rights that could not be changed.
    pub failed: Vec<(PathBuf, io::Error)>,
}

/// Everything of a cache folder that others have rights on, folders before what is in them.
///
/// # Errors
/// The folder cannot be listed.
pub fn open_to_others(root: &Path) -> io::Result<Vec<OpenToOthers>> {
    let mut found = Vec::new();
    let mut note = |path: &Path, metadata: &Metadata, is_shielded: bool| {
        let mode = metadata.permissions().mode() & 0o7777;
        let is_open = mode & OF_OTHERS != 0;
        if is_open {
            found.push(OpenToOthers { path: path.to_path_buf(), mode, is_shielded });
        }
        is_shielded || !is_open
    };
    // The rights of a folder that holds other things too are not ours to judge, and it keeps nobody out.
    let root_is_closed = is_only_ours(root)? && note(root, &fs::metadata(root)?, false);
    for (path, metadata) in entries(root)? {
        let name = path.file_name().unwrap_or_default();
        if metadata.is_dir() && format::is_row_folder_name(name) {
            let is_closed = note(&path, &metadata, root_is_closed);
            // A folder that cannot be listed is reported by the scan for rows.
            for (path, metadata) in entries(&path).unwrap_or_default() {
                let is_ours = path.file_name().map(format::classify).is_some_and(|kind| kind != FileNameKind::Other);
                if metadata.is_file() && is_ours {
                    note(&path, &metadata, is_closed);
                }
            }
        } else if metadata.is_file() && is_own_file(name) {
            note(&path, &metadata, root_is_closed);
        }
    }
    Ok(found)
}

/// Takes the rights of others away from everything in a cache folder, and from the folder itself where it holds nothing else.
///
/// # Errors
/// The folder cannot be listed.
pub fn close_cache_folder(root: &Path) -> io::Result<Closed> {
    let mut closed = Closed::default();
    for open in open_to_others(root)? {
        let changed = match &open.path {
            path if path == root => close_folder(path, Links::Follow),
            path if path.is_dir() => close_folder(path, Links::Refuse),
            path => files::open_regular(path, Links::Refuse).and_then(|file| files::close_to_others(&file)),
        };
        match changed {
            Ok(true) => closed.closed += 1,
            Ok(false) => {}
            // Evicted meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => closed.failed.push((open.path, error)),
        }
    }
    Ok(closed)
}

/// Keeps others out of a folder that is about to be used: by the folder itself if it holds a cache and nothing else, else by
/// the folders of rows in it. Returns whether anything had to be done.
pub(crate) fn shield(root: &Path) -> io::Result<bool> {
    if fs::metadata(root)?.permissions().mode() & OF_OTHERS == 0 {
        return Ok(false);
    }
    if is_only_ours(root)? {
        return close_folder(root, Links::Follow);
    }
    let mut changed = false;
    for (path, metadata) in entries(root)? {
        if metadata.is_dir() && path.file_name().is_some_and(format::is_row_folder_name) {
            changed |= close_folder(&path, Links::Refuse)?;
        }
    }
    Ok(changed)
}

fn close_folder(path: &Path, links: Links) -> io::Result<bool> {
    let folder = files::open_folder(path, links)?;
    if folder.metadata()?.permissions().mode() & STICKY != 0 {
        return Ok(false);
    }
    files::close_to_others(&folder)
}

/// Whether a folder is a cache's alone. A home, or `/tmp`, may have been given as the cache folder.
fn is_only_ours(root: &Path) -> io::Result<bool> {
    if fs::metadata(root)?.permissions().mode() & STICKY != 0 {
        return Ok(false);
    }
    Ok(entries(root)?.iter().all(|(path, metadata)| {
        let name = path.file_name().unwrap_or_default();
        is_own_file(name) || (metadata.is_dir() && format::is_row_folder_name(name))
    }))
}

/// Whether a file of that name, in the root of a cache folder, is one that we write there.
fn is_own_file(name: &OsStr) -> bool {
    format::classify(name) == FileNameKind::Lock || name.to_str().is_some_and(|name| name.contains(MEMO_SUFFIX))
}

/// What is in a folder, links not followed. Whatever is gone before it was looked at is left out.
fn entries(folder: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if let Ok(metadata) = entry.metadata() {
            found.push((entry.path(), metadata));
        }
    }
    found.sort_by(|one, two| one.0.cmp(&two.0));
    Ok(found)
}
