//! What the dialects do alike around a call: read its headers, start its replies, report what the cache did for it.
//!
//! Used by the folders of the dialects and by Poncho's own endpoints. Nothing here knows a field of a dialect.

use axum::http::HeaderMap;
use poncho_api::{Finished, Generate, Normalised};
use serde::Serialize;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::reply::Reply;
use crate::models::served::ServedModel;
use crate::owner::Owner;
use crate::owner::scoped;
use crate::telemetry::timing::{ReplyTimes, refused};

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
    /// Tokens that were read from the cache.
    pub(crate) read: usize,
    /// Tokens that were computed.
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
    /// The owner of the sessions that it may name.
    pub(crate) owner: Owner,
    pub(crate) arrived: Instant,
}

impl Origin {
    /// Starts the replies to some prompts, those to the first prompt first.
    pub(crate) async fn start(&self, mut prompts: Vec<Generate>) -> Result<Vec<Reply>, ApiError> {
        for prompt in &mut prompts {
            let session = prompt.request.session_id.take();
            prompt.request.session_id = session.map(|name| scoped(self.owner, &name)).transpose()?;
        }
        let model = self.model.clone().asked_by(self.app.keys.tenant(self.owner));
        let streams = model.start(prompts).await.inspect_err(|error| refused(self.model.id(), self.arrived, error))?;
        let submitted = Instant::now();
        let reply = |stream| {
            let times = ReplyTimes::begin(self.app.metrics.clone(), self.model.id(), self.arrived, submitted);
            Reply::new(stream, times, self.app.config.request_timeout, self.app.life.cut_signal())
        };
        Ok(streams.into_iter().map(reply).collect())
    }
}
