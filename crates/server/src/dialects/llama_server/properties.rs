//! `GET /props` and `GET /slots`: what a client of llama.cpp's server learns before it sends its first prompt.
//!
//! Fields that clients read have llama-server's names. It must never reveal a path of this machine, nor a request of
//! another key.

use std::borrow::Cow;

use axum::Extension;
use axum::extract::State;
use axum::http::Uri;
use poncho_api::{RequestReport, RequestStage, SpecialText};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::dialects::shared::{WithWarnings, query_value, warn_of_model};
use crate::error::ApiError;
use crate::forms::left_out;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::http::warnings::Warnings;
use crate::models::served::ServedModel;
use crate::owner::Owner;

/// The model that the query names.
fn named(uri: &Uri) -> Option<Cow<'_, str>> {
    query_value(uri, "model").filter(|model| !model.is_empty())
}

/// The context, the template and the defaults of a model.
pub(crate) async fn props(State(app): State<SharedApp>, uri: Uri) -> Result<Json<WithWarnings<Value>>, ApiError> {
    let model = app.models.resolve_or_only(named(&uri).as_deref()).await?;
    let mut warnings = Warnings::default();
    warn_of_model(&mut warnings, &model);
    let template = match model.defaults().template() {
        Some(template) => Some(template.to_owned()),
        None => model.chat_template().await,
    };
    let generation = model.defaults().generation();
    let sampling = &generation.sampling;
    let special = model.info().special;
    let answer = Props {
        default_generation_settings: DefaultSettings {
            id: 0,
            n_ctx: model.limits().context,
            speculative: false,
            is_processing: false,
            params: DefaultParams {
                n_predict: generation.max_tokens.map_or(-1, i64::from),
                seed: sampling.seed,
                temperature: sampling.temperature,
                top_k: sampling.top_k,
                top_p: sampling.top_p,
                min_p: sampling.min_p,
                repeat_penalty: sampling.repetition_penalty,
                presence_penalty: sampling.presence_penalty,
                frequency_penalty: sampling.frequency_penalty,
                stop: &generation.stop,
            },
        },
        total_slots: model.limits().sequences,
        model_alias: model.id(),
        model_path: model.id(),
        modalities: Modalities { vision: false, audio: false },
        chat_template: template.unwrap_or_default(),
        bos_token: text_of(&model, special.bos).await,
        eos_token: text_of(&model, special.eos).await,
        build_info: concat!("poncho-", env!("CARGO_PKG_VERSION")),
    };
    Ok(Json(WithWarnings::new(&app, json!(answer), warnings)))
}

/// The answer of `GET /props`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Props<'a> {
    default_generation_settings: DefaultSettings<'a>,
    #[schemars(range(min = 1))]
    total_slots: usize,
    model_alias: &'a str,
    /// The name of the model: clients show it, and a path would reveal the folders of this machine.
    model_path: &'a str,
    modalities: Modalities,
    chat_template: String,
    bos_token: String,
    eos_token: String,
    build_info: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct DefaultSettings<'a> {
    id: usize,
    n_ctx: usize,
    speculative: bool,
    is_processing: bool,
    params: DefaultParams<'a>,
}

#[derive(Serialize, JsonSchema)]
struct DefaultParams<'a> {
    /// The most tokens of a reply; -1 means unlimited.
    n_predict: i64,
    seed: Option<u64>,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repeat_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    stop: &'a [String],
}

#[derive(Serialize, JsonSchema)]
struct Modalities {
    vision: bool,
    audio: bool,
}

async fn text_of(model: &ServedModel, token: Option<u32>) -> String {
    match token {
        Some(token) => model.detokenize(vec![token], SpecialText::Render).await.unwrap_or_default(),
        None => String::new(),
    }
}

/// What the sequences of a model do. Requests of other keys are listed as busy slots without figures.
pub(crate) async fn slots(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    // A list has no place for a warning that another model answers.
    let model = app.models.resolve_known_or_only(named(&uri).as_deref()).await?;
    let (sees_all, tenant) = (app.keys.sees_all(owner), app.keys.tenant(owner).map(|tenant| tenant.id));
    let running = model.requests().into_iter().filter(|request| request.progress.stage != RequestStage::Queued);
    let mut slots: Vec<Slot> = running.map(|request| busy(&request, sees_all || request.tenant == tenant)).collect();
    slots.resize(model.limits().sequences.max(slots.len()), Slot::default());
    for (id, slot) in slots.iter_mut().enumerate() {
        (slot.id, slot.n_ctx) = (id, model.limits().context);
    }
    Ok(Json(json!(slots)))
}

/// A sequence of a model. One without a request, or with that of another key, has no figures.
#[derive(Clone, Default, Serialize, JsonSchema)]
#[schemars(transform = left_out)]
pub(crate) struct Slot {
    id: usize,
    n_ctx: usize,
    speculative: bool,
    is_processing: bool,
    #[serde(flatten)]
    figures: Option<SlotFigures>,
}

#[derive(Clone, Serialize, JsonSchema)]
struct SlotFigures {
    n_prompt_tokens: usize,
    n_prompt_tokens_processed: usize,
    n_prompt_tokens_cache: usize,
    next_token: [NextToken; 1],
}

#[derive(Clone, Serialize, JsonSchema)]
struct NextToken {
    has_next_token: bool,
    n_decoded: usize,
}

fn busy(request: &RequestReport, shows_figures: bool) -> Slot {
    let progress = &request.progress;
    let figures = shows_figures.then(|| SlotFigures {
        n_prompt_tokens: progress.prompt_tokens,
        n_prompt_tokens_processed: progress.processed_tokens.saturating_sub(progress.cached_tokens),
        n_prompt_tokens_cache: progress.cached_tokens,
        next_token: [NextToken { has_next_token: true, n_decoded: progress.generated_tokens }],
    });
    Slot { is_processing: true, figures, ..Slot::default() }
}
