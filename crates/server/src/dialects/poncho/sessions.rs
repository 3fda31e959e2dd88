//! `GET /api/sessions` and `DELETE /api/sessions/{id}`: sequences that callers keep between requests, and the requests that
//! run.
//!
//! Each owner sees its own sessions (`owner.rs`) and requests only; requests of all keys are listed for an admin. A session
//! in flight is listed with its request. The list is what the models last published: it must never wait for a worker.
//! Errors have OpenAI's shape.

use axum::Extension;
use axum::extract::{Path, State};
use poncho_api::{EngineError, Key, RequestReport, RequestStage};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::owner::{Owner, own_name, scoped};

/// The answer of `GET /api/sessions`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Sessions {
    sessions: Vec<Session>,
    /// Oldest first. Only an admin sees the requests of other keys.
    requests: Vec<OpenRequest>,
}

/// An idle session.
#[derive(Serialize, JsonSchema)]
struct Session {
    id: String,
    model: String,
    tokens: usize,
    /// Of the row that it can go on from.
    #[schemars(with = "String")]
    key: Key,
}

/// A request that has not ended.
#[derive(Serialize, JsonSchema)]
struct OpenRequest {
    model: String,
    session: Option<String>,
    #[schemars(extend("enum" = RequestStage::ALL.map(RequestStage::as_str)))]
    stage: &'static str,
    prompt_tokens: usize,
    cached_tokens: usize,
    new_tokens: usize,
    /// Prompt tokens that need no more work: cached or computed.
    processed_tokens: usize,
    generated_tokens: usize,
    /// Prompt tokens computed or tokens generated; null before the first decode call.
    tokens_per_second: Option<f64>,
    age_ms: u64,
}

/// The idle sessions and the unfinished requests of all models, those that belong to the caller. Never waits for a model.
pub(crate) async fn list(State(app): State<SharedApp>, Extension(owner): Extension<Owner>) -> Json<Value> {
    let sees_all = app.keys.sees_all(owner);
    let tenant = app.keys.tenant(owner).map(|tenant| tenant.id);
    let (mut sessions, mut requests) = (Vec::new(), Vec::new());
    for model in app.models.node().models() {
        let id = &model.report().id;
        let held = model.sessions();
        let own = held.iter().filter_map(|session| Some((own_name(owner, &session.name)?, session)));
        sessions.extend(own.map(|(name, session)| Session {
            id: name.to_owned(),
            model: id.clone(),
            tokens: session.tokens,
            key: session.key,
        }));
        let open = model.requests().into_iter().filter(|request| sees_all || request.tenant == tenant);
        requests.extend(open.map(|request| shown(id, owner, &request)));
    }
    Json(json!(Sessions { sessions, requests }))
}

fn shown(model: &str, owner: Owner, request: &RequestReport) -> OpenRequest {
    let progress = &request.progress;
    OpenRequest {
        model: model.to_owned(),
        session: request.session.as_deref().and_then(|name| own_name(owner, name)).map(str::to_owned),
        stage: progress.stage.as_str(),
        prompt_tokens: progress.prompt_tokens,
        cached_tokens: progress.cached_tokens,
        new_tokens: progress.prompt_tokens.saturating_sub(progress.cached_tokens),
        processed_tokens: progress.processed_tokens,
        generated_tokens: progress.generated_tokens,
        tokens_per_second: progress.tokens_per_second.map(|rate| (rate * 10.0).round() / 10.0),
        age_ms: u64::try_from(request.age.as_millis()).unwrap_or(u64::MAX),
    }
}

/// The answer of `DELETE /api/sessions/{id}`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct EndedSession {
    id: String,
    /// The models that had it.
    ended_on: Vec<String>,
}

/// Forgets a session on every model that has one of that name.
pub(crate) async fn end(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = scoped(owner, &id)?;
    let mut ended = Vec::new();
    for model in app.models.node().models() {
        if model.end_session(&name).await? {
            ended.push(model.report().id.clone());
        }
    }
    if ended.is_empty() {
        return Err(EngineError::NoSession { session: id }.into());
    }
    Ok(Json(json!(EndedSession { id, ended_on: ended })))
}
