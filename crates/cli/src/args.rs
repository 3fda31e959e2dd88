//! The flags as the user types them.
//!
//! Filled by clap and read by the commands. No input or output here: folders are looked at and the environment is
//! read by the commands themselves.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use poncho_cache::{PressureConfig, PressureSourceKind, Tier};
use poncho_engine::backend::KvLayout;
use poncho_server::{KeepAlive, MemoryBudget, ReplayScope};

use crate::backend_args::BackendArgs;
use crate::bench::args::BenchArgs;
use crate::bytes::parse_bytes;
use crate::embed::EmbedArgs;
use crate::limit_args::LimitArgs;
use crate::models::args::{CpArgs, CreateArgs, ListArgs, PullArgs, RmArgs, ShowModelArgs};
use crate::probing::ProbeArg;
use crate::ps::PsArgs;
use crate::run::args::RunArgs;
use crate::served_models::{parse_alias, parse_keep_alive};
use crate::stop::StopArgs;
use crate::tokenize::TokenizeArgs;
use crate::top::args::TopArgs;

/// Keeps llama.cpp warm: a prompt prefix that was read once is never read again.
#[derive(Debug, Parser)]
#[command(name = "poncho", version, arg_required_else_help = true)]
#[command(after_help = "Example:\n  poncho cache ls --cache-dir DIR\n\nExit codes: 0 good, 1 failed, 2 wrong usage.")]
pub(crate) struct Args {
    /// What to log to standard error [env: PONCHO_LOG] [default: warn]
    #[arg(long, value_name = "LEVEL", global = true)]
    pub(crate) log_level: Option<LogLevel>,

    /// How log lines look [env: PONCHO_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT", global = true)]
    pub(crate) log_format: Option<LogFormat>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "made once, when the process starts")]
