//! Vectors for the inputs of a client, common to the endpoints that embed.
//!
//! Used by `ollama/embed.rs` and `openai/embeddings.rs`. The engine computes one input at a time between the replies in
//! flight. When a client disconnects or its time limit passes, the work stops at once: the remaining inputs are neither
//! tokenized nor computed.

use poncho_api::{EngineError, Input, Mode};

use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::models::served::ServedModel;

/// What is to be embedded.
pub(crate) struct Inputs {
    pub(crate) inputs: Vec<Input>,
    /// Where they stand in the request.
    pub(crate) field: &'static str,
    /// Whether an input that is too long is cut.
    pub(crate) truncates: bool,
    /// Whether the vectors get length 1.
    pub(crate) normalises: bool,
}

/// What was computed.
pub(crate) struct Embedded {
    /// One for each input, in their order.
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Tokens in all of them.
    pub(crate) tokens: usize,
}

/// Embeds inputs.
///
/// # Errors
/// An input is refused, there is no memory for it, or the time is over.
pub(crate) async fn embed(app: &SharedApp, model: ServedModel, inputs: Inputs) -> Result<Embedded, ApiError> {
    if inputs.inputs.is_empty() {
        return Ok(Embedded { vectors: Vec::new(), tokens: 0 });
    }
    let work = compute(app, &model, inputs);
    match app.config.request_timeout {
        Some(limit) => tokio::time::timeout(limit, work).await.map_err(|_| ApiError::Timeout { limit })?,
        None => work.await,
    }
}

async fn compute(app: &SharedApp, model: &ServedModel, inputs: Inputs) -> Result<Embedded, ApiError> {
    let Inputs { inputs, field, truncates, normalises } = inputs;
    let tokens = model.embedding_inputs(inputs, truncates).await.map_err(|error| match ApiError::from(error) {
        ApiError::Field { field: at, reason } => ApiError::field(format!("{field}{at}"), reason),
        other => other,
    })?;
    if let Some(at) = tokens.iter().position(Vec::is_empty) {
        return Err(ApiError::field(format!("{field}[{at}]"), "it is empty"));
    }
    let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
    let count = tokens.iter().map(Vec::len).sum();
    // First, so that nothing is unloaded for an input that is refused.
    let limit = model.limits().longest_prompt(Mode::Complete);
    if longest > limit {
        return Err(EngineError::PromptTooLong { tokens: longest, limit }.into());
    }
    app.models.manager().reserve_embedding(&**model, longest).await?;
    let vectors = model.embed(tokens, normalises).await?;
    if vectors.iter().flatten().any(|value| !value.is_finite()) {
        return Err(ApiError::Internal { doing: "computed a vector that is none" });
    }
    Ok(Embedded { vectors, tokens: count })
}
