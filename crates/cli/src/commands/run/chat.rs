//! The conversation in the terminal: reads entries, requests replies, executes commands.
//!
//! Editing happens on this thread, everything else on the runtime. After a failed reply the conversation continues without
//! the turn; only a closed terminal ends it.

use std::io::Write;

use poncho_terminal::Outcome;
use tokio::runtime::Runtime;

use super::args::RunArgs;
use super::command;
use super::conversation::Conversation;
use super::editor::{Editor, Entry};
use super::ending::Signalled;
use super::failure::{Source, explained};
use super::input::{Input, parse};
use super::parameters::Parameters;
use super::reply::Question;
use super::screen::{Screen, details, summary};
use super::stats::Stats;
use super::turn::{End, Turn};
use crate::client::Connection;

/// A conversation and its surroundings.
pub(crate) struct Chat {
    pub(crate) connection: Connection,
    pub(crate) parameters: Parameters,
    /// Whether each reply is followed by its times.
    pub(crate) is_verbose: bool,
    /// The last message, if it has no reply.
    pub(crate) unanswered: Option<String>,
    pub(crate) conversation: Conversation,
    pub(crate) stats: Stats,
    pub(crate) screen: Screen,
}

/// What follows an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Entry,
    End,
}

pub(crate) fn hold(
    args: &RunArgs,
    parameters: Parameters,
    connection: &Connection,
    runtime: &Runtime,
    signalled: &Signalled,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    let conversation = Conversation::new(args.system.clone());
    let (connection, screen) = (connection.clone(), Screen::of_stdout());
    let mut chat = Chat {
        connection,
        parameters,
        is_verbose: args.verbose,
        unanswered: None,
        conversation,
        stats: Stats::default(),
        screen,
    };
    let mut editor = Editor::open()?;
    runtime.block_on(chat.greet(out))?;
    loop {
        signalled.pass();
        let next = match editor.read()? {
            Entry::End => Next::End,
            Entry::Warned => {
                screen.remark(out, "press Ctrl-C again or Ctrl-D to quit; /help lists the commands")?;
                Next::Entry
            }
            Entry::Text(text) => runtime.block_on(chat.take(&text, out))?,
        };
        if next == Next::End {
            return Ok(Outcome::Good);
        }
    }
}

impl Chat {
    async fn greet(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let place = if self.connection.is_own().await { "in this process" } else { self.connection.client.authority() };
        self.screen.remark(out, &format!("{} ({place}); /help lists the commands", self.connection.model))?;
        Ok(())
    }

    /// Handles an entry.
    async fn take(&mut self, text: &str, out: &mut impl Write) -> anyhow::Result<Next> {
        match parse(text) {
            Input::Nothing => {}
            Input::Wrong(message) => self.screen.remark(out, &message)?,
            Input::Command(command) => return command::execute(self, command, out).await,
            Input::Say(text) => self.say(text, out).await?,
        }
        Ok(Next::Entry)
    }

    /// Sends a message and shows the reply.
    pub(crate) async fn say(&mut self, text: String, out: &mut impl Write) -> anyhow::Result<()> {
        self.unanswered = Some(text.clone());
        self.conversation.user_says(text);
        let question = Question::new(&self.parameters, &self.connection.model, self.conversation.messages());
        let (mut written, mut is_begun, mut shown) = (Ok(()), false, self.screen.reply());
        let turn = Turn::take(&self.connection, &question, |piece| {
            written = shown.piece(out, piece);
            is_begun = true;
            // A closed terminal is not a failure of the reply: it is handled below.
            match &written {
                Ok(()) => Ok(()),
                Err(error) => Err(error.kind().into()),
            }
        })
        .await;
        written?;
        shown.end(out)?;
        let turn = match turn {
            Ok(turn) => turn,
            Err(error) => {
                self.conversation.take_back();
                if is_begun {
                    // The reply may have stopped in the middle of a line.
                    writeln!(out)?;
                }
                let source = Source { is_chat: true, is_own: self.connection.is_own().await };
                self.screen.failure(out, &explained(error, source))?;
                return Ok(());
            }
        };
        if !turn.text.is_empty() || !turn.thought.is_empty() {
            writeln!(out)?;
        }
        if turn.text.is_empty() {
            self.conversation.take_back();
        } else {
            self.conversation.assistant_says(turn.text);
            self.unanswered = None;
        }
        match turn.end {
            End::Stopped => self.screen.remark(out, "stopped")?,
            End::Whole => {
                self.stats.add(&turn.facts);
                let facts = if self.is_verbose { details(&turn.facts) } else { summary(&turn.facts) };
                self.screen.remark(out, &facts)?;
            }
        }
        Ok(())
    }
}
