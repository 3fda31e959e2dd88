//! What the dialects do alike around a call: read its headers, start its replies, tell what the cache did for it.
//!
//! Used by the folders of the dialects and by Poncho's own endpoints. Rendering, tokenizing and compiling a grammar run
//! on a blocking thread. Nothing here knows a field of a dialect.

use axum::http::HeaderMap;
use serde::Serialize;
use tokio::time::Instant;

use crate::app::SharedApp;
use crate::auth::Owner;
use crate::chat::{Prepared, submit};
use crate::error::ApiError;
use crate::hygiene::Normalised;
use crate::reply::{Finished, NewReply, Reply};
use crate::served::ServedModel;
use crate::sessions;
use crate::times::ReplyTimes;

/// The session that the headers name.
pub(crate) fn session_header(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("x-poncho-session") else { return Ok(None) };
    let name = std::str::from_utf8(value.as_bytes());
    name.map(|name| Some(name.to_owned())).map_err(|_| ApiError::field("x-poncho-session", "it is not UTF-8"))
}

/// Whether a header asks for the `poncho` object.
pub(crate) fn poncho_header(headers: &HeaderMap) -> bool {
    headers.get("x-poncho").is_some_and(|value| value.as_bytes() == b"1")
}

/// What the cache did for a request; sent when it is asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PonchoFacts {
    /// How the prompt was found.
    pub(crate) hit: &'static str,
    /// Tokens whose state was there.
    pub(crate) read: usize,
    /// Tokens whose state was computed.
    pub(crate) created: usize,
    pub(crate) prefill_ms: f64,
    /// The row that was saved at the end.
    pub(crate) finish_key: Option<String>,
    /// What was made equal in the prompt before it was rendered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hygiene: Vec<Normalised>,
}

impl From<&Finished> for PonchoFacts {
    fn from(finished: &Finished) -> Self {
        let completion = &finished.completion;
        Self {
            hit: completion.hit.as_str(),
            read: completion.cache_delta.read,
            created: completion.cache_delta.created,
            prefill_ms: completion.prefill_time.as_secs_f64() * 1000.0,
            finish_key: completion.finish_key.map(|key| key.to_string()),
            hygiene: finished.normalised.clone(),
        }
    }
}

/// Where and when a call came in.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) app: SharedApp,
    pub(crate) model: ServedModel,
    /// Whose sessions it may name.
    pub(crate) owner: Owner,
    pub(crate) arrived: Instant,
}

impl Origin {
    /// Prepares the prompts and submits `n` replies to each, those to the first prompt first.
    pub(crate) async fn start(
        &self,
        n: u32,
        prepare: impl FnOnce(&ServedModel) -> Result<Vec<Prepared>, ApiError> + Send + 'static,
    ) -> Result<Vec<Reply>, ApiError> {
        let (owner, tenant) = (self.owner, self.app.keys.tenant(self.owner));
        let model = self.model.clone().asked_by(tenant);
        let started = blocking("prepared the prompt", move || {
            let mut started = Vec::new();
            for mut prepared in prepare(&model)? {
                let session = prepared.request.session_id.take();
                prepared.request.session_id = session.map(|name| sessions::scoped(owner, &name)).transpose()?;
                prepared.request.tenant = tenant;
                let submitted = Instant::now();
                let streams = submit(&model, &prepared, n)?;
                started.extend(streams.into_iter().map(|stream| (stream, prepared.form.clone(), submitted)));
            }
            Ok(started)
        });
        let replies = started.await?.into_iter().map(|(stream, form, submitted)| {
            Reply::new(NewReply {
                model: self.model.clone(),
                stream,
                form,
                times: ReplyTimes::begin(self.app.metrics.clone(), self.model.id(), self.arrived, submitted),
                time_limit: self.app.config.request_timeout,
            })
        });
        Ok(replies.collect())
    }
}

/// Runs what may take long off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // Log lines of the work belong to the request too.
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work)).await.map_err(|_| ApiError::Internal { doing })?
}
