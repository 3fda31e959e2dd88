//! The flags of `poncho bench replay`.
//!
//! Filled by clap and read by `replay.rs`. No input or output here.

use std::path::PathBuf;

use clap::ValueEnum;
use poncho_terminal::parse_bytes;

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Files with recorded conversations, or folders of them (docs/replay.md describes the format)
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,

    /// Start a server of our own with this GGUF file
    #[arg(long, value_name = "PATH", required_unless_present = "url")]
    pub(crate) model: Option<PathBuf>,

    /// Drive a server that is already running instead
    #[arg(
        long,
        value_name = "URL",
        conflicts_with_all = ["model", "restart", "ctx_size", "threads", "parallel", "cache_dir", "cache_size", "min_tokens"]
    )]
    pub(crate) url: Option<String>,

    /// The key that the running server asks for [env: PONCHO_API_KEY]
    #[arg(long, value_name = "KEY", requires = "url")]
    pub(crate) api_key: Option<String>,

    /// End the server in order and start it again on the same cache folder between every two requests
    #[arg(long)]
    pub(crate) restart: bool,

    /// How long the replies are
    #[arg(long, value_name = "LENGTH", value_enum, default_value_t = ReplyLength::One)]
    pub(crate) reply_length: ReplyLength,

    /// Send up to so many requests at once, each conversation in its own order
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        conflicts_with = "restart",
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub(crate) at_once: u32,

    /// Tokens that one request may use [default: what the trace needs, rounded up]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) ctx_size: Option<u32>,

    /// Requests that the server can run at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) parallel: u32,

    /// Threads that compute [default: the physical cores]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,

    /// The cache folder, kept afterwards and shared by all traces [default: a temporary one for each trace]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// The most that the cache folder may hold
    #[arg(long, value_name = "BYTES", default_value = "20GiB", value_parser = parse_bytes)]
    pub(crate) cache_size: u64,

    /// States of fewer tokens are not saved [default: the server's own gate]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) min_tokens: Option<u32>,

    /// Exit with 1 if a trace has more tokens prefilled than this many times the new ones
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    pub(crate) max_ratio: Option<f64>,

    /// Also print every request
    #[arg(long)]
    pub(crate) verbose: bool,

    /// Print JSON on standard output, and nothing else there
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,

    /// Print the table as Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// How many tokens a reply has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplyLength {
    /// One token
    #[value(name = "1")]
    One,
    /// As many as the recorded reply
    Logged,
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok().filter(|ratio| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| format!("`{text}` is no ratio; write 1.02 or the like"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_positive_numbers() {
        assert_eq!(parse_ratio("1.02"), Ok(1.02));
        for wrong in ["", "x", "0", "-1", "inf", "NaN"] {
            assert!(parse_ratio(wrong).is_err(), "{wrong}");
        }
    }
}
