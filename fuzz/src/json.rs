//! JSON values made of raw bytes: any value, a JSON schema, or a conversation.
//!
//! Used by the targets for schemas and templates. Every input gives a value; depth and size are bounded by the input, so
//! that libFuzzer decides how large a value becomes.

use serde_json::{Map, Value, json};

/// Reads choices from the input until it is used up; after that every choice is 0.
pub struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Choices from this input.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    /// A number below `most`.
    pub fn below(&mut self, most: u8) -> u8 {
        self.byte() % most.max(1)
    }

    /// Whether anything is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is left, as it is.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// A short text: some are marks of templates and patterns, the others are bytes of the input.
    pub fn text(&mut self) -> String {
        const KNOWN: [&str; 20] = [
            "",
            "a",
            "ä",
            "\u{0}",
            "\n",
            "<|im_start|>",
            "<|im_end|>",
            "</s>",
            "<think>",
            "</think>",
            "{{",
            "{%",
            "\"",
            "\\",
            "^[a-z]{1,9}$",
            "^(a|b)*c?$",
            "date-time",
            "#/$defs/a",
            "#",
            "\u{202e}",
        ];
        let choice = self.byte();
        if let Some(known) = KNOWN.get(usize::from(choice % 32)) {
            return (*known).to_owned();
        }
        let length = usize::from(self.below(24)).min(self.bytes.len());
        let (text, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        String::from_utf8_lossy(text).into_owned()
    }

    fn number(&mut self) -> Value {
        match self.below(8) {
            0 => json!(0),
            1 => json!(-1),
            2 => json!(1.5),
            3 => json!(u64::MAX),
            4 => json!(i64::MIN),
            5 => json!(1e300),
            _ => json!(i64::from(self.byte()) * i64::from(self.byte())),
        }
    }

    /// Any value.
    pub fn value(&mut self, depth: u8) -> Value {
        match self.below(if depth == 0 { 4 } else { 6 }) {
            0 => Value::Null,
            1 => json!(self.byte() & 1 == 1),
            2 => self.number(),
            3 => json!(self.text()),
            4 => Value::Array((0..self.below(6)).map(|_| self.value(depth - 1)).collect()),
            _ => {
                let fields = (0..self.below(6)).map(|_| (self.text(), self.value(depth - 1)));
                Value::Object(fields.collect())
            }
        }
    }

    /// A JSON schema, mostly of a sensible shape.
    pub fn schema(&mut self, depth: u8) -> Value {
        let mut schema = Map::new();
        for _ in 0..=self.below(4) {
            if self.is_empty() {
                break;
            }
            let (keyword, value) = self.keyword(depth);
            schema.insert(keyword.to_owned(), value);
        }
        Value::Object(schema)
    }

    fn keyword(&mut self, depth: u8) -> (&'static str, Value) {
        const TYPES: [&str; 8] = ["object", "array", "string", "number", "integer", "boolean", "null", "odd"];
        const NUMBERS: [&str; 12] = [
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "multipleOf",
            "const",
        ];
        const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
        const MAPS: [&str; 3] = ["properties", "$defs", "definitions"];
        const ONE: [&str; 3] = ["items", "additionalProperties", "not"];
        let deeper = depth.saturating_sub(1);
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0 => ("type", json!(TYPES.get(usize::from(self.below(8))))),
            1 => (pick(&NUMBERS, self.byte()), self.number()),
            2 => ("enum", Value::Array((0..self.below(12)).map(|_| self.value(1)).collect())),
            3 => (if self.byte() & 1 == 0 { "pattern" } else { "format" }, json!(self.text())),
            4 => ("$ref", json!(self.text())),
            5 => ("required", Value::Array((0..self.below(5)).map(|_| json!(self.text())).collect())),
            6 => (pick(&LISTS, self.byte()), Value::Array((0..self.below(5)).map(|_| self.schema(deeper)).collect())),
            7 => {
                let fields = (0..self.below(8)).map(|_| (self.text(), self.schema(deeper))).collect();
                (pick(&MAPS, self.byte()), Value::Object(fields))
            }
            _ => (pick(&ONE, self.byte()), if self.byte() & 3 == 0 { self.value(1) } else { self.schema(deeper) }),
        }
    }

    /// Messages of a conversation, mostly of a sensible shape.
    pub fn messages(&mut self) -> Value {
        const ROLES: [&str; 6] = ["system", "user", "assistant", "tool", "developer", "odd"];
        let message = |choices: &mut Self| {
            let mut message = Map::new();
            message.insert("role".to_owned(), json!(pick(&ROLES, choices.byte())));
            let content = match choices.below(6) {
                0 => choices.value(2),
                1 => json!([{"type": "text", "text": choices.text()}, {"type": "text", "text": choices.text()}]),
                _ => json!(choices.text()),
            };
            message.insert("content".to_owned(), content);
            match choices.below(6) {
                0 => {
                    let arguments = if choices.byte() & 1 == 0 { choices.value(2).to_string() } else { choices.text() };
                    let function = json!({"name": choices.text(), "arguments": arguments});
                    let call = json!([{"id": choices.text(), "type": "function", "function": function}]);
                    message.insert("tool_calls".to_owned(), call);
                }
                1 => {
                    message.insert("tool_call_id".to_owned(), json!(choices.text()));
                    message.insert("name".to_owned(), json!(choices.text()));
                }
                2 => {
                    message.insert("reasoning_content".to_owned(), choices.value(1));
                }
                3 => {
                    message.insert(choices.text(), choices.value(2));
                }
                _ => {}
            }
            Value::Object(message)
        };
        Value::Array((0..=self.below(6)).map(|_| message(self)).collect())
    }
}

fn pick<'t>(all: &[&'t str], choice: u8) -> &'t str {
    all.get(usize::from(choice) % all.len().max(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_gives_values_and_an_empty_one_ends() {
        assert_eq!(Choices::new(&[]).value(9), Value::Null);
        assert_eq!(Choices::new(&[]).messages().as_array().map(Vec::len), Some(1));
        let next = |seed: &u32| Some(seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        let bytes: Vec<u8> =
            std::iter::successors(Some(1), next).map(|seed| seed.to_le_bytes()[3]).take(20_000).collect();
        let mut choices = Choices::new(&bytes);
        let mut kinds = std::collections::BTreeSet::new();
        while !choices.is_empty() {
            kinds.extend(choices.schema(4).as_object().into_iter().flat_map(|schema| schema.keys().cloned()));
        }
        assert!(kinds.len() > 12, "{kinds:?}");
    }
}
