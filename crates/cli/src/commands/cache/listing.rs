//! The contents of the folders, read from file headers without a lock.
//!
//! Used by every command. Rows of both folders are in one list, because a row of the memory folder may extend one of the
//! disk. Nothing here changes a file.

use std::path::Path;

use anyhow::bail;
use poncho_cache::{FileNameKind, classify};
use poncho_cache::{Finding, FolderIndex, FolderReport, Key, RowFile, Tier, inspect_folder};

use crate::commands::cache::folder::{Folder, Folders};

/// How many similar rows an error lists.
const CANDIDATES: usize = 5;

/// See the module.
pub(crate) struct Listing {
    pub(crate) folders: Vec<Folder>,
    /// Rows and findings of all folders.
    pub(crate) report: FolderReport,
}

/// A file that is not a usable row, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// Left by a writer that did not finish.
    Temporary,
    /// Moved aside as damaged.
    Bad,
    /// A row that is damaged or cannot be read.
    Damaged,
    /// A row of a version that this release does not know.
    Unknown,
}

impl Listing {
    pub(crate) fn read(folders: &Folders) -> anyhow::Result<Self> {
        let mut report = FolderReport::default();
        for folder in &folders.found {
            let more = inspect_folder(&folder.path)?;
            report.rows.extend(more.rows);
            report.findings.extend(more.findings);
            report.holder = report.holder.or(more.holder);
        }
        report.rows.sort_by_key(|row| row.key);
        Ok(Self { folders: folders.found.clone(), report })
    }

    pub(crate) fn tier_of(&self, row: &RowFile) -> Tier {
        let holds = |folder: &&Folder| row.path.starts_with(&folder.path);
        // One folder may lie inside the other; the longer path is the one that holds the file.
        let folder = self.folders.iter().filter(holds).max_by_key(|folder| folder.path.as_os_str().len());
        folder.map_or(Tier::Disk, |folder| folder.tier)
    }

    /// The rows as an index that answers like an open cache.
    pub(crate) fn index(&self) -> FolderIndex {
        let index = FolderIndex::new(self.report.rows.iter().map(|row| (self.tier_of(row), row)));
        // As when they are opened: pins are in the most durable folder.
        match self.folders.iter().max_by_key(|folder| folder.tier) {
            Some(folder) => index.with_pins_of(&folder.path),
            None => index,
        }
    }

    /// A row by its key; the fastest tier if several hold it.
    pub(crate) fn row(&self, key: &Key) -> Option<&RowFile> {
        let start = self.report.rows.partition_point(|row| row.key < *key);
        let copies = self.report.rows.get(start..)?.iter().take_while(|row| row.key == *key);
        copies.min_by_key(|row| self.tier_of(row))
    }

    /// The only row with a key that starts with these lower-case hexadecimal digits.
    ///
    /// # Errors
    /// If there is none, or more than one; the message names similar keys.
    pub(crate) fn find(&self, digits: &str) -> anyhow::Result<&RowFile> {
        let mut keys: Vec<Key> = self.report.rows.iter().map(|row| row.key).collect();
        keys.dedup();
        let hits: Vec<Key> = keys.iter().filter(|key| key.to_hex().starts_with(digits)).copied().collect();
        if let [key] = hits.as_slice()
            && let Some(row) = self.row(key)
        {
            return Ok(row);
        }
        if hits.is_empty() {
            let agree =
                |key: &Key| key.to_hex().bytes().zip(digits.bytes()).take_while(|(one, two)| one == two).count();
            keys.sort_by_key(|key| std::cmp::Reverse(agree(key)));
            if keys.is_empty() {
                bail!("no row {digits}: the cache is empty; check --cache-dir");
            }
            bail!("no row {digits}; the most similar are\n{}list all with `poncho cache ls`", candidates(&keys));
        }
        bail!(
            "{} rows begin with {digits}; give more digits:\n{}list all with `poncho cache ls --sort key`",
            hits.len(),
            candidates(&hits)
        )
    }

    /// The rows from the root of the chain to `row`, and whether the chain is complete.
    pub(crate) fn chain<'a>(&'a self, row: &'a RowFile) -> (Vec<&'a RowFile>, bool) {
        let mut chain = vec![row];
        let mut current = row;
        while let Some(parent) = current.prefix.meta.parent {
            // A crafted chain may be a cycle; an honest one has at most as many links as there are rows.
            match self.row(&parent).filter(|_| chain.len() <= self.report.rows.len()) {
                Some(above) => chain.push(above),
                None => {
                    chain.reverse();
                    return (chain, false);
                }
            }
            current = chain.last().copied().unwrap_or(row);
        }
        chain.reverse();
        (chain, true)
    }

    /// Current bytes of all cache files.
    pub(crate) fn total_bytes(&self) -> u64 {
        let rows = self.report.rows.iter().map(|row| row.bytes);
        rows.chain(self.report.findings.iter().map(|finding| file_length(&finding.path))).sum()
    }

    pub(crate) fn leftovers(&self, kind: Leftover) -> impl Iterator<Item = &Finding> {
        self.report.findings.iter().filter(move |finding| leftover(finding) == kind)
    }

    /// Bytes of the leftovers of a kind.
    pub(crate) fn leftover_bytes(&self, kind: Leftover) -> u64 {
        self.leftovers(kind).map(|finding| file_length(&finding.path)).sum()
    }

    /// The paths of the folders, for people.
    pub(crate) fn place(&self) -> String {
        let paths: Vec<String> = self.folders.iter().map(|folder| folder.path.display().to_string()).collect();
        if paths.is_empty() { "the default cache folder".to_owned() } else { paths.join(" and ") }
    }
}

fn leftover(finding: &Finding) -> Leftover {
    match finding.path.file_name().map(classify) {
        Some(FileNameKind::Temporary) => Leftover::Temporary,
        Some(FileNameKind::Bad) => Leftover::Bad,
        _ if finding.damage => Leftover::Damaged,
        _ => Leftover::Unknown,
    }
}

fn file_length(path: &Path) -> u64 {
    // A file that was removed meanwhile takes no bytes.
    path.symlink_metadata().map_or(0, |metadata| metadata.len())
}

fn candidates(keys: &[Key]) -> String {
    let mut text: String = keys.iter().take(CANDIDATES).map(|key| format!("  {key}\n")).collect();
    if keys.len() > CANDIDATES {
        text.push_str(&format!("  and {} more\n", keys.len() - CANDIDATES));
    }
    text
}

/// The first digits of a hash.
pub(crate) fn short(bytes: &[u8; 32]) -> String {
    let mut hex = poncho_cache::to_hex(bytes);
    hex.truncate(12);
    hex
}
