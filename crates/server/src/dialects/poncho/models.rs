//! `POST /api/models/load` and `/api/models/unload`: what is in memory, changed by hand; and the greeting at `/`.
//!
//! Requests load models by themselves; these are for warming one up and for making room. Errors have OpenAI's shape.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use poncho_api::EngineError;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::config::KeepAlive;
use crate::dialects::shared::milliseconds;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::http::console;
use crate::models::manager::Unloaded;

/// `POST /api/models/load`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadBody {
    model: String,
    /// How long it stays after its last request.
    keep_alive: Option<KeepAlive>,
}

/// Loads a model and says when it is there.
pub(crate) async fn load(State(app): State<SharedApp>, Json(body): Json<LoadBody>) -> Result<Json<Value>, ApiError> {
    let begun = Instant::now();
    let model = app.models.resolve_keeping(&body.model, body.keep_alive).await?;
    if model.stands_for().is_some() {
        return Err(EngineError::UnknownModel { model: body.model }.into());
    }
    let context = model.limits().context;
    let milliseconds = milliseconds(begun.elapsed());
    Ok(Json(json!({"model": model.id(), "state": "loaded", "n_ctx": context, "load_ms": milliseconds})))
}

/// `POST /api/models/unload`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnloadBody {
    model: String,
}

/// Saves what a model holds and unloads it, at once or when its last request has ended.
pub(crate) async fn unload(
    State(app): State<SharedApp>,
    Json(body): Json<UnloadBody>,
) -> Result<Json<Value>, ApiError> {
    // A name that nobody has must not unload another model, also where any name is accepted.
    if app.models.find(&body.model).await?.is_none() {
        return Err(EngineError::UnknownModel { model: body.model }.into());
    }
    let (id, unloaded) = app.models.unload(&body.model).await?;
    let state = match unloaded {
        Unloaded::Gone | Unloaded::NotLoaded => "unloaded",
        Unloaded::WhenIdle => "unloading",
        Unloaded::Kept => {
            let reason = "it was loaded by the program that runs this server and could not be loaded again; it stays";
            return Err(ApiError::field("model", reason));
        }
    };
    Ok(Json(json!({"model": id, "state": state})))
}

/// `GET /`: the console for a browser, and for others what Ollama's clients look for before they begin.
pub(crate) async fn running(headers: HeaderMap) -> Response {
    if console::wants_page(&headers) { console::page(&headers) } else { "Poncho is running".into_response() }
}
