//! `poncho cache clear`: empties the folders, after a question on a terminal or with `--yes`.
//!
//! Opens them with their locks, so that no server uses them. Files of unknown versions are kept. With `--dry-run` nothing
//! is opened and nothing changes. It must never remove anything without a yes.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, bail};
use poncho_terminal::{Outcome, Output, show_bytes};

use crate::commands::cache::args::ClearArgs;
use crate::commands::cache::folder::Folders;
use crate::commands::cache::freed::{Freed, change, count_rows};
use crate::commands::cache::listing::{Leftover, Listing};

pub(crate) fn run(folders: &Folders, args: &ClearArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let before = Listing::read(folders)?;
    let unknown = before.leftover_bytes(Leftover::Unknown);
    let removable = before.total_bytes().saturating_sub(unknown);
    let freed = if args.dry_run {
        Freed {
            dry_run: true,
            freed_bytes: removable,
            freed_rows: before.report.rows.len(),
            left_bytes: unknown,
            left_rows: 0,
        }
    } else {
        if !args.yes && removable > 0 && !confirm(&before, removable)? {
            writeln!(io::stderr(), "nothing was removed")?;
            return Ok(Outcome::Bad);
        }
        change(folders, &before, |cache| {
            cache.clear();
        })?
    };
    if output.json {
        output.print_json(&freed)?;
    } else {
        freed.print(&before, output)?;
    }
    Ok(Outcome::Good)
}

/// Asks whether to remove everything. The question goes to standard error: standard output is for data.
fn confirm(before: &Listing, bytes: u64) -> anyhow::Result<bool> {
    let rows = count_rows(before.report.rows.len());
    let what = format!("all {rows} ({}) in {}", show_bytes(bytes), before.place());
    let (input, mut questions) = (io::stdin(), io::stderr());
    if !input.is_terminal() || !questions.is_terminal() {
        bail!("this would remove {what}; confirm it with --yes, or look first with --dry-run");
    }
    write!(questions, "Remove {what}? Prompts are computed again afterwards. [y/N] ")?;
    questions.flush()?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer).context("cannot read the answer; confirm with --yes instead")?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}
