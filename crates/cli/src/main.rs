//! The `poncho` binary: parses the flags, runs the command, prints an error with its causes, sets the exit code.
//!
//! Exit codes: 0 good, 1 failed (or `verify` found damage, or a limit was passed), 2 wrong usage. This crate wires the others together and
//! holds no logic of theirs. Data goes to standard output, everything else to standard error.

#![expect(rustdoc::bare_urls, reason = "the help of a flag is read in a terminal")]

mod args;
mod backend_args;
mod bench;
mod bytes;
mod cache;
mod doctor;
mod draining;
mod embed;
mod excerpt;
mod greeting;
mod limit_args;
mod logging;
mod manual;
mod model_file;
mod models;
mod printable;
mod probing;
mod prometheus;
mod ps;
mod remote;
mod run;
mod serve;
mod served_models;
mod settings;
mod stop;
mod stopping;
mod table;
mod time;
mod tokenize;
mod top;
mod user_folder;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;

use crate::args::{Args, Command};
use crate::settings::{Environment, Refused, Resolved};

/// llama.cpp makes and drops hundreds of small tables for each state that is put back; with the system's allocator a
/// long chain of rows restores at 0.76 of the speed of one row, with this one at 0.79 (docs/benchmarks-engine.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How a command that ran to its end came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All is well.
    Good,
    /// It did what it was asked to, and what it found is bad.
    Bad,
}

/// Cannot happen: the parser gives these commands their settings.
const NO_SETTINGS: &str = "the command has no settings";

fn main() -> ExitCode {
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if let Some(code) = probing::child(&words) {
        return code;
    }
    let parsed = settings::parse(words, &Environment::of_process());
    let (args, resolved) = match parsed {
        Ok(parsed) => parsed,
        Err(Refused::Usage(error)) => {
            // Help and version come this way too; a reader that is gone needs no message.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
        Err(Refused::Settings(error)) => {
            print_error(&error);
            return ExitCode::FAILURE;
        }
    };
    match run(&args, resolved.as_ref()) {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, resolved: Option<&Resolved>) -> anyhow::Result<Outcome> {
    logging::start(args.log_level, args.log_format)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match &args.command {
        Command::Serve(args) => serve::run(args, &mut out)?,
        Command::Cache(args) => cache::run(args, &mut out)?,
        Command::Bench(args) => bench::run(args, &mut out)?,
        Command::Config(args) => settings::run(args, resolved.context(NO_SETTINGS)?, &mut out)?,
        Command::Doctor(args) => doctor::run(args, resolved.context(NO_SETTINGS)?, &mut out)?,
        Command::Completions(args) => manual::completions(args, &mut out)?,
        Command::Man(args) => manual::man(args, &mut out)?,
        Command::Run(args) => run::run(args, &mut out)?,
        Command::Ps(args) => ps::run(args, &mut out)?,
        Command::Stop(args) => stop::run(args, &mut out)?,
        Command::Embed(args) => embed::run(args, &mut out)?,
        Command::Tokenize(args) => tokenize::run(args, &mut out)?,
        Command::Top(args) => top::run(args, &mut out)?,
        Command::Pull(args) => models::pull::run(args, &mut out)?,
        Command::List(args) => models::list::run(args, &mut out)?,
        Command::Show(args) => models::show::run(args, &mut out)?,
        Command::Rm(args) => models::rm::run(args, &mut out)?,
        Command::Cp(args) => models::cp::run(args, &mut out)?,
        Command::Create(args) => models::create::run(args, &mut out)?,
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
    // What it quotes may come from a server or a file.
    let _ = io::stderr().write_all(printable::printable(&text).as_bytes());
}
