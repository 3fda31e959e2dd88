//! What both kinds of completions do alike: find the model, start the call's replies, wait for them, sum them up.
//!
//! Used by `chat.rs` and `completions.rs`.

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use serde::Serialize;

use super::answers::{Envelope, Usage, WholeAnswer};
use super::convert::choices;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::http::reply::Reply;
use crate::models::served::ServedModel;
use poncho_api::{Finished, Generate};

use crate::dialects::shared::{Origin, PonchoReport, Reporting, session_header};
use crate::error::ApiError;

/// What a call says beside its sampling.
pub(crate) struct Call {
    pub(crate) origin: Origin,
    /// Replies to each prompt.
    pub(crate) n: u32,
    pub(crate) reporting: Reporting,
    pub(crate) include_usage: bool,
}

/// The name of the model, which every request must say.
pub(crate) fn model_name(name: Option<&str>) -> Result<&str, ApiError> {
    name.ok_or_else(|| ApiError::field("model", "missing field `model`; name one of /v1/models"))
}

/// The model of a request and how many replies it asks for; a session that the body does not name is taken from the
/// headers.
pub(crate) async fn addressed(
    app: &SharedApp,
    headers: &HeaderMap,
    session: &mut Option<String>,
    (model, n): (Option<&str>, Option<u32>),
) -> Result<(ServedModel, u32), ApiError> {
    if session.is_none() {
        *session = session_header(headers)?;
    }
    let model = app.models.resolve(model_name(model)?).await?;
    Ok((model, choices(n, session.as_deref())?))
}

impl Call {
    /// Starts all replies, those to the first prompt first.
    pub(crate) async fn start(&self, mut prompts: Vec<Generate>, in_pieces: bool) -> Result<Vec<Reply>, ApiError> {
        for prompt in &mut prompts {
            (prompt.replies, prompt.in_pieces) = (self.n, in_pieces);
        }
        self.origin.start(prompts).await
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
    /// Of the first reply.
    pub(crate) poncho: Option<PonchoReport>,
}

impl Totals {
    /// The answer that is not a stream.
    pub(crate) fn answer<C: Serialize>(&self, envelope: &Envelope, choices: &[C]) -> Response {
        Json(WholeAnswer { envelope, choices, usage: self.usage, poncho: self.poncho.as_ref() }).into_response()
    }

    pub(crate) fn add(&mut self, call: &Call, index: usize, reply: &Finished) {
        self.usage.add(&reply.completion, call.is_first(index));
        if index == 0 {
            self.poncho = call.reporting.of(reply);
        }
    }
}
