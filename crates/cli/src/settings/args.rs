//! The flags of `poncho serve`, which are all of its settings, and the types of their values.
//!
//! Filled by clap. No input or output here.

pub(crate) mod cluster;
pub(crate) mod devices;
pub(crate) mod limits;
pub(crate) mod nodes;
pub(crate) mod reasoning;
pub(crate) mod shared;
pub(crate) mod tool_servers;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use poncho_api::ReplayScope;
use poncho_cache::{PressureConfig, PressureSourceKind};
use poncho_engine::Drafts;
use poncho_engine::backend::KvLayout;
use poncho_server::{KeepAlive, MemoryBudget};
use poncho_terminal::parse_bytes;

use crate::settings::args::cluster::{ClusterArgs, KvEventsArgs};
use crate::settings::args::devices::DeviceArgs;
use crate::settings::args::limits::LimitArgs;
use crate::settings::args::nodes::NodeArgs;
use crate::settings::args::reasoning::ReasoningArgs;
use crate::settings::backend_args::BackendArgs;

use self::shared::SharedArgs;
use self::tool_servers::ToolServerArgs;

/// The flags of every command.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct LogArgs {
    /// Log level on standard error [env: PONCHO_LOG] [default: warn]
    #[arg(long, value_name = "LEVEL", global = true)]
    pub(crate) log_level: Option<LogLevel>,

    /// Format of log lines [env: PONCHO_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT", global = true)]
    pub(crate) log_format: Option<LogFormat>,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
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

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Model to load at startup, as with --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) named: Vec<String>,

    /// Model to load at startup: a name, or the path of a GGUF file (the first part of a split model); may be repeated [default: smollm2:135m]
    #[arg(long, short, value_name = "NAME_OR_PATH")]
    pub(crate) model: Vec<String>,

    /// Folder of installed models, which requests may name [env: PONCHO_MODELS_DIR] [default: $XDG_DATA_HOME/poncho/models, or ~/.local/share/poncho/models]
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,

    /// Memory limit for all loaded models together, or none for no limit [default: 80 % of the machine's memory]
    #[arg(long, value_name = "BYTES", value_parser = parse_memory)]
    pub(crate) memory: Option<MemoryBudget>,

    /// Which models to load in a separate process first, because a damaged file can crash llama.cpp
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub(crate) probe_models: ProbeArg,

    /// Run the engine in the server's own process, where a crash of llama.cpp ends the server and every reply
    #[arg(long)]
    pub(crate) in_process: bool,

    #[command(flatten)]
    pub(crate) nodes: NodeArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) events: KvEventsArgs,

    /// How long a model that was loaded by a request stays loaded when idle: 5m, 1h30m, seconds, 0, or -1 for no limit
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = KeepAlive::parse, allow_hyphen_values = true)]
    pub(crate) keep_alive: KeepAlive,

    /// Another name for a model; a trailing * matches any ending; may be repeated
    #[arg(long, value_name = "NAME=MODEL", value_parser = parse_alias)]
    pub(crate) alias: Vec<(String, String)>,

    /// LoRA adapter, a GGUF file, for the models that are loaded at startup; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) lora: Vec<PathBuf>,

    /// Chat template, in Jinja, for the models that are loaded at startup [default: from the model]
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "chat_template_file")]
    pub(crate) chat_template: Option<String>,

    /// File with the chat template for the models that are loaded at startup [default: from the model]
    #[arg(long, value_name = "PATH")]
    pub(crate) chat_template_file: Option<PathBuf>,

    /// Let clients create models with Jinja templates, which can run loops; otherwise only Go templates are accepted
    #[arg(long)]
    pub(crate) client_templates: bool,

    /// Name that clients use for a model given by its path [default: the file name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,

    /// Port to listen on; 0 picks a free one
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,

    /// Cache folder [default: $XDG_CACHE_HOME/poncho/kv, or ~/.cache/poncho/kv]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// Maximum size of the cache folder [default: a tenth of its disk, at most half of what is free]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) cache_size: Option<u64>,

    /// Maximum memory for cached states; they are restored faster from memory than from disk [default: a quarter of the memory that the models leave]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) cache_ram: Option<u64>,

    /// Minimum number of tokens of a saved state [default: 512]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) save_min_tokens: Option<u32>,

    /// Where new states are stored; files in memory survive a crash of the server, but not a reboot
    #[arg(long, value_name = "TIER", default_value = "disk")]
    pub(crate) cache_tier: CacheTierArg,

    /// Maximum size of the files in memory, with --cache-tier ram-file
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = parse_bytes)]
    pub(crate) ram_file_size: u64,

    /// Folder of the files in memory, with --cache-tier ram-file [default: /dev/shm/poncho-UID]
    #[arg(long, value_name = "DIR")]
    pub(crate) ram_file_dir: Option<PathBuf>,

    /// Which memory to watch; cached states are evicted before it runs out
    #[arg(long, value_name = "SOURCE", default_value = "off", value_parser = pressure_parser())]
    pub(crate) pressure: PressureArg,

    #[command(flatten)]
    pub(crate) shared_tier: SharedArgs,

    /// Maximum number of tokens of one request, prompt and reply together [default: the trained context up to 131072, or what fits into memory]
    #[arg(long, short, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) ctx_size: Option<u32>,

    /// Maximum number of concurrent requests [default: 4, or what fits into memory]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) parallel: Option<u32>,

    /// Whether concurrent requests share one pool of KV cells
    #[arg(long, value_name = "LAYOUT", default_value = "auto")]
    pub(crate) kv_layout: KvArg,

    /// Number of compute threads; if it is not given, fewer while other programs use the CPUs [default: the physical cores]
    #[arg(long, short, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    #[command(flatten)]
    pub(crate) thinking: ReasoningArgs,

    #[command(flatten)]
    pub(crate) devices: DeviceArgs,

    /// Make replies byte-identical to those of a server without a cache and without other requests: always, or on request [default: off]
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    pub(crate) exact: Option<ExactArg>,

    /// Draft tokens from text seen before, where that is faster; replies do not change: a draft is kept only if the sampler picks the same tokens
    #[arg(long, value_name = "SOURCE", value_enum, default_value_t = DraftsArg::Auto)]
    pub(crate) drafts: DraftsArg,

    /// Key that clients must send; may be repeated
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,

    /// Key that may also list and evict the cached states of all keys, and read the metrics; may be repeated
    #[arg(long, value_name = "KEY")]
    pub(crate) admin_key: Vec<String>,

    /// Secret that signs thinking blocks in the Anthropic API, so that clients cannot change them
    #[arg(long, value_name = "SECRET", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) signing_key: Option<String>,

    /// Give each key its own cache namespace, so that keys do not share cached states
    #[arg(long)]
    pub(crate) isolate_keys: bool,

    /// Listen on an address that other machines can reach even if no key is set
    #[arg(long)]
    pub(crate) open: bool,

    /// Host name, besides localhost, that clients may use for a server on the loopback interface; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,

    /// How long a client may stop reading a response before its request is cancelled and its connection closed
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_wait)]
    pub(crate) write_timeout: Duration,

    /// Maximum size of an uploaded model file; 0 disables uploads
    #[arg(long, value_name = "BYTES", default_value = "64GiB", value_parser = parse_bytes)]
    pub(crate) max_upload: u64,

    /// How long an upload may take
    #[arg(long, value_name = "DURATION", default_value = "6h", value_parser = parse_wait)]
    pub(crate) upload_timeout: Duration,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    /// How long a shutdown waits until states are saved, after the last request
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_wait)]
    pub(crate) drain_limit: Duration,

    /// Origin of web pages that may use the server, such as https://chat.example; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors: Vec<String>,

    #[command(flatten)]
    pub(crate) tool_servers: ToolServerArgs,

    /// Which replies keep their original tokens when a client sends them back
    #[arg(long, value_name = "TURNS", default_value = "all")]
    pub(crate) replay: ReplayArg,

    /// Use prompts unchanged: do not normalize their volatile parts
    #[arg(long)]
    pub(crate) no_hygiene: bool,

    /// Do not log a line for each reply
    #[arg(long)]
    pub(crate) quiet: bool,

    /// OpenTelemetry collector that receives traces, such as http://localhost:4318 [env: OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
}

