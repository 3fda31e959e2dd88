//! `poncho cache verify`: every payload against its checksums, every name against its tokens, every chain.
//!
//! Exits 1 when a file is damaged and names it. A server may write and evict meanwhile, so whatever looks damaged is
//! looked at a second time, in a fresh listing, before it is reported.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use poncho_cache::{Finding, RowFile};
use serde::Serialize;

use crate::Outcome;
use crate::bytes::show_bytes;
use crate::cache::Output;
use crate::cache::folder::Folders;
use crate::cache::listing::{Leftover, Listing};

/// Often enough to show that it goes on, seldom enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(100);

#[derive(Debug, Serialize)]
struct VerifyJson {
    rows: usize,
    damaged: Vec<DamagedJson>,
}

#[derive(Debug, Serialize)]
struct DamagedJson {
    path: String,
    problem: String,
}

pub(crate) fn run(folders: &Folders, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let listing = Listing::read(folders)?;
    let mut progress = Progress::new(&listing);
    let suspects = listing.report.verify(|row| progress.advance(row));
    progress.clear();
    let damaged = if suspects.is_empty() { suspects } else { confirm(suspects, &Listing::read(folders)?) };
    let rows = listing.report.rows.len();
    let outcome = if damaged.is_empty() { Outcome::Good } else { Outcome::Bad };

    if output.json {
        let damaged = damaged
            .into_iter()
            .map(|finding| DamagedJson { path: finding.path.display().to_string(), problem: finding.problem });
        output.print_json(&VerifyJson { rows, damaged: damaged.collect() })?;
        return Ok(outcome);
    }
    for finding in &damaged {
        writeln!(output.out, "damaged: {}: {}", finding.path.display(), finding.problem)?;
    }
    for finding in listing.leftovers(Leftover::Unknown) {
        writeln!(output.out, "not checked: {}: {}", finding.path.display(), finding.problem)?;
    }
    writeln!(output.out, "{rows} rows checked, {} damaged", damaged.len())?;
    Ok(outcome)
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
    suspects.into_iter().filter_map(look_again).filter(|finding| finding.path.exists()).collect()
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
            shown: std::io::stderr().is_terminal(),
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
        let mut terminal = std::io::stderr();
        let _ = terminal.write_all(line.as_bytes()).and_then(|()| terminal.flush());
    }
}
