//! Bad input in Anthropic's dialect: the right status and type, a message that starts with the field, the request's id.

use std::time::Duration;

use hyper::Method;
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::dialects::anthropic::{COUNT, JSON, PATH, WEATHER, asking};
use crate::support::{Answer, Server, Setup, wait_until_held, with};

#[track_caller]
fn is_error(answer: &Answer, status: u16, kind: &str) -> String {
    assert_eq!(answer.status, status, "{}", answer.text);
    assert_eq!(answer.headers["content-type"], "application/json");
    let body = answer.json();
    let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["error", "request_id", "type"], "{body}");
    assert_eq!(body["type"], "error");
    assert_eq!(body["request_id"], answer.headers["request-id"].to_str().unwrap());
    let fields: Vec<&String> = body["error"].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["message", "type"], "{body}");
    assert_eq!(body["error"]["type"], kind, "{body}");
    body["error"]["message"].as_str().unwrap().to_owned()
}

/// Fields that are wrong wherever the conversation is read.
fn wrong_fields() -> Vec<(Value, &'static str)> {
    let tool: Value = serde_json::from_str(WEATHER).unwrap();
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}});
    vec![
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hello"}), "messages"),
        (json!({"messages": [5]}), "messages.0"),
        (json!({"messages": [{"content": "x"}]}), "messages.0.role"),
        (json!({"messages": [{"role": "user"}]}), "messages.0.content"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages.0.role"),
        (user(json!(5)), "messages.0.content"),
        (user(json!(["x"])), "messages.0.content.0"),
        (user(json!([{"text": "x"}])), "messages.0.content.0.type"),
        (user(json!([{"type": "text", "text": 5}])), "messages.0.content.0.text"),
        (user(json!([{"type": "text"}])), "messages.0.content.0.text"),
        (user(json!([{"type": "text", "text": "x"}, image])), "messages.0.content.1.type"),
        (
            user(json!([{"type": "document", "source": {"type": "url", "url": "x"}}])),
            "messages.0.content.0.source.type",
        ),
        (user(json!([{"type": "tool_result", "tool_use_id": "a", "is_error": "no"}])), "messages.0.content.0.is_error"),
        (user(json!([{"type": "tool_result", "tool_use_id": "a"}])), "messages.0.content.0.tool_use_id"),
        (json!({"model": null}), "model"),
        (json!({"model": 5}), "model"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"max_tokens": "many"}), "max_tokens"),
        (json!({"system": 5}), "system"),
        (json!({"system": [{"type": "image"}]}), "system.0.type"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": 1.5}), "temperature"),
        (json!({"temperature": -0.5}), "temperature"),
        (json!({"top_k": -4}), "top_k"),
        (json!({"top_p": "all"}), "top_p"),
        (json!({"stop_sequences": "stop"}), "stop_sequences"),
        (json!({"stop_sequences": [5]}), "stop_sequences.0"),
        (json!({"stop_sequences": ["  "]}), "stop_sequences.0"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"metadata": "me"}), "metadata"),
        (json!({"metadata": {"user_id": 5}}), "metadata.user_id"),
        (json!({"tools": "all"}), "tools"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools.0.type"),
        (json!({"tools": [{"name": "f"}]}), "tools.0.input_schema"),
        (json!({"tools": [{"name": 5, "input_schema": {}}]}), "tools.0.name"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"tool_choice": {}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "moon"}}), "tool_choice.name"),
        (json!({"thinking": true}), "thinking"),
        (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": "all"}}), "thinking.budget_tokens"),
        (json!({"output_config": {"effort": "huge"}}), "output_config.effort"),
        (json!({"session_id": 5}), "session_id"),
        (json!({"poncho": "yes"}), "poncho"),
    ]
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = Server::plain().await;
    for (fields, field) in wrong_fields() {
        for path in [PATH, COUNT] {
            let said = is_error(&server.post(path, &with(asking("x"), &fields)).await, 400, "invalid_request_error");
            assert!(said.starts_with(&format!("{field}: ")), "{path} {fields}: {said}");
        }
        let streamed = with(with(asking("x"), &json!({"stream": true})), &fields);
        is_error(&server.post(PATH, &streamed).await, 400, "invalid_request_error");
    }
    // These only matter where something is generated.
    for (fields, field) in [
        (json!({"max_tokens": null}), "max_tokens: "),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 200}}), "thinking.budget_tokens: "),
        (json!({"top_p": 2}), "top_p"),
        (json!({"exact": true}), "exact"),
    ] {
        let said = is_error(&server.post(PATH, &with(asking("x"), &fields)).await, 400, "invalid_request_error");
        assert!(said.contains(field), "{fields}: {said}");
        server.ask(COUNT, &with(asking("x"), &fields)).await;
    }
    server.ask(PATH, &with(asking("x"), &json!({"max_tokens": 1}))).await;
}

