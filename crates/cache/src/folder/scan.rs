//! Reading the prefixes of a cache folder: one file, or all of them with several threads.
//!
//! Called by recovery, by publishing (to read back what it wrote) and by the inspection tools. Headers and records are
//! read, payloads are not. It must never change a file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::format::{self, FileNameKind, FormatError, HEADER_LENGTH, RowPrefix};
use crate::identity::key::Key;
use crate::io::files::NotRegular;
use crate::io::fs::{Fs, ReadFile};
use crate::io::sync::Mutex;

/// What is read of a file at first: header, records and some hundred tokens fit, so most rows take one read.
const FIRST_READ: usize = 4096;

/// Why the prefix of a file is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrefixError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Reads everything of a file before its payload, and checks it.
pub(crate) fn read_prefix(fs: &dyn Fs, path: &Path) -> Result<RowPrefix, PrefixError> {
    read_prefix_of(&*fs.open(path)?)
}

/// The same for a file from any source: one that is mostly a hole promises more bytes than were ever written, and a reader
/// that allocates for them runs out of memory.
pub(crate) fn read_found_prefix(fs: &dyn Fs, path: &Path) -> Result<RowPrefix, PrefixError> {
    let file = fs.open(path)?;
    if file.is_hollow() {
        return Err(FormatError::Hollow { length: file.length()? }.into());
    }
    read_prefix_of(&*file)
}

fn read_prefix_of(file: &dyn ReadFile) -> Result<RowPrefix, PrefixError> {
    let length = file.length()?;
    let first = usize::try_from(length).unwrap_or(usize::MAX).min(FIRST_READ);
    let mut bytes = vec![0; first];
    file.read_exact_at(&mut bytes, 0)?;
    if first >= HEADER_LENGTH {
        let needed = format::prefix_length(&bytes, length)?;
        bytes.truncate(needed);
        if needed > first {
            bytes.resize(needed, 0);
            if let Some(rest) = bytes.get_mut(first..) {
                file.read_exact_at(rest, first as u64)?;
            }
        }
    }
    Ok(format::decode_prefix(&bytes, length)?)
}

/// One file of a folder, as a scan sees it.
#[derive(Debug)]
pub(crate) enum Scanned {
    /// A readable row.
    Row { key: Key, prefix: Box<RowPrefix> },
    /// Left by a writer that did not finish.
    Temporary(PathBuf),
    /// Moved aside earlier.
    Bad(PathBuf),
    /// A row that this release cannot read; not ours to touch.
    LeftAlone { key: Key, path: PathBuf, error: FormatError },
    /// Not a whole row.
    Torn { path: PathBuf, error: FormatError },
    /// Something other than a file has the name of a row.
    NotAFile { path: PathBuf, error: io::Error },
    /// A file that the file system does not read.
    Unreadable { key: Key, path: PathBuf, error: io::Error },
    /// A folder that the file system does not list.
    Unlisted { path: PathBuf, error: io::Error },
}

/// Looks at every file of a cache folder, with several threads.
pub(crate) fn scan(fs: &dyn Fs, root: &Path) -> io::Result<Vec<Scanned>> {
    let folders: Vec<PathBuf> = fs
        .list(root)?
        .into_iter()
        .filter(|entry| entry.is_folder && format::is_row_folder_name(entry.name.as_ref()))
        .map(|entry| root.join(entry.name))
        .collect();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let work = || {
        while let Some(folder) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
            let scanned = scan_folder(fs, folder);
            found.lock().extend(scanned);
        }
    };
    // Reading headers waits for the disk more than it computes, so more threads than cores help.
    let parallel = || std::thread::available_parallelism().map_or(2, usize::from).saturating_mul(2);
    // Shuttle knows its own threads only.
    let threads = if cfg!(feature = "shuttle") { 1 } else { parallel().min(folders.len()) };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    Ok(std::mem::take(&mut *found.lock()))
}

fn scan_folder(fs: &dyn Fs, folder: &Path) -> Vec<Scanned> {
    let entries = match fs.list(folder) {
        Ok(entries) => entries,
        Err(error) => return vec![Scanned::Unlisted { path: folder.to_path_buf(), error }],
    };
    entries
        .into_iter()
        .filter_map(|entry| match entry.is_folder {
            false => scan_file(fs, folder, &entry.name),
            true => matches!(format::classify(entry.name.as_ref()), FileNameKind::Row(_)).then(|| Scanned::NotAFile {
                path: folder.join(&entry.name),
                error: NotRegular { kind: "a folder" }.into(),
            }),
        })
        .collect()
}

fn scan_file(fs: &dyn Fs, folder: &Path, name: &str) -> Option<Scanned> {
    let path = folder.join(name);
    let key = match format::classify(name.as_ref()) {
        FileNameKind::Row(key) => key,
        FileNameKind::Temporary => return Some(Scanned::Temporary(path)),
        FileNameKind::Bad => return Some(Scanned::Bad(path)),
        FileNameKind::Lock | FileNameKind::Other => return None,
    };
    Some(match read_found_prefix(fs, &path) {
        Ok(prefix) => Scanned::Row { key, prefix: Box::new(prefix) },
        Err(PrefixError::Format(error)) if error.leave_alone() => Scanned::LeftAlone { key, path, error },
        Err(PrefixError::Format(error)) => Scanned::Torn { path, error },
        Err(PrefixError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Scanned::Torn { path, error: FormatError::FileLength { expected: FIRST_READ as u64, got: 0 } }
        }
        Err(PrefixError::Io(error)) if NotRegular::is_cause_of(&error) => Scanned::NotAFile { path, error },
        Err(PrefixError::Io(error)) => Scanned::Unreadable { key, path, error },
    })
}
