//! Reading a cache folder without opening it: listing, one row in full, and verifying every payload.
//!
//! For `poncho cache ls|stat|show|verify`, which must work beside a running server, so nothing here takes the
//! folder's lock or changes a file.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::refuse_nul;
use crate::error::CacheError;
use crate::folder::lock::FolderLock;
use crate::folder::scan::{PrefixError, Scanned, read_found_prefix, scan};
use crate::format::{self, Crc32c, RowPrefix};
use crate::identity::key::Key;
use crate::io::fs::Fs as _;
use crate::io::fs::StdFs;

/// A row as its file describes it.
#[derive(Debug, Clone)]
pub struct RowFile {
    /// Its name.
    pub key: Key,
    /// Its file.
    pub path: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
    /// Everything before the payload.
    pub prefix: RowPrefix,
}

/// A file that is not a usable row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
    /// Whether it counts as damage, or is only reported.
    pub damage: bool,
}

/// What is in a folder.
#[derive(Debug, Default)]
pub struct FolderReport {
    /// Usable rows, by key.
    pub rows: Vec<RowFile>,
    /// Everything else that looks like ours.
    pub findings: Vec<Finding>,
    /// The process that has the folder open, if one has.
    pub holder: Option<String>,
}

/// Lists a folder by its headers.
///
/// # Errors
/// The folder cannot be listed.
pub fn inspect_folder(folder: &Path) -> Result<FolderReport, CacheError> {
    refuse_nul("the folder", folder)?;
    let wrap = |source| CacheError::Folder { action: "list", path: folder.to_path_buf(), source };
    let mut report = FolderReport { holder: FolderLock::holder_of(folder), ..FolderReport::default() };
    for scanned in scan(&StdFs, folder).map_err(wrap)? {
        match scanned {
            Scanned::Row { key, prefix } => report.rows.push(RowFile {
                key,
                path: format::row_path(folder, &key),
                bytes: prefix.file_length(),
                prefix: *prefix,
            }),
            Scanned::Temporary(path) => report.find(path, "left by a writer that did not finish", false),
            Scanned::Bad(path) => report.find(path, "moved aside as damaged earlier", false),
            Scanned::LeftAlone { path, error, .. } => report.find(path, &error.to_string(), false),
            Scanned::Torn { path, error } => report.find(path, &error.to_string(), true),
            Scanned::NotAFile { path, error }
            | Scanned::Unreadable { path, error, .. }
            | Scanned::Unlisted { path, error } => {
                report.find(path, &error.to_string(), true);
            }
        }
    }
    report.rows.sort_by_key(|row| row.key);
    report.findings.sort_by(|one, two| one.path.cmp(&two.path));
    Ok(report)
}

impl FolderReport {
    fn find(&mut self, path: PathBuf, problem: &str, damage: bool) {
        self.findings.push(Finding { path, problem: problem.to_owned(), damage });
    }

    /// All tokens of a row, from the first, by following its chain. `None` if the chain is broken.
    #[must_use]
    pub fn tokens_of(&self, row: &RowFile) -> Option<Vec<u32>> {
        let mut pieces: Vec<&[u32]> = vec![&row.prefix.tokens];
        let mut end = row.prefix.meta.start;
        let mut current = row;
        while let Some(parent) = current.prefix.meta.parent {
            let position = self.rows.binary_search_by_key(&parent, |row| row.key).ok()?;
            current = self.rows.get(position)?;
            end = end.min(current.prefix.meta.token_count);
            let own = end.saturating_sub(current.prefix.meta.start) as usize;
            pieces.push(current.prefix.tokens.get(..own)?);
            end = end.min(current.prefix.meta.start);
            // A crafted chain may run in circles; an honest one has no more links than the folder has rows.
            if pieces.len() > self.rows.len() {
                return None;
            }
        }
        Some(pieces.into_iter().rev().flatten().copied().collect())
    }

    /// Checks what headers cannot show: every payload against its checksums, every name against its tokens, every
    /// chain against its parents. Calls `progress` after each row.
    pub fn verify(&self, mut progress: impl FnMut(&RowFile)) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.findings.iter().filter(|finding| finding.damage).cloned().collect();
        for row in &self.rows {
            findings.extend(self.verify_row(row));
            progress(row);
        }
        findings
    }

    /// The check of one row of this folder; nothing if it is whole.
    #[must_use]
    pub fn verify_row(&self, row: &RowFile) -> Option<Finding> {
        let problem = match self.tokens_of(row) {
            None => Some("its chain of parent rows is broken".to_owned()),
            Some(tokens) if row.prefix.meta.namespace.key(&tokens) != row.key => {
                Some("its name is not the key of its tokens".to_owned())
            }
            Some(_) => verify_payload(row).err(),
        };
        problem.map(|problem| Finding { path: row.path.clone(), problem, damage: true })
    }
}

/// Reads one row file in full detail.
///
/// # Errors
/// The file cannot be read or is not a usable row.
pub fn inspect_file(path: &Path) -> Result<RowPrefix, CacheError> {
    refuse_nul("the file", path)?;
    read_found_prefix(&StdFs, path).map_err(|error| match error {
        PrefixError::Io(source) => CacheError::Unreadable { path: path.to_path_buf(), source },
        PrefixError::Format(source) => CacheError::BadFile { path: path.to_path_buf(), source },
    })
}

fn verify_payload(row: &RowFile) -> Result<(), String> {
    const STEP: usize = 1 << 20;
    let checksum = |offset: u64, length: u64| -> io::Result<u32> {
        let file = StdFs.open(&row.path)?;
        let mut buffer = vec![0; STEP];
        let mut crc = Crc32c::new();
        let mut done = 0;
        while done < length {
            let step = usize::try_from(length - done).unwrap_or(STEP).min(STEP);
            let Some(piece) = buffer.get_mut(..step) else { break };
            file.read_exact_at(piece, offset + done)?;
            crc.update(piece);
            done += step as u64;
        }
        Ok(crc.finish())
    };
    let prefix = &row.prefix;
    let whole = checksum(prefix.payload_offset, prefix.payload_length).map_err(|error| error.to_string())?;
    if whole == prefix.payload_crc {
        return Ok(());
    }
    // Name the part that is damaged.
    for part in &prefix.parts {
        let got = checksum(prefix.payload_offset + part.offset, part.length).map_err(|error| error.to_string())?;
        if got != part.crc {
            return Err(format!("part {} has checksum {got:08x}, expected {:08x}", part.kind, part.crc));
        }
    }
    Err(format!("its payload has checksum {whole:08x}, expected {:08x}", prefix.payload_crc))
}
