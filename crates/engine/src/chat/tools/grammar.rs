//! The grammar of generic calls, made from the tools' JSON schemas.
//!
//! Called by `turn.rs`. Each schema is turned into rules by the model's backend on its own, so that references inside
//! it stay valid, and its rules get a name of their own before they are put together. A schema that cannot be turned
//! into rules is refused with the tool's name.

use std::fmt::Write;

use poncho_api::{ChatTurn, Choice, EngineError, Grammar, GrammarSource, Tool, Trigger};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{CALL_CLOSE, CALL_OPEN};
use crate::chat::preparing::client_left;
use crate::model::Model;

/// What a tool takes if it does not say: an object.
const ANY_ARGUMENTS: &str = r#"{"type":"object"}"#;
/// Keywords that say what a value is; a schema without any of them would allow more than an object.
const KINDS: [&str; 8] = ["type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];

#[derive(Deserialize)]
struct Definition<'a> {
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

/// What constrains the reply to a turn with tools: calls from the first token where they are required; otherwise as
/// soon as one begins, or, if the text must follow a schema, that or calls. Where the prompt opened a thinking block, it
/// says what closes it: a call inside of it would be a thought.
pub(crate) fn generic_grammar(
    model: &Model,
    turn: &ChatTurn,
    thinking_end: Option<&str>,
) -> Result<Option<Grammar>, EngineError> {
    if turn.choice == Choice::None {
        return Ok(None);
    }
    let only = turn.choice.names();
    let may_be_called = |tool: &Tool| only.as_ref().is_none_or(|names| names.contains(&tool.name.as_str()));
    let tools = turn.tools.iter().enumerate().filter(|(_, tool)| may_be_called(tool));
    let listed: Vec<&str> = tools.clone().map(|(_, tool)| tool.json.as_str()).collect();
    if let Err(error) = model.check_tools(&format!("[{}]", listed.join(","))) {
        return Err(bad_schema(model, turn).unwrap_or_else(|| EngineError::input("tools", error.to_string())));
    }
    let mut rules = String::new();
    let mut names = Vec::new();
    for (at, tool) in tools {
        let prefix = format!("tool-{at}-");
        rules.push_str(&renamed(&arguments_rules(model, tool)?, &prefix));
        let opening = literal(&format!("{{\"name\": {}, \"arguments\": ", Value::from(tool.name.as_str())));
        let _ = writeln!(rules, "\ntool-{at} ::= {opening} {prefix}root \"}}\"");
        names.push(format!("tool-{at}"));
    }
    let (open, close) = (literal(&format!("{CALL_OPEN}\n")), literal(&format!("\n{CALL_CLOSE}")));
    let _ = writeln!(rules, "call ::= {open} ({}) {close}", names.join(" | "));
    let calls = if turn.wants_one_call() { "call" } else { r#"call ("\n" call)*"# };
    let must_call = turn.choice.must_call();
    let (root, triggers) = match turn.json_schema.as_deref().filter(|_| !must_call) {
        Some(schema) => {
            rules.push_str(&renamed(&model.json_schema_to_grammar(schema)?, "reply-"));
            (format!("{calls} | reply-root"), Vec::new())
        }
        None if must_call => match thinking_end.and_then(thought) {
            Some(thought) => {
                let _ = writeln!(rules, "thought ::= {thought}");
                (format!("thought {calls}"), Vec::new())
            }
            None => (calls.to_owned(), Vec::new()),
        },
        None => (calls.to_owned(), vec![Trigger::Word(CALL_OPEN.to_owned())]),
    };
    let text = format!("root ::= {root}\n{rules}");
    let source = GrammarSource::Gbnf { text, root: "root".to_owned() };
    Ok(Some(Grammar { source, triggers, accepted: Vec::new() }))
}

/// A thinking block up to its end, and line breaks behind it.
fn thought(end: &str) -> Option<String> {
    let end = end.trim();
    let mut chars = end.chars();
    let (first, second) = (class(chars.next()?), chars.next().map(class));
    let inside = match second {
        Some(second) => format!("([^{first}] | [{first}] [^{first}{second}])*"),
        None => format!("[^{first}]*"),
    };
    Some(format!("{inside} {} [\\n]*", literal(end)))
}

/// A character inside of brackets.
fn class(c: char) -> String {
    match c {
        '[' | ']' | '\\' | '^' | '-' | '"' => format!("\\{c}"),
        c => c.to_string(),
    }
}

/// The first tool with a schema that cannot be used.
pub(crate) fn bad_schema(model: &Model, turn: &ChatTurn) -> Option<EngineError> {
    turn.tools.iter().find_map(|tool| arguments_rules(model, tool).err())
}

fn arguments_rules(model: &Model, tool: &Tool) -> Result<String, EngineError> {
    if client_left() {
        return Err(EngineError::Cancelled);
    }
    let definition: Option<Definition<'_>> = serde_json::from_str(&tool.json).ok();
    let parameters =
        definition.and_then(|definition| definition.function.parameters).map_or(ANY_ARGUMENTS, RawValue::get);
    let known: Option<Value> = serde_json::from_str(parameters).ok();
    let says_nothing =
        known.is_some_and(|schema| schema.is_object() && !KINDS.iter().any(|kind| schema.get(kind).is_some()));
    let schema = if says_nothing { ANY_ARGUMENTS } else { parameters };
    model.json_schema_to_grammar(schema).map_err(|error| {
        // By name: its place in the request is not known here, the tools were sorted.
        EngineError::input(format!("tools.{}.function.parameters", tool.name), error.to_string())
    })
}

/// A text as a literal of the grammar.
fn literal(text: &str) -> String {
    let escaped = text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n").replace('\r', "\\r");
    format!("\"{escaped}\"")
}

/// The rules with a prefix before every name, also where they are used.
fn renamed(rules: &str, prefix: &str) -> String {
    let mut out = String::with_capacity(rules.len() * 2);
    // The character that ends a stretch without names: of a literal, a class or a count.
    let mut until: Option<char> = None;
    let mut escaped = false;
    let mut in_name = false;
    for character in rules.chars() {
        let is_name = until.is_none() && (character.is_ascii_alphanumeric() || character == '-' || character == '_');
        if is_name && !in_name {
            out.push_str(prefix);
        }
        in_name = is_name;
        out.push(character);
        match (until, character) {
            _ if escaped => escaped = false,
            (Some('"' | ']'), '\\') => escaped = true,
            (Some(end), found) if end == found => until = None,
            (Some(_), _) => {}
            (None, '"') => until = Some('"'),
            (None, '[') => until = Some(']'),
            (None, '{') => until = Some('}'),
            (None, _) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_gets_its_prefix_and_no_text_does() {
        let rules = "root ::= \"a\\\"b\" item{0,3} [c-d\\]e] (x-1 | \"\")*\nitem ::= [^\"] space\n";
        let expected = "p-root ::= \"a\\\"b\" p-item{0,3} [c-d\\]e] (p-x-1 | \"\")*\np-item ::= [^\"] p-space\n";
        assert_eq!(renamed(rules, "p-"), expected);
    }

    #[test]
    fn literals_are_escaped() {
        assert_eq!(literal("a\"\\\n"), r#""a\"\\\n""#);
    }
}
