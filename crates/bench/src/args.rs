//! The command line of `poncho-bench`.
//!
//! Filled by clap and read by `main`; each command keeps its own flags. No input or output here.

use clap::{Parser, Subcommand};

use crate::compare::args::CompareArgs;
use crate::matrix::MatrixArgs;
use crate::replay::args::ReplayArgs;

/// Benchmark Poncho: replay recorded conversations, compare it with another server, chart cold and warm prompts.
#[derive(Debug, Parser)]
#[command(name = "poncho-bench", bin_name = "poncho bench", version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay recorded conversations and count the tokens that are computed again
    #[command(after_help = "Examples:\n  poncho bench replay --model model.gguf trace.json\n  \
        poncho bench replay --model model.gguf --restart --max-ratio 1.02 traces/\n  \
        poncho bench replay --url http://127.0.0.1:8080 trace.json --json")]
    Replay(Box<ReplayArgs>),
    /// Compare Poncho with another server: the same requests to both in one run
    #[command(after_help = "Examples:\n  poncho bench compare --peer http://127.0.0.1:8081 --model model.gguf\n  \
        poncho bench compare --peer http://127.0.0.1:8081 --model model.gguf --peer-restart ./restart.sh --json all.json\n  \
        poncho bench compare --peer http://127.0.0.1:8081 --poncho http://127.0.0.1:8080 --scenario throughput\n\n\
        Exits with 1 if a request fails, or with --check if a target is missed. See docs/benchmarks.md for the guide.")]
    Compare(Box<CompareArgs>),
    /// Measure cold, exact and partial prompts of several lengths, and clients that share a system prompt
    #[command(after_help = "Examples:\n  poncho bench matrix --model model.gguf\n  \
        poncho bench matrix --model model.gguf --prompt-tokens 256,1024 --plot charts")]
    Matrix(Box<MatrixArgs>),
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
        for command in Args::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("poncho bench "), "{} has no example", command.get_name());
        }
    }
}
