//! `poncho cluster gc`: removes states that no row uses from the object store of a cluster.
//!
//! One machine collects at a time: a lease in the store keeps the others out. Works beside running nodes. It must never
//! remove anything without a yes.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, bail};
use poncho_shared::Collection;
use poncho_terminal::{Outcome, Output, show_bytes};

use super::args::GcArgs;
use crate::commands::cache::shared::gc_confirmed;

pub(super) fn run(args: &GcArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let store = (args.shared.as_deref().unwrap_or_default(), args.shared_quota);
    gc_confirmed(store, args.dry_run, |found| if args.yes { Ok(true) } else { confirm(found) }, output)
}

/// Asks whether to collect. The question goes to standard error: standard output is for data.
fn confirm(found: &Collection) -> anyhow::Result<bool> {
    let (rows, segments) = (found.removed_rows, found.removed_segments);
    let what = format!("{rows} rows and {segments} segments ({})", show_bytes(found.removed_bytes));
    let (input, mut questions) = (io::stdin(), io::stderr());
    if !input.is_terminal() || !questions.is_terminal() {
        bail!("this would remove {what}; confirm it with --yes, or look first with --dry-run");
    }
    write!(questions, "Remove {what} from the object store? [y/N] ")?;
    questions.flush()?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer).context("cannot read the answer; confirm with --yes instead")?;
    let is_wanted = ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str());
    if !is_wanted {
        writeln!(questions, "nothing was removed")?;
    }
    Ok(is_wanted)
}
