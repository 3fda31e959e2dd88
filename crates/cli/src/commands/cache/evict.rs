//! `poncho cache evict BYTES`: frees at least this much, in the order in which a server would.
//!
//! Opens the folders with their locks. With `--dry-run` it uses an index of the listed rows and changes nothing.

use anyhow::bail;
use poncho_cache::Tier;
use poncho_terminal::{Outcome, Output, show_bytes};

use crate::commands::cache::args::EvictArgs;
use crate::commands::cache::folder::Folders;
use crate::commands::cache::gc::{Freed, change};
use crate::commands::cache::listing::Listing;

pub(crate) fn run(folders: &Folders, args: &EvictArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let before = Listing::read(folders)?;
    let tiers: Vec<Tier> = match args.tier.map(Tier::from) {
        None => before.folders.iter().map(|folder| folder.tier).collect(),
        Some(tier) if before.folders.iter().any(|folder| folder.tier == tier) => vec![tier],
        Some(tier) => bail!("there is no folder of tier {tier}; name one with --cache-dir or --ram-file-dir"),
    };
    let freed = if args.dry_run {
        dry_run(&before, args.bytes, &tiers)
    } else {
        change(folders, &before, |cache| {
            cache.evict_bytes(args.bytes, &tiers);
        })?
    };
    freed.print(&before, output)?;
    if !output.json && freed.freed_bytes < args.bytes {
        writeln!(output.out, "less than {} was available", show_bytes(args.bytes))?;
    }
    Ok(Outcome::Good)
}

fn dry_run(before: &Listing, bytes: u64, tiers: &[Tier]) -> Freed {
    let evictions = before.index().evict(bytes, tiers);
    let freed_bytes = evictions.iter().map(|eviction| eviction.bytes).sum();
    Freed {
        dry_run: true,
        freed_bytes,
        freed_rows: evictions.len(),
        left_bytes: before.total_bytes().saturating_sub(freed_bytes),
        left_rows: before.report.rows.len().saturating_sub(evictions.len()),
    }
}
