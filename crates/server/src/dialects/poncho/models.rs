//! `POST /api/models/load` and `/api/models/unload`: what is in memory, changed by hand; and the greeting at `/`.
//!
//! Requests load models by themselves; these are for warming one up and for making room. Errors have OpenAI's shape.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use poncho_api::EngineError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
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
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LoadModelRequest")]
pub(crate) struct LoadBody {
    model: String,
    /// How long it stays after its last request: 5m, seconds, 0, or -1 for no limit.
    keep_alive: Option<KeepAlive>,
}

/// The answer of `POST /api/models/load`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LoadAnswer")]
pub(crate) struct Loaded {
    model: String,
    #[schemars(extend("enum" = ["loaded"]))]
    state: &'static str,
    n_ctx: usize,
    #[schemars(range(min = 0))]
    load_ms: f64,
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
    let model = model.id().to_owned();
    Ok(Json(json!(Loaded { model, state: "loaded", n_ctx: context, load_ms: milliseconds })))
}

/// `POST /api/models/unload`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "UnloadModelRequest")]
pub(crate) struct UnloadBody {
    model: String,
}

/// The answer of `POST /api/models/unload`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "UnloadAnswer")]
pub(crate) struct UnloadedOut {
    model: String,
    #[schemars(extend("enum" = ["unloaded", "unloading"]))]
    state: &'static str,
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
    Ok(Json(json!(UnloadedOut { model: id, state })))
}

/// `GET /`: the console for a browser, and for others what Ollama's clients look for before they begin.
pub(crate) async fn running(headers: HeaderMap) -> Response {
    if console::wants_page(&headers) { console::page(&headers) } else { "Poncho is running".into_response() }
}
