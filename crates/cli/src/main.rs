//! The `poncho` binary: parses the flags, runs the command, prints an error with its causes, sets the exit code.
//!
//! Exit codes: 0 success, 1 failure (or `verify` found damage), 2 wrong usage or settings. This crate wires the others
//! together and holds no logic of theirs. Data goes to standard output, everything else to standard error.

#![expect(rustdoc::bare_urls, reason = "the help of a flag is read in a terminal")]

mod args;
mod client;
mod cluster;
mod commands;
mod fit;
mod serving;
mod settings;
mod variants;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::FromArgMatches;
use poncho_terminal::{Outcome, exit_code, print_error};

use crate::args::{Args, Command};
use crate::commands::agents::{launch, mcp};
use crate::commands::machine::{bench, config, doctor, manual};
use crate::commands::running::{ps, stop, top};
use crate::commands::texts::{embed, explain, tokenize};
use crate::commands::{cache, cluster as cluster_command, models, rpc_worker, run as chat, serve};
use crate::serving::{devices, engine_process, probing};
use crate::settings::logging::ReplyLines;
use crate::settings::{Environment, Refused, Resolved, logging};

/// llama.cpp allocates and frees hundreds of small tables for each state that is restored. With the system allocator a
/// long chain of rows restores at 0.76 of the speed of one row, with this one at 0.79 (docs/benchmarks-engine.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Cannot happen: the parser gives these commands their settings.
const NO_SETTINGS: &str = "the command has no settings";

fn main() -> ExitCode {
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let child = probing::child(&words).or_else(|| devices::child(&words)).or_else(|| fit::child::child(&words));
    let child = child.or_else(|| variants::child(&words));
    if let Some(code) = child {
        return code;
    }
    variants::take_over(&words);
    // Starting llama.cpp takes time that other commands do not spend.
    let asks_versions = words.iter().any(|word| word == "--version");
    let command = if asks_versions { args::command_with_versions() } else { args::command() };
    let parsed = settings::parse(&command, words, &Environment::of_process());
    let parsed = parsed.and_then(|(matches, resolved)| {
        let args = Args::from_arg_matches(&matches).map_err(Refused::Usage)?;
        Ok((args, resolved))
    });
    match parsed {
        Ok((args, resolved)) => exit_code(&run(&args, resolved.as_ref())),
        Err(Refused::Usage(error)) => {
            // Help and version arrive here too. A message that cannot be written is ignored.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
        Err(Refused::Settings(error)) => {
            // A service manager must not start it again and again (RestartPreventExitStatus in packaging/).
            print_error(&error);
            ExitCode::from(2)
        }
    }
}

/// Whether each reply is logged in a line of its own. A chat in this process shows its replies itself.
fn reply_lines(command: &Command) -> ReplyLines {
    match command {
        Command::Serve(args) | Command::Route(args) if args.quiet => ReplyLines::Off,
        Command::Serve(_) | Command::Route(_) => ReplyLines::On,
        _ => ReplyLines::WithInfo,
    }
}

fn run(args: &Args, resolved: Option<&Resolved>) -> anyhow::Result<Outcome> {
    logging::start(args.log, reply_lines(&args.command))?;
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match &args.command {
        Command::Serve(args) => {
            // A child reads the same settings; its server has said it.
            let is_server = engine_process::socket().is_none();
            if let Some(resolved) = resolved.filter(|resolved| is_server && !resolved.strange.is_empty()) {
                tracing::warn!("variables without effect: {}", resolved.strange.join("; "));
            }
            serve::run(args, resolved, &mut out)?
        }
        Command::Node(args) => serve::node::run(args, resolved, &mut out)?,
        Command::Route(args) => serve::route::run(args, resolved, &mut out)?,
        Command::Cluster(args) => cluster_command::run(args, &mut out)?,
        Command::RpcWorker(args) => rpc_worker::run(args, &mut out)?,
        Command::Cache(args) => cache::run(args, &mut out)?,
        Command::Bench(args) => bench::run(args)?,
        Command::Config(args) => config::run(args, resolved.context(NO_SETTINGS)?, &mut out)?,
        Command::Doctor(args) => doctor::run(args, resolved.context(NO_SETTINGS)?, &mut out)?,
        Command::Fit(args) => fit::command::run(args, resolved.context(NO_SETTINGS)?, &mut out)?,
        Command::Completions(args) => manual::completions(args, args::command(), &mut out)?,
        Command::Man(args) => manual::man(args, args::command(), &mut out)?,
        Command::Run(args) => chat::run(args, &mut out)?,
        Command::Launch(args) => launch::run(args, &mut out)?,
        Command::Mcp(args) => mcp::run(args, &mut out)?,
        Command::Ps(args) => ps::run(args, &mut out)?,
        Command::Stop(args) => stop::run(args, &mut out)?,
        Command::Embed(args) => embed::run(args, &mut out)?,
        Command::Tokenize(args) => tokenize::run(args, &mut out)?,
        Command::Explain(args) => explain::run(args, &mut out)?,
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
