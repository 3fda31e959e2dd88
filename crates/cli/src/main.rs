//! The `poncho` binary: parses the flags, runs the command, prints an error with its causes, sets the exit code.
//!
//! Exit codes: 0 good, 1 failed (or `verify` found damage, or a limit was passed), 2 wrong usage. This crate wires the others together and
//! holds no logic of theirs. Data goes to standard output, everything else to standard error.

mod args;
mod bench;
mod bytes;
mod cache;
mod excerpt;
mod logging;
mod serve;
mod table;
mod time;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

/// How a command that ran to its end came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All is well.
    Good,
    /// It did what it was asked to, and what it found is bad.
    Bad,
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version come this way too; a reader that is gone needs no message.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match run(&args) {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<Outcome> {
    logging::start(args.log_level, args.log_format)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match &args.command {
        Command::Serve(args) => serve::run(args, &mut out)?,
        Command::Cache(args) => cache::run(args, &mut out)?,
        Command::Bench(args) => bench::run(args, &mut out)?,
    };
    out.flush()?;
    Ok(outcome)
}

/// `poncho cache ls | head -1`: whoever read the output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<io::Error>() {
        Some(error) => error.kind() == io::ErrorKind::BrokenPipe,
        None => {
            cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind)
                == Some(io::ErrorKind::BrokenPipe)
        }
    })
}

/// The message and its causes, without those that the message already spells out.
fn print_error(error: &anyhow::Error) {
    let mut said = error.to_string();
    let mut text = format!("error: {said}\n");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !said.contains(&cause) {
            text.push_str(&format!("  caused by: {cause}\n"));
            said.push_str(&cause);
        }
    }
    // Nobody is left to tell if standard error is closed.
    let _ = io::stderr().write_all(text.as_bytes());
}
