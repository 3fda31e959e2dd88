//! The `poncho-bench` binary: measurements that a user can repeat. `poncho bench` runs it.
//!
//! It starts servers as processes of their own and measures them over HTTP, so it needs no llama.cpp. Exit codes: 0
//! success, 1 failure or a missed limit, 2 wrong usage. Data goes to standard output, everything else to standard error.

mod args;
mod compare;
mod matrix;
mod measure;
mod replay;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::Parser;
use poncho_terminal::{Outcome, exit_code};

use crate::args::{Args, Command};

fn main() -> ExitCode {
    exit_code(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match &args.command {
        Command::Replay(args) => replay::run(args, &mut out)?,
        Command::Compare(args) => compare::run(args, &mut out)?,
        Command::Matrix(args) => matrix::run(args, &mut out)?,
    };
    out.flush()?;
    Ok(outcome)
}