pub(crate) enum Command {
    /// Serve a model over HTTP, as OpenAI's API does
    #[command(
        after_help = "Examples:\n  poncho serve --model model.gguf\n  poncho serve --model model.gguf --ctx-size 32768 --port 9000\n\n\
        Settings also come from variables and a file; `poncho config` shows which hold."
    )]
    Serve(ServeArgs),
    /// Look into a cache folder, check it, make room in it
    #[command(arg_required_else_help = true)]
    Cache(CacheArgs),
    /// Measure
    #[command(arg_required_else_help = true)]
    Bench(BenchArgs),
    /// Print the settings that hold and where each comes from
    #[command(
        after_help = "Examples:\n  poncho config\n  poncho config --port 9000 --json\n  poncho config --reference"
    )]
    Config(ConfigArgs),
    /// Check whether this machine can serve: CPU, memory, cache folder, disk, port, limits; exits 1 if it cannot
    #[command(after_help = "Examples:\n  poncho doctor\n  poncho doctor --model model.gguf --ctx-size 32768 --json")]
    Doctor(DoctorArgs),
    /// Print the completions of a shell
    #[command(after_help = "Example:\n  poncho completions bash > ~/.local/share/bash-completion/completions/poncho")]
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands
    #[command(after_help = "Example:\n  poncho man --out ~/.local/share/man/man1")]
    Man(ManArgs),
    /// Chat with a model in the terminal, or let it answer one prompt
    #[command(after_help = "Examples:\n  poncho run model.gguf\n  poncho run model.gguf 'Why is the sky blue?'\n  \
        git diff | poncho run model.gguf 'Describe this change:' -\n  poncho run --url http://127.0.0.1:8080")]
    Run(Box<RunArgs>),
    /// List the models that a running server has loaded
    #[command(after_help = "Examples:\n  poncho ps\n  poncho ps --json | jq '.[].name'")]
    Ps(PsArgs),
    /// Unload a model at a running server
    #[command(after_help = "Example:\n  poncho stop smollm2:135m")]
    Stop(StopArgs),
    /// Turn texts into vectors
    #[command(after_help = "Examples:\n  poncho embed --model model.gguf 'first text' 'second text'\n  \
        poncho embed --json 'a text' | jq '.embeddings[0] | length'")]
    Embed(Box<EmbedArgs>),
    /// Show a text as tokens, or tokens as text
    #[command(after_help = "Examples:\n  poncho tokenize --model model.gguf 'Hello there'\n  \
        poncho tokenize --detokenize 72 105")]
    Tokenize(Box<TokenizeArgs>),
    /// Watch a running server: models, requests, cache, speed
    #[command(after_help = "Examples:\n  poncho top\n  poncho top --url http://127.0.0.1:9000\n  poncho top --once")]
    Top(TopArgs),
    /// Fetch a model: from the catalogue, a hub repository, an address or a file
    #[command(after_help = "Examples:\n  poncho pull smollm2:135m\n  poncho pull hf:Qwen/Qwen3-0.6B-GGUF:Q8_0\n  \
        poncho pull ./model.gguf --name mine:1\n\nHF_TOKEN and HF_ENDPOINT are respected. An interrupted download goes on \
        where it stopped.")]
    Pull(PullArgs),
    /// List the models that are here
    #[command(after_help = "Examples:\n  poncho list\n  poncho list --catalogue\n  poncho list --json | jq '.[].name'")]
    List(ListArgs),
    /// Show everything about a model
    #[command(after_help = "Examples:\n  poncho show smollm2:135m\n  poncho show smollm2:135m --verify\n  \
        poncho show smollm2:135m --modelfile > Modelfile")]
    Show(ShowModelArgs),
    /// Remove models, and the files that no other name needs
    #[command(after_help = "Example:\n  poncho rm smollm2:135m")]
    Rm(RmArgs),
    /// Give a model a second name; no bytes are copied
    #[command(after_help = "Example:\n  poncho cp smollm2:135m gpt-4o")]
    Cp(CpArgs),
    /// Make a model from a Modelfile: FROM, PARAMETER, SYSTEM, TEMPLATE, ADAPTER, LICENSE, MESSAGE
    #[command(after_help = "Example:\n  poncho create pirate -f Modelfile")]
    Create(CreateArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Print JSON on standard output, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the reference of all settings instead, as docs/configuration.md has it
    #[arg(long, conflicts_with = "json")]
    pub(crate) reference: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON on standard output, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write one page for each command into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// A model to load at the start: its name, or its GGUF file (the first part of a split one); may be given several times [default: smollm2:135m]
    #[arg(long, value_name = "NAME_OR_PATH")]
    pub(crate) model: Vec<String>,

    /// The folder of installed models, which requests may name [env: PONCHO_MODELS_DIR] [default: $XDG_DATA_HOME/poncho/models, or ~/.local/share/poncho/models]
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,

    /// The most memory that loaded models may take together, or none [default: four fifths of the machine's]
    #[arg(long, value_name = "BYTES", value_parser = parse_memory)]
    pub(crate) memory: Option<MemoryBudget>,

    /// Which models are tried in a process of their own before they are loaded, as a wrong file can end it
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub(crate) probe_models: ProbeArg,

    /// How long a model that a request loaded stays after its last request: 5m, 1h30m, seconds, 0, or -1 for ever
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_keep_alive, allow_hyphen_values = true)]
    pub(crate) keep_alive: KeepAlive,

    /// Another name for a model, with * at its end for every name that begins so; may be given several times
    #[arg(long, value_name = "NAME=MODEL", value_parser = parse_alias)]
    pub(crate) alias: Vec<(String, String)>,

    /// Let clients create models with Jinja templates, which are programs; without it only those in Go's notation are taken
    #[arg(long)]
    pub(crate) client_templates: bool,

    /// What clients call a model that is given by its path [default: the file's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,

    /// The port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,

    /// The cache folder [default: $XDG_CACHE_HOME/poncho/kv, or ~/.cache/poncho/kv]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// The most that the cache folder may hold
    #[arg(long, value_name = "BYTES", default_value = "20GiB", value_parser = parse_bytes)]
    pub(crate) cache_size: u64,

    /// The most that stored states may take in memory as well, from where they come back soonest
    #[arg(long, value_name = "BYTES", default_value = "512MiB", value_parser = parse_bytes)]
    pub(crate) cache_ram: u64,

    /// Where new states are stored; files in memory survive a crash of the server, not a restart of the machine
    #[arg(long, value_name = "TIER", default_value = "disk")]
    pub(crate) cache_tier: CacheTierArg,

    /// The most that files in memory may hold, with --cache-tier ram-file
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = parse_bytes)]
    pub(crate) ram_file_size: u64,

    /// The folder of files in memory, with --cache-tier ram-file [default: /dev/shm/poncho-UID]
    #[arg(long, value_name = "DIR")]
    pub(crate) ram_file_dir: Option<PathBuf>,

    /// Whose memory is watched, so that stored states leave it before it is full
    #[arg(long, value_name = "SOURCE", default_value = "off", value_parser = pressure_parser())]
    pub(crate) pressure: PressureArg,

    /// Tokens that one request may use, prompt and reply together
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) ctx_size: u32,

    /// Requests that run at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) parallel: u32,

    /// Whether requests share one pool of KV cells
    #[arg(long, value_name = "LAYOUT", default_value = "auto")]
    pub(crate) kv_layout: KvArg,

    /// Threads that compute [default: the physical cores]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    /// Byte-identical replies to those of a cold, idle server: for all requests, or for those that ask for it [default: off]
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    pub(crate) exact: Option<ExactArg>,

    /// A key that clients must send; may be given several times
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,

    /// A key that may also see and evict what all keys have stored, and read the metrics; may be given several times
    #[arg(long, value_name = "KEY")]
    pub(crate) admin_key: Vec<String>,

    /// A secret that signs the thinking of replies in Anthropic's dialect, so that a client cannot change it
    #[arg(long, value_name = "SECRET", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) signing_key: Option<String>,

    /// Share no cached state between keys: each has a namespace of its own
    #[arg(long)]
    pub(crate) isolate_keys: bool,

    /// Listen beyond this machine without a key
    #[arg(long)]
    pub(crate) open: bool,

    /// A name, besides localhost, under which clients reach a server on the loopback; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,

    /// How long a client may leave its answer unread before its request is cancelled and its connection closed
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_wait)]
    pub(crate) write_timeout: Duration,

    /// The largest file that a client may send for a model of its own; 0 takes none
    #[arg(long, value_name = "BYTES", default_value = "64GiB", value_parser = parse_bytes)]
    pub(crate) max_upload: u64,

    /// How long a client may take to send such a file
    #[arg(long, value_name = "DURATION", default_value = "6h", value_parser = parse_wait)]
    pub(crate) upload_timeout: Duration,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    /// How long the end of the server waits for its states to be saved, once its requests are over
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_wait)]
    pub(crate) drain_limit: Duration,

    /// An origin whose pages may use the server, such as https://chat.example; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors: Vec<String>,

    /// Which turns that the model wrote are put back with its own tokens when a client sends them again
    #[arg(long, value_name = "TURNS", default_value = "all")]
    pub(crate) replay: ReplayArg,

    /// Send prompts as they come, without making their volatile parts equal
    #[arg(long)]
    pub(crate) no_hygiene: bool,

    /// An OpenTelemetry collector that takes traces, such as http://localhost:4318 [env: OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
}

