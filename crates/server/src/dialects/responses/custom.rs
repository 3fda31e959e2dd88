//! Custom tools: tools that take a text instead of JSON, such as Codex's `apply_patch`.
//!
//! A template knows functions only, so the model sees a function with one text; called by `tools` on the way in, by
//! `compose`, which takes the text out of the call again, and by `messages`, which puts it back. A grammar of such a tool is
//! a part of its description. It must never fail on what a model writes: a call that is not as it should be is the text.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::types::ToolBody;
use crate::dialects::openai::convert::function_tool;
use crate::dialects::openai::types::FunctionDefinition;
use crate::error::ApiError;
use crate::http::body::Object;
use poncho_api::Tool;

/// The `type` of such a tool.
pub(crate) const CUSTOM: &str = "custom";

/// The arguments that the model sees. `opening` reads the same form.
const PARAMETERS: &str = r#"{"type":"object","properties":{"input":{"type":"string","description":"The whole input of the tool as one text"}},"required":["input"],"additionalProperties":false}"#;

/// A custom tool as a function.
pub(crate) fn tool(body: &ToolBody, field: impl Fn(&str) -> String) -> Result<Tool, ApiError> {
    let name = body.name.as_deref().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ApiError::field(field("name"), "a custom tool needs a name"))?.to_owned();
    let wrong = |reason: &str| ApiError::field(field("format"), reason);
    let text = |name: &str| body.format.as_ref().and_then(|format| format.get(name)).and_then(Value::as_str);
    let rule = match (body.format.is_some(), text("type")) {
        (false, _) | (true, Some("text")) => None,
        (true, Some("grammar")) => {
            let syntax = text("syntax").filter(|syntax| ["lark", "regex"].contains(syntax));
            let syntax = syntax.ok_or_else(|| wrong("a grammar has the syntax lark or regex"))?;
            let definition = text("definition").ok_or_else(|| wrong("a grammar needs a definition"))?;
            Some(format!("The input follows this grammar ({syntax}):\n{definition}"))
        }
        (true, _) => return Err(wrong("its type must be text or grammar")),
    };
    let parts: Vec<String> = body.description.clone().into_iter().chain(rule).collect();
    let description = (!parts.is_empty()).then(|| parts.join("\n\n"));
    let parameters = RawValue::from_string(PARAMETERS.to_owned()).ok();
    function_tool(&FunctionDefinition { name, description, parameters, strict: None }, field)
}

/// The names of all custom tools of a request.
pub(crate) fn names(bodies: &[Object<ToolBody>]) -> Vec<String> {
    bodies.iter().filter(|body| body.kind == CUSTOM).filter_map(|body| body.name.clone()).collect()
}

/// Whether a tool has a grammar.
pub(crate) fn has_grammar(body: &ToolBody) -> bool {
    body.kind == CUSTOM && body.format.as_ref().is_some_and(|format| format.get("definition").is_some())
}

/// The arguments of a call with this input.
pub(crate) fn arguments(input: &str) -> String {
    json!({"input": input}).to_string()
}

/// Reads the input out of the arguments while they are written.
#[derive(Debug, Default)]
pub(crate) struct InputReader {
    arguments: String,
    /// Where the text that was not read yet starts.
    at: usize,
    stage: Stage,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Before,
    Inside,
    After,
}

impl InputReader {
    /// More of the arguments; returns what it adds to the input.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        self.arguments.push_str(piece);
        if self.stage == Stage::Before
            && let Some(at) = opening(&self.arguments)
        {
            (self.at, self.stage) = (at, Stage::Inside);
        }
        if self.stage != Stage::Inside {
            return String::new();
        }
        let rest = self.arguments.get(self.at..).unwrap_or_default();
        let (length, ends) = readable(rest.as_bytes());
        let written = rest.get(..length).unwrap_or_default();
        let text = serde_json::from_str(&format!("\"{written}\"")).unwrap_or_else(|_| written.to_owned());
        self.at += length;
        if ends {
            self.stage = Stage::After;
        }
        text
    }

    /// The input of a call that has ended; `None` if the reply was cut inside it.
    pub(crate) fn whole(&self) -> Option<String> {
        let read: Option<Value> = serde_json::from_str(&self.arguments).ok();
        let input = read.as_ref().and_then(|read| read.get("input")).and_then(Value::as_str);
        match input {
            Some(input) => Some(input.to_owned()),
            None if self.stage == Stage::Before => Some(self.arguments.clone()),
            None => None,
        }
    }
}

/// Where the input starts.
fn opening(arguments: &str) -> Option<usize> {
    let rest = arguments.trim_start().strip_prefix('{')?.trim_start().strip_prefix("\"input\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    arguments.len().checked_sub(rest.len())
}

/// How many bytes of a JSON text hold whole characters, and whether its closing quote follows them.
fn readable(text: &[u8]) -> (usize, bool) {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let length = match (byte, text.get(at + 1)) {
            (b'"', _) => return (at, true),
            (b'\\', None) => break,
            // The first half of a character outside of the basic plane comes with the second one.
            (b'\\', Some(b'u')) => match text.get(at + 2..at + 4) {
                Some([b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B']) => 12,
                Some(_) => 6,
                None => break,
            },
            (b'\\', Some(_)) => 2,
            _ => 1,
        };
        if at + length > text.len() {
            break;
        }
        at += length;
    }
    (at, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read if the arguments come in two pieces.
    fn read(arguments: &str, cut: usize) -> (String, Option<String>) {
        let mut reader = InputReader::default();
        let mut text = reader.push(&arguments[..cut]);
        text.push_str(&reader.push(&arguments[cut..]));
        (text, reader.whole())
    }

    #[test]
    fn the_input_is_read_wherever_the_arguments_are_cut() {
        let input = "*** Begin \"Patch\"\n\\u + \u{1f600} \u{e9} / \t";
        let spaced = r#" { "input" : "*** Begin \"Patch\"\n\\u + \ud83d\ude00 \u00e9 \/ \t" } "#;
        for arguments in [arguments(input), spaced.to_owned()] {
            let cuts = (0..=arguments.len()).filter(|cut| arguments.is_char_boundary(*cut));
            for cut in cuts {
                assert_eq!(read(&arguments, cut), (input.to_owned(), Some(input.to_owned())), "{cut}: {arguments}");
            }
        }
    }

    #[test]
    fn what_is_not_an_input_is_the_text_and_a_cut_one_is_what_was_read() {
        assert_eq!(read("plain text", 3), (String::new(), Some("plain text".to_owned())));
        assert_eq!(read(r#"{"patch": 1}"#, 3), (String::new(), Some(r#"{"patch": 1}"#.to_owned())));
        assert_eq!(read(r#"{"input": 1}"#, 3), (String::new(), Some(r#"{"input": 1}"#.to_owned())));
        assert_eq!(read(r#"{"note": 1, "input": "a"}"#, 3), (String::new(), Some("a".to_owned())));
        assert_eq!(read(r#"{"input":"a\ud83"#, 3), ("a".to_owned(), None));
        assert_eq!(read("{\"input\":\"raw\nline\"}", 3), ("raw\nline".to_owned(), None));
        assert_eq!(read("", 0), (String::new(), Some(String::new())));
    }
}
