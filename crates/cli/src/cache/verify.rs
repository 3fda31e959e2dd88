//! `poncho cache verify`: every payload against its checksums, every name against its tokens, every chain.
//!
//! Exits 1 when a file is damaged and names it. Says also what others than the owner may read, and with `--repair` takes their
//! rights away; nothing else is changed. A server may write and evict meanwhile, so whatever looks damaged is
//! looked at a second time, in a fresh listing, before it is reported.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use poncho_cache::{Finding, OpenToOthers, RowFile, close_cache_folder, open_to_others};
use poncho_cache::{Links, close_to_others, open_regular};
use serde::Serialize;

use crate::Outcome;
use crate::args::VerifyArgs;
use crate::bytes::show_bytes;
use crate::cache::Output;
use crate::cache::folder::Folders;
use crate::cache::listing::{Leftover, Listing};
use crate::serve::replay_file;

/// Often enough to show that it goes on, seldom enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(100);

#[derive(Debug, Serialize)]
struct VerifyJson {
    rows: usize,
    damaged: Vec<DamagedJson>,
    /// Files and folders that others may get at.
    open_to_others: usize,
    /// Files and folders that were closed to others by this run.
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
    let mut progress = Progress::new(&listing);
    let suspects = listing.report.verify(|row| progress.advance(row));
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
        writeln!(output.out, "closed {closed} files and folders to others than their owner")?;
    }
    if let Some(first) = open.first() {
        let (count, path, mode) = (open.len(), first.path.display(), first.mode);
        let advice = if args.repair { "change its rights by hand" } else { "close them with --repair" };
        writeln!(output.out, "open to others: {count} files and folders, first {path} (mode {mode:o}); {advice}")?;
    }
    writeln!(output.out, "{rows} rows checked, {} damaged", damaged.len())?;
    Ok(outcome)
}

/// What others may get at in any of the folders.
fn exposed(folders: &Folders) -> anyhow::Result<Vec<OpenToOthers>> {
    let mut open = Vec::new();
    for folder in &folders.found {
        let found = open_to_others(&folder.path)
            .with_context(|| format!("cannot look at the rights in {}", folder.path.display()))?;
        open.extend(found.into_iter().filter(|open| !open.is_shielded));
        let path = replay_file(&folder.path);
        let mode = path.metadata().map_or(0, |metadata| metadata.mode() & 0o7777);
        if mode & 0o077 != 0 {
            open.push(OpenToOthers { path, mode, is_shielded: false });
        }
    }
    Ok(open)
}

/// Closes every file and folder to others; says how many were open.
fn repair(folders: &Folders) -> anyhow::Result<usize> {
    let mut count = 0;
    for folder in &folders.found {
        let closed = close_cache_folder(&folder.path)
            .with_context(|| format!("cannot change the rights in {}", folder.path.display()))?;
        for (path, error) in closed.failed {
            eprintln!("cannot close {} to others: {error}", path.display());
        }
        count += closed.closed;
        let kept = replay_file(&folder.path);
        let changed = open_regular(&kept, Links::Refuse).and_then(|file| close_to_others(&file));
        match changed {
            Ok(changed) => count += usize::from(changed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => eprintln!("cannot close {} to others: {error}", kept.display()),
        }
    }
    Ok(count)
}

/// Keeps what is still there and still damaged.
fn confirm(suspects: Vec<Finding>, fresh: &Listing) -> Vec<Finding> {
    let rows: HashMap<&Path, &RowFile> = fresh.report.rows.iter().map(|row| (row.path.as_path(), row)).collect();
    let findings: HashMap<&Path, &Finding> =
        fresh.report.findings.iter().map(|finding| (finding.path.as_path(), finding)).collect();
    let look_again = |suspect: Finding| match rows.get(suspect.path.as_path()) {
        Some(row) => fresh.report.verify_row(row),
        None => findings.get(suspect.path.as_path()).filter(|finding| finding.damage).map(|finding| (*finding).clone()),
    };
    // Evicted between the second look and now: a row that is gone is not damaged.
    suspects.into_iter().filter_map(look_again).filter(|finding| finding.path.symlink_metadata().is_ok()).collect()
}

/// A line on the terminal that is drawn over; nothing if standard error is no terminal.
struct Progress {
    shown: bool,
    drawn: Instant,
    rows: usize,
    all_rows: usize,
    bytes: u64,
    all_bytes: u64,
}

impl Progress {
    fn new(listing: &Listing) -> Self {
        Self {
            shown: io::stderr().is_terminal(),
            drawn: Instant::now(),
            rows: 0,
            all_rows: listing.report.rows.len(),
            bytes: 0,
            all_bytes: listing.report.rows.iter().map(|row| row.bytes).sum(),
        }
    }

    fn advance(&mut self, row: &RowFile) {
        self.rows += 1;
        self.bytes = self.bytes.saturating_add(row.bytes);
        if self.shown && self.drawn.elapsed() >= REDRAW {
            self.drawn = Instant::now();
            let (done, all) = (show_bytes(self.bytes), show_bytes(self.all_bytes));
            self.draw(&format!("\r\x1b[Kverify: {} of {} rows, {done} of {all}", self.rows, self.all_rows));
        }
    }

    fn clear(&self) {
        if self.shown {
            self.draw("\r\x1b[K");
        }
    }

    /// A terminal that is gone does not stop the check.
    fn draw(&self, line: &str) {
        let mut terminal = io::stderr();
        let _ = terminal.write_all(line.as_bytes()).and_then(|()| terminal.flush());
    }
}