impl ServeArgs {
    /// The models of the command line, or else those of the settings.
    pub(crate) fn models(&self) -> &[String] {
        if self.named.is_empty() { &self.model } else { &self.named }
    }
}

pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    match KeepAlive::parse(text) {
        Ok(KeepAlive::For(wait)) if !wait.is_zero() => Ok(wait),
        _ => Err(format!("`{text}` is not a valid duration; write seconds, or a text such as 60s or 5m")),
    }
}

fn parse_memory(text: &str) -> Result<MemoryBudget, String> {
    if text == "none" {
        return Ok(MemoryBudget::Unlimited);
    }
    parse_bytes(text).map(MemoryBudget::Bytes).map_err(|error| format!("{error}, or none for no limit"))
}

fn parse_alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((alias, model)) if !alias.is_empty() && !model.is_empty() => Ok((alias.to_owned(), model.to_owned())),
        _ => Err(format!(
            "`{text}` is not an alias; write NAME=MODEL, such as gpt-4o=smollm2:135m or 'claude-*=smollm2:135m'"
        )),
    }
}

/// Which models are tried before they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProbeArg {
    /// Models that this build has not loaded before
    Auto,
    /// Every model, at every load
    Always,
    /// None: a file that crashes llama.cpp crashes the server
    Off,
}