/// Reads how much memory models may take.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    match KeepAlive::parse(text) {
        Ok(KeepAlive::For(wait)) if !wait.is_zero() => Ok(wait),
        _ => Err(format!("{text:?} is no time to wait; write seconds or a text such as 60s or 5m")),
    }
}

fn parse_memory(text: &str) -> Result<MemoryBudget, String> {
    if text == "none" {
        return Ok(MemoryBudget::Unlimited);
    }
    parse_bytes(text).map(MemoryBudget::Bytes).map_err(|said| format!("{said}; or none for no limit"))
}

/// Where new states are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheTierArg {
    /// In the cache folder
    Disk,
    /// In files on a memory file system
    RamFile,
    /// In the memory of the server only
    Ram,
}

/// Whose memory is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PressureArg {
    Off,
    System,
}

/// Knows the source that was taken out, so that an old setting is answered with more than a list of others.
fn pressure_parser() -> impl TypedValueParser<Value = PressureArg> {
    const GPUS: &str = "nvidia-smi";
    let names = [
        PossibleValue::new("off").help("Nobody's"),
        PossibleValue::new("system").help("The machine's, and that of the control group around the server"),
        PossibleValue::new(GPUS).hide(true),
    ];
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        "system" => Ok(PressureArg::System),
        GPUS => Err("the memory of GPUs is not watched any more, because giving up stored states frees none of it; \
                     use `system` to watch the machine's memory, or `off`"),
        _ => Ok(PressureArg::Off),
    })
}

impl PressureArg {
    /// The watcher's settings.
    pub(crate) fn config(self) -> PressureConfig {
        let source = match self {
            Self::Off => PressureSourceKind::Noop,
            Self::System => PressureSourceKind::System,
        };
        PressureConfig { enabled: self != Self::Off, source, ..PressureConfig::default() }
    }
}

/// How the KV cells of requests that run at the same time lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KvArg {
    /// Split if several requests may run at the same time
    Auto,
    /// One pool: every token passes over the cells of all
    Unified,
    /// Each its own: no interference
    Split,
}

impl KvArg {
    /// The layout for so many requests at the same time.
    pub(crate) fn layout(self, parallel: u32) -> KvLayout {
        match self {
            Self::Unified => KvLayout::Unified,
            Self::Split => KvLayout::Split,
            // One request has the pool to itself, and rows from a disk are set while the next ones are read.
            Self::Auto if parallel == 1 => KvLayout::Unified,
            Self::Auto => KvLayout::Split,
        }
    }
}

