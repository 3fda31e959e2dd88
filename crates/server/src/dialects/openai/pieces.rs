//! What the streams of both kinds of completions have in common: which replies ended, what they cost, and the frame
//! around the choices of a piece.
//!
//! Used by `chat.rs` and `completions.rs`, which say what a choice is. Nothing may follow the finish reason of a reply.

use std::collections::BTreeSet;

use poncho_api::Finished;
use serde::Serialize;

use super::answers::{Answer, Envelope};
use super::call::{Call, Totals};
use crate::dialects::shared::PonchoReport;
use crate::error::{ApiError, Family};
use crate::http::heartbeat::Heartbeat;
use crate::http::sse::Frame;

/// A stream of pieces.
pub(crate) struct Pieces {
    call: Call,
    envelope: Envelope,
    /// How many replies there are.
    replies: usize,
    ended: BTreeSet<usize>,
    totals: Totals,
}

impl Pieces {
    pub(crate) fn new(call: Call, envelope: Envelope, replies: usize) -> Self {
        Self { call, envelope, replies, ended: BTreeSet::new(), totals: Totals::default() }
    }

    /// A piece in the middle of a reply.
    pub(crate) fn piece(&self, choice: impl Serialize) -> Frame {
        self.written(&[choice], None)
    }

    /// A piece that only shows how far the work is.
    pub(crate) fn waiting(&self, choice: impl Serialize, heartbeat: Heartbeat) -> Frame {
        self.written(&[choice], Some(&heartbeat.into()))
    }

    /// The last piece of a reply.
    pub(crate) fn last(&self, choice: impl Serialize) -> Frame {
        let is_last = self.ended.len() == self.replies && !self.call.include_usage;
        self.written(&[choice], self.totals.poncho.as_ref().filter(|_| is_last))
    }

    /// A reply that has not ended.
    pub(crate) fn unfinished(&self) -> usize {
        (0..).find(|index| !self.ended.contains(index)).unwrap_or_default()
    }

    /// Takes note of a reply that ended.
    pub(crate) fn ended(&mut self, index: usize, finished: &Finished) {
        self.totals.add(&self.call, index, finished);
        self.ended.insert(index);
    }

    /// What follows the last piece.
    pub(crate) fn end(&self) -> Vec<Frame> {
        let usage = self.call.include_usage.then(|| self.written::<()>(&[], self.totals.poncho.as_ref()));
        usage.into_iter().chain([Frame::from("[DONE]".to_owned())]).collect()
    }

    /// What a stream ends with that failed.
    pub(crate) fn failed(error: &ApiError) -> Vec<Frame> {
        vec![error.body(Family::OpenAi).to_string().into()]
    }

    fn written<C: Serialize>(&self, choices: &[C], poncho: Option<&PonchoReport>) -> Frame {
        let answer = Answer {
            envelope: &self.envelope,
            choices,
            usage: self.call.include_usage.then_some(Some(self.totals.usage).filter(|_| choices.is_empty())),
            poncho,
        };
        serde_json::to_string(&answer).unwrap_or_default().into()
    }
}
