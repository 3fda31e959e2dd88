//! Filling in the middle: a prompt with a hole, as models that were trained for it read one.
//!
//! Used by `completions.rs` for `suffix`. The marks are the ones that the engine found in the model; texts of the client
//! never become marks, or a file that mentions one could not be completed.

use poncho_engine::Model;
use poncho_engine::backend::TokenizeMode;

use super::prompt::Prompt;
use crate::http::error::ApiError;

/// Texts of the client.
const PLAIN: TokenizeMode = TokenizeMode { add_special: false, parse_special: false };

/// What stands around the hole but the prompt.
#[derive(Debug)]
pub(crate) struct Fill {
    /// Before the prompt.
    head: Vec<u32>,
    /// After it: the suffix between its mark and the mark of the hole.
    tail: Vec<u32>,
}

impl Fill {
    /// Takes the model's marks.
    pub(crate) fn new(model: &Model, suffix: &str) -> Result<Self, ApiError> {
        let info = model.info();
        let marks = info.special.fill.ok_or_else(|| {
            let reason = "this model has no marks for filling in the middle; leave it out or use a model for code";
            ApiError::field("suffix", reason)
        })?;
        let head = info.special.bos.filter(|_| info.add_bos).into_iter().chain([marks.prefix]).collect();
        let mut tail = vec![marks.suffix];
        let after = model.tokenize_within(suffix, PLAIN, model.limits().context);
        tail.extend(after.map_err(|error| ApiError::from(error).in_field("suffix"))?);
        tail.push(marks.middle);
        Ok(Self { head, tail })
    }

    /// The whole prompt.
    pub(crate) fn tokens(&self, model: &Model, prompt: &Prompt) -> Result<Vec<u32>, ApiError> {
        let mut tokens = self.head.clone();
        tokens.extend(prompt.tokens(model, PLAIN)?);
        tokens.extend(&self.tail);
        Ok(tokens)
    }
}
