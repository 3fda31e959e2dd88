//! The flags that say which server a command talks to, and how one of its own is set up.
//!
//! Flattened into the flags of the commands. Filled by clap; the environment is read by `connection.rs`.

use std::path::PathBuf;

use crate::terminal::bytes::parse_bytes;

/// A server that runs already.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ServerArgs {
    /// The server to talk to [env: PONCHO_URL] [default: http://127.0.0.1:8080, or PONCHO_HOST and PONCHO_PORT]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// The key that the server asks for [env: PONCHO_API_KEY]
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}

/// A server in this process, for when none runs.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OwnArgs {
    /// Load the model in this process, also if a Poncho already answers
    #[arg(long, conflicts_with = "url")]
    pub(crate) local: bool,

    /// The cache folder of a model in this process [env: PONCHO_CACHE_DIR] [default: that of `poncho serve`]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// The most that the cache folder may hold
    #[arg(long, value_name = "BYTES", default_value = "20GiB", value_parser = parse_bytes)]
    pub(crate) cache_size: u64,

    /// Tokens that one request may use, prompt and reply together
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) ctx_size: u32,

    /// Threads that compute [default: the physical cores]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
}
