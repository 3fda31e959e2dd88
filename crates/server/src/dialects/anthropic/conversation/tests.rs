//! How messages and blocks become a conversation, and what is refused.

use poncho_api::SigningKey;
use serde_json::{Value, json};

use super::super::signature::sign;
use super::*;
use crate::http::body::parse;

fn body(system: &Value, messages: &Value) -> MessagesBody {
    parse(json!({"system": system, "messages": messages}).to_string().as_bytes()).unwrap()
}

fn read(messages: &Value) -> Conversation {
    conversation(&body(&Value::Null, messages), None).unwrap()
}

fn refused(messages: &Value) -> String {
    conversation(&body(&Value::Null, messages), None).unwrap_err().to_string()
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "weather", "input": {"z": 1}})
}

fn result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "fine"})
}

#[test]
fn a_text_renders_alike_as_string_and_as_block() {
    let block = json!([{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]);
    for system in [json!("Be kind."), block] {
        let read = conversation(&body(&system, &json!([{"role": "user", "content": "Hi"}])), None).unwrap();
        let expected = json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]);
        assert_eq!(Value::from(read.messages), expected);
    }
    for nothing in [json!(""), json!([]), Value::Null] {
        let read = conversation(&body(&nothing, &json!([{"role": "user", "content": "Hi"}])), None).unwrap();
        assert_eq!(read.messages.len(), 1, "an empty system prompt is none: {nothing}");
    }
}

#[test]
fn messages_of_one_role_in_a_row_become_one() {
    let read = read(&json!([
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": ""}]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": "e"},
    ]));
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "cd"},
        {"role": "user", "content": "e"},
    ]);
    assert_eq!(Value::from(read.messages), expected);
}

#[test]
fn calls_and_results_find_each_other() {
    let thinking = json!({"type": "thinking", "thinking": "I look.", "signature": "whatever"});
    let hidden = json!({"type": "redacted_thinking", "data": "xyz"});
    let failed = json!({"type": "tool_result", "tool_use_id": "b", "is_error": true,
        "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "net"}]});
    let read = read(&json!([
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": [thinking, hidden, {"type": "text", "text": "Well,"}, call("a"), call("b")]},
        {"role": "user", "content": [failed, result("a"), {"type": "text", "text": "Go on."}]},
        {"role": "assistant", "content": [call("c")]},
        {"role": "system", "content": "Hurry."},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
    ]));
    let calls = |ids: &[&str]| -> Value {
        let function = json!({"name": "weather", "arguments": "{\"z\":1}"});
        ids.iter().map(|id| json!({"id": id, "type": "function", "function": function})).collect()
    };
    let expected = json!([
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "Well,", "reasoning_content": "I look.", "tool_calls": calls(&["a", "b"])},
        {"role": "tool", "tool_call_id": "b", "name": "weather", "content": "Error: no\nnet"},
        {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "fine"},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": null, "tool_calls": calls(&["c"])},
        {"role": "system", "content": "Hurry."},
        {"role": "tool", "tool_call_id": "c", "name": "weather", "content": ""},
    ]);
    assert_eq!(Value::from(read.messages), expected);
}

#[test]
fn the_order_of_an_input_is_kept() {
    let text = r#"{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f",
        "input": {"z": 1, "a": {"y": [], "b": null}}}]}, {"role": "user", "content": [{"type": "tool_result",
        "tool_use_id": "a", "content": "x"}]}]}"#;
    let read = conversation(&parse(text.as_bytes()).unwrap(), None).unwrap();
    let arguments = &read.messages[0]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments, r#"{"z": 1, "a": {"y": [], "b": null}}"#);
}

#[test]
fn a_last_message_of_the_assistant_begins_the_reply() {
    let question = json!({"role": "user", "content": "Sun in Greek? (A) Sol (B) Helios"});
    let begun = read(&json!([question, {"role": "assistant", "content": "The answer is ("}]));
    assert_eq!((begun.reply_start.as_str(), begun.messages.len()), ("The answer is (", 1));
    let parts = json!([{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "It is"}]);
    assert_eq!(read(&json!([question, {"role": "assistant", "content": parts}])).reply_start, "It is");
    for empty in [json!(""), json!([])] {
        assert_eq!(read(&json!([question, {"role": "assistant", "content": empty}])).reply_start, "");
    }
    let white = refused(&json!([question, {"role": "assistant", "content": "It is "}]));
    assert!(white.starts_with("messages[1].content: ") && white.contains("white space"), "{white}");
    let thought = json!([{"type": "thinking", "thinking": "hm", "signature": ""}]);
    let thought = refused(&json!([question, {"role": "assistant", "content": thought}]));
    assert!(thought.starts_with("messages[1].content[0]: "), "{thought}");
}