/// Where new states are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheTierArg {
    /// In the cache folder
    Disk,
    /// In files on a memory file system
    RamFile,
    /// Only in the memory of the server
    Ram,
}

/// Which memory is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PressureArg {
    Off,
    System,
}

/// Knows the source that was removed, so that an old setting gets a better error than a list of the others.
fn pressure_parser() -> impl TypedValueParser<Value = PressureArg> {
    const GPUS: &str = "nvidia-smi";
    let names = [
        PossibleValue::new("off").help("None"),
        PossibleValue::new("system").help("The memory of the machine, and of the control group around the server"),
        PossibleValue::new(GPUS).hide(true),
    ];
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        "system" => Ok(PressureArg::System),
        GPUS => {
            Err("GPU memory is no longer watched, because evicting cached states frees none of it; use `system` to \
                     watch the memory of the machine, or `off`")
        }
        _ => Ok(PressureArg::Off),
    })
}

impl PressureArg {
    /// The settings of the watcher.
    pub(crate) fn config(self) -> PressureConfig {
        let source = match self {
            Self::Off => PressureSourceKind::Noop,
            Self::System => PressureSourceKind::System,
        };
        PressureConfig { enabled: self != Self::Off, source, ..PressureConfig::default() }
    }
}

/// The layout of the KV cells of concurrent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvArg {
    /// `unified` for one request at a time, otherwise `split`
    Auto,
    /// One pool: computing a token scans the cells of all requests
    Unified,
    /// One pool per request: no interference
    Split,
}

impl KvArg {
    /// The layout that is asked for; `None` for the usual one.
    pub(crate) fn asked(self) -> Option<KvLayout> {
        match self {
            Self::Unified => Some(KvLayout::Unified),
            Self::Split => Some(KvLayout::Split),
            // One request has the pool to itself, and rows from disk are set while the next ones are read.
            Self::Auto => None,
        }
    }
}

/// Where drafts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DraftsArg {
    /// Like `stored` on a GPU, `off` on a CPU
    Auto,
    /// None
    Off,
    /// The conversation of the request
    Context,
    /// The conversation of the request, and all stored ones of the same key
    Stored,
}

impl DraftsArg {
    /// The setting of a model.
    pub(crate) fn sources(self) -> Drafts {
        match self {
            Self::Auto => Drafts::Auto,
            Self::Off => Drafts::Off,
            Self::Context => Drafts::Context,
            Self::Stored => Drafts::Stored,
        }
    }
}

/// Which turns are replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplayArg {
    /// Tool calls and text
    All,
    /// Tool calls
    Calls,
    /// None: a prompt depends only on its request
    Off,
}

impl ReplayArg {
    /// The scope as the server knows it.
    pub(crate) fn scope(self) -> ReplayScope {
        match self {
            Self::All => ReplayScope::All,
            Self::Calls => ReplayScope::Calls,
            Self::Off => ReplayScope::Nothing,
        }
    }
}

/// When replies are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExactArg {
    /// Every reply
    Always,
    /// Replies to requests with `exact: true`
    Request,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_have_two_sides() {
        assert_eq!(parse_alias("claude-*=a:b").unwrap(), ("claude-*".to_owned(), "a:b".to_owned()));
        assert_eq!(parse_alias("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        for wrong in ["", "a", "=b", "a=", "="] {
            assert!(parse_alias(wrong).unwrap_err().contains("NAME=MODEL"), "{wrong}");
        }
    }

    #[test]
    fn a_wait_is_a_duration_above_zero() {
        assert_eq!(parse_wait("1m30s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "0", "-1", "5x"] {
            assert!(parse_wait(wrong).unwrap_err().contains("is not a valid duration"), "{wrong}");
        }
    }
}
