//! The flags that choose the server of a command, and those of a server of its own.
//!
//! Flattened into the flags of the commands. Filled by clap; `connection.rs` reads the environment.

use std::path::PathBuf;

use poncho_terminal::parse_bytes;

/// A running server.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ServerArgs {
    /// Server to use [env: PONCHO_URL] [default: the address of `poncho serve` with the same settings, http://127.0.0.1:8080]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// Key of the server [env: PONCHO_API_KEY] [default: the first key of the settings file, without --url]
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}

/// The model of a command, and the server that has it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ModelArgs {
    /// Model: a GGUF file, or a name at the server [default: the loaded model, or the last one used]
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    #[command(flatten)]
    pub(crate) own: OwnArgs,
}

/// A server in this process, if none is running. Its other settings are those of `poncho serve`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OwnArgs {
    /// Load the model in this process, even if a server is running
    #[arg(long, conflicts_with = "url")]
    pub(crate) local: bool,

    /// Cache folder of a model in this process [env: PONCHO_CACHE_DIR] [default: as for `poncho serve`]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// Maximum size of the cache folder [env: PONCHO_CACHE_SIZE] [default: as for `poncho serve`]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) cache_size: Option<u64>,

    /// Maximum number of tokens of one request, prompt and reply together [env: PONCHO_CTX_SIZE] [default: as for `poncho serve`]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) ctx_size: Option<u32>,

    /// Number of compute threads [env: PONCHO_THREADS] [default: as for `poncho serve`]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
}
