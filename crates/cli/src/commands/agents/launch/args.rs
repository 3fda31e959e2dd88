//! The flags of `poncho launch`.
//!
//! Filled by clap and read by the files of this folder. No input or output here.

use std::ffi::OsString;

use crate::client::args::ModelArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct LaunchArgs {
    /// Agent to run: claude, codex, opencode, aider, pi, continue, goose or qwen [default: list them]
    #[arg(value_name = "AGENT")]
    pub(crate) agent: Option<String>,

    /// Print the variables, files and command instead of running the agent
    #[arg(long, requires = "agent")]
    pub(crate) print: bool,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Arguments of the agent
    #[arg(value_name = "ARGS", last = true)]
    pub(crate) args: Vec<OsString>,
}
