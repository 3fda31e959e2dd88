//! A response that is being made: its object, its items, and the events that report them.
//!
//! Made by `create`, which uses it for whole answers and for streams; `rounds` uses it where this server calls tools. A
//! response that ended is kept here, unless its client does not want that.

use std::sync::Arc;

use serde_json::json;

use super::compose::Composer;
use super::object::ResponseOut;
use crate::dialects::openai::call::Call;
use crate::dialects::shared::PonchoReport;
use crate::error::{ApiError, Family};
use crate::http::heartbeat::Heartbeat;
use crate::http::sse::{Events, Frame};
use crate::owner::Owner;
use crate::responses::item::{Item, Status};
use crate::responses::store::StoredResponse;
use poncho_api::{Delta, Finish, Finished};

/// Makes a response out of a reply, whole or event by event.
pub(crate) struct Maker {
    pub(crate) call: Call,
    pub(crate) response: ResponseOut,
    pub(crate) composer: Composer,
    /// What the response is made from.
    pub(crate) input: Vec<Arc<Item>>,
    pub(crate) keeps: bool,
    pub(crate) owner: Owner,
    /// The `poncho` object of the first reply, if there are several and it has ended.
    pub(crate) told: Option<Option<PonchoReport>>,
}

impl Maker {
    /// Ends the response with the model's reply.
    pub(crate) fn finish(&mut self, finished: Finished) -> Vec<Frame> {
        let (mut frames, finished) = self.end_reply(finished);
        frames.extend(self.finish_with(&finished));
        frames
    }

    /// Ends a reply of the model, which may not be the last.
    pub(crate) fn end_reply(&mut self, finished: Finished) -> (Vec<Frame>, Finished) {
        let Finished { rest, .. } = finished;
        let finished = Finished { rest: Delta::default(), ..finished };
        let mut frames = self.composer.delta(rest);
        let is_cut = finished.finish == Finish::Length;
        frames.extend(self.composer.end(if is_cut { Status::Incomplete } else { Status::Completed }));
        (frames, finished)
    }

    /// Takes note of a reply that is not the last.
    pub(crate) fn count(&mut self, finished: &Finished) {
        self.response.count(finished);
        self.told.get_or_insert_with(|| self.call.reporting.of(finished));
    }

    /// Ends the response after a reply that has ended.
    pub(crate) fn finish_with(&mut self, finished: &Finished) -> Vec<Frame> {
        let poncho = self.told.take().unwrap_or_else(|| self.call.reporting.of(finished));
        self.response.finish(finished, self.composer.take_items(), poncho);
        let last = self.composer.response_event(self.response.status.event(), &self.response);
        self.keep();
        vec![last]
    }

    fn keep(&mut self) {
        let Some(json) = serde_json::to_string(&self.response).ok().filter(|_| self.keeps) else { return };
        self.call.origin.app.responses.put(StoredResponse {
            id: self.response.id.clone(),
            owner: self.owner,
            json,
            input: std::mem::take(&mut self.input),
            output: self.response.output.iter().cloned().map(Arc::new).collect(),
        });
    }
}

impl Events for Maker {
    fn waiting(&mut self, heartbeat: Heartbeat) -> Vec<Frame> {
        vec![self.composer.waiting(&self.response, heartbeat.into())]
    }

    fn start(&mut self) -> Vec<Frame> {
        ["response.created", "response.in_progress"]
            .map(|name| self.composer.response_event(name, &self.response))
            .to_vec()
    }

    fn delta(&mut self, _index: usize, delta: Delta) -> Vec<Frame> {
        self.composer.delta(delta)
    }

    fn done(&mut self, _index: usize, finished: Box<Finished>) -> Vec<Frame> {
        self.finish(*finished)
    }

    fn end(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Frame> {
        let body = error.body(Family::OpenAi);
        let said = |name: &str| body.get("error").and_then(|error| error.get(name));
        let fields = json!({"code": said("code"), "message": said("message"), "param": said("param")});
        let mut frames = vec![self.composer.event("error", fields)];
        // Unfinished items stay as they are: the object lists them, but no event marks them as done.
        self.response.fail(error, self.composer.take_items());
        frames.push(self.composer.response_event(self.response.status.event(), &self.response));
        self.keep();
        frames
    }
}
