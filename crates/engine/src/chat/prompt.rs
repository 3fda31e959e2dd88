//! The tokens of prompts that are used as they are: written ones, stretches of text, texts around a gap.
//!
//! Called by the host for prompts without a conversation, and for inputs of embeddings. Text of a client never becomes a
//! special token unless it wrote the whole prompt.

use poncho_api::{EngineError, Input, Mode, Prompt, PromptPart};

use crate::backend::TokenizeMode;
use crate::model::Model;

/// How many contexts a prompt may fill that is only counted.
const COUNTED_CONTEXTS: usize = 4;

/// A whole prompt has its marks in it.
const WRITTEN: TokenizeMode = TokenizeMode { add_special: true, parse_special: true };
/// What is appended to a session is not the start of a text.
const APPENDED: TokenizeMode = TokenizeMode { add_special: false, parse_special: true };
/// Texts of the client.
const PLAIN: TokenizeMode = TokenizeMode { add_special: false, parse_special: false };

/// The most tokens of a text that is only counted or shown: clients want to know by how much a prompt is too long.
pub(crate) fn most_counted(model: &Model) -> usize {
    model.limits().context.saturating_mul(COUNTED_CONTEXTS)
}

/// The tokens of a prompt without a conversation, at most `limit` by its size. An error names `prompt` or `suffix`.
pub(crate) fn prompt_tokens(model: &Model, prompt: &Prompt, mode: Mode, limit: usize) -> Result<Vec<u32>, EngineError> {
    let in_prompt = |error: EngineError| error.in_field("prompt");
    let written = if mode == Mode::Continue { APPENDED } else { WRITTEN };
    match prompt {
        Prompt::Chat(_) => Err(EngineError::internal("read a conversation as a plain prompt")),
        Prompt::Written(input) => input_tokens(model, input, written, limit).map_err(in_prompt),
        Prompt::Parts(parts) => part_tokens(model, parts, limit).map_err(in_prompt),
        Prompt::Fill { before, after } => fill_tokens(model, before, after, limit),
    }
}

/// The tokens of a text or of tokens; `mode` is for texts only.
fn input_tokens(model: &Model, input: &Input, mode: TokenizeMode, limit: usize) -> Result<Vec<u32>, EngineError> {
    match input {
        Input::Text(text) => model.tokenize_within(text, mode, limit),
        Input::Tokens(tokens) => Ok(tokens.clone()),
    }
}

fn part_tokens(model: &Model, parts: &[PromptPart], limit: usize) -> Result<Vec<u32>, EngineError> {
    model.check_size(parts.iter().map(|part| part.text.as_str()), limit)?;
    let mut tokens = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        let mode = TokenizeMode { add_special: place == 0, parse_special: !part.is_input };
        tokens.extend(model.tokenize(&part.text, mode)?);
    }
    Ok(tokens)
}

/// The text before the gap, the text after it, and the place where the model goes on, between the model's own marks.
fn fill_tokens(model: &Model, before: &Input, after: &str, limit: usize) -> Result<Vec<u32>, EngineError> {
    let info = model.info();
    let marks = info.special.fill.ok_or_else(|| {
        let reason = "this model has no marks for filling in the middle; leave it out or use a model for code";
        EngineError::input("suffix", reason)
    })?;
    if let Input::Text(before) = before {
        model.check_size([before, after], limit)?;
    }
    let mut tokens: Vec<u32> = info.special.bos.filter(|_| info.add_bos).into_iter().collect();
    tokens.push(marks.prefix);
    tokens.extend(input_tokens(model, before, PLAIN, limit).map_err(|error| error.in_field("prompt"))?);
    tokens.push(marks.suffix);
    tokens.extend(model.tokenize_within(after, PLAIN, limit).map_err(|error| error.in_field("suffix"))?);
    tokens.push(marks.middle);
    Ok(tokens)
}

/// The tokens of an input that is to be embedded; cut to the context if `truncates`, and else refused if it is longer.
pub(crate) fn embedding_input(model: &Model, input: &Input, truncates: bool) -> Result<Vec<u32>, EngineError> {
    let text = match input {
        Input::Tokens(tokens) => return Ok(tokens.clone()),
        Input::Text(text) => text,
    };
    let limit = model.limits().longest_prompt(Mode::Complete);
    if !truncates {
        model.check_size([text.as_str()], limit)?;
    }
    let mode = TokenizeMode { add_special: true, parse_special: false };
    let mut tokens = model.tokenize(model.beginning(text, limit), mode)?;
    if tokens.len() > limit {
        if !truncates {
            return Err(EngineError::PromptTooLong { tokens: tokens.len(), limit });
        }
        // The mark at the end stays, because models that pool there look at it.
        let info = model.info();
        let end = tokens.last().copied().filter(|last| info.add_eos && Some(*last) == info.special.eos);
        tokens.truncate(limit);
        if let (Some(end), Some(last)) = (end, tokens.last_mut()) {
            *last = end;
        }
    }
    Ok(tokens)
}
