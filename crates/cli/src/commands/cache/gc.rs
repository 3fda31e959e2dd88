//! `poncho cache gc`: empties the folders.
//!
//! Opens them with their locks, so that no server uses them. Files of unknown versions are kept. With `--dry-run` nothing
//! is opened and nothing changes.

use poncho_cache::Cache;
use poncho_terminal::{Outcome, Output, show_bytes};
use serde::Serialize;

use crate::commands::cache::args::GcArgs;
use crate::commands::cache::folder::Folders;
use crate::commands::cache::listing::{Leftover, Listing};

/// The result of `gc` and `evict`.
#[derive(Debug, Serialize)]
pub(crate) struct Freed {
    pub(crate) dry_run: bool,
    pub(crate) freed_bytes: u64,
    pub(crate) freed_rows: usize,
    pub(crate) left_bytes: u64,
    pub(crate) left_rows: usize,
}

pub(crate) fn run(folders: &Folders, args: &GcArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let before = Listing::read(folders)?;
    let freed = if args.dry_run {
        let unknown = before.leftover_bytes(Leftover::Unknown);
        Freed {
            dry_run: true,
            freed_bytes: before.total_bytes().saturating_sub(unknown),
            freed_rows: before.report.rows.len(),
            left_bytes: unknown,
            left_rows: 0,
        }
    } else {
        change(folders, &before, |cache| {
            cache.gc();
        })?
    };
    freed.print(&before, output)?;
    Ok(Outcome::Good)
}

/// Opens the folders exclusively, changes them, and counts what was freed.
pub(crate) fn change(folders: &Folders, before: &Listing, work: impl FnOnce(&Cache)) -> anyhow::Result<Freed> {
    let bytes_before = before.total_bytes();
    if let Some(config) = folders.config() {
        let cache = Cache::open(config)?;
        work(&cache);
    }
    let after = Listing::read(folders)?;
    Ok(Freed {
        dry_run: false,
        // Opening a folder already removes leftovers and broken chains, so the folder itself is measured.
        freed_bytes: bytes_before.saturating_sub(after.total_bytes()),
        freed_rows: before.report.rows.len().saturating_sub(after.report.rows.len()),
        left_bytes: after.total_bytes(),
        left_rows: after.report.rows.len(),
    })
}

impl Freed {
    pub(crate) fn print(&self, before: &Listing, output: &mut Output<'_>) -> anyhow::Result<()> {
        if output.json {
            return output.print_json(self);
        }
        let verb = if self.dry_run { "would free" } else { "freed" };
        let (freed, left) = (show_bytes(self.freed_bytes), show_bytes(self.left_bytes));
        writeln!(output.out, "{verb} {freed} in {} rows; {left} in {} rows remain", self.freed_rows, self.left_rows)?;
        if self.dry_run
            && let Some(pid) = &before.report.holder
        {
            writeln!(
                output.out,
                "the folder is in use by process {pid}; stop it before you run this without --dry-run"
            )?;
        }
        Ok(())
    }
}
