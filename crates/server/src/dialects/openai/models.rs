//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Path, State};
use poncho_api::{Capabilities, EngineError};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::answers::{ModelMeta, ModelOut};
use crate::dialects::shared::capability_words;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::models::names::{ListedModel, Source};

/// The answer of `GET /v1/models`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelList {
    #[schemars(extend("enum" = ["list"]))]
    object: &'static str,
    data: Vec<ModelOut>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// Every name that requests may use.
pub(crate) async fn list(State(app): State<SharedApp>) -> Result<Json<Value>, ApiError> {
    let listed = app.models.list().await?;
    let mut data = Vec::with_capacity(listed.len());
    for listed in &listed {
        data.push(described(&app, listed).await);
    }
    // The last three are Anthropic's: its clients page through lists.
    let ends = [data.first(), data.last()].map(|model| model.map(|model| model.id.clone()));
    let [first_id, last_id] = ends;
    Ok(Json(json!(ModelList { object: "list", data, has_more: false, first_id, last_id })))
}

/// One of them.
pub(crate) async fn get(State(app): State<SharedApp>, Path(id): Path<String>) -> Result<Json<ModelOut>, ApiError> {
    // Also what no list can hold: other forms of a name, and what an alias with a * stands for.
    let source = app.models.find(&id).await?.ok_or_else(|| EngineError::UnknownModel { model: id.clone() })?;
    let listed = ListedModel { id, source };
    Ok(Json(described(&app, &listed).await))
}

async fn described(app: &SharedApp, listed: &ListedModel) -> ModelOut {
    let mut model = describe(listed, app.models.started());
    // A model that is not loaded would have to be read for it.
    if let Source::Loaded(loaded) = &listed.source {
        let shown = app.models.shown(Arc::clone(loaded));
        let can = shown.capabilities(shown.defaults().template().map(str::to_owned)).await;
        model.capabilities = Some(capability_words(can));
        model.supported_parameters = (!can.embedding).then(|| supported_parameters(can));
    }
    model
}

/// OpenRouter's words for what a request may ask for.
fn supported_parameters(can: Capabilities) -> Vec<&'static str> {
    let always = [
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "seed",
        "stop",
        "response_format",
        "structured_outputs",
    ];
    let tools = ["tools", "tool_choice"].into_iter().filter(|_| can.tools);
    let reasoning = ["reasoning", "include_reasoning"].into_iter().filter(|_| can.thinking);
    always.into_iter().chain(tools).chain(reasoning).collect()
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
    ModelOut {
        id: listed.id.clone(),
        object: "model",
        created,
        owned_by: "poncho",
        context_length: meta.n_ctx,
        max_context_length: meta.n_ctx,
        max_model_len: meta.n_ctx,
        max_input_tokens: meta.n_ctx,
        display_name: listed.id.clone(),
        kind: "model",
        capabilities: None,
        supported_parameters: None,
        meta,
    }
}
