//! One turn: a question, its reply shown as it comes, and Ctrl-C that stops it.
//!
//! Used by `once.rs` and `chat.rs`. An interrupt ends the reply and nothing else: the request is cancelled at the
//! server, and what was said until then is returned.

use std::io;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::progress::Waiting;
use super::quiet::Quiet;
use super::reply::{Facts, Piece, Question, Reply};
use crate::client::Connection;

/// How a reply came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The model or a limit ended it.
    Whole,
    /// The user stopped it.
    Stopped,
}

/// What was said.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) text: String,
    pub(crate) thought: String,
    /// Known of a whole reply only.
    pub(crate) facts: Facts,
    pub(crate) end: End,
}

/// Ctrl-C, and what ends the whole process: a reply that goes on would hold up that end.
struct Stop {
    signals: [Signal; 3],
}

impl Stop {
    fn listen() -> io::Result<Self> {
        let [interrupt, terminate, hang_up] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self { signals: [interrupt?, terminate?, hang_up?] })
    }

    async fn told(&mut self) {
        let [interrupt, terminate, hang_up] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}

impl Turn {
    /// Asks and hands every piece to `show` as it comes.
    pub(crate) async fn take(
        connection: &Connection,
        question: &Question<'_>,
        mut show: impl FnMut(&Piece) -> io::Result<()>,
    ) -> anyhow::Result<Self> {
        // Made anew for each turn: it hears only what comes from now on.
        let mut stop = Stop::listen().context("cannot listen for Ctrl-C")?;
        let _quiet = Quiet::begin();
        let waiting = Waiting::begin(&connection.client, &connection.model);
        let mut turn = Self { text: String::new(), thought: String::new(), facts: Facts::default(), end: End::Stopped };
        let mut reply = tokio::select! {
            () = stop.told() => return Ok(turn),
            reply = Reply::ask(&connection.client, question) => reply?,
        };
        loop {
            let piece = tokio::select! {
                () = stop.told() => return Ok(turn),
                piece = reply.next() => piece?,
            };
            waiting.end();
            let Some(piece) = piece else { break };
            show(&piece)?;
            match piece {
                Piece::Text(text) => turn.text.push_str(&text),
                Piece::Thought(text) => turn.thought.push_str(&text),
            }
        }
        Ok(Self { facts: reply.facts(), end: End::Whole, ..turn })
    }
}
