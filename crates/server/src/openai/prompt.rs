//! A text, texts, tokens or lists of tokens: the four shapes in which prompts and inputs of embeddings come.
//!
//! Used by `completions.rs` and `embeddings.rs`. Every refusal names the field, down to the element.

use poncho_engine::Model;
use poncho_engine::backend::{SpecialText, TokenizeMode};
use serde_json::Value;

use crate::error::ApiError;

/// A prompt as it came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Its tokens; `mode` is for texts only.
    pub(crate) fn tokens(&self, model: &Model, mode: TokenizeMode) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Text(text) => Ok(model.tokenize(text, mode)?),
            Self::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    /// Its text.
    pub(crate) fn text(&self, model: &Model) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Tokens(tokens) => model.detokenize(tokens, SpecialText::Render),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Tokens(tokens) => tokens.is_empty(),
        }
    }
}

/// What a field may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptForm {
    /// Its name.
    pub(crate) field: &'static str,
    /// The most prompts.
    pub(crate) most: usize,
    /// Whether a prompt without text makes sense.
    pub(crate) may_be_empty: bool,
}

impl PromptForm {
    /// Reads the four shapes.
    pub(crate) fn read(self, value: &Value) -> Result<Vec<Prompt>, ApiError> {
        let field = self.field;
        let shape = "it must be a string, a list of strings, a list of tokens or a list of token lists";
        let is_list =
            matches!(value.as_array().and_then(|items| items.first()), Some(Value::String(_) | Value::Array(_)));
        let prompts = match value {
            Value::String(text) => vec![Prompt::Text(text.clone())],
            Value::Array(items) => match items.first() {
                Some(Value::Number(_)) => vec![Prompt::Tokens(tokens(field, items)?)],
                Some(_) => {
                    items.iter().enumerate().map(|(at, item)| element(field, at, item)).collect::<Result<_, _>>()?
                }
                None => return Err(ApiError::field(field, "it is empty")),
            },
            _ => return Err(ApiError::field(field, shape)),
        };
        if prompts.len() > self.most {
            let reason = format!("it has {} elements and may have {}", prompts.len(), self.most);
            return Err(ApiError::field(field, reason));
        }
        match prompts.iter().position(Prompt::is_empty).filter(|_| !self.may_be_empty) {
            Some(at) if is_list => Err(ApiError::field(format!("{field}[{at}]"), "it is empty")),
            Some(_) => Err(ApiError::field(field, "it is empty")),
            None => Ok(prompts),
        }
    }
}

fn element(field: &str, at: usize, item: &Value) -> Result<Prompt, ApiError> {
    let field = format!("{field}[{at}]");
    match item {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(items) => Ok(Prompt::Tokens(tokens(&field, items)?)),
        _ => Err(ApiError::field(field, "it must be a string or a list of tokens")),
    }
}

fn tokens(field: &str, items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let read = |(at, item): (usize, &Value)| {
        let token = item.as_u64().and_then(|token| u32::try_from(token).ok());
        token.ok_or_else(|| ApiError::field(format!("{field}[{at}]"), "it is no token"))
    };
    items.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FORM: PromptForm = PromptForm { field: "prompt", most: 64, may_be_empty: false };

    #[test]
    fn a_prompt_has_four_shapes_and_no_other() {
        let read = |value: &Value| FORM.read(value);
        assert_eq!(read(&json!("a")).unwrap(), [Prompt::Text("a".into())]);
        assert_eq!(read(&json!(["a", "b"])).unwrap().len(), 2);
        assert_eq!(read(&json!([1, 2])).unwrap(), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(read(&json!([[1], "b"])).unwrap(), [Prompt::Tokens(vec![1]), Prompt::Text("b".into())]);
        for (wrong, field) in [
            (json!(5), "prompt: "),
            (json!([]), "prompt: "),
            (json!(""), "prompt: "),
            (json!([[]]), "prompt[0]: "),
            (json!(["a", ""]), "prompt[1]: "),
            (json!([1, -2]), "prompt[1]: "),
            (json!([1, "a"]), "prompt[1]: "),
            (json!(["a", {}]), "prompt[1]: "),
            (json!([[1, 2.5]]), "prompt[0][1]: "),
            (json!([4_294_967_296_u64]), "prompt[0]: "),
            (json!(vec!["a"; 65]), "prompt: "),
        ] {
            let said = read(&wrong).unwrap_err().to_string();
            assert!(said.starts_with(field), "{wrong}: {said}");
        }
        let lenient = PromptForm { may_be_empty: true, ..FORM };
        assert_eq!(lenient.read(&json!("")).unwrap(), [Prompt::Text(String::new())]);
    }
}
