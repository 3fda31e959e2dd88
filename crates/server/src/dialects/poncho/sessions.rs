//! `GET /api/sessions` and `DELETE /api/sessions/{id}`: sequences that callers keep between requests.
//!
//! Each owner sees its own sessions only (`owner.rs`). Only idle sessions are listed; one that is in flight belongs to
//! its request. Errors have OpenAI's shape.

use axum::Extension;
use axum::extract::{Path, State};
use poncho_api::EngineError;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::owner::{Owner, own_name, scoped};

/// The idle sessions of all models that belong to the caller.
pub(crate) async fn list(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<Value>, ApiError> {
    let mut sessions = Vec::new();
    for model in app.models.node().models() {
        let held = model.sessions().await?;
        let own = held.iter().filter_map(|session| Some((own_name(owner, &session.name)?, session)));
        let described = own.map(|(name, session)| {
            json!({"id": name, "model": model.report().id, "tokens": session.tokens, "key": session.key})
        });
        sessions.extend(described);
    }
    Ok(Json(json!({"sessions": sessions})))
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
    Ok(Json(json!({"id": id, "ended_on": ended})))
}
