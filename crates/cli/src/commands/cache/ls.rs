//! `poncho cache ls`: the rows with their models and the first words of their prompts, sorted, as a table or as JSON.
//!
//! The table fits a terminal; `--json` and `poncho cache show` have all fields. The text of prompts is for the owner of
//! the folder, who may read the files anyway.

use std::cmp::Reverse;
use std::collections::HashMap;

use poncho_cache::{Key, RowFile};
use poncho_terminal::{Align, Outcome, Output, Table, ago, excerpt, now, show_bytes};

use crate::commands::cache::args::{LsArgs, SortBy};
use crate::commands::cache::folder::Folders;
use crate::commands::cache::listing::{Listing, short};
use crate::commands::cache::row::RowJson;
use crate::serving::names::ModelNames;
use crate::settings::models_folder::models_folder;

/// Characters of a prompt in the table.
const WORDS: usize = 48;

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

    let names = names(&listing);
    if output.json {
        let named = |row| RowJson::new(row, listing.tier_of(row)).with_model(names.get(fingerprint(row)));
        let rows: Vec<RowJson<'_>> = rows.into_iter().map(named).collect();
        output.print_json(&rows)?;
        return Ok(Outcome::Good);
    }
    if all == 0 {
        writeln!(output.out, "no rows in {}", listing.place())?;
        return Ok(Outcome::Good);
    }
    table(&listing, &rows, &names).print(output.out)?;
    let total: u64 = listing.report.rows.iter().map(|row| row.bytes).sum();
    let shown = if rows.len() < all { format!("{} of ", rows.len()) } else { String::new() };
    let rows = if all == 1 { "row" } else { "rows" };
    writeln!(output.out, "{shown}{all} {rows}, {}", show_bytes(total))?;
    Ok(Outcome::Good)
}

/// The names of the models of these folders. An invalid settings file does not stop a listing.
fn names(listing: &Listing) -> ModelNames {
    let models = models_folder(None).ok();
    ModelNames::read(listing.folders.iter().map(|folder| folder.path.as_path()), models.as_deref())
}

fn fingerprint(row: &RowFile) -> &[u8; 32] {
    &row.prefix.meta.namespace.fingerprint
}

/// The beginning of each row's prompt. Rows of a chain begin alike, and a row that was joined with its parent has no text
/// of its own. Each row is visited once, however long the chains are.
fn texts(listing: &Listing) -> HashMap<Key, &str> {
    let parent = |key: &Key| listing.row(key).and_then(|row| row.prefix.meta.parent);
    let mut texts: HashMap<Key, &str> = HashMap::new();
    for row in listing.report.rows.iter().filter(|row| !row.prefix.text.is_empty()) {
        texts.insert(row.key, row.prefix.text.as_str());
        let mut above = row.prefix.meta.parent;
        while let Some(key) = above.filter(|key| !texts.contains_key(key)) {
            let own = listing.row(&key).map(|row| row.prefix.text.as_str()).filter(|own| !own.is_empty());
            texts.insert(key, own.unwrap_or(&row.prefix.text));
            above = parent(&key);
        }
    }
    for row in &listing.report.rows {
        let mut path = Vec::new();
        let mut next = Some(row.key);
        while let Some(key) = next.filter(|key| !texts.contains_key(key)) {
            // Also ends a cycle of a crafted chain.
            texts.insert(key, "");
            path.push(key);
            next = parent(&key);
        }
        let found = next.and_then(|key| texts.get(&key).copied()).unwrap_or_default();
        for key in path {
            texts.insert(key, found);
        }
    }
    texts
}

fn table(listing: &Listing, rows: &[&RowFile], names: &ModelNames) -> Table<8> {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("KEY", Left),
        ("MODEL", Left),
        ("TOKENS", Right),
        ("SIZE", Right),
        ("TIER", Left),
        ("HITS", Right),
        ("LAST USED", Left),
        ("PROMPT", Left),
    ]);
    let now = now();
    let texts = texts(listing);
    for row in rows {
        let meta = &row.prefix.meta;
        let model = names.get(fingerprint(row)).map_or_else(|| short(fingerprint(row)), str::to_owned);
        let words: Vec<&str> = texts.get(&row.key).copied().unwrap_or_default().split_whitespace().collect();
        table.row([
            short(row.key.as_bytes()),
            model,
            meta.token_count.to_string(),
            show_bytes(row.bytes),
            listing.tier_of(row).as_str().to_owned(),
            meta.hits.to_string(),
            ago(now, meta.last_used),
            excerpt(&words.join(" "), WORDS),
        ]);
    }
    table
}
