//! One prompt and its reply: for pipes, scripts and quick questions.
//!
//! Standard output gets the reply and nothing else. The summary goes to standard error if that is a terminal, or with
//! `--verbose`.

use std::io::{IsTerminal, Write};

use poncho_terminal::{Outcome, print_json};
use serde::Serialize;

use super::args::RunArgs;
use super::conversation::Conversation;
use super::failure::{Source, explained};
use super::parameters::Parameters;
use super::reply::{Facts, Question};
use super::screen::{Screen, details, summary, wants_styles};
use super::turn::{End, Turn};
use crate::client::Connection;

/// The output of `--json`.
#[derive(Serialize)]
struct Answer<'a> {
    model: &'a str,
    reply: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning: &'a str,
    #[serde(flatten)]
    facts: &'a Facts,
}

pub(crate) async fn answer(
    args: &RunArgs,
    parameters: &Parameters,
    connection: &Connection,
    prompt: &str,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    let mut conversation = Conversation::new(args.system.clone());
    conversation.user_says(prompt.to_owned());
    let question = Question::new(parameters, &connection.model, conversation.messages());
    let mut shown = Screen::of_stdout().reply();
    let turn =
        Turn::take(connection, &question, |piece| if args.json { Ok(()) } else { shown.piece(out, piece) }).await;
    shown.end(out)?;
    let turn = match turn {
        Ok(turn) => turn,
        Err(error) => return Err(explained(error, Source { is_chat: false, is_own: connection.is_own().await })),
    };
    if turn.end == End::Stopped {
        writeln!(out)?;
        out.flush()?;
        eprintln!("stopped");
        return Ok(Outcome::Bad);
    }
    let Turn { text, thought, facts, .. } = &turn;
    if args.json {
        let answer = Answer { model: &connection.model, reply: text, reasoning: thought, facts };
        print_json(out, &answer)?;
    } else if !text.ends_with('\n') {
        writeln!(out)?;
    }
    out.flush()?;
    let mut remarks = std::io::stderr();
    let screen = if remarks.is_terminal() { Screen::Terminal { styled: wants_styles() } } else { Screen::Plain };
    if args.verbose {
        screen.remark(&mut remarks, &details(facts))?;
    } else if screen != Screen::Plain && !args.json {
        screen.remark(&mut remarks, &summary(facts))?;
    }
    Ok(Outcome::Good)
}
