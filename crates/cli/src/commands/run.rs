//! `poncho run`: a chat in the terminal, or one prompt and its reply.
//!
//! Finds or starts a server, then either answers one prompt (`once.rs`: from the command line or from standard input) or
//! holds a conversation (`chat.rs`). A server of our own always ends in order, so that states are saved.

pub(crate) mod args;
mod chat;
mod command;
mod conversation;
mod editor;
mod ending;
mod failure;
mod input;
mod once;
mod parameters;
mod progress;
mod reply;
mod screen;
mod stats;
mod turn;

use std::io::{IsTerminal, Read, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use poncho_client::runtime;
use poncho_terminal::Outcome;

use crate::client::{Connection, Purpose, last_model};
use crate::commands::run::args::RunArgs;
use crate::commands::run::ending::Ending;
use crate::commands::run::parameters::Parameters;

/// Maximum prompt on standard input: beyond any context, and not more than a server accepts.
const LONGEST_PROMPT: u64 = 16 << 20;

pub(crate) fn run(args: &RunArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let (has_input, has_screen) = (std::io::stdin().is_terminal(), std::io::stdout().is_terminal());
    let prompt = prompt(args, has_input && has_screen)?;
    if prompt.is_none() && args.json {
        bail!("--json needs a prompt; give one after the model, or through a pipe");
    }
    let parameters = Parameters::new(args)?;
    let runtime = runtime()?;
    let opening = Connection::open(&args.server, &args.own, args.model.as_deref(), Purpose::Compute);
    let connection = runtime.block_on(opening)?;
    last_model::remember(&lasting_name(args, &connection.model));
    let ending = {
        let _on_runtime = runtime.enter();
        Ending::listen().context("cannot listen for signals")?
    };
    let signalled = ending.signalled();
    runtime.spawn(ending.wait(connection.clone()));
    let outcome = match &prompt {
        Some(prompt) => runtime.block_on(once::answer(args, &parameters, &connection, prompt, out)),
        None => chat::hold(args, parameters, &connection, &runtime, &signalled, out),
    };
    signalled.pass();
    let closed = runtime.block_on(connection.close());
    // The first error is the one to report.
    let outcome = outcome?;
    closed?;
    Ok(outcome)
}

/// The text that finds the model again from any folder.
fn lasting_name(args: &RunArgs, model: &str) -> String {
    let file = args.model.as_deref().map(Path::new).filter(|path| path.is_file());
    let file = file.and_then(|path| path.canonicalize().ok()).and_then(|path| path.to_str().map(str::to_owned));
    file.unwrap_or_else(|| model.to_owned())
}

/// The prompt to answer; `None` for a conversation.
fn prompt(args: &RunArgs, is_interactive: bool) -> anyhow::Result<Option<String>> {
    if args.prompt.is_empty() {
        return if is_interactive { Ok(None) } else { standard_input().map(Some) };
    }
    let mut words = Vec::with_capacity(args.prompt.len());
    for word in &args.prompt {
        words.push(if word == "-" { standard_input()? } else { word.clone() });
    }
    Ok(Some(words.join(" ")))
}

fn standard_input() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(LONGEST_PROMPT + 1).read_to_end(&mut bytes);
    let read = read.context("cannot read the prompt from standard input")?;
    ensure!(
        u64::try_from(read).is_ok_and(|read| read <= LONGEST_PROMPT),
        "the prompt is longer than 16 MiB; shorten it"
    );
    let text = String::from_utf8(bytes).context("the prompt on standard input is not UTF-8; convert it first")?;
    let text = text.trim_end_matches(['\n', '\r']);
    ensure!(!text.trim().is_empty(), "standard input is empty; give a prompt after the model or through a pipe");
    Ok(text.to_owned())
}
