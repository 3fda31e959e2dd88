//! `poncho cache gc`: removes garbage, which is everything that can never be used again. Usable rows stay.
//!
//! Garbage is left by crashes and damaged disks: unfinished writes, files moved aside, rows that fail their checks, and
//! rows with a broken chain. Opening a folder with its lock removes most of it; every payload is checked here. Files of
//! unknown versions are kept. With `--dry-run` nothing is opened and nothing changes.

use std::collections::HashSet;
use std::path::Path;

use poncho_cache::{Cache, FileNameKind, Key, RowFile, classify};
use poncho_terminal::{Outcome, Output, Progress, Unit};

use crate::commands::cache::args::GcArgs;
use crate::commands::cache::folder::Folders;
use crate::commands::cache::freed::{Freed, change, count_rows};
use crate::commands::cache::listing::{Leftover, Listing};

pub(crate) fn run(folders: &Folders, args: &GcArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let before = Listing::read(folders)?;
    let freed = if args.dry_run {
        dry_run(&before)
    } else {
        let mut checked = Ok(());
        let freed = change(folders, &before, |cache| checked = collect(cache, folders))?;
        checked?;
        freed
    };
    if output.json {
        output.print_json(&freed)?;
    } else {
        freed.print(&before, output)?;
    }
    Ok(Outcome::Good)
}

/// Removes the damaged rows, and what was moved aside now or earlier.
fn collect(cache: &Cache, folders: &Folders) -> anyhow::Result<()> {
    // Read again: the folder is locked now, so that no row changes during its check.
    let listing = Listing::read(folders)?;
    for row in damaged_rows(&listing) {
        cache.condemn(&row.key, listing.tier_of(row));
    }
    cache.gc();
    Ok(())
}

/// The rows that fail a check: of their payload, their name or their chain.
fn damaged_rows(listing: &Listing) -> Vec<&RowFile> {
    let progress = Progress::on_stderr();
    let rows = &listing.report.rows;
    let total = rows.iter().map(|row| row.bytes).sum();
    progress.begin(&format!("checking {}", count_rows(rows.len())), Unit::Bytes, Some(total));
    let damaged = rows.iter().filter(|row| {
        let finding = listing.report.verify_row(row);
        progress.add(row.bytes);
        finding.is_some()
    });
    let damaged = damaged.collect();
    progress.clear();
    damaged
}

fn dry_run(before: &Listing) -> Freed {
    // Rows that build on a file of an unknown version are kept with it.
    let kept: HashSet<Key> = before.leftovers(Leftover::Unknown).filter_map(|finding| key_of(&finding.path)).collect();
    let damaged: HashSet<&Path> = damaged_rows(before).into_iter().map(|row| row.path.as_path()).collect();
    let is_garbage = |row: &RowFile| {
        let (chain, _) = before.chain(row);
        let builds_on_kept =
            chain.first().and_then(|first| first.prefix.meta.parent).is_some_and(|key| kept.contains(&key));
        !builds_on_kept && chain.iter().any(|row| damaged.contains(row.path.as_path()))
    };
    let rows: Vec<&RowFile> = before.report.rows.iter().filter(|row| is_garbage(row)).collect();
    let leftovers: u64 = [Leftover::Temporary, Leftover::Bad, Leftover::Damaged]
        .into_iter()
        .map(|kind| before.leftover_bytes(kind))
        .sum();
    let freed_bytes = rows.iter().map(|row| row.bytes).sum::<u64>() + leftovers;
    Freed {
        dry_run: true,
        freed_bytes,
        freed_rows: rows.len(),
        left_bytes: before.total_bytes().saturating_sub(freed_bytes),
        left_rows: before.report.rows.len().saturating_sub(rows.len()),
    }
}

fn key_of(path: &Path) -> Option<Key> {
    match classify(path.file_name()?) {
        FileNameKind::Row(key) => Some(key),
        _ => None,
    }
}
