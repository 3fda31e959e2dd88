//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Path, State};
use poncho_api::EngineError;
use serde_json::{Value, json};

use super::types::{ModelMeta, ModelOut};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::models::names::{ListedModel, Source};

/// Every name that requests may use.
pub(crate) async fn list(State(app): State<SharedApp>) -> Result<Json<Value>, ApiError> {
    let listed = app.models.list().await?;
    let data: Vec<ModelOut> = listed.iter().map(|listed| describe(listed, app.models.started())).collect();
    Ok(Json(json!({"object": "list", "data": data})))
}

/// One of them.
pub(crate) async fn get(State(app): State<SharedApp>, Path(id): Path<String>) -> Result<Json<ModelOut>, ApiError> {
    let found = app.models.list().await?.into_iter().find(|listed| listed.id == id);
    let listed = found.ok_or(EngineError::UnknownModel { model: id })?;
    Ok(Json(describe(&listed, app.models.started())))
}

fn describe(listed: &ListedModel, created: u64) -> ModelOut {
    let meta = match &listed.source {
        Source::Loaded(model) => {
            let (info, limits) = (&model.report().info, model.report().limits);
            ModelMeta {
                model: model.report().id.clone(),
                loaded: true,
                architecture: info.architecture.clone(),
                n_ctx: limits.context,
                n_ctx_train: info.n_ctx_train.into(),
                n_vocab: Some(info.n_vocab),
                n_embd: Some(info.n_embd),
                n_params: info.n_params,
                size: info.size_bytes,
            }
        }
        Source::Installed(model) => {
            let (facts, n_ctx) = (&model.facts, u64::from(model.config.context.n_ctx));
            ModelMeta {
                model: model.name().to_owned(),
                loaded: false,
                architecture: facts.architecture.clone(),
                n_ctx: usize::try_from(if n_ctx == 0 { facts.context_length } else { n_ctx }).unwrap_or(usize::MAX),
                n_ctx_train: facts.context_length,
                n_vocab: None,
                n_embd: None,
                n_params: facts.parameters,
                size: facts.size,
            }
        }
    };
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(created, |age| age.as_secs());
    let created = match &listed.source {
        Source::Loaded(_) => created,
        Source::Installed(model) => model.facts.modified.map_or(created, since),
    };
    ModelOut { id: listed.id.clone(), object: "model", created, owned_by: "poncho", meta }
}
