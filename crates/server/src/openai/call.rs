//! What both kinds of completions do alike: read the call's headers, start its replies, wait for them.
//!
//! Used by `chat.rs` and `completions.rs`. Rendering, tokenizing and compiling a grammar run on a blocking thread.

use axum::http::HeaderMap;
use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::types::{PonchoFacts, Usage};
use crate::app::SharedApp;
use crate::chat::{Prepared, submit};
use crate::error::ApiError;
use crate::reply::{Finished, NewReply, Reply};
use crate::served::ServedModel;

/// What a call says beside its sampling.
pub(crate) struct Call {
    pub(crate) app: SharedApp,
    pub(crate) model: ServedModel,
    pub(crate) arrived: Instant,
    /// Replies to each prompt.
    pub(crate) n: u32,
    /// Whether the `poncho` object is wanted.
    pub(crate) poncho: bool,
    pub(crate) include_usage: bool,
}

/// The session that the headers name.
pub(crate) fn session_header(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("x-session-id") else { return Ok(None) };
    let name = std::str::from_utf8(value.as_bytes());
    name.map(|name| Some(name.to_owned())).map_err(|_| ApiError::field("x-session-id", "it is not UTF-8"))
}

/// Whether a header asks for the `poncho` object.
pub(crate) fn poncho_header(headers: &HeaderMap) -> bool {
    headers.get("x-poncho").is_some_and(|value| value.as_bytes() == b"1")
}

/// The name of the model, which every request must say.
pub(crate) fn model_name(name: Option<&str>) -> Result<&str, ApiError> {
    name.ok_or_else(|| ApiError::field("model", "missing field `model`; name one of /v1/models"))
}

impl Call {
    /// Prepares the prompts and submits all replies, those to the first prompt first.
    pub(crate) async fn start(
        &self,
        prepare: impl FnOnce(&ServedModel) -> Result<Vec<Prepared>, ApiError> + Send + 'static,
    ) -> Result<Vec<Reply>, ApiError> {
        let (model, n) = (self.model.clone(), self.n);
        let started = tokio::task::spawn_blocking(move || {
            let mut started = Vec::new();
            for prepared in prepare(&model)? {
                let streams = submit(&model, &prepared, n)?;
                started.extend(streams.into_iter().map(|stream| (stream, prepared.form.clone())));
            }
            Ok::<_, ApiError>(started)
        });
        let started = started.await.map_err(|_| ApiError::Internal { doing: "prepared the prompt" })??;
        let replies = started.into_iter().map(|(stream, form)| {
            Reply::new(NewReply {
                model: self.model.clone(),
                stream,
                form,
                metrics: self.app.metrics.clone(),
                arrived: self.arrived,
                time_limit: self.app.config.request_timeout,
            })
        });
        Ok(replies.collect())
    }

    /// Whether the reply with this number is the first to its prompt.
    pub(crate) fn is_first(&self, index: usize) -> bool {
        usize::try_from(self.n).is_ok_and(|n| index.is_multiple_of(n))
    }

    /// Waits for all replies and sums up what they cost.
    pub(crate) async fn collect(&self, replies: Vec<Reply>) -> Result<(Vec<Finished>, Totals), ApiError> {
        let finished = try_join_all(replies.into_iter().map(Reply::finish)).await?;
        let mut totals = Totals::default();
        for (index, reply) in finished.iter().enumerate() {
            totals.add(self, index, reply);
        }
        Ok((finished, totals))
    }
}

/// What the replies of a call cost together.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) usage: Usage,
    /// Of the first reply, if they are wanted.
    pub(crate) poncho: Option<PonchoFacts>,
}

impl Totals {
    pub(crate) fn add(&mut self, call: &Call, index: usize, reply: &Finished) {
        self.usage.add(&reply.completion, call.is_first(index));
        if index == 0 && call.poncho {
            self.poncho = Some(PonchoFacts { hygiene: reply.normalised.clone(), ..(&reply.completion).into() });
        }
    }
}
