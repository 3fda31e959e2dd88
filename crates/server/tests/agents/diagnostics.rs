//! Cache diagnostics: each reason provoked, in Anthropic's own field and in the `poncho` object, before and after a restart.

use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Server, Setup, with};

const PATH: &str = "/v1/messages";

fn tool(name: &str) -> Value {
    json!({"name": name, "description": "A tool", "input_schema": {"type": "object"}})
}

/// A request with a system prompt, a tool and messages of the user.
fn asking(previous: &Value) -> Value {
    json!({
        "model": "stub", "max_tokens": 1, "temperature": 0, "system": "You are an agent of a test.",
        "tools": [tool("look")],
        "messages": [{"role": "user", "content": "The first message of a long conversation."}],
        "diagnostics": {"previous_message_id": previous},
    })
}

fn reason(answer: &Value) -> Option<&str> {
    answer["diagnostics"]["cache_miss_reason"]["type"].as_str()
}

/// Changes of a request and what they are called.
fn changes() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"model": "other"}), "model_changed"),
        (json!({"system": "You are another agent."}), "system_changed"),
        (json!({"tools": [tool("look"), tool("listen")]}), "tools_changed"),
        (json!({"messages": [{"role": "user", "content": "Another first message."}]}), "messages_changed"),
        (json!({"tool_choice": {"type": "none"}}), "unavailable"),
    ]
}

fn setup(file: Option<std::path::PathBuf>) -> Setup {
    let config = ServerConfig { records_file: file, ..ServerConfig::default() };
    Setup { models: vec!["stub", "other"], config, ..Setup::default() }
}

#[tokio::test]
async fn every_reason_is_found_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records");
    let mut server = Server::start(setup(Some(file.clone()))).await;
    let first = server.ask(PATH, &asking(&Value::Null)).await;
    assert_eq!(first["diagnostics"], Value::Null, "a first turn has nothing to differ from");
    assert!(first.as_object().unwrap().contains_key("diagnostics"));
    let id = &first["id"];
    for restarts in [false, true] {
        if restarts {
            server.begin_shutdown();
            server.stopped().await;
            server = Server::start(setup(Some(file.clone()))).await;
        }
        for (change, expected) in changes() {
            let answer = server.ask(PATH, &with(asking(id), &change)).await;
            assert_eq!(reason(&answer), Some(expected), "{change}, restarted: {restarts}");
            let missed = &answer["diagnostics"]["cache_miss_reason"]["cache_missed_input_tokens"];
            assert_eq!(missed.is_u64(), expected != "unavailable", "{answer}");
        }
        let more = json!([
            {"role": "user", "content": "The first message of a long conversation."},
            {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And now?"},
        ]);
        let appended = server.ask(PATH, &with(asking(id), &json!({"messages": more}))).await;
        assert_eq!(appended["diagnostics"], Value::Null, "messages were appended, restarted: {restarts}");
    }
    let unknown = server.ask(PATH, &asking(&json!("msg_nobody"))).await;
    assert_eq!(unknown["diagnostics"], json!({"cache_miss_reason": {"type": "previous_message_not_found"}}));
    let mut without = asking(&Value::Null);
    without.as_object_mut().unwrap().remove("diagnostics");
    let plain = server.ask(PATH, &without).await;
    assert_eq!(plain.get("diagnostics"), None, "nobody asked for it");
    let later = server.ask(PATH, &asking(&plain["id"])).await;
    assert_eq!(reason(&later), Some("previous_message_not_found"), "a request that did not ask is not kept");
}

#[tokio::test]
async fn a_stream_says_it_at_its_start() {
    let server = Server::start(setup(None)).await;
    let first = server.ask(PATH, &asking(&Value::Null)).await;
    let body = with(asking(&first["id"]), &json!({"system": "Changed."}));
    let events = server.stream(PATH, &body).await.named_events();
    assert_eq!(reason(&events[0]["message"]), Some("system_changed"), "{events:?}");
    assert!(
        events[0]["message"]["diagnostics"]["cache_miss_reason"]["cache_missed_input_tokens"].as_u64().unwrap() > 0
    );
}

#[tokio::test]
async fn the_other_dialects_have_it_in_the_poncho_object() {
    let server = Server::start(setup(None)).await;
    let messages = |system: &str| json!([{"role": "system", "content": system}, {"role": "user", "content": "Hi"}]);
    let body = |path: &str, system: &str| match path {
        "/v1/chat/completions" => json!({"messages": messages(system), "max_tokens": 1}),
        "/api/chat" => json!({"messages": messages(system), "stream": false, "options": {"num_predict": 1}}),
        _ => json!({"instructions": system, "input": "Hi", "max_output_tokens": 1}),
    };
    for path in ["/v1/chat/completions", "/api/chat", "/v1/responses"] {
        let ask = |system: &str, previous: Value| {
            with(body(path, system), &json!({"model": "stub", "poncho": {"previous_id": previous}}))
        };
        let first = server.ask(path, &ask("One.", Value::Null)).await;
        let id = first["poncho"]["id"].clone();
        assert_eq!((id.is_string(), &first["poncho"]["diagnostics"]), (true, &Value::Null), "{path}: {first}");
        if path != "/api/chat" {
            assert_eq!(first["id"], id, "{path}: the id of the reply");
        }
        let same = server.ask(path, &ask("One.", id.clone())).await;
        assert_eq!(same["poncho"]["diagnostics"], Value::Null, "{path}: {same}");
        let changed = server.ask(path, &ask("Two.", id)).await;
        assert_eq!(
            changed["poncho"]["diagnostics"]["cache_miss_reason"]["type"], "system_changed",
            "{path}: {changed}"
        );
    }
}
