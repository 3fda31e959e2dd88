//! The flags of `poncho bench replay`.
//!
//! Filled by clap and read by `replay.rs`. No input or output here.

use std::path::PathBuf;

use clap::ValueEnum;
use poncho_terminal::parse_bytes;

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Files with recorded conversations, or folders of them (see docs/replay.md for the format)
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,

    /// Start a server with this GGUF file
    #[arg(long, value_name = "PATH", required_unless_present = "url")]
    pub(crate) model: Option<PathBuf>,

    /// Use a running server instead
    #[arg(
        long,
        value_name = "URL",
        conflicts_with_all = ["model", "restart", "ctx_size", "threads", "parallel", "cache_dir", "cache_size", "min_tokens"]
    )]
    pub(crate) url: Option<String>,

    /// Key of the running server [env: PONCHO_API_KEY]
    #[arg(long, value_name = "KEY", requires = "url")]
    pub(crate) api_key: Option<String>,

    /// Restart the server on the same cache folder between every two requests
    #[arg(long)]
    pub(crate) restart: bool,

    /// Length of the replies
    #[arg(long, value_name = "LENGTH", value_enum, default_value_t = ReplyLength::One)]
    pub(crate) reply_length: ReplyLength,

    /// Maximum number of concurrent requests; those of one conversation stay in order
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        conflicts_with = "restart",
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub(crate) at_once: u32,

    /// Maximum tokens of one request [default: what the trace needs, rounded up]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) ctx_size: Option<u32>,

    /// Maximum number of concurrent requests of the server
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) parallel: u32,

    /// Number of compute threads [default: the physical cores]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,

    /// Cache folder, kept afterwards and shared by all traces [default: a temporary one for each trace]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// Maximum size of the cache folder
    #[arg(long, value_name = "BYTES", default_value = "20GiB", value_parser = parse_bytes)]
    pub(crate) cache_size: u64,

    /// Minimum length of a state that is saved, in tokens [default: that of the server]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) min_tokens: Option<u32>,

    /// Exit with 1 if a trace has a larger ratio of computed to new tokens
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    pub(crate) max_ratio: Option<f64>,

    /// Also print every request
    #[arg(long)]
    pub(crate) verbose: bool,

    /// Print JSON on standard output and nothing else
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
    ratio.ok_or_else(|| format!("`{text}` is not a ratio; write a positive number such as 1.02"))
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
