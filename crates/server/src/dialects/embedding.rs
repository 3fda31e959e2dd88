//! Vectors for the inputs of a client, common to the endpoints that embed.
//!
//! Used by `ollama/embed.rs` and `openai/embeddings.rs`. The engine computes one input at a time between the replies in
//! flight; a client that goes away, or whose time is over, ends the work at once: what is not tokenized or computed by
//! then never is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use poncho_engine::{EngineError, Mode};

use crate::dialects::shared::blocking;
use crate::http::app::SharedApp;
use crate::http::error::ApiError;
use crate::models::served::ServedModel;

/// The tokens of the input at a place.
type Tokenize = dyn FnMut(&ServedModel, usize) -> Result<Vec<u32>, ApiError> + Send;

/// Texts to tokens, one by one on a blocking thread, in the time that a request has.
pub(crate) struct Inputs {
    /// How many there are.
    pub(crate) count: usize,
    /// The tokens of the one at that place.
    pub(crate) tokens: Box<Tokenize>,
}

/// What was computed.
pub(crate) struct Embedded {
    /// One for each input, in their order.
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Tokens in all of them.
    pub(crate) tokens: usize,
}

/// Embeds inputs; the vectors have length 1 if `normalises`.
///
/// # Errors
/// An input is refused, there is no memory for it, or the time is over.
pub(crate) async fn embed(
    app: &SharedApp,
    model: ServedModel,
    inputs: Inputs,
    normalises: bool,
) -> Result<Embedded, ApiError> {
    if inputs.count == 0 {
        return Ok(Embedded { vectors: Vec::new(), tokens: 0 });
    }
    let work = compute(app, model, inputs, normalises);
    match app.config.request_timeout {
        Some(limit) => tokio::time::timeout(limit, work).await.map_err(|_| ApiError::Timeout { limit })?,
        None => work.await,
    }
}

async fn compute(
    app: &SharedApp,
    model: ServedModel,
    mut inputs: Inputs,
    normalises: bool,
) -> Result<Embedded, ApiError> {
    let guard = GoneGuard::default();
    let (is_gone, tokenizing) = (Arc::clone(&guard.is_gone), model.clone());
    let tokens = blocking("tokenized the inputs", move || {
        let mut all = Vec::with_capacity(inputs.count);
        for at in 0..inputs.count {
            // Nobody reads what comes of it.
            if is_gone.load(Ordering::Relaxed) {
                return Err(ApiError::ShuttingDown);
            }
            all.push((inputs.tokens)(&tokenizing, at)?);
        }
        Ok(all)
    })
    .await?;
    let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
    let count = tokens.iter().map(Vec::len).sum();
    // First, so that nothing is unloaded for an input that is refused.
    let limit = model.limits().longest_prompt(Mode::Complete);
    if longest > limit {
        return Err(EngineError::PromptTooLong { tokens: longest, limit }.into());
    }
    app.models.manager().reserve_embedding(&model, longest).await?;
    let vectors = model.start_embedding(tokens, normalises)?.ready().await?;
    if vectors.iter().flatten().any(|value| !value.is_finite()) {
        return Err(ApiError::Internal { doing: "computed a vector that is none" });
    }
    Ok(Embedded { vectors, tokens: count })
}

/// Tells a blocking thread that nobody waits for it any longer.
#[derive(Default)]
struct GoneGuard {
    is_gone: Arc<AtomicBool>,
}

impl Drop for GoneGuard {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }
}