/// Which turns are replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReplayArg {
    /// Turns with tool calls and turns of text
    All,
    /// Turns with tool calls
    Calls,
    /// None: a prompt depends on its request alone
    Off,
}

impl ReplayArg {
    /// As the server knows it.
    pub(crate) fn scope(self) -> ReplayScope {
        match self {
            Self::All => ReplayScope::All,
            Self::Calls => ReplayScope::Calls,
            Self::Off => ReplayScope::Nothing,
        }
    }
}

/// When replies are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ExactArg {
    /// Every reply
    Always,
    /// Replies to requests with `exact: true`
    Request,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub(crate) folders: FolderArgs,

    /// Print JSON on standard output, and nothing else there
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: CacheCommand,
}

/// Which folders a command works on.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FolderArgs {
    /// The cache folder [env: PONCHO_CACHE_DIR] [default: $XDG_CACHE_HOME/poncho/kv, or ~/.cache/poncho/kv]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) cache_dir: Option<PathBuf>,

    /// A second folder, of the tier ram_file, whose rows may build on rows of the first
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
    /// Sum up the folder: rows and bytes per model, chains, leftovers, free space (works beside a running server)
    #[command(after_help = "Example:\n  poncho cache stat\n  poncho cache stat --json | jq .bytes")]
    Stat,
    /// Show everything about one row (works beside a running server)
    #[command(after_help = "Example:\n  poncho cache show 3fa9c2\n  poncho cache show 3fa9c2 --tokens")]
    Show(ShowArgs),
    /// Check every payload, every name and every chain; exits 1 if a file is damaged (works beside a running server)
    #[command(
        after_help = "Example:\n  poncho cache verify && echo 'all rows are whole'\n  poncho cache verify --repair"
    )]
    Verify(VerifyArgs),
    /// Empty the folder: drop every row, damaged file and leftover (needs the folder for itself)
    #[command(after_help = "Example:\n  poncho cache gc --dry-run\n  poncho cache gc\n\n\
        Files of a format version that this release does not know are left alone.")]
    Gc(GcArgs),
    /// Free at least so many bytes, least recently used rows first (needs the folder for itself)
    #[command(after_help = "Example:\n  poncho cache evict 500MiB\n  poncho cache evict 10G --dry-run\n\n\
        Sizes: 4096, 512KiB, 1.5G; K, M, G, T and KiB .. TiB are powers of 1024, KB .. TB powers of 1000.")]
    Evict(EvictArgs),
    /// Say how far the best stored prefix of some tokens reaches and where it parts (works beside a running server)
    #[command(after_help = "Example:\n  poncho cache explain --tokens prompt.json\n  \
        echo '1 2 3' | poncho cache explain --tokens -\n\n\
        The file holds a JSON list of token ids, or ids with white space between them.")]
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
    /// By name
    Key,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// The order of the rows
    #[arg(long, value_enum, default_value_t = SortBy::LastUsed, hide_possible_values = false)]
    pub(crate) sort: SortBy,

    /// At most so many rows
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The row's name, or as many of its first hexadecimal digits as make it the only one
    #[arg(value_name = "KEY", value_parser = parse_key_digits)]
    pub(crate) key: String,

    /// Print all token ids too
    #[arg(long)]
    pub(crate) tokens: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Take the rights of others away from files and folders of older releases, so that only their owner may read them
    #[arg(long)]
    pub(crate) repair: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Say what would go, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EvictArgs {
    /// How much to free: 4096, 500MiB, 10G
    #[arg(value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) bytes: u64,

    /// Free it in this tier only
    #[arg(long, value_name = "TIER", value_enum)]
    pub(crate) tier: Option<FileTier>,

    /// Say what would go, and change nothing
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
    /// The file with the token ids; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: PathBuf,

    /// Ask for the model and context of this row [default: the ones that agree longest]
    #[arg(long, value_name = "KEY", value_parser = parse_key_digits)]
    pub(crate) row: Option<String>,
}

/// Up to 64 hexadecimal digits, in lower case as the names of files have them.
fn parse_key_digits(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("a key is 1 to 64 hexadecimal digits; `poncho cache ls` lists them".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        let mut open = vec![Args::command()];
        while let Some(command) = open.pop() {
            if !["cache", "bench"].contains(&command.get_name()) {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("poncho "), "{} has no example", command.get_name());
            }
            open.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn keys_are_hexadecimal_digits() {
        assert_eq!(parse_key_digits("3FaB"), Ok("3fab".to_owned()));
        for wrong in ["", "xyz", "3f 2", &"a".repeat(65), "../etc", "\u{e9}"] {
            assert!(parse_key_digits(wrong).is_err(), "{wrong}");
        }
    }
}
