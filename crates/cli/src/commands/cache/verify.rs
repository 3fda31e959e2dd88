//! `poncho cache verify`: every payload against its checksums, every name against its tokens, every chain.
//!
//! Exits with 1 if a file is damaged and names it. It also reports files that other users may read; `--repair` makes them
//! private and changes nothing else. A server may write and evict meanwhile, so every suspect is checked a second time,
//! in a fresh listing, before it is reported.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;
use poncho_cache::{Finding, OpenToOthers, RowFile, close_cache_folder, open_to_others};
use poncho_cache::{Links, close_to_others, open_regular};
use poncho_terminal::{Outcome, Output, Progress, Unit};
use serde::Serialize;

use crate::commands::cache::args::VerifyArgs;
use crate::commands::cache::folder::Folders;
use crate::commands::cache::listing::{Leftover, Listing};
use crate::serving::shape::replay_file;

#[derive(Debug, Serialize)]
struct VerifyJson {
    rows: usize,
    damaged: Vec<DamagedJson>,
    /// Files and folders that other users may access.
    open_to_others: usize,
    /// Files and folders that this run made private.
    closed: usize,
}

#[derive(Debug, Serialize)]
struct DamagedJson {
    path: String,
    problem: String,
}

pub(crate) fn run(folders: &Folders, args: &VerifyArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let closed = if args.repair { repair(folders)? } else { 0 };
    let open = exposed(folders)?;
    let listing = Listing::read(folders)?;
    let progress = Progress::on_stderr();
    let total = listing.report.rows.iter().map(|row| row.bytes).sum();
    progress.begin(&format!("checking {} rows", listing.report.rows.len()), Unit::Bytes, Some(total));
    let suspects = listing.report.verify(|row| progress.add(row.bytes));
    progress.clear();
    let damaged = if suspects.is_empty() { suspects } else { confirm(suspects, &Listing::read(folders)?) };
    let rows = listing.report.rows.len();
    let is_closed = !args.repair || open.is_empty();
    let outcome = if damaged.is_empty() && is_closed { Outcome::Good } else { Outcome::Bad };

    if output.json {
        let damaged = damaged
            .into_iter()
            .map(|finding| DamagedJson { path: finding.path.display().to_string(), problem: finding.problem });
        let open_to_others = open.len();
        output.print_json(&VerifyJson { rows, damaged: damaged.collect(), open_to_others, closed })?;
        return Ok(outcome);
    }
    for finding in &damaged {
        writeln!(output.out, "damaged: {}: {}", finding.path.display(), finding.problem)?;
    }
    for finding in listing.leftovers(Leftover::Unknown) {
        writeln!(output.out, "not checked: {}: {}", finding.path.display(), finding.problem)?;
    }
    if closed > 0 {
        writeln!(output.out, "made {closed} files and folders private")?;
    }
    if let Some(first) = open.first() {
        let (count, path, mode) = (open.len(), first.path.display(), first.mode);
        let advice = if args.repair { "change their permissions by hand" } else { "make them private with --repair" };
        writeln!(
            output.out,
            "open to other users: {count} files and folders, such as {path} (mode {mode:o}); {advice}"
        )?;
    }
    writeln!(output.out, "{rows} rows checked, {} damaged", damaged.len())?;
    Ok(outcome)
}

/// What other users may access in any of the folders.
fn exposed(folders: &Folders) -> anyhow::Result<Vec<OpenToOthers>> {
    let mut open = Vec::new();
    for folder in &folders.found {
        let found = open_to_others(&folder.path)
            .with_context(|| format!("cannot read the permissions in {}", folder.path.display()))?;
        open.extend(found.into_iter().filter(|open| !open.is_shielded));
        let path = replay_file(&folder.path);
        let mode = path.metadata().map_or(0, |metadata| metadata.mode() & 0o7777);
        if mode & 0o077 != 0 {
            open.push(OpenToOthers { path, mode, is_shielded: false });
        }
    }
    Ok(open)
}

/// Makes every file and folder private; returns how many were not.
fn repair(folders: &Folders) -> anyhow::Result<usize> {
    let mut count = 0;
    for folder in &folders.found {
        let closed = close_cache_folder(&folder.path)
            .with_context(|| format!("cannot change the permissions in {}", folder.path.display()))?;
        for (path, error) in closed.failed {
            eprintln!("cannot make {} private: {error}", path.display());
        }
        count += closed.closed;
        let kept = replay_file(&folder.path);
        let changed = open_regular(&kept, Links::Refuse).and_then(|file| close_to_others(&file));
        match changed {
            Ok(changed) => count += usize::from(changed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => eprintln!("cannot make {} private: {error}", kept.display()),
        }
    }
    Ok(count)
}

/// Keeps the files that still exist and are still damaged.
fn confirm(suspects: Vec<Finding>, fresh: &Listing) -> Vec<Finding> {
    let rows: HashMap<&Path, &RowFile> = fresh.report.rows.iter().map(|row| (row.path.as_path(), row)).collect();
    let findings: HashMap<&Path, &Finding> =
        fresh.report.findings.iter().map(|finding| (finding.path.as_path(), finding)).collect();
    let look_again = |suspect: Finding| match rows.get(suspect.path.as_path()) {
        Some(row) => fresh.report.verify_row(row),
        None => findings.get(suspect.path.as_path()).filter(|finding| finding.damage).map(|finding| (*finding).clone()),
    };
    // A row that was evicted after the second check is not damaged.
    suspects.into_iter().filter_map(look_again).filter(|finding| finding.path.symlink_metadata().is_ok()).collect()
}
