//! `poncho cache show KEY`: the header of a row file, and the chain of the row.

use poncho_cache::{RowFile, to_hex};
use poncho_terminal::{Align, Outcome, Output, Table, ago, excerpt, iso, now, show_bytes};
use serde::Serialize;

use crate::commands::cache::args::ShowArgs;
use crate::commands::cache::folder::Folders;
use crate::commands::cache::listing::{Listing, short};
use crate::commands::cache::row::RowJson;

/// Characters of the prompt that are shown.
const SHOWN_TEXT: usize = 400;
/// Token ids on a line.
const IDS_A_LINE: usize = 16;

#[derive(Debug, Serialize)]
struct ShowJson<'a> {
    #[serde(flatten)]
    row: RowJson<'a>,
    path: String,
    fingerprint_mode: &'static str,
    quant_bits: u8,
    flags: u16,
    grid: bool,
    context_size: u32,
    host: Option<&'a str>,
    writer: Option<&'a str>,
    reason_detail: Option<&'a str>,
    payload_offset: u64,
    payload_bytes: u64,
    payload_crc: String,
    /// From the root to this row.
    chain: Vec<LinkJson>,
    chain_whole: bool,
    /// All ids from the first, if they were asked for and the chain is whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct LinkJson {
    key: String,
    tier: &'static str,
    start: u32,
    tokens: u32,
    bytes: u64,
}

pub(crate) fn run(folders: &Folders, args: &ShowArgs, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let listing = Listing::read(folders)?;
    let row = listing.find(&args.key)?;
    let ids = if args.tokens { listing.report.tokens_of(row) } else { None };
    if output.json {
        output.print_json(&json(&listing, row, ids))?;
        return Ok(Outcome::Good);
    }
    print(&listing, row, output)?;
    if args.tokens {
        let out = &mut *output.out;
        writeln!(out)?;
        match ids {
            None => writeln!(out, "the token ids are unknown: the chain of parent rows is broken")?,
            Some(ids) => {
                for line in ids.chunks(IDS_A_LINE) {
                    let line: Vec<String> = line.iter().map(u32::to_string).collect();
                    writeln!(out, "{}", line.join(" "))?;
                }
            }
        }
    }
    Ok(Outcome::Good)
}

fn json<'a>(listing: &Listing, row: &'a RowFile, token_ids: Option<Vec<u32>>) -> ShowJson<'a> {
    let prefix = &row.prefix;
    let (chain, chain_whole) = listing.chain(row);
    let link = |row: &&RowFile| LinkJson {
        key: row.key.to_hex(),
        tier: listing.tier_of(row).as_str(),
        start: row.prefix.meta.start,
        tokens: row.prefix.meta.token_count,
        bytes: row.bytes,
    };
    ShowJson {
        row: RowJson::whole(row, listing.tier_of(row)),
        path: row.path.display().to_string(),
        fingerprint_mode: prefix.meta.mode.as_str(),
        quant_bits: prefix.quant_bits,
        flags: prefix.meta.flags,
        grid: prefix.meta.is_grid(),
        context_size: prefix.meta.context_size,
        host: prefix.host.as_deref(),
        writer: prefix.writer.as_deref(),
        reason_detail: prefix.reason_detail.as_deref(),
        payload_offset: prefix.payload_offset,
        payload_bytes: prefix.payload_length,
        payload_crc: format!("{:08x}", prefix.payload_crc),
        chain: chain.iter().map(link).collect(),
        chain_whole,
        token_ids,
    }
}

fn print(listing: &Listing, row: &RowFile, output: &mut Output<'_>) -> anyhow::Result<()> {
    let prefix = &row.prefix;
    let now = now();
    let when = |seconds| format!("{} ({})", iso(seconds), ago(now, seconds));
    let text = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), |text| excerpt(text, SHOWN_TEXT));
    let fields = [
        ("key", row.key.to_hex()),
        ("file", row.path.display().to_string()),
        ("tier", listing.tier_of(row).as_str().to_owned()),
        ("version", prefix.meta.version.to_string()),
        ("bytes", format!("{} ({})", show_bytes(row.bytes), row.bytes)),
        (
            "tokens",
            format!(
                "{}, of which it holds {}..{}",
                prefix.meta.token_count, prefix.meta.start, prefix.meta.token_count
            ),
        ),
        ("parent", prefix.meta.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_hex())),
        ("hits", prefix.meta.hits.to_string()),
        ("created", when(prefix.meta.created)),
        ("last used", when(prefix.meta.last_used)),
        ("reason", prefix.meta.reason.as_str().to_owned()),
        ("reason detail", text(&prefix.reason_detail)),
        ("flags", format!("{:#06x}{}", prefix.meta.flags, if prefix.meta.is_grid() { " (grid)" } else { "" })),
        ("context size", prefix.meta.context_size.to_string()),
        ("fingerprint", format!("{} ({})", to_hex(&prefix.meta.namespace.fingerprint), prefix.meta.mode)),
        ("quant", format!("{} ({} bits)", prefix.meta.namespace.quant.as_str(), prefix.quant_bits)),
        ("context hash", to_hex(&prefix.meta.namespace.context_hash)),
        ("host", text(&prefix.host)),
        ("writer", text(&prefix.writer)),
        ("payload", format!("{} bytes at {}", prefix.payload_length, prefix.payload_offset)),
        ("payload crc", format!("{:08x}", prefix.payload_crc)),
        ("text", excerpt(&prefix.text, SHOWN_TEXT)),
    ];
    let out = &mut *output.out;
    for (name, value) in fields {
        writeln!(out, "{}", format!("{name:<14} {value}").trim_end())?;
    }
    use Align::{Left, Right};
    let mut parts = Table::new([("PART", Left), ("BYTES", Right), ("OFFSET", Right), ("CRC", Left)]);
    for part in &prefix.parts {
        let crc = format!("{:08x}", part.crc);
        parts.row([part.kind.as_str().to_owned(), show_bytes(part.length), part.offset.to_string(), crc]);
    }
    writeln!(out)?;
    parts.print(out)?;

    let (chain, whole) = listing.chain(row);
    let mut links =
        Table::new([("CHAIN", Left), ("TIER", Left), ("START", Right), ("TOKENS", Right), ("BYTES", Right)]);
    for link in &chain {
        links.row([
            short(link.key.as_bytes()),
            listing.tier_of(link).as_str().to_owned(),
            link.prefix.meta.start.to_string(),
            link.prefix.meta.token_count.to_string(),
            show_bytes(link.bytes),
        ]);
    }
    writeln!(out)?;
    links.print(out)?;
    if !whole && let Some(missing) = chain.first().and_then(|first| first.prefix.meta.parent) {
        writeln!(out, "the chain is broken: row {missing} is missing")?;
    }
    Ok(())
}