#[tokio::test]
async fn headers_of_anthropic_are_accepted() {
    let server = Server::plain().await;
    let body =
        with(asking("x"), &json!({"max_tokens": 2, "thinking": {"type": "enabled", "budget_tokens": 50}})).to_string();
    let send = async |version: &'static str, beta: &str| {
        let headers = [JSON, ("anthropic-version", version), ("anthropic-beta", beta), ("x-stainless-lang", "js")];
        server.send(Method::POST, "/v1/messages?beta=true", &headers, body.clone().into()).await
    };
    let betas = "tools-2024-04-04, interleaved-thinking-2025-05-14";
    // The SDKs send the second one since 2.10, and each reply told them to go back.
    for (version, is_known) in [("2023-06-01", true), ("2026-10-21", true), ("1999-01-01", false)] {
        let answer = send(version, betas).await;
        assert_eq!((answer.status, answer.text.contains("anthropic-version")), (200, !is_known), "{}", answer.text);
    }
    is_error(&send("2023-06-01", "fine-grained-tool-streaming-2025-05-14").await, 400, "invalid_request_error");
}

#[tokio::test]
async fn fields_nobody_knows_and_cache_marks_are_accepted() {
    let server = Server::plain().await;
    let mark = json!({"type": "ephemeral", "ttl": "1h"});
    let tool = json!({"name": "f", "input_schema": {}, "cache_control": mark, "strict": true, "defer_loading": false});
    let fields = json!({
        "max_tokens": 1, "cache_control": mark, "service_tier": "auto", "container": null, "mcp_servers": [],
        "context_management": {"edits": []}, "betas": ["x"], "system": [{"type": "text", "text": "s", "cache_control": mark}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": mark, "citations": null}], "id": 5}],
        "tools": [tool], "metadata": {"user_id": null, "other": 1}, "thinking": null, "stop_sequences": null,
    });
    server.ask(PATH, &with(asking("x"), &fields)).await;
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_says_so_in_anthropics_words() {
    let server = Server::plain().await;
    let body = asking(&"x".repeat(5000));
    let said = is_error(&server.post(PATH, &body).await, 400, "invalid_request_error");
    assert!(said.starts_with("prompt is too long: 50") && said.contains(" tokens > 4095 maximum"), "{said}");
    let counted = server.ask(COUNT, &body).await["input_tokens"].as_u64().unwrap();
    assert!(counted > 5000, "counting needs no room");
}

#[tokio::test]
async fn bodies_and_models_that_are_not_there() {
    let config = ServerConfig { max_body: 10_000, ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    is_error(&server.post(PATH, &asking(&"x".repeat(20_000))).await, 413, "request_too_large");
    for path in [PATH, COUNT] {
        is_error(&server.send(Method::POST, path, &[JSON], b"{".to_vec()).await, 400, "invalid_request_error");
        is_error(&server.send(Method::POST, path, &[], b"{}".to_vec()).await, 415, "invalid_request_error");
        let said =
            is_error(&server.post(path, &with(asking("x"), &json!({"model": "claude"}))).await, 404, "not_found_error");
        assert!(said.contains("claude"), "{said}");
        is_error(&server.get(path).await, 405, "invalid_request_error");
    }
    is_error(&server.post("/v1/messages/batches", &json!({})).await, 404, "not_found_error");
    let empty = Server::start(Setup { models: vec![], ..Setup::default() }).await;
    let answer = empty.post(PATH, &asking("x")).await;
    is_error(&answer, 529, "overloaded_error");
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn either_header_carries_the_key() {
    let config = ServerConfig { keys: vec!["sk-one".into()], ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let body = with(asking("x"), &json!({"max_tokens": 1})).to_string();
    let send = async |headers: &[(&str, &str)]| {
        let headers = [&[JSON], headers].concat();
        server.send(Method::POST, PATH, &headers, body.clone().into()).await
    };
    for headers in [&[][..], &[("x-api-key", "sk-two")], &[("authorization", "Bearer sk-two")]] {
        is_error(&send(headers).await, 401, "authentication_error");
    }
    for headers in [
        &[("x-api-key", "sk-one")][..],
        &[("authorization", "Bearer sk-one")],
        &[("authorization", "Bearer other"), ("x-api-key", "sk-one")],
    ] {
        assert_eq!(send(headers).await.status, 200, "{headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_and_a_slow_model_are_normal_answers() {
    let body = with(asking("Hello"), &json!({"max_tokens": 2}));
    is_error(&Server::overload(PATH, &body).await, 429, "rate_limit_error");

    let config = ServerConfig { request_timeout: Some(Duration::from_secs(1)), ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    server.faults.on_decode(1, DecodeFault::Block);
    let (answer, ()) = tokio::join!(server.post(PATH, &body), wait_until_held(&server));
    is_error(&answer, 504, "timeout_error");
    server.faults.release();
}
