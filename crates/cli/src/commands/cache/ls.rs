//! `poncho cache ls`: the rows, sorted, as a table or as JSON.

use std::cmp::Reverse;

use poncho_cache::RowFile;
use poncho_terminal::{Align, Outcome, Output, Table, ago, iso, now, show_bytes};

use crate::commands::cache::args::{LsArgs, SortBy};
use crate::commands::cache::folder::Folders;
use crate::commands::cache::listing::{Listing, short};
use crate::commands::cache::row::RowJson;

pub(crate) fn run(folders: &Folders, args: &LsArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let listing = Listing::read(folders)?;
    let mut rows: Vec<&RowFile> = listing.report.rows.iter().collect();
    // Stable: what compares equal stays in the order of keys.
    match args.sort {
        SortBy::Key => {}
        SortBy::LastUsed => rows.sort_by_key(|row| Reverse(row.prefix.meta.last_used)),
        SortBy::Bytes => rows.sort_by_key(|row| Reverse(row.bytes)),
        SortBy::Tokens => rows.sort_by_key(|row| Reverse(row.prefix.meta.token_count)),
        SortBy::Hits => rows.sort_by_key(|row| Reverse(row.prefix.meta.hits)),
    }
    let all = rows.len();
    rows.truncate(args.limit.unwrap_or(all));

    if output.json {
        let rows: Vec<RowJson<'_>> = rows.iter().map(|row| RowJson::new(row, listing.tier_of(row))).collect();
        output.print_json(&rows)?;
        return Ok(Outcome::Good);
    }
    if all == 0 {
        writeln!(output.out, "no rows in {}", listing.place())?;
        return Ok(Outcome::Good);
    }
    table(&listing, &rows).print(output.out)?;
    let total: u64 = listing.report.rows.iter().map(|row| row.bytes).sum();
    let shown = if rows.len() < all { format!("{} of ", rows.len()) } else { String::new() };
    writeln!(output.out, "{shown}{all} rows, {}", show_bytes(total))?;
    Ok(Outcome::Good)
}

fn table(listing: &Listing, rows: &[&RowFile]) -> Table<11> {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("KEY", Left),
        ("TIER", Left),
        ("BYTES", Right),
        ("TOKENS", Right),
        ("START", Right),
        ("PARENT", Left),
        ("HITS", Right),
        ("REASON", Left),
        ("V", Right),
        ("LAST USED", Left),
        ("", Left),
    ]);
    let now = now();
    for row in rows {
        let prefix = &row.prefix;
        table.row([
            short(row.key.as_bytes()),
            listing.tier_of(row).as_str().to_owned(),
            show_bytes(row.bytes),
            prefix.meta.token_count.to_string(),
            prefix.meta.start.to_string(),
            prefix.meta.parent.map_or_else(|| "-".to_owned(), |parent| short(parent.as_bytes())),
            prefix.meta.hits.to_string(),
            prefix.meta.reason.as_str().to_owned(),
            prefix.meta.version.to_string(),
            ago(now, prefix.meta.last_used),
            iso(prefix.meta.last_used),
        ]);
    }
    table
}
