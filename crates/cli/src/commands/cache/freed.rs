//! What `gc`, `clear` and `evict` free: measured on the folder, or foretold by `--dry-run`.
//!
//! Scripts rely on the JSON fields: fields may be added, but must never change their meaning.

use poncho_cache::{Cache, Eviction, Key, Tier};
use poncho_terminal::{Align, Output, Table, ago, excerpt, now, show_bytes};
use serde::Serialize;

use crate::commands::cache::folder::Folders;
use crate::commands::cache::listing::{Listing, short};

/// Characters of prompt text in the list of rows.
const SHOWN_TEXT: usize = 24;

#[derive(Debug, Serialize)]
pub(crate) struct Freed {
    pub(crate) dry_run: bool,
    pub(crate) freed_bytes: u64,
    pub(crate) freed_rows: usize,
    pub(crate) left_bytes: u64,
    pub(crate) left_rows: usize,
}

/// A row that `evict` removes, in the order of removal.
#[derive(Debug, Serialize)]
pub(crate) struct EvictedRow {
    key: Key,
    tier: Tier,
    bytes: u64,
    tokens: u32,
    /// Unix seconds.
    last_used: u64,
    #[serde(skip)]
    text: String,
}

impl EvictedRow {
    pub(crate) fn new(eviction: &Eviction, listing: &Listing) -> Self {
        let row = listing.row(&eviction.key);
        let meta = row.map(|row| &row.prefix.meta);
        Self {
            key: eviction.key,
            tier: eviction.tier,
            bytes: eviction.bytes,
            tokens: meta.map_or(0, |meta| meta.token_count),
            last_used: meta.map_or(0, |meta| meta.last_used),
            text: row.map(|row| excerpt(row.prefix.text.trim(), SHOWN_TEXT)).unwrap_or_default(),
        }
    }

    /// The rows as a table.
    pub(crate) fn table(rows: &[Self]) -> Table<6> {
        use Align::{Left, Right};
        let headings =
            [("KEY", Left), ("TIER", Left), ("BYTES", Right), ("TOKENS", Right), ("LAST USED", Left), ("PROMPT", Left)];
        let (mut table, now) = (Table::new(headings), now());
        for row in rows {
            table.row([
                short(row.key.as_bytes()),
                row.tier.as_str().to_owned(),
                show_bytes(row.bytes),
                row.tokens.to_string(),
                ago(now, row.last_used),
                row.text.clone(),
            ]);
        }
        table
    }
}

/// Opens the folders exclusively, changes them, and counts what was freed.
pub(crate) fn change(folders: &Folders, before: &Listing, work: impl FnOnce(&Cache)) -> anyhow::Result<Freed> {
    let bytes_before = before.total_bytes();
    if let Some(config) = folders.config() {
        let cache = Cache::open(config)?;
        work(&cache);
    }
    let after = Listing::read(folders)?;
    Ok(Freed {
        dry_run: false,
        // Opening a folder already removes leftovers and broken chains, so the folder itself is measured.
        freed_bytes: bytes_before.saturating_sub(after.total_bytes()),
        freed_rows: before.report.rows.len().saturating_sub(after.report.rows.len()),
        left_bytes: after.total_bytes(),
        left_rows: after.report.rows.len(),
    })
}

impl Freed {
    /// Prints the numbers in one line.
    pub(crate) fn print(&self, before: &Listing, output: &mut Output<'_>) -> anyhow::Result<()> {
        let verb = if self.dry_run { "would free" } else { "freed" };
        let (freed, left) = (show_bytes(self.freed_bytes), show_bytes(self.left_bytes));
        let (freed_rows, left_rows) = (count_rows(self.freed_rows), count_rows(self.left_rows));
        writeln!(output.out, "{verb} {freed} in {freed_rows}; {left} in {left_rows} remain")?;
        if self.dry_run
            && let Some(pid) = &before.report.holder
        {
            writeln!(
                output.out,
                "the folder is in use by process {pid}; stop it before you run this without --dry-run"
            )?;
        }
        Ok(())
    }
}

/// `1 row`, `5 rows`.
pub(crate) fn count_rows(count: usize) -> String {
    if count == 1 { "1 row".to_owned() } else { format!("{count} rows") }
}
