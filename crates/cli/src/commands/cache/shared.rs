//! `ls`, `gc` and `explain` of `poncho cache` with `--shared`, and `poncho cluster gc`: the object store that several
//! machines use.
//!
//! Names in the store are hashes, keyed with the cluster's secret: the list shows sizes and times, and no prompt. All of
//! them work beside running servers.

use std::path::PathBuf;

use anyhow::Context;
use poncho_shared::{Collection, Listing, RowListing, Settings, SharedStore, StoredPrefix};
use poncho_terminal::{Align, Outcome, Output, Table, ago, now, show_bytes};
use serde_json::{Value, json};

use crate::settings::configured;

/// Characters of a name in the table.
const DIGITS: usize = 12;

/// The settings of the store that the flag or the configuration names.
fn settings(flag: &str, quota: Option<u64>) -> anyhow::Result<Settings> {
    let of = |name: &str| anyhow::Ok(configured(name)?.map(|(value, _)| value));
    let url = match flag {
        "" => of("shared")?.map(|url| url.to_string_lossy().into_owned()),
        url => Some(url.to_owned()),
    };
    let url = url.context("no store is configured; name one, for example --shared s3://BUCKET/PREFIX")?;
    let configured = of("shared_quota")?.and_then(|text| poncho_terminal::parse_bytes(&text.to_string_lossy()).ok());
    let key_file = of("shared_key_file")?.filter(|path| !path.is_empty()).map(PathBuf::from);
    Ok(Settings { quota: quota.or(configured), key_file, ..Settings::new(url) })
}

/// The rows of the store that begin these tokens, longest first, and the address of the store. `None` if neither the flag
/// nor the configuration names one.
pub(crate) fn prefixes(flag: Option<&str>, tokens: &[u32]) -> anyhow::Result<Option<(String, Vec<StoredPrefix>)>> {
    let is_configured = configured("shared")?.is_some_and(|(url, _)| !url.is_empty());
    let flag = match flag {
        None if !is_configured => return Ok(None),
        None => "",
        Some(flag) => flag,
    };
    let store = SharedStore::open(&settings(flag, None)?)?;
    Ok(Some((store.location().to_owned(), store.prefixes(tokens)?)))
}

/// Prints what the store holds.
pub(crate) fn ls(flag: &str, limit: Option<usize>, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let listing = SharedStore::open(&settings(flag, None)?)?.list()?;
    if output.json {
        output.print_json(&listing_json(&listing))?;
        return Ok(Outcome::Good);
    }
    let mut rows: Vec<(&str, &RowListing)> =
        listing.tenants.iter().flat_map(|tenant| tenant.rows.iter().map(|row| (tenant.tenant.as_str(), row))).collect();
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.last_used));
    let all = rows.len();
    if all == 0 {
        writeln!(output.out, "no rows in {}", listing.location)?;
        return Ok(Outcome::Good);
    }
    let mut table = Table::new([
        ("TENANT", Align::Left),
        ("ROW", Align::Left),
        ("TOKENS", Align::Right),
        ("SIZE", Align::Right),
        ("LAST USED", Align::Left),
    ]);
    for (tenant, row) in rows.into_iter().take(limit.unwrap_or(all)) {
        let tokens = row.tokens.map_or_else(|| "unreadable".to_owned(), |tokens| tokens.to_string());
        table.row([short(tenant), short(&row.name), tokens, show_bytes(row.bytes), ago(now(), seconds(row))]);
    }
    table.print(output.out)?;
    let tenants = listing.tenants.len();
    writeln!(
        output.out,
        "{all} rows of {tenants} {}, {} in {}",
        if tenants == 1 { "tenant" } else { "tenants" },
        show_bytes(listing.bytes),
        listing.location
    )?;
    Ok(Outcome::Good)
}

/// Collects garbage, and the oldest rows of a store above its quota.
pub(crate) fn gc(flag: &str, quota: Option<u64>, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    print(SharedStore::open(&settings(flag, quota)?)?.collect()?, false, output)
}

/// The same for `poncho cluster gc`: first what would be removed, then the removal, if it is wanted.
pub(crate) fn gc_confirmed(
    (flag, quota): (&str, Option<u64>),
    dry_run: bool,
    confirm: impl FnOnce(&Collection) -> anyhow::Result<bool>,
    output: &mut Output<'_>,
) -> anyhow::Result<Outcome> {
    let store = SharedStore::open(&settings(flag, quota)?)?;
    let foreseen = store.foresee()?;
    if dry_run {
        return print(foreseen, true, output);
    }
    if !confirm(&foreseen)? {
        return Ok(Outcome::Bad);
    }
    print(store.collect()?, false, output)
}

fn print(done: Collection, dry_run: bool, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let Collection { rows, bytes, removed_rows, removed_segments, removed_bytes, condemned_bytes } = done;
    if output.json {
        output.print_json(&json!({
            "dry_run": dry_run,
            "rows": rows,
            "bytes": bytes,
            "removed_rows": removed_rows,
            "removed_segments": removed_segments,
            "removed_bytes": removed_bytes,
            "condemned_bytes": condemned_bytes,
        }))?;
        return Ok(Outcome::Good);
    }
    writeln!(
        output.out,
        "{rows} rows, {}; {} {removed_rows} rows and {removed_segments} segments, {}",
        show_bytes(bytes),
        if dry_run { "would remove" } else { "removed" },
        show_bytes(removed_bytes)
    )?;
    if condemned_bytes > 0 {
        writeln!(
            output.out,
            "{} are not in use; a collection ten minutes {} removes them",
            show_bytes(condemned_bytes),
            if dry_run { "after this one" } else { "from now" }
        )?;
    }
    Ok(Outcome::Good)
}

fn short(name: &str) -> String {
    name.chars().take(DIGITS).collect()
}

/// Seconds since 1970.
fn seconds(row: &RowListing) -> u64 {
    row.last_used.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn listing_json(listing: &Listing) -> Value {
    let row = |row: &RowListing| {
        json!({
            "name": row.name,
            "tokens": row.tokens,
            "rows": row.rows,
            "bytes": row.bytes,
            "last_used": seconds(row),
        })
    };
    let tenants: Vec<Value> = listing
        .tenants
        .iter()
        .map(|tenant| {
            json!({
                "tenant": tenant.tenant,
                "segments": tenant.segments,
                "bytes": tenant.bytes,
                "rows": tenant.rows.iter().map(row).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({ "location": listing.location, "bytes": listing.bytes, "tenants": tenants })
}
