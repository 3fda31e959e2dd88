//! Streams that wait for a prompt: each dialect sends an event that its clients count, and says how far the prompt is read.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Server, Setup, wait_until_held, with};

/// A path, a body without its prompt, where the prompt goes, and a sign of the dialect's heartbeat.
type Dialect = (&'static str, Value, fn(&str) -> Value, fn(&Value) -> bool);

fn message(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

fn dialects() -> Vec<Dialect> {
    let has_empty_delta = |event: &Value| {
        let delta = &event["choices"][0]["delta"];
        event["object"] == "chat.completion.chunk"
            && (*delta == json!({}) || *delta == json!({"role": "assistant", "content": ""}))
            && event["choices"][0]["finish_reason"].is_null()
    };
    let is_quiet = |event: &Value| event["choices"][0]["text"] == "" && event["choices"][0]["finish_reason"].is_null();
    vec![
        ("/v1/chat/completions", json!({}), |text| json!({"messages": message(text)}), has_empty_delta),
        ("/v1/completions", json!({}), |text| json!({"prompt": text}), is_quiet),
        (
            "/v1/responses",
            json!({}),
            |text| json!({"input": text}),
            |event| event["type"] == "response.in_progress" && event["response"]["status"] == "in_progress",
        ),
        ("/v1/messages", json!({}), |text| json!({"messages": message(text)}), |event| event["type"] == "ping"),
        (
            "/api/chat",
            json!({}),
            |text| json!({"messages": message(text)}),
            |event| event["message"] == json!({"role": "assistant", "content": ""}) && event["done"] == false,
        ),
        (
            "/api/generate",
            json!({}),
            |text| json!({"prompt": text}),
            |event| event["response"] == "" && event["done"] == false,
        ),
    ]
}

/// The JSON of all events or lines of a stream that has come so far.
fn parsed(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| match line.strip_prefix("data: ") {
        Some(data) => Some(data),
        None => line.starts_with('{').then_some(line),
    });
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_dialect_says_how_far_a_prompt_is_read() {
    for (number, (path, base, prompt, is_heartbeat)) in dialects().into_iter().enumerate() {
        let config = ServerConfig { stream_keep_alive: Duration::from_millis(20), ..ServerConfig::default() };
        let server = Server::start(Setup { config, ..Setup::default() }).await;
        // The first part of the prompt is computed, the second is held.
        server.faults.on_decode(2, DecodeFault::Block);
        let body = with(base, &json!({"model": "stub", "max_tokens": 2, "max_output_tokens": 2, "stream": true}));
        let body = with(body, &prompt(&format!("{number} {}", "long prompt ".repeat(100)))).to_string();
        let headers = [("content-type", "application/json")];
        let (response, ()) =
            tokio::join!(server.open(Method::POST, path, &headers, body.into()), wait_until_held(&server));
        assert_eq!(response.status(), 200, "{path}");
        let mut body = response.into_body();
        let mut text = String::new();
        let beats = loop {
            let beats: Vec<Value> =
                parsed(&text).into_iter().filter(|event| event["poncho"]["progress"].is_object()).collect();
            if beats.iter().filter(|beat| beat["poncho"]["progress"]["stage"] == "prefilling").count() >= 3 {
                break beats;
            }
            let frame = tokio::time::timeout(PATIENCE, body.frame()).await.expect("no event came").unwrap().unwrap();
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        };
        assert!(beats.iter().all(is_heartbeat), "{path}: {beats:?}");
        let progress = &beats.last().unwrap()["poncho"]["progress"];
        let (done, all) = (progress["processed_tokens"].as_u64().unwrap(), progress["prompt_tokens"].as_u64().unwrap());
        assert!(0 < done && done < all && progress["cached_tokens"] == 0, "{path}: {progress}");
        server.faults.release();
        let rest = body.collect().await.unwrap().to_bytes();
        text.push_str(std::str::from_utf8(&rest).unwrap());
        let end = &parsed(&text);
        assert!(end.last().is_some_and(|last| last.get("error").is_none()), "{path}: {text}");
        if path == "/v1/responses" {
            let numbers: Vec<u64> = end.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
            assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{numbers:?}");
        }
        if path == "/v1/chat/completions" {
            let openings = end.iter().filter(|event| event["choices"][0]["delta"]["role"] == "assistant").count();
            assert_eq!(openings, 1, "the role is sent once: {text}");
        }
    }
}
