//! `POST /v1/chat/completions/input_tokens`, `POST /v1/responses/input_tokens` and `POST /api/chat/input_tokens`: how
//! many tokens a request would send.
//!
//! The body is the one that the dialect's own endpoint takes, and its code makes the prompt, so that what is counted is
//! what would be computed. Anthropic's dialect has `/v1/messages/count_tokens`.

use axum::Extension;
use axum::extract::State;
use axum::http::Uri;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::explain::{Dialect, Shape};
use crate::dialects::shared::WithWarnings;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Json, JsonBytes, parse};
use crate::http::unknown_fields::of_query;
use crate::owner::Owner;
use crate::responses::store::OwnResponses;

/// The answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct InputTokens {
    object: &'static str,
    input_tokens: usize,
    /// Tokens that a prompt and its reply may have together.
    context_length: usize,
}

/// Of a chat completion.
pub(crate) async fn chat(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    uri: Uri,
    body: JsonBytes,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    count(&app, owner, (&uri, &body.0), Dialect::OpenAi, "chat.completion.input_tokens").await
}

/// Of a response.
pub(crate) async fn response(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    uri: Uri,
    body: JsonBytes,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    count(&app, owner, (&uri, &body.0), Dialect::Responses, "response.input_tokens").await
}

/// Of a chat or a prompt of Ollama's API.
pub(crate) async fn ollama(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    uri: Uri,
    body: JsonBytes,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    count(&app, owner, (&uri, &body.0), Dialect::Ollama, "input_tokens").await
}

async fn count(
    app: &SharedApp,
    owner: Owner,
    (uri, body): (&Uri, &[u8]),
    dialect: Dialect,
    object: &'static str,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    let shape: Shape = parse(body)?;
    if shape.model().is_none() {
        return Err(ApiError::field("model", "missing field `model`; name one of /v1/models"));
    }
    let model = app.models.resolve_or_only(shape.model()).await?;
    let stored = OwnResponses { store: &app.responses, owner };
    let (asked, warnings) = dialect.checked_prompt(body, &shape, &model, stored, of_query(uri.query())).await?;
    let model = model.asked_by(app.keys.tenant(owner));
    let rendered = model.rendered(asked).await?;
    let context_length = model.limits().context;
    let answer = InputTokens { object, input_tokens: rendered.tokens.len(), context_length };
    Ok(Json(WithWarnings::new(app, json!(answer), warnings)))
}
