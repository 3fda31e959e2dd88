//! Filling in the middle: a prompt with a hole, as models that were trained for it read one.
//!
//! Used by `completions.rs` for `suffix`. The marks come from the model file's metadata; texts of the client never become
//! marks, or a file that mentions one could not be completed.

use poncho_engine::Model;
use poncho_engine::backend::TokenizeMode;

use super::prompt::Prompt;
use crate::error::ApiError;

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
    /// Looks up the model's marks.
    pub(crate) fn new(model: &Model, suffix: &str) -> Result<Self, ApiError> {
        // Each has a newer and an older name.
        let mark = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| model.metadata(&format!("tokenizer.ggml.{name}_token_id")));
            let token = found.and_then(|id| id.trim().parse().ok()).filter(|token| *token < model.limits().vocab);
            token.ok_or_else(|| {
                let reason = "this model has no marks for filling in the middle; leave it out or use a model for code";
                ApiError::field("suffix", reason)
            })
        };
        let before = mark(["fim_pre", "prefix"])?;
        let after = mark(["fim_suf", "suffix"])?;
        let hole = mark(["fim_mid", "middle"])?;
        let info = model.info();
        let head = info.special.bos.filter(|_| info.add_bos).into_iter().chain([before]).collect();
        let mut tail = vec![after];
        tail.extend(model.tokenize(suffix, PLAIN)?);
        tail.push(hole);
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
