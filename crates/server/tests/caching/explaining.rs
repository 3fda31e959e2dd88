//! Why a prompt is not cached: planted changes in a conversation of an agent, over HTTP, in every dialect.

use poncho_api::ChatSettings;
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, with};

const SYSTEM: &str = "You are a careful assistant for the files of a small workshop.\n\
    Read a file before you speak of it, and name it in the answer.\nKeep answers short.";

/// A system prompt, five exchanges with calls of tools, and a last question: 17 messages.
fn conversation(topic: &str) -> Vec<Value> {
    let mut messages = vec![json!({"role": "system", "content": SYSTEM})];
    for number in 0..4 {
        let id = format!("call_{number}");
        let arguments = format!("{{\"file\":\"{topic}-{number}.txt\"}}");
        let call = json!({"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}});
        messages
            .push(json!({"role": "user", "content": format!("What does part {number} of {topic} say about wood?")}));
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(
            json!({"role": "tool", "tool_call_id": id, "content": format!("Part {number}: oak, glue, {topic}.")}),
        );
        messages
            .push(json!({"role": "assistant", "content": format!("Part {number} of {topic} speaks of oak and glue.")}));
    }
    messages.push(json!({"role": "user", "content": format!("Put all parts of {topic} into one list.")}));
    messages
}

fn tools(names: &[&str]) -> Value {
    let tool = |name: &&str| {
        json!({"type": "function", "function": {"name": name, "description": format!("Does {name} with a file."),
            "parameters": {"type": "object", "properties": {"file": {"type": "string"}}}}})
    };
    names.iter().map(tool).collect()
}

fn chat(messages: &[Value], names: &[&str]) -> Value {
    with(asking(""), &json!({"messages": messages, "tools": tools(names), "max_tokens": 4, "ignore_eos": true}))
}

const TOOLS: [&str; 3] = ["list", "read", "write"];

/// A server that has seen this conversation among others, without hygiene, so that its subjects can be seen.
async fn server() -> Server {
    let unclean = ChatSettings { hygiene: Vec::new(), ..ChatSettings::default() };
    let server = Server::start(Setup { chat: unclean, context: 8192, ..Setup::default() }).await;
    for topic in ["benches", "chairs", "drawers", "tables"] {
        server.chat(&chat(&conversation(topic), &TOOLS)).await;
    }
    server
}

fn edited(number: usize, from: &str, to: &str) -> Vec<Value> {
    let mut messages = conversation("chairs");
    let text = messages[number - 1]["content"].as_str().unwrap().to_owned();
    assert!(text.contains(from), "{text}");
    messages[number - 1]["content"] = text.replacen(from, to, 1).into();
    messages
}

/// Everyday use 7: one word at the top was `never_seen`, a dropped exchange `edited_history`, and the texts came from an
/// unrelated prompt.
#[tokio::test]
async fn a_planted_change_is_named_with_its_message_its_cost_and_the_fix() {
    let server = server().await;
    let without = |from: usize, to: usize| {
        let mut messages = conversation("chairs");
        messages.drain(from - 1..to);
        messages
    };
    let message = |number: usize, role: &str| json!({"number": number, "role": role});
    let front = format!("Request 7f3a2b90\n{SYSTEM}");
    let system = message(1, "system");
    let cases = [
        (
            "one word",
            edited(1, "careful", "hasty"),
            &TOOLS[..],
            "edited_beginning",
            system.clone(),
            "move what changes",
        ),
        ("an id in front", edited(1, SYSTEM, &front), &TOOLS, "changing_id", system.clone(), "Move this to the end"),
        ("a date in front", edited(1, "You", "Today is 2025-11-15.\nYou"), &TOOLS, "date", system, "Move the date"),
        (
            "first exchange dropped",
            without(2, 5),
            &TOOLS,
            "truncated_history",
            message(2, "user"),
            "whole conversation",
        ),
        ("half dropped", without(2, 9), &TOOLS, "truncated_history", message(2, "user"), "whole conversation"),
        ("another result", edited(4, "oak", "ash"), &TOOLS, "edited_history", message(4, "tool"), "unchanged"),
        (
            "another order",
            conversation("chairs"),
            &["write", "read", "list"],
            "tool_order",
            Value::Null,
            "in one order",
        ),
        ("a tool less", conversation("chairs"), &["list", "write"], "tools_changed", Value::Null, "the same tools"),
    ];
    for (name, messages, names, cause, place, fix) in cases {
        let said = server.ask("/api/cache/explain", &chat(&messages, names)).await;
        assert_eq!((&said["cause"], &said["message"]), (&json!(cause), &place), "{name}: {said}");
        assert!(said["fix"].as_str().unwrap().contains(fix), "{name}: {said}");
        let [tokens, usable, lost, agree, offset] =
            ["tokens", "usable", "lost", "agree", "offset"].map(|field| said[field].as_u64().unwrap());
        // Nearly all of the rest is stored.
        assert!(lost * 10 >= (tokens - usable) * 8 && usable + lost <= tokens, "{name}: {said}");
        assert!(offset <= agree && said["row"]["tokens"].as_u64().unwrap() > offset, "{name}: {said}");
        assert!(said["resumes"]["asked"].as_u64().unwrap() >= offset, "{name}: {said}");
        assert_eq!(said["cached"]["before"], said["asked"]["before"], "{name}");
        assert_ne!(said["cached"]["after"], said["asked"]["after"], "{name}");
    }
    // Compared with the conversation that it was made from, and not with another one that begins like it.
    let said = server.ask("/api/cache/explain", &chat(&without(2, 5), &TOOLS)).await;
    let shown = said["cached"]["after"].as_str().unwrap();
    assert!(shown.starts_with("0 of chairs"), "{shown}");
}

#[tokio::test]
async fn what_needs_no_fix_has_none() {
    let server = server().await;
    let explained = async |messages: &[Value]| server.ask("/api/cache/explain", &chat(messages, &TOOLS)).await;
    let mut grown = conversation("chairs");
    let same = explained(&grown).await;
    assert_eq!((&same["cause"], &same["fix"], &same["lost"]), (&json!("cached"), &Value::Null, &json!(0)), "{same}");
    let mut branched = grown.clone();
    branched.truncate(13);
    branched.push(json!({"role": "user", "content": "Now something else entirely, please."}));
    let said = explained(&branched).await;
    assert_eq!((&said["cause"], &said["fix"], &said["lost"]), (&json!("branched"), &Value::Null, &json!(0)), "{said}");
    assert_eq!(said["message"], json!({"number": 14, "role": "user"}));
    grown.push(json!({"role": "assistant", "content": "zzz"}));
    grown.push(json!({"role": "user", "content": "Thank you."}));
    let said = explained(&grown).await;
    assert!(said["cause"] == "grown" || said["cause"] == "branched", "{said}");
    assert_eq!((&said["fix"], &said["lost"]), (&Value::Null, &json!(0)), "{said}");
    let alone = json!([{"role": "user", "content": "A question that nobody has asked this server before, ever."}]);
    let said = server.ask("/api/cache/explain", &with(asking(""), &json!({"messages": alone}))).await;
    assert_eq!((&said["cause"], &said["row"], &said["cached"]), (&json!("never_seen"), &Value::Null, &Value::Null));
}

/// A model that cannot cut its state at any token has its losses reported too.
#[tokio::test]
async fn a_recurrent_model_loses_what_lies_behind_its_last_saved_state() {
    use poncho_engine::backend::MemoryKind;
    let setup = Setup { memory: MemoryKind::Recurrent, context: 8192, ..Setup::default() };
    let server = Server::start(setup).await;
    server.chat(&chat(&conversation("chairs"), &TOOLS)).await;
    let said = server.ask("/api/cache/explain", &chat(&edited(14, "part 3", "part 9"), &TOOLS)).await;
    let [agree, usable, lost] = ["agree", "usable", "lost"].map(|field| said[field].as_u64().unwrap());
    assert!(usable < agree && lost > agree - usable, "{said}");
    assert_eq!(said["message"], json!({"number": 14, "role": "user"}), "{said}");
}

/// The four dialects, told apart by their fields: the prompt is the one that their own endpoint computes.
#[tokio::test]
async fn a_body_of_any_dialect_is_explained_as_its_endpoint_reads_it() {
    let text = "Tell me about the wood of old chairs, about glue, and about the tools that one needs.";
    let user = json!([{"role": "user", "content": text}]);
    for (dialect, path, body) in [
        ("openai", "/v1/chat/completions", json!({"messages": user, "max_tokens": 4})),
        ("openai", "/v1/completions", json!({"prompt": text, "max_tokens": 4})),
        ("anthropic", "/v1/messages", json!({"system": SYSTEM, "messages": user, "max_tokens": 4})),
        ("responses", "/v1/responses", json!({"instructions": SYSTEM, "input": text, "max_output_tokens": 4})),
        ("ollama", "/api/chat", json!({"messages": user, "stream": false, "options": {"num_predict": 4}})),
        (
            "ollama",
            "/api/generate",
            json!({"prompt": text, "system": SYSTEM, "stream": false, "options": {"num_predict": 4}}),
        ),
    ] {
        let server = Server::plain().await;
        let body = with(body, &json!({"model": "stub"}));
        assert_eq!(server.ask("/api/cache/explain", &body).await["cause"], "never_seen", "{path}");
        server.ask(path, &body).await;
        let said = server.ask("/api/cache/explain", &body).await;
        assert_eq!(said["cause"], "cached", "{path}: {said}");
        let named = server.ask(&format!("/api/cache/explain?dialect={dialect}"), &body).await;
        assert_eq!(named, said, "{path}");
    }
    let server = Server::plain().await;
    let wrong = server.post("/api/cache/explain?dialect=latin", &json!({"messages": user})).await;
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("dialect")), "{}", wrong.text);
    for (dialect, body, param) in [
        ("ollama", json!({"messages": []}), "messages"),
        ("ollama", json!({"prompt": ""}), "prompt"),
        ("responses", json!({"messages": user}), "input"),
        ("openai", json!({"prompt": ["a", "b"]}), "prompt"),
    ] {
        let answer = server.post(&format!("/api/cache/explain?dialect={dialect}"), &body).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{}", answer.text);
    }
}
