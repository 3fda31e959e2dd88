//! `poncho cache evict BYTES`: frees at least this much, in the order in which a server would.
//!
//! Lists the rows that go, then opens the folders with their locks and removes them. With `--dry-run` it stops after the
//! list.

use anyhow::bail;
use poncho_cache::{Eviction, Tier};
use poncho_terminal::{Outcome, Output, show_bytes};
use serde::Serialize;

use crate::commands::cache::args::EvictArgs;
use crate::commands::cache::folder::Folders;
use crate::commands::cache::freed::{EvictedRow, Freed, change, count_rows};
use crate::commands::cache::listing::Listing;

/// Rows that are listed for people.
const LISTED: usize = 20;

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct EvictJson {
    #[serde(flatten)]
    freed: Freed,
    rows: Vec<EvictedRow>,
}

pub(crate) fn run(folders: &Folders, args: &EvictArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let before = Listing::read(folders)?;
    let tiers: Vec<Tier> = match args.tier.map(Tier::from) {
        None => before.folders.iter().map(|folder| folder.tier).collect(),
        Some(tier) if before.folders.iter().any(|folder| folder.tier == tier) => vec![tier],
        Some(tier) => bail!("there is no folder of tier {tier}; name one with --cache-dir or --ram-file-dir"),
    };
    let evictions = before.index().evict(args.bytes, &tiers);
    let rows: Vec<EvictedRow> = evictions.iter().map(|eviction| EvictedRow::new(eviction, &before)).collect();
    let freed = if args.dry_run {
        list(&rows, output)?;
        dry_run(&before, &evictions)
    } else {
        let mut listed = Ok(());
        let freed = change(folders, &before, |cache| {
            listed = list(&rows, output);
            cache.evict_bytes(args.bytes, &tiers);
        })?;
        listed?;
        freed
    };
    if output.json {
        output.print_json(&EvictJson { freed, rows })?;
        return Ok(Outcome::Good);
    }
    freed.print(&before, output)?;
    if freed.freed_bytes < args.bytes {
        writeln!(output.out, "the cache holds less than {}: there is nothing else to evict", show_bytes(args.bytes))?;
    }
    Ok(Outcome::Good)
}

/// Prints the first rows for people, before anything is removed.
fn list(rows: &[EvictedRow], output: &mut Output<'_>) -> anyhow::Result<()> {
    if output.json {
        return Ok(());
    }
    let (shown, rest) = rows.split_at_checked(LISTED).unwrap_or((rows, &[]));
    if !shown.is_empty() {
        EvictedRow::table(shown).print(output.out)?;
    }
    if !rest.is_empty() {
        writeln!(output.out, "and {} more; --json lists all of them", count_rows(rest.len()))?;
    }
    output.out.flush()?;
    Ok(())
}

fn dry_run(before: &Listing, evictions: &[Eviction]) -> Freed {
    let freed_bytes = evictions.iter().map(|eviction| eviction.bytes).sum();
    Freed {
        dry_run: true,
        freed_bytes,
        freed_rows: evictions.len(),
        left_bytes: before.total_bytes().saturating_sub(freed_bytes),
        left_rows: before.report.rows.len().saturating_sub(evictions.len()),
    }
}
