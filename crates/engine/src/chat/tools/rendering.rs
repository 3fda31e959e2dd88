//! The generic rendering: tools, calls and results as plain messages, for templates that know none of them.
//!
//! Called by `turn.rs`. The tools and the form of a call go into the system message, after the client's own text; a past
//! call is written as the grammar makes the model write it, so that a call is close to what was sampled
//! even after its exact text was forgotten. The same turn must always give the same text.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{CALL_CLOSE, CALL_OPEN, RESULT_CLOSE, RESULT_OPEN, offers_tools};
use poncho_api::{ChatTurn, Choice, Tool};

/// Some messages of a turn, written without tool calls, tool roles and tool definitions.
pub(crate) fn generic_messages(turn: &ChatTurn, messages: &[Value]) -> Vec<Value> {
    let mut written: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    // Whether the last message came from a tool: what follows from the same side joins it, because many templates
    // want user and assistant to take turns.
    let mut after_result = false;
    for message in messages {
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        let text = content_text(message);
        match role {
            "tool" => {
                let result = format!("{RESULT_OPEN}\n{text}\n{RESULT_CLOSE}");
                if after_result {
                    append(&mut written, "\n", &result)
                } else {
                    push(&mut written, "user", &result)
                }
                after_result = true;
            }
            "user" if after_result => {
                append(&mut written, "\n\n", &text);
                after_result = false;
            }
            _ => {
                let mut plain = message.clone();
                if let (Some(calls), Some(fields)) = (calls_of(message), plain.as_object_mut()) {
                    let parts =
                        Some(text).filter(|text| !text.is_empty()).into_iter().chain(calls.iter().map(call_text));
                    fields.insert("content".to_owned(), parts.collect::<Vec<String>>().join("\n").into());
                    fields.remove("tool_calls");
                }
                written.push(plain);
                after_result = false;
            }
        }
    }
    if offers_tools(turn) {
        add_instructions(&mut written, &instructions(turn));
    }
    written
}

/// The instructions about tools in the system message.
fn instructions(turn: &ChatTurn) -> String {
    let mut text = String::from("These tools can be called; each line defines one:\n<tools>\n");
    for Tool { json, .. } in &turn.tools {
        text.push_str(json);
        text.push('\n');
    }
    text.push_str("</tools>\nA call is a JSON object with the tool's name and its arguments, written like this:\n");
    let _ = write!(
        text,
        "{CALL_OPEN}\n{{\"name\": \"the name\", \"arguments\": {{\"an argument\": \"its value\"}}}}\n{CALL_CLOSE}\n"
    );
    let _ = write!(text, "The answer of a tool comes back between {RESULT_OPEN} and {RESULT_CLOSE}.");
    if !turn.parallel_calls {
        text.push_str(" Make at most one call in a reply.");
    }
    // Whether a call is required is left to the grammar: the prompt stays the same for every choice.
    debug_assert!(turn.choice != Choice::None);
    text
}

fn add_instructions(messages: &mut Vec<Value>, text: &str) {
    let own = messages.first_mut().filter(|first| first.get("role").and_then(Value::as_str) == Some("system"));
    match own {
        Some(first) => {
            let merged = [content_text(first).as_str(), text].join("\n\n");
            if let Some(fields) = first.as_object_mut() {
                fields.insert("content".to_owned(), merged.into());
            }
        }
        None => messages.insert(0, json!({"role": "system", "content": text})),
    }
}

fn calls_of(message: &Value) -> Option<&Vec<Value>> {
    message.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty())
}

/// A past call in the words of the grammar.
fn call_text(call: &Value) -> String {
    let name = call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
    let arguments = match call.pointer("/function/arguments") {
        Some(Value::String(text)) if text.trim().is_empty() => "{}".to_owned(),
        Some(Value::String(text)) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => {
            text.trim().to_owned()
        }
        Some(other) => other.to_string(),
        None => "{}".to_owned(),
    };
    format!("{CALL_OPEN}\n{{\"name\": {}, \"arguments\": {arguments}}}\n{CALL_CLOSE}", Value::from(name))
}

/// The text of a message, whatever its content looks like.
fn content_text(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect(),
        _ => String::new(),
    }
}

fn push(messages: &mut Vec<Value>, role: &str, content: &str) {
    messages.push(json!({"role": role, "content": content}));
}

fn append(messages: &mut [Value], between: &str, more: &str) {
    if let Some(Value::String(content)) = messages.last_mut().and_then(|last| last.get_mut("content")) {
        content.push_str(between);
        content.push_str(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic_messages(turn: &ChatTurn) -> Vec<Value> {
        super::generic_messages(turn, &turn.messages)
    }

    fn turn(messages: &Value) -> ChatTurn {
        let tool = Tool { name: "clock".into(), json: r#"{"type":"function","function":{"name":"clock"}}"#.into() };
        ChatTurn {
            messages: messages.as_array().unwrap().clone(),
            tools: vec![tool],
            parallel_calls: true,
            ..ChatTurn::default()
        }
    }

    #[test]
    fn the_tools_join_the_clients_own_instructions() {
        let own = generic_messages(&turn(
            &json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "x"}]),
        ));
        let text = own[0]["content"].as_str().unwrap();
        assert!(text.starts_with("Be kind.\n\nThese tools") && text.contains("\n{\"type\":\"function\""), "{text}");
        let none = generic_messages(&turn(&json!([{"role": "user", "content": "x"}])));
        assert_eq!((none.len(), &none[0]["role"]), (2, &json!("system")));
        let forbidden = ChatTurn { choice: Choice::None, ..turn(&json!([{"role": "user", "content": "x"}])) };
        assert_eq!(generic_messages(&forbidden), forbidden.messages);
    }

    #[test]
    fn calls_and_results_become_texts() {
        let messages = json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "Look:", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "a\"b", "arguments": " {\"z\": 1}"}},
                {"id": "2", "type": "function", "function": {"name": "clock", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "1", "content": "7"},
            {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "8"}]},
            {"role": "user", "content": "go on"},
            {"role": "user", "content": "please"},
        ]);
        let plain = generic_messages(&ChatTurn { tools: Vec::new(), ..turn(&messages) });
        assert_eq!(plain, json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "Look:\n<tool_call>\n{\"name\": \"a\\\"b\", \"arguments\": {\"z\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>"},
            {"role": "user", "content": "<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response>\n\ngo on"},
            {"role": "user", "content": "please"},
        ]).as_array().unwrap().clone());
    }
}
