//! What generate and chat do alike: read the shared fields, start the reply, stream it or wait for it.
//!
//! Used by `generate.rs` and `chat.rs`.

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use poncho_api::{EngineError, Generate, MAX_TOP_LOGPROBS, Request};

use super::lines::{Endpoint, ReplyLines};
use super::types::{Shared, Think};
use crate::dialects::shared::{Origin, Reporting, session_header, warn_of_name};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::http::ndjson;
use crate::http::warnings::Warnings;
use crate::models::options::Options;

/// A request that was understood.
pub(crate) struct Call {
    pub(crate) origin: Origin,
    pub(crate) lines: ReplyLines,
    pub(crate) stream: bool,
}

impl Call {
    pub(crate) fn new(
        origin: Origin,
        name: &str,
        endpoint: Endpoint,
        shared: &Shared<'_>,
        reporting: Reporting,
    ) -> Self {
        let lines =
            ReplyLines::new(name, endpoint, origin.arrived).with_logprobs(shared.logprobs).with_reporting(reporting);
        Self { origin, lines, stream: shared.stream }
    }

    /// The answer to a request without a prompt: the model is loaded.
    pub(crate) fn idle(&self) -> Response {
        Json(self.lines.idle("load")).into_response()
    }

    /// Answers with the reply to a prompt.
    pub(crate) async fn answer(self, mut prompt: Generate) -> Result<Response, ApiError> {
        prompt.in_pieces = self.stream;
        let mut replies = self.origin.start(vec![prompt]).await.map_err(|error| match error {
            ApiError::Engine(EngineError::Unsupported { what }) if what == "thinking" => {
                let name = self.lines.name();
                ApiError::field("think", format!("{name:?} does not support thinking; leave it out"))
            }
            other => other,
        })?;
        let reply = replies.pop().ok_or(ApiError::Internal { doing: "started a reply" })?;
        if self.stream {
            let keep_alive = self.origin.app.config.stream_keep_alive;
            return ndjson::respond(reply, self.lines, keep_alive).await;
        }
        let finished = reply.finish().await?;
        Ok(Json(self.lines.whole(finished)).into_response())
    }
}

/// The answer to a request without a prompt that wants the model to go. One that is not loaded is not loaded for it.
pub(crate) async fn unload(app: &SharedApp, lines: ReplyLines, mut warnings: Warnings) -> Result<Response, ApiError> {
    let is_known = app.models.find(lines.name()).await?.is_some();
    let (id, _) = app.models.unload(lines.name()).await?;
    if !is_known {
        warn_of_name(&mut warnings, lines.name(), &id);
    }
    let lines = lines.with_reporting(Reporting::new(app, false, warnings));
    Ok(Json(lines.idle("unload")).into_response())
}

/// Limits, sampling and session.
pub(crate) fn generation(shared: &Shared<'_>, headers: &HeaderMap, base: &Request) -> Result<Request, ApiError> {
    if shared.top_logprobs > MAX_TOP_LOGPROBS {
        let reason = format!("it is {} and may be at most {MAX_TOP_LOGPROBS}", shared.top_logprobs);
        return Err(ApiError::field("top_logprobs", reason));
    }
    let session_id = match shared.session_id {
        Some(name) => Some(name.to_owned()),
        None => session_header(headers)?,
    };
    let defaults = Options::default();
    let generation = shared.options.unwrap_or(&defaults).generation(base)?;
    Ok(Request { logprobs: shared.logprobs.then_some(shared.top_logprobs), session_id, ..generation })
}

/// Whether a model that cannot think has to refuse.
pub(crate) fn needs_thinking(think: Option<Think>) -> bool {
    matches!(think, Some(Think::On | Think::Level(_)))
}
