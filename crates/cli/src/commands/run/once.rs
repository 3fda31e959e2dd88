//! One prompt and its reply: for pipes, scripts and quick questions.
//!
//! Standard output gets the reply and nothing else. The summary goes to standard error if that is a terminal.

use std::io::{IsTerminal, Write};

use poncho_terminal::{Outcome, print_json};
use serde::Serialize;

use super::args::RunArgs;
use super::conversation::Conversation;
use super::reply::{Facts, Question};
use super::screen::{Screen, summary, wants_styles};
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
    connection: &Connection,
    prompt: &str,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    let mut conversation = Conversation::new(args.system.clone());
    conversation.user_says(prompt.to_owned());
    let question = Question::new(args, &connection.model, conversation.messages());
    let screen = Screen::of_stdout();
    let turn =
        Turn::take(connection, &question, |piece| if args.json { Ok(()) } else { screen.piece(out, piece) }).await?;
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
    if remarks.is_terminal() && !args.json {
        Screen::Terminal { styled: wants_styles() }.remark(&mut remarks, &summary(facts))?;
    }
    Ok(Outcome::Good)
}
