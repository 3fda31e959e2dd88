//! `poncho cache stat`: the sums of a folder, per namespace, and its leftover files.

use std::collections::{BTreeMap, HashMap};

use poncho_cache::{Key, Namespace};
use poncho_terminal::{Align, Outcome, Output, Table, show_bytes};
use serde::Serialize;

use crate::commands::cache::folder::{Folder, Folders};
use crate::commands::cache::listing::{Leftover, Listing, short};
use crate::commands::cache::row::NamespaceJson;
use crate::serving::disk::free_bytes;

#[derive(Debug, Serialize)]
struct Stat {
    rows: usize,
    /// Of the rows' files.
    bytes: u64,
    /// Tokens that the rows store themselves, each counted once along a chain.
    tokens: u64,
    hits: u64,
    longest_chain: usize,
    temporary_files: usize,
    bad_files: usize,
    damaged_files: usize,
    unknown_files: usize,
    /// The process that has the folder open.
    holder: Option<String>,
    folders: Vec<FolderStat>,
    namespaces: Vec<NamespaceStat>,
}

#[derive(Debug, Serialize)]
struct FolderStat {
    path: String,
    tier: &'static str,
    rows: usize,
    bytes: u64,
    free_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct NamespaceStat {
    #[serde(flatten)]
    namespace: NamespaceJson,
    rows: usize,
    tokens: u64,
    bytes: u64,
    hits: u64,
}

pub(crate) fn run(folders: &Folders, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let listing = Listing::read(folders)?;
    let namespaces = namespaces(&listing);
    let stat = Stat {
        rows: listing.report.rows.len(),
        bytes: namespaces.values().map(|stat| stat.bytes).sum(),
        tokens: namespaces.values().map(|stat| stat.tokens).sum(),
        hits: namespaces.values().map(|stat| stat.hits).sum(),
        longest_chain: longest_chain(&listing),
        temporary_files: listing.leftovers(Leftover::Temporary).count(),
        bad_files: listing.leftovers(Leftover::Bad).count(),
        damaged_files: listing.leftovers(Leftover::Damaged).count(),
        unknown_files: listing.leftovers(Leftover::Unknown).count(),
        holder: listing.report.holder.clone(),
        folders: folder_stats(&listing),
        namespaces: Vec::new(),
    };
    if output.json {
        output.print_json(&Stat { namespaces: namespaces.into_values().collect(), ..stat })?;
    } else {
        print(&stat, &namespaces, output)?;
    }
    Ok(Outcome::Good)
}

fn namespaces(listing: &Listing) -> BTreeMap<Namespace, NamespaceStat> {
    let mut namespaces = BTreeMap::new();
    for row in &listing.report.rows {
        let namespace = row.prefix.meta.namespace;
        let stat = namespaces.entry(namespace).or_insert_with(|| NamespaceStat {
            namespace: (&namespace).into(),
            rows: 0,
            tokens: 0,
            bytes: 0,
            hits: 0,
        });
        stat.rows += 1;
        stat.tokens += row.prefix.tokens.len() as u64;
        stat.bytes += row.bytes;
        stat.hits += u64::from(row.prefix.meta.hits);
    }
    namespaces
}

fn folder_stats(listing: &Listing) -> Vec<FolderStat> {
    let stat = |folder: &Folder| {
        let rows = || listing.report.rows.iter().filter(|row| listing.tier_of(row) == folder.tier);
        FolderStat {
            path: folder.path.display().to_string(),
            tier: folder.tier.as_str(),
            rows: rows().count(),
            bytes: rows().map(|row| row.bytes).sum(),
            free_bytes: free_bytes(&folder.path),
        }
    };
    listing.folders.iter().map(stat).collect()
}

/// Rows in the longest complete chain. Each row is visited once, however long the chains are.
fn longest_chain(listing: &Listing) -> usize {
    // None: an ancestor of the row that is being counted; found again, the chain is a cycle.
    let mut lengths: HashMap<Key, Option<usize>> = HashMap::new();
    for row in &listing.report.rows {
        let mut path = Vec::new();
        let mut next = Some(row.key);
        let mut length = 0;
        while let Some(key) = next {
            if let Some(known) = lengths.get(&key) {
                length = known.unwrap_or(0);
                break;
            }
            lengths.insert(key, None);
            path.push(key);
            next = match listing.row(&key) {
                Some(row) => row.prefix.meta.parent,
                // Broken: its descendants do not form a chain.
                None => None,
            };
        }
        for key in path.into_iter().rev() {
            let whole = length > 0 || listing.row(&key).is_some_and(|row| row.prefix.meta.parent.is_none());
            length = if whole { length + 1 } else { 0 };
            lengths.insert(key, Some(length));
        }
    }
    lengths.into_values().flatten().max().unwrap_or(0)
}

fn print(stat: &Stat, namespaces: &BTreeMap<Namespace, NamespaceStat>, output: &mut Output<'_>) -> anyhow::Result<()> {
    use Align::{Left, Right};
    let out = &mut *output.out;
    for folder in &stat.folders {
        let free = folder.free_bytes.map_or_else(|| "unknown".to_owned(), show_bytes);
        writeln!(out, "folder         {} ({}, {} free)", folder.path, folder.tier, free)?;
    }
    writeln!(out, "rows           {}", stat.rows)?;
    writeln!(out, "bytes          {} ({})", show_bytes(stat.bytes), stat.bytes)?;
    writeln!(out, "tokens         {}", stat.tokens)?;
    writeln!(out, "hits           {}", stat.hits)?;
    writeln!(out, "longest chain  {} rows", stat.longest_chain)?;
    writeln!(
        out,
        "other files    {} temporary, {} moved aside, {} damaged, {} unknown",
        stat.temporary_files, stat.bad_files, stat.damaged_files, stat.unknown_files
    )?;
    match &stat.holder {
        Some(pid) => writeln!(out, "in use by      process {pid}")?,
        None => writeln!(out, "in use by      no process")?,
    }
    if namespaces.is_empty() {
        return Ok(());
    }
    let mut table = Table::new([
        ("FINGERPRINT", Left),
        ("QUANT", Left),
        ("CONTEXT", Left),
        ("ROWS", Right),
        ("TOKENS", Right),
        ("BYTES", Right),
        ("HITS", Right),
    ]);
    for (namespace, stat) in namespaces {
        table.row([
            short(&namespace.fingerprint),
            namespace.quant.as_str().to_owned(),
            short(&namespace.context_hash),
            stat.rows.to_string(),
            stat.tokens.to_string(),
            show_bytes(stat.bytes),
            stat.hits.to_string(),
        ]);
    }
    writeln!(out)?;
    table.print(out)?;
    Ok(())
}
