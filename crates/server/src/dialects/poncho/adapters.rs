//! `/api/adapters`: LoRA adapters of loaded models, attached, scaled and detached while they serve.
//!
//! An adapter is a file that a client uploaded before and is named by its hash: no client may name a path of this machine,
//! and no answer holds one. Adapters change the replies of everybody, so only those who may see everything change them.
//! They are gone when the model is unloaded. Errors have OpenAI's shape.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::Uri;
use poncho_api::{AdapterId, AdapterInfo, EngineError, NodeModel, to_hex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blocking::blocking;
use crate::dialects::shared::query_value;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::library::LibraryError;
use crate::models::names::Source;
use crate::owner::Owner;

/// The most adapters of a model: each takes memory that no budget counts.
const MOST_ADAPTERS: usize = 16;

/// An adapter as clients see it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Adapter")]
pub(crate) struct AdapterOut {
    id: u64,
    model: String,
    digest: String,
    scale: f32,
}

impl AdapterOut {
    fn new(model: &dyn NodeModel, info: &AdapterInfo) -> Self {
        let digest = format!("sha256:{}", to_hex(&info.sha256));
        Self { id: info.id.0, model: model.report().id.clone(), digest, scale: info.scale }
    }
}

/// The answer of `GET /api/adapters`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Adapters")]
pub(crate) struct AdaptersOut {
    adapters: Vec<AdapterOut>,
}

/// `GET /api/adapters?model=NAME`: the adapters of all loaded models, or of one. It loads none.
pub(crate) async fn list(State(app): State<SharedApp>, uri: Uri) -> Result<Json<AdaptersOut>, ApiError> {
    let mut adapters = Vec::new();
    for model in loaded(&app, query_value(&uri, "model").as_deref()).await? {
        adapters.extend(model.adapters().iter().map(|info| AdapterOut::new(&*model, info)));
    }
    Ok(Json(AdaptersOut { adapters }))
}

/// `POST /api/adapters`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LoadAdapterRequest")]
pub(crate) struct LoadBody {
    model: Option<String>,
    /// The hash under which the file was sent to /api/blobs.
    #[schemars(regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    digest: String,
    /// Its strength; 1 if it is left out.
    scale: Option<f32>,
}

/// Attaches an uploaded adapter to a model, which is loaded for it.
pub(crate) async fn load(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Json(body): Json<LoadBody>,
) -> Result<Json<AdapterOut>, ApiError> {
    app.keys.check_changes_models(owner)?;
    let scale = checked_scale(body.scale.unwrap_or(1.0))?;
    let digest = body.digest;
    let library = app.models.manager().library().map(Arc::clone);
    let library = library.ok_or_else(|| LibraryError::ReadOnly { name: digest.clone() })?;
    let named = digest.clone();
    let path = blocking("looked for an adapter", move || Ok(library.adapter_file(&named)?)).await?;
    let model = app.models.resolve_known_or_only(body.model.as_deref()).await?;
    if model.adapters().len() >= MOST_ADAPTERS {
        let reason = format!("it has {MOST_ADAPTERS} adapters and may have no more; detach one first");
        return Err(ApiError::field("model", reason));
    }
    let id = model.load_adapter(&path, scale).await.map_err(|error| match error {
        // Clients know hashes, not paths.
        EngineError::AdapterLoad { path, reason } => {
            ApiError::field("digest", reason.replace(&path.display().to_string(), &digest))
        }
        other => other.into(),
    })?;
    attached(&*model, id).map(Json)
}

/// `PATCH /api/adapters/{id}`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ScaleAdapterRequest")]
pub(crate) struct ScaleBody {
    model: Option<String>,
    scale: f32,
}

/// Changes the strength of an adapter for requests that come after.
pub(crate) async fn scale(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    Json(body): Json<ScaleBody>,
) -> Result<Json<AdapterOut>, ApiError> {
    app.keys.check_changes_models(owner)?;
    let (id, scale) = (adapter_id(&id)?, checked_scale(body.scale)?);
    let model = model_of(&app, id, body.model.as_deref()).await?;
    model.set_adapter_scale(id, scale).await?;
    attached(&*model, id).map(Json)
}

/// `DELETE /api/adapters/{id}`: detaches an adapter; requests in flight keep it to their end.
pub(crate) async fn unload(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<AdapterOut>, ApiError> {
    app.keys.check_changes_models(owner)?;
    let id = adapter_id(&id)?;
    let model = model_of(&app, id, None).await?;
    let last = attached(&*model, id)?;
    model.unload_adapter(id).await?;
    Ok(Json(last))
}

fn checked_scale(scale: f32) -> Result<f32, ApiError> {
    if scale.is_finite() { Ok(scale) } else { Err(ApiError::field("scale", "it is too large; 1 is full strength")) }
}

fn adapter_id(text: &str) -> Result<AdapterId, ApiError> {
    let id = text.parse().map(AdapterId);
    id.map_err(|_| ApiError::field("id", "it must be a number that GET /api/adapters lists"))
}

/// An attached adapter.
fn attached(model: &dyn NodeModel, id: AdapterId) -> Result<AdapterOut, ApiError> {
    let infos = model.adapters();
    let found = infos.iter().find(|info| info.id == id).map(|info| AdapterOut::new(model, info));
    found.ok_or_else(|| EngineError::UnknownAdapter { adapter: id.0 }.into())
}

/// The loaded model that an adapter is attached to, if it is the named one. The numbers of adapters are unique.
async fn model_of(app: &SharedApp, id: AdapterId, name: Option<&str>) -> Result<Arc<dyn NodeModel>, ApiError> {
    for model in loaded(app, name).await? {
        if model.adapters().iter().any(|info| info.id == id) {
            return Ok(model);
        }
    }
    Err(EngineError::UnknownAdapter { adapter: id.0 }.into())
}

/// All loaded models, or the named one if it is loaded.
async fn loaded(app: &SharedApp, name: Option<&str>) -> Result<Vec<Arc<dyn NodeModel>>, ApiError> {
    let Some(name) = name else { return Ok(app.models.node().models()) };
    Ok(match app.models.look_up(name).await? {
        Source::Loaded(model) => vec![model],
        Source::Installed(_) => Vec::new(),
    })
}
