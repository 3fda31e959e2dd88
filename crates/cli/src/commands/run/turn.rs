//! One turn: a request, its reply shown as it arrives, and Ctrl-C to stop it.
//!
//! Used by `once.rs` and `chat.rs`. An interrupt ends only the reply: the request is cancelled at the server, and the
//! text so far is returned.

mod quiet;

use std::io;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::quiet::Quiet;
use super::progress::Waiting;
use super::reply::{Facts, Piece, Question, Reply};
use crate::client::Connection;

/// How a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The model or a limit ended it.
    Whole,
    /// The user stopped it.
    Stopped,
}

/// A turn that ended.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) text: String,
    pub(crate) thought: String,
    /// Only for a complete reply.
    pub(crate) facts: Facts,
    pub(crate) end: End,
}

/// Ctrl-C, and the signals that end the process: a running reply would delay that end.
struct Stop {
    signals: [Signal; 3],
}

impl Stop {
    fn listen() -> io::Result<Self> {
        let [interrupt, terminate, hang_up] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self { signals: [interrupt?, terminate?, hang_up?] })
    }

    async fn signalled(&mut self) {
        let [interrupt, terminate, hang_up] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}

impl Turn {
    /// Sends the request and passes every piece to `show` as it arrives.
    pub(crate) async fn take(
        connection: &Connection,
        question: &Question<'_>,
        mut show: impl FnMut(&Piece) -> io::Result<()>,
    ) -> anyhow::Result<Self> {
        // New for each turn: earlier signals do not count.
        let mut stop = Stop::listen().context("cannot listen for Ctrl-C")?;
        let _quiet = Quiet::begin();
        let waiting = Waiting::begin(&connection.client, &connection.model);
        let mut turn = Self { text: String::new(), thought: String::new(), facts: Facts::default(), end: End::Stopped };
        let mut reply = tokio::select! {
            () = stop.signalled() => return Ok(turn),
            reply = Reply::ask(&connection.client, question) => reply?,
        };
        loop {
            let piece = tokio::select! {
                () = stop.signalled() => return Ok(turn),
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
