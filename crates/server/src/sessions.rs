//! `GET /api/sessions` and `DELETE /api/sessions/{id}`: sequences that callers keep between requests.
//!
//! Only idle sessions are listed; one that is in flight belongs to its request. Errors have OpenAI's shape.

use axum::extract::{Path, State};
use poncho_engine::EngineError;
use serde_json::{Value, json};

use crate::app::SharedApp;
use crate::body::Json;
use crate::call::blocking;
use crate::error::ApiError;

/// The idle sessions of all models.
pub(crate) async fn list(State(app): State<SharedApp>) -> Result<Json<Value>, ApiError> {
    blocking("listed the sessions", move || {
        let mut sessions = Vec::new();
        for model in app.models.engine().models() {
            let held = model.sessions()?;
            let described = held.into_iter().map(|session| {
                json!({"id": session.name, "model": model.id(), "tokens": session.tokens, "key": session.key.to_string()})
            });
            sessions.extend(described);
        }
        Ok(Json(json!({"sessions": sessions})))
    })
    .await
}

/// Forgets a session on every model that has one of that name.
pub(crate) async fn end(State(app): State<SharedApp>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    blocking("ended a session", move || {
        let mut ended = Vec::new();
        for model in app.models.engine().models() {
            if model.end_session(&id)? {
                ended.push(model.id().to_owned());
            }
        }
        if ended.is_empty() {
            return Err(EngineError::NoSession { session: id }.into());
        }
        Ok(Json(json!({"id": id, "ended_on": ended})))
    })
    .await
}
