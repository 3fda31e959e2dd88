//! A text, texts, tokens or lists of tokens: the four shapes in which prompts and inputs of embeddings come.
//!
//! Used by `completions.rs` and `embeddings.rs`, and by what explains a prompt. Every refusal names the field, down to the
//! element. Tokens are read as tokens, never as JSON values, and counted while they are read.

use std::borrow::Cow;
use std::fmt;

use poncho_api::Input;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, SeqAccess, Visitor};

use crate::error::ApiError;
use crate::http::token_list::{TokenList, token_of};

/// The most prompts of any field.
const MOST_PROMPTS: usize = 2048;

fn token_count(input: &Input) -> usize {
    match input {
        Input::Text(_) => 0,
        Input::Tokens(tokens) => tokens.len(),
    }
}

fn is_empty(input: &Input) -> bool {
    match input {
        Input::Text(text) => text.is_empty(),
        Input::Tokens(tokens) => tokens.is_empty(),
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
    /// Checks what came.
    pub(crate) fn read(self, Prompts { prompts, is_list }: Prompts) -> Result<Vec<Input>, ApiError> {
        let field = self.field;
        if prompts.is_empty() {
            return Err(ApiError::field(field, "it is empty"));
        }
        if prompts.len() > self.most {
            let reason = format!("it has {} elements and may have {}", prompts.len(), self.most);
            return Err(ApiError::field(field, reason));
        }
        match prompts.iter().position(is_empty).filter(|_| !self.may_be_empty) {
            Some(at) if is_list => Err(ApiError::field(format!("{field}[{at}]"), "it is empty")),
            Some(_) => Err(ApiError::field(field, "it is empty")),
            None => Ok(prompts),
        }
    }
}

/// Prompts in any of the four shapes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompts {
    prompts: Vec<Input>,
    /// Whether they came as a list of prompts.
    is_list: bool,
}

impl Prompts {
    /// The prompt, if one came and no list of them.
    pub(crate) fn one(self) -> Option<Input> {
        self.prompts.into_iter().next().filter(|_| !self.is_list)
    }

    /// Refuses tokens that a vocabulary of this size does not have.
    pub(crate) fn check_tokens(&self, field: &str, vocab: u32) -> Result<(), ApiError> {
        for (at, input) in self.prompts.iter().enumerate() {
            let Input::Tokens(tokens) = input else { continue };
            let Some(place) = tokens.iter().position(|token| *token >= vocab) else { continue };
            let list = if self.is_list { format!("{field}[{at}]") } else { field.to_owned() };
            let reason = format!("the vocabulary has {vocab} tokens; tokenize with this model");
            return Err(ApiError::field(format!("{list}[{place}]"), reason));
        }
        Ok(())
    }

    fn single(prompt: Input) -> Self {
        Self { prompts: vec![prompt], is_list: false }
    }
}

impl JsonSchema for Prompts {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Prompts".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (text, tokens) = (generator.subschema_for::<String>(), generator.subschema_for::<u32>());
        json_schema!({"anyOf": [
            text,
            {"type": "array", "items": text, "minItems": 1},
            {"type": "array", "items": tokens, "minItems": 1},
            {"type": "array", "items": {"type": "array", "items": tokens, "minItems": 1}, "minItems": 1},
        ]})
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, a list of strings, a list of tokens or a list of token lists")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompts, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Prompts, E> {
        Ok(Prompts::single(Input::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        // The first element says what the others must be.
        let first = match list.next_element_seed(Element { read: 0, takes_token: true })? {
            None => return Ok(Prompts::default()),
            Some(Item::Token(token)) => {
                let TokenList(tokens) = TokenList::read_rest(vec![token], 0, &mut list)?;
                return Ok(Prompts::single(Input::Tokens(tokens)));
            }
            Some(Item::Prompt(prompt)) => prompt,
        };
        let mut read = token_count(&first);
        let mut prompts = vec![first];
        while let Some(item) = list.next_element_seed(Element { read, takes_token: false })? {
            let Item::Prompt(prompt) = item else { continue };
            if prompts.len() >= MOST_PROMPTS {
                return Err(de::Error::custom(format_args!("it has more than {MOST_PROMPTS} elements; send fewer")));
            }
            read += token_count(&prompt);
            prompts.push(prompt);
        }
        Ok(Prompts { prompts, is_list: true })
    }
}

/// How an element of a list is read.
#[derive(Clone, Copy)]
struct Element {
    /// Tokens of the elements before it.
    read: usize,
    /// Whether it may be a token.
    takes_token: bool,
}

enum Item {
    Token(u32),
    Prompt(Input),
}

impl<'de> DeserializeSeed<'de> for Element {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Item, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element {
    type Value = Item;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.takes_token {
            "a string, a token or a list of tokens"
        } else {
            "a string or a list of tokens"
        })
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Item, E> {
        if !self.takes_token {
            return Err(E::invalid_type(de::Unexpected::Unsigned(number), &self));
        }
        token_of(number).map(Item::Token)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Item, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Item, E> {
        Ok(Item::Prompt(Input::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        let TokenList(tokens) = TokenList::read_rest(Vec::new(), self.read, &mut list)?;
        Ok(Item::Prompt(Input::Tokens(tokens)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Body {
        prompt: Prompts,
    }

    fn body(prompt: &Value) -> Result<Prompts, ApiError> {
        crate::http::body::parse::<Body>(json!({"prompt": prompt}).to_string().as_bytes()).map(|body| body.prompt)
    }

    const FORM: PromptForm = PromptForm { field: "prompt", most: 64, may_be_empty: false };

    #[test]
    fn a_prompt_has_four_shapes_and_no_other() {
        let read = |value: &Value| FORM.read(body(value)?);
        assert_eq!(read(&json!("a")).unwrap(), [Input::Text("a".into())]);
        assert_eq!(read(&json!(["a", "b"])).unwrap().len(), 2);
        assert_eq!(read(&json!([1, 2])).unwrap(), [Input::Tokens(vec![1, 2])]);
        assert_eq!(read(&json!([[1], "b"])).unwrap(), [Input::Tokens(vec![1]), Input::Text("b".into())]);
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
        assert_eq!(lenient.read(body(&json!("")).unwrap()).unwrap(), [Input::Text(String::new())]);
        assert_eq!(body(&json!([1, 2])).unwrap().one(), Some(Input::Tokens(vec![1, 2])));
        assert_eq!(body(&json!(["a"])).unwrap().one(), None);
        for (tokens, field) in [(json!([1, 9]), "prompt[1]: "), (json!(["a", [9]]), "prompt[1][0]: ")] {
            let said = body(&tokens).unwrap().check_tokens("prompt", 9).unwrap_err().to_string();
            assert!(said.starts_with(field), "{said}");
            assert!(body(&tokens).unwrap().check_tokens("prompt", 10).is_ok(), "{tokens}");
        }
    }

    /// Hardening 13: lists of lists are counted together.
    #[test]
    fn the_tokens_of_all_lists_are_counted_while_they_are_read() {
        let half = vec![1; crate::http::token_list::MOST_TOKENS / 2];
        assert!(body(&json!([half, half])).is_ok());
        let refused = body(&json!([half, half, [1]])).unwrap_err().to_string();
        assert!(refused.starts_with("prompt[2]: it has more than 4194304 tokens"), "{refused}");
        let refused = body(&json!(vec!["a"; MOST_PROMPTS + 1])).unwrap_err().to_string();
        assert!(refused.contains("more than 2048 elements"), "{refused}");
    }
}
