//! `POST /api/embed` and the older `POST /api/embeddings`: texts as vectors.
//!
//! Pooled as the model says, else the mean. Every text is computed alone (`embedding.rs`), so that many at once give the
//! same vectors as one by one, and other requests go on in between. The newer endpoint sends vectors of length 1, the older one sends them as they are.

use axum::extract::State;
use poncho_api::Input;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ignored;
use super::lines::nanoseconds;
use super::types::{EmbedAnswer, EmbedBody, EmbeddingsBody};
use crate::dialects::embedding::{self, Embedded, Inputs};
use crate::dialects::shared::{WithWarnings, warn_of_model};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json};
use crate::http::unknown_fields::UnknownField;
use crate::http::warnings::Warnings;
use crate::models::options::{Integer, Options};
use crate::models::served::ServedModel;
use crate::models::tags;

/// Each text is a computation of its own; more of them belong into more calls.
const MAX_INPUTS: usize = 2048;

/// Vectors for some texts.
pub(crate) async fn embed(
    State(app): State<SharedApp>,
    Checked { body, unknown }: Checked<EmbedBody>,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    let arrived = Instant::now();
    let name = tags::required(body.model.as_deref())?;
    let model = app.models.resolve_keeping(name, body.keep_alive).await?;
    check_dimensions(body.dimensions, &model)?;
    let warnings = warnings(unknown, body.options.as_deref(), &model);
    let mut texts = body.input.map(|input| input.0).unwrap_or_default();
    // An empty text asks for nothing but the model.
    if matches!(texts.as_slice(), [only] if only.is_empty()) {
        texts.clear();
    }
    if texts.len() > MAX_INPUTS {
        let reason = format!("it has {} texts and may have {MAX_INPUTS}; send several requests", texts.len());
        return Err(ApiError::field("input", reason));
    }
    let inputs = texts.into_iter().map(Input::Text).collect();
    let inputs = Inputs { inputs, field: "input", truncates: body.truncate.unwrap_or(true), normalises: true };
    let Embedded { vectors: embeddings, tokens: prompt_eval_count } = embedding::embed(&app, model, inputs).await?;
    let answer = EmbedAnswer {
        model: name,
        embeddings,
        total_duration: nanoseconds(arrived.elapsed()),
        load_duration: 0,
        prompt_eval_count,
    };
    Ok(Json(WithWarnings::new(&app, json!(answer), warnings)))
}

/// The answer of `/api/embeddings`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct OldEmbedding {
    embedding: Vec<f32>,
}

/// The vector of one text.
pub(crate) async fn embeddings(
    State(app): State<SharedApp>,
    Checked { body, unknown }: Checked<EmbeddingsBody>,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    let model = app.models.resolve_keeping(tags::required(body.model.as_deref())?, body.keep_alive).await?;
    let warnings = warnings(unknown, body.options.as_deref(), &model);
    let inputs = body.prompt.into_iter().filter(|prompt| !prompt.is_empty()).map(Input::Text).collect();
    let inputs = Inputs { inputs, field: "prompt", truncates: true, normalises: false };
    let vectors = embedding::embed(&app, model, inputs).await?.vectors;
    let answer = OldEmbedding { embedding: vectors.into_iter().next().unwrap_or_default() };
    Ok(Json(WithWarnings::new(&app, json!(answer), warnings)))
}

/// Options are about replies, so none of them has an effect here.
fn warnings(unknown: Vec<UnknownField>, options: Option<&Options>, model: &ServedModel) -> Warnings {
    let mut warnings = ignored::of_reply(unknown);
    let advice = "options are about replies, and vectors have none of them; leave them out";
    warnings.ignored_if(options.is_some_and(|options| *options != Options::default()), "options", advice);
    warn_of_model(&mut warnings, model);
    warnings
}

fn check_dimensions(dimensions: Option<Integer>, model: &ServedModel) -> Result<(), ApiError> {
    let own = model.info().n_embd_out;
    match dimensions {
        None | Some(Integer(0)) => Ok(()),
        Some(Integer(wanted)) if wanted == i64::from(own) => Ok(()),
        Some(Integer(wanted)) => {
            let reason = format!("it is {wanted} and the vectors of this model have {own}; leave it out");
            Err(ApiError::field("dimensions", reason))
        }
    }
}
