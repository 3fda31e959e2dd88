//! The flags of `poncho cache`.
//!
//! Filled by clap and read by the commands of this folder. No input or output here.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use poncho_cache::Tier;
use poncho_terminal::parse_bytes;

#[derive(Debug, clap::Args)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub(crate) folders: FolderArgs,

    /// Print JSON on standard output and nothing else
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: CacheCommand,
}

/// The folders that a command works on.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FolderArgs {
    /// Cache folder [env: PONCHO_CACHE_DIR] [default: $XDG_CACHE_HOME/poncho/kv, or ~/.cache/poncho/kv]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) cache_dir: Option<PathBuf>,

    /// Folder of the tier ram_file, with rows that may extend rows of the cache folder [env: PONCHO_RAM_FILE_DIR]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) ram_file_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List the rows (works beside a running server)
    #[command(
        after_help = "Example:\n  poncho cache ls --sort bytes --limit 10\n  poncho cache ls --json | jq '.[].key'"
    )]
    Ls(LsArgs),
    /// Summarize the folder: rows and bytes per model, chains, leftovers, free space (works beside a running server)
    #[command(after_help = "Example:\n  poncho cache stat\n  poncho cache stat --json | jq .bytes")]
    Stat,
    /// Show all details of one row (works beside a running server)
    #[command(after_help = "Example:\n  poncho cache show 3fa9c2\n  poncho cache show 3fa9c2 --tokens")]
    Show(ShowArgs),
    /// Check every payload, every name and every chain; exits with 1 if a file is damaged (works beside a running server)
    #[command(
        after_help = "Example:\n  poncho cache verify && echo 'all rows are intact'\n  poncho cache verify --repair"
    )]
    Verify(VerifyArgs),
    /// Remove garbage: damaged rows, rows without their parents, unfinished writes (needs exclusive access)
    #[command(after_help = "Example:\n  poncho cache gc --dry-run\n  poncho cache gc\n\n\
        Usable rows stay; `poncho cache clear` removes them too. Files of an unknown format version are kept.")]
    Gc(GcArgs),
    /// Empty the cache: remove all rows and all garbage, after a confirmation (needs exclusive access)
    #[command(after_help = "Example:\n  poncho cache clear\n  poncho cache clear --yes\n\n\
        Files of an unknown format version are kept.")]
    Clear(ClearArgs),
    /// Remove the least recently used rows to free this many bytes, and list them (needs exclusive access)
    #[command(after_help = "Example:\n  poncho cache evict 500MiB --dry-run\n  poncho cache evict 10G\n\n\
        Sizes: 4096, 512KiB, 1.5G; K, M, G, T and KiB .. TiB are powers of 1024, KB .. TB powers of 1000.")]
    Evict(EvictArgs),
    /// Find the longest stored prefix of some tokens and the most similar row (works beside a running server)
    #[command(after_help = "Example:\n  poncho cache explain --tokens prompt.json\n  \
        poncho tokenize --json 'Hello there' | poncho cache explain --tokens -\n\n\
        The file contains a JSON list of token ids, ids separated by white space, or the JSON of `poncho tokenize`.\n\
        `poncho explain` explains the body of a request, with texts and a cause.")]
    Explain(ExplainArgs),
}

/// The order of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// Latest use first
    LastUsed,
    /// Largest file first
    Bytes,
    /// Longest row first
    Tokens,
    /// Most used first
    Hits,
    /// By key
    Key,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// Order of the rows
    #[arg(long, value_enum, default_value_t = SortBy::LastUsed, hide_possible_values = false)]
    pub(crate) sort: SortBy,

    /// Maximum number of rows
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,

    /// List the shared object store instead of the folder [default: the setting shared]
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "")]
    pub(crate) shared: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// Key of the row, or a unique prefix of it
    #[arg(value_name = "KEY", value_parser = parse_key_digits)]
    pub(crate) key: String,

    /// Also print all token ids
    #[arg(long)]
    pub(crate) tokens: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Make files and folders of older releases private: only their owner keeps access
    #[arg(long)]
    pub(crate) repair: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Print what would be removed, and change nothing
    #[arg(long, conflicts_with = "shared")]
    pub(crate) dry_run: bool,

    /// Collect garbage in the shared object store instead of the folder [default: the setting shared]
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "")]
    pub(crate) shared: Option<String>,

    /// Maximum size of the object store; the least recently used rows are removed first [default: the setting shared_quota]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "shared")]
    pub(crate) shared_quota: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClearArgs {
    /// Do not ask; needed without a terminal
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Print what would be removed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EvictArgs {
    /// Minimum to free: 4096, 500MiB, 10G
    #[arg(value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) bytes: u64,

    /// Evict from this tier only
    #[arg(long, value_name = "TIER", value_enum)]
    pub(crate) tier: Option<FileTier>,

    /// List the rows that would be removed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// A tier that is a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileTier {
    #[value(name = "ram_file")]
    RamFile,
    Disk,
}

impl From<FileTier> for Tier {
    fn from(tier: FileTier) -> Self {
        match tier {
            FileTier::RamFile => Self::RamFile,
            FileTier::Disk => Self::Disk,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// File with the token ids; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: PathBuf,

    /// Use the model and context of this row [default: those with the longest match]
    #[arg(long, value_name = "KEY", value_parser = parse_key_digits)]
    pub(crate) row: Option<String>,

    /// Also look in the object store that several machines share [default: the setting shared]
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "")]
    pub(crate) shared: Option<String>,
}

/// Up to 64 hexadecimal digits, in lower case like the file names.
fn parse_key_digits(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("a key is 1 to 64 hexadecimal digits; `poncho cache ls` lists the keys".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hexadecimal_digits() {
        assert_eq!(parse_key_digits("3FaB"), Ok("3fab".to_owned()));
        for wrong in ["", "xyz", "3f 2", &"a".repeat(65), "../etc", "\u{e9}"] {
            assert!(parse_key_digits(wrong).is_err(), "{wrong}");
        }
    }
}