#[test]
fn documents_are_read_if_their_text_came_along() {
    let document = |source: Value| json!({"role": "user", "content": [{"type": "document", "title": "T", "context": "C", "source": source}]});
    let text = read(&json!([document(json!({"type": "text", "media_type": "text/plain", "data": "words"}))]));
    let expected = "<document>\n<title>T</title>\n<context>C</context>\nwords\n</document>";
    assert_eq!(text.messages[0]["content"], expected);
    for content in [json!("words"), json!([{"type": "text", "text": "words"}])] {
        let read = read(&json!([document(json!({"type": "content", "content": content}))]));
        assert_eq!(read.messages[0]["content"], expected);
    }
    for (source, field) in [
        (json!({"type": "base64", "media_type": "application/pdf", "data": "JVBE"}), "source.type"),
        (json!({"type": "url", "url": "https://example.com"}), "source.type"),
        (json!({"type": "text"}), "source.data"),
        (json!({"type": "content", "content": [{"type": "image"}]}), "source.content"),
        (json!({"type": "content"}), "source.content"),
        (json!({}), "source.type"),
        (Value::Null, "source"),
    ] {
        let said = refused(&json!([document(source)]));
        assert!(said.starts_with(&format!("messages[0].content[0].{field}: ")), "{said}");
    }
    let found = json!({"type": "search_result", "source": "https://a.b", "title": "T", "content": [{"type": "text", "text": "x"}]});
    let found = read(&json!([{"role": "user", "content": [found]}]));
    let expected = "<search_result>\n<title>T</title>\n<source>https://a.b</source>\nx\n</search_result>";
    assert_eq!(found.messages[0]["content"], expected);
}

#[test]
fn what_makes_no_sense_is_refused_at_its_place() {
    let user = json!({"role": "user", "content": "x"});
    let says = |block: Value| json!({"role": "assistant", "content": [block]});
    let sends = |block: Value| json!({"role": "user", "content": [{"type": "text", "text": "t"}, block]});
    let cases = [
        (json!([]), "messages: "),
        (json!([{"role": "king", "content": "x"}]), "messages[0].role: "),
        (json!([{"role": "user", "content": ""}]), "messages[0].content: "),
        (json!([{"role": "assistant", "content": []}, user]), "messages[0].content: "),
        (json!([sends(json!({"type": "image", "source": {"type": "base64"}}))]), "messages[0].content[1].type: "),
        (json!([sends(json!({"type": "text"}))]), "messages[0].content[1].text: "),
        (json!([sends(call("a"))]), "messages[0].content[1].type: "),
        (json!([sends(json!({"type": "server_tool_use", "id": "a"}))]), "messages[0].content[1].type: "),
        (json!([sends(json!({"type": "tool_result", "content": "x"}))]), "messages[0].content[1].tool_use_id: "),
        (json!([sends(result("a"))]), "messages[0].content[1].tool_use_id: "),
        (json!([says(call("a")), sends(result("b"))]), "messages[1].content[1].tool_use_id: "),
        (json!([says(call("a")), sends(result("a")), sends(result("a"))]), "messages[2].content[1].tool_use_id: "),
        (json!([says(call("a")), user]), "messages[0].content[0]: "),
        (json!([user, says(call("a"))]), "messages[1].content[0]: "),
        (json!([says(call("a")), says(call("a")), user]), "messages[1].content[0].id: "),
        (json!([says(json!({"type": "tool_use", "name": "f", "input": {}})), user]), "messages[0].content[0].id: "),
        (json!([says(json!({"type": "tool_use", "id": "a", "input": {}})), user]), "messages[0].content[0].name: "),
        (json!([says(json!({"type": "tool_use", "id": "a", "name": "f"})), user]), "messages[0].content[0].input: "),
        (
            json!([says(json!({"type": "tool_use", "id": "a", "name": "f", "input": "{}"})), user]),
            "messages[0].content[0].input: ",
        ),
        (json!([says(json!({"type": "thinking", "signature": "s"})), user]), "messages[0].content[0].thinking: "),
        (json!([says(result("a")), user]), "messages[0].content[0].type: "),
        (json!([{"role": "system", "content": [call("a")]}, user]), "messages[0].content[0].type: "),
    ];
    for (messages, start) in cases {
        let said = refused(&messages);
        assert!(said.starts_with(start), "{messages}: {said}");
    }
    let unanswered = refused(&json!([says(call("one")), user]));
    assert!(unanswered.contains("one") && unanswered.contains("tool_result"), "{unanswered}");
    let system = conversation(&body(&json!([{"type": "image"}]), &json!([user])), None).unwrap_err().to_string();
    assert!(system.starts_with("system[0].type: "), "{system}");
    let nested = json!({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": {}}]});
    let nested = refused(&json!([says(call("a")), sends(nested)]));
    assert!(nested.starts_with("messages[1].content[1].content[0].type: "), "{nested}");
}

#[test]
fn with_a_key_only_signed_thinking_is_believed() {
    let key = SigningKey::new(b"secret");
    let messages = |thinking: &str, signature: &str| {
        let block = json!({"type": "thinking", "thinking": thinking, "signature": signature});
        json!([{"role": "assistant", "content": [block]}, {"role": "user", "content": "x"}])
    };
    let signature = sign(key.as_ref(), "hm");
    let read = |messages: &Value| conversation(&body(&Value::Null, messages), key.as_ref());
    let believed = read(&messages("hm", &signature)).unwrap();
    assert_eq!(believed.messages[0], json!({"role": "assistant", "content": "", "reasoning_content": "hm"}));
    let said = read(&messages("hn", &signature)).unwrap_err().to_string();
    assert!(said.starts_with("messages[0].content[0].signature: "), "{said}");
    assert_eq!(read(&messages("", &signature)).unwrap().messages[0].get("reasoning_content"), None);
}

#[test]
fn cache_breakpoints_are_the_ends_of_their_messages() {
    let marked = |text: &str| json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]);
    let messages = json!([
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
        {"role": "user", "content": marked("three")}, {"role": "assistant", "content": "four"},
        {"role": "user", "content": "five"},
    ]);
    let read = conversation(&body(&marked("system"), &messages), None).unwrap();
    assert_eq!((read.messages.len(), read.marked), (6, vec![1, 4]));
}
