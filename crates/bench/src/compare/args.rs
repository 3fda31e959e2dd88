//! The flags of `poncho bench compare`.
//!
//! Filled by clap, turned into a plan by `plan.rs`. No input or output here.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

use crate::measure::figures::FigureArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Server to compare with, started by you; any server with the chat completions of OpenAI
    #[arg(long, value_name = "URL")]
    pub(crate) peer: String,

    /// Running Poncho [default: one that is started with --model]
    #[arg(long, value_name = "URL", required_unless_present = "model", conflicts_with = "model")]
    pub(crate) poncho: Option<String>,

    /// Start a Poncho with this GGUF file on an empty cache folder
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,

    /// Maximum tokens of one request of the started Poncho
    #[arg(long, value_name = "TOKENS", default_value_t = 10_240, requires = "model", value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) ctx_size: u32,

    /// Maximum number of concurrent requests of the started Poncho
    #[arg(long, value_name = "COUNT", default_value_t = 4, requires = "model", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) parallel: u32,

    /// Number of compute threads of the started Poncho [default: the physical cores]
    #[arg(long, value_name = "COUNT", requires = "model", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,

    /// Shell command that restarts the peer; it must return after the old process has ended
    #[arg(long, value_name = "COMMAND")]
    pub(crate) peer_restart: Option<String>,

    /// Shell command that restarts a running Poncho
    #[arg(long, value_name = "COMMAND", requires = "poncho")]
    pub(crate) poncho_restart: Option<String>,

    /// Process id of the peer, or a file that contains it, to measure its memory
    #[arg(long, value_name = "PID")]
    pub(crate) peer_pid: Option<String>,

    /// Process id of a running Poncho, or a file that contains it
    #[arg(long, value_name = "PID", requires = "poncho")]
    pub(crate) poncho_pid: Option<String>,

    /// Files or folders of recorded conversations for the scenario `traces` (see docs/replay.md for the format)
    #[arg(long, value_name = "TRACE", num_args = 1..)]
    pub(crate) traces: Vec<PathBuf>,

    /// Scenarios to measure [default: all that the flags allow]
    #[arg(long, value_name = "NAME", value_enum, num_args = 1..)]
    pub(crate) scenario: Vec<Scenario>,

    /// One round of smaller scenarios, to see that everything works; its figures prove nothing
    #[arg(long)]
    pub(crate) quick: bool,

    /// Number of measured rounds, after one warm-up round [default: 5, or 1 with --quick]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,

    /// Lengths of cold prompts in tokens [default: 512,2048,8192]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub(crate) prompt_tokens: Vec<usize>,

    /// Numbers of concurrent streams [default: 1,4,8,16]
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    pub(crate) streams: Vec<usize>,

    /// Speed of llama.cpp's own batched loop, for the target beside it: streams=tokens/s, such as 4=155
    #[arg(long, value_name = "SPEED", value_delimiter = ',', value_parser = parse_speed)]
    pub(crate) loop_speed: Vec<(usize, f64)>,

    /// Seed of the prompts; use another one for a second run on the same servers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) figures: FigureArgs,

    /// Exit with 1 if a target is missed
    #[arg(long)]
    pub(crate) check: bool,
}

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scenario {
    /// New prompts
    Cold,
    /// A prompt repeated: at once, with a new tail, after others, after a restart
    Again,
    /// Eight clients with one system prompt
    Agents,
    /// A conversation with tool calls, and again with restarts
    Chat,
    /// Recorded conversations
    Traces,
    /// Concurrent streams
    Throughput,
    /// Resident memory and bytes on disk
    Memory,
    /// A long prompt and eight clients with short ones
    Neighbours,
}

impl Scenario {
    /// The one spelling.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Again => "again",
            Self::Agents => "agents",
            Self::Chat => "chat",
            Self::Traces => "traces",
            Self::Throughput => "throughput",
            Self::Memory => "memory",
            Self::Neighbours => "neighbours",
        }
    }
}

fn parse_speed(text: &str) -> Result<(usize, f64), String> {
    let parsed = text.split_once('=').and_then(|(streams, speed)| Some((streams.parse().ok()?, speed.parse().ok()?)));
    let parsed = parsed.filter(|(streams, speed): &(usize, f64)| *streams > 0 && speed.is_finite() && *speed > 0.0);
    parsed.ok_or_else(|| format!("`{text}` is not a speed; write 4=155 for 155 tokens per second with 4 streams"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_name_streams_and_tokens() {
        assert_eq!(parse_speed("4=155.5"), Ok((4, 155.5)));
        for wrong in ["", "4", "=3", "0=3", "4=0", "4=-1", "4=inf", "x=y"] {
            assert!(parse_speed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn scenarios_are_typed_as_they_are_written() {
        for scenario in Scenario::value_variants() {
            assert_eq!(scenario.to_possible_value().unwrap().get_name(), scenario.name());
            assert_eq!(serde_json::to_value(scenario).unwrap(), scenario.name());
        }
    }
}
