//! `poncho bench`: becomes the program `poncho-bench`, which is installed beside this one or found on PATH.
//!
//! The arguments are passed on unchanged. Exit status, output and signals are those of that program.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{anyhow, bail};
use poncho_terminal::Outcome;

const PROGRAM: &str = "poncho-bench";

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Command and flags of poncho-bench; `poncho bench --help` lists them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Returns only if the program cannot be started.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<Outcome> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    for program in [beside, Some(PathBuf::from(PROGRAM))].into_iter().flatten() {
        let error = Command::new(&program).args(&args.args).exec();
        if error.kind() != ErrorKind::NotFound {
            return Err(anyhow!(error).context(format!("cannot run {}", program.display())));
        }
    }
    bail!(
        "{PROGRAM} is not installed; copy it from the release archive to the folder of poncho, or build it with `make build`"
    )
}
