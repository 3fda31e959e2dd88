//! `POST /api/embed` and the older `POST /api/embeddings`: texts as vectors.
//!
//! Pooled as the model says, else the mean. Every text is computed alone (`embedding.rs`), so that many at once give the
//! same vectors as one by one, and other requests go on in between. The newer endpoint sends vectors of length 1, the older one sends them as they are.

use axum::extract::State;
use poncho_engine::backend::TokenizeMode;
use poncho_engine::{EngineError, Mode};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::lines::nanoseconds;
use super::names;
use super::options::Integer;
use super::types::{EmbedAnswer, EmbedBody, EmbeddingsBody};
use crate::dialects::embedding::{self, Embedded, Inputs};
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::http::error::ApiError;
use crate::models::served::ServedModel;

/// Each text is a computation of its own; more of them belong into more calls.
const MAX_INPUTS: usize = 2048;

/// Vectors for some texts.
pub(crate) async fn embed(State(app): State<SharedApp>, Json(body): Json<EmbedBody>) -> Result<Json<Value>, ApiError> {
    let arrived = Instant::now();
    let name = names::required(body.model.as_deref())?;
    let model = app.models.resolve_keeping(name, body.keep_alive).await?;
    check_dimensions(body.dimensions, &model)?;
    let mut texts = body.input.map(|input| input.0).unwrap_or_default();
    // An empty text asks for nothing but the model.
    if matches!(texts.as_slice(), [only] if only.is_empty()) {
        texts.clear();
    }
    if texts.len() > MAX_INPUTS {
        let reason = format!("it has {} texts and may have {MAX_INPUTS}; send several requests", texts.len());
        return Err(ApiError::field("input", reason));
    }
    let job = Job { texts, field: "input", truncates: body.truncate.unwrap_or(true), normalises: true };
    let Embedded { vectors: embeddings, tokens: prompt_eval_count } = job.run(&app, model).await?;
    let answer = EmbedAnswer {
        model: name,
        embeddings,
        total_duration: nanoseconds(arrived.elapsed()),
        load_duration: 0,
        prompt_eval_count,
    };
    Ok(Json(json!(answer)))
}

/// The vector of one text.
pub(crate) async fn embeddings(
    State(app): State<SharedApp>,
    Json(body): Json<EmbeddingsBody>,
) -> Result<Json<Value>, ApiError> {
    let model = app.models.resolve_keeping(names::required(body.model.as_deref())?, body.keep_alive).await?;
    let texts: Vec<String> = body.prompt.into_iter().filter(|prompt| !prompt.is_empty()).collect();
    let job = Job { texts, field: "prompt", truncates: true, normalises: false };
    let vectors = job.run(&app, model).await?.vectors;
    Ok(Json(json!({"embedding": vectors.into_iter().next().unwrap_or_default()})))
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

struct Job {
    texts: Vec<String>,
    /// Where the texts stand in the request.
    field: &'static str,
    truncates: bool,
    normalises: bool,
}

impl Job {
    async fn run(self, app: &SharedApp, model: ServedModel) -> Result<Embedded, ApiError> {
        let (count, normalises) = (self.texts.len(), self.normalises);
        let tokens = move |model: &ServedModel, at: usize| {
            let text = self.texts.get(at).map(String::as_str).unwrap_or_default();
            self.tokens(model, at, text)
        };
        embedding::embed(app, model, Inputs { count, tokens: Box::new(tokens) }, normalises).await
    }

    fn tokens(&self, model: &ServedModel, at: usize, text: &str) -> Result<Vec<u32>, ApiError> {
        let limit = model.limits().longest_prompt(Mode::Complete);
        if !self.truncates {
            model.check_size([text], limit)?;
        }
        let field = || format!("{}[{at}]", self.field);
        let mode = TokenizeMode { add_special: true, parse_special: false };
        let tokens = model.tokenize(model.beginning(text, limit), mode);
        let mut tokens = tokens.map_err(|error| ApiError::from(error).in_field(field()))?;
        if tokens.is_empty() {
            return Err(ApiError::field(field(), "it is empty"));
        }
        if tokens.len() > limit {
            if !self.truncates {
                return Err(EngineError::PromptTooLong { tokens: tokens.len(), limit }.into());
            }
            // The mark at the end stays, because models that pool there look at it.
            let end =
                tokens.last().copied().filter(|last| model.info().add_eos && Some(*last) == model.info().special.eos);
            tokens.truncate(limit);
            if let (Some(end), Some(last)) = (end, tokens.last_mut()) {
                *last = end;
            }
        }
        Ok(tokens)
    }
}
