//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::extract::{Path, State};
use poncho_engine::EngineError;
use serde_json::{Value, json};

use super::types::{ModelMeta, ModelOut};
use crate::app::SharedApp;
use crate::body::Json;
use crate::error::ApiError;
use crate::models::ListedModel;

/// Every name that requests may use.
pub(crate) async fn list(State(app): State<SharedApp>) -> Json<Value> {
    let data: Vec<ModelOut> = app.models.list().iter().map(|listed| describe(listed, app.models.started())).collect();
    Json(json!({"object": "list", "data": data}))
}

/// One of them.
pub(crate) async fn get(State(app): State<SharedApp>, Path(id): Path<String>) -> Result<Json<ModelOut>, ApiError> {
    let found = app.models.list().into_iter().find(|listed| listed.id == id);
    let listed = found.ok_or(EngineError::UnknownModel { model: id })?;
    Ok(Json(describe(&listed, app.models.started())))
}

fn describe(listed: &ListedModel, created: u64) -> ModelOut {
    let (model, info) = (&listed.model, listed.model.info());
    ModelOut {
        id: listed.id.clone(),
        object: "model",
        created,
        owned_by: "poncho",
        meta: ModelMeta {
            model: model.id().to_owned(),
            architecture: info.architecture.clone(),
            n_ctx: model.limits().context,
            n_ctx_train: info.n_ctx_train,
            n_vocab: info.n_vocab,
            n_embd: info.n_embd,
            n_params: info.n_params,
            size: info.size_bytes,
        },
    }
}
