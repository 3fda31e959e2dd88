//! The engine's worker dies while sixteen streams of all families run: each gets the error in its own shape, and the next
//! request works.

use std::sync::Arc;

use hyper::Method;
use poncho_engine::backend::stub::DecodeFault;
use serde_json::{Value, json};

use crate::support::{Answer, PATIENCE, Server, Setup, asking, eventually, read, rendered, wait_until_held, with};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Far more decode calls than all prompts take, far fewer than any reply.
const SOME: u64 = 300;

fn prompt(number: usize) -> String {
    format!("Stream number {number}")
}

/// A long stream of each family, with a prompt of its own.
fn call(number: usize) -> (&'static str, Value) {
    let text = prompt(number);
    let messages = json!([{"role": "user", "content": text}]);
    let long = json!({"model": "stub", "stream": true, "temperature": 0});
    match number % 4 {
        0 => ("/v1/chat/completions", with(long, &json!({"messages": messages, "max_tokens": 3000}))),
        1 => ("/v1/messages", with(long, &json!({"messages": messages, "max_tokens": 3000}))),
        2 => {
            let options = json!({"num_predict": 3000, "temperature": 0});
            ("/api/chat", with(long, &json!({"messages": messages, "options": options})))
        }
        _ => ("/v1/responses", with(long, &json!({"input": text, "max_output_tokens": 3000}))),
    }
}

/// The error at the end of a stream, as its family writes it.
fn error_of(path: &str, answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    match path {
        "/v1/chat/completions" => {
            let events = answer.events();
            assert!(events.len() > 2 && !events.contains(&"[DONE]".to_owned()), "{}", answer.text);
            let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
            assert!(last["error"]["type"].is_string() && last["error"].get("code").is_some(), "{last}");
            last["error"]["message"].clone()
        }
        "/v1/messages" => {
            let events = answer.named_events();
            let last = events.last().unwrap();
            assert_eq!(events[0]["type"], "message_start");
            assert_eq!((&last["type"], last["error"]["type"].is_string()), (&json!("error"), true), "{last}");
            last["error"]["message"].clone()
        }
        "/api/chat" => {
            let lines = answer.lines();
            assert!(lines.len() > 1 && lines.iter().all(|line| line["done"] != true), "{}", answer.text);
            lines.last().unwrap()["error"].clone()
        }
        _ => {
            let events = answer.named_events();
            let last = events.last().unwrap();
            assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
            last["response"]["error"]["message"].clone()
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_streams_hear_of_a_dead_worker_and_the_next_request_works() {
    // Some families' prompts say that nothing is to be thought first.
    let prompts = (0..16).flat_map(|number| ["", "<think>\n\n</think>\n\n"].map(|end| rendered(&prompt(number)) + end));
    let replies = prompts.map(|prompt| (prompt, "On and on. ".repeat(250))).collect();
    let server = Arc::new(Server::start(Setup { sequences: 16, replies, ..Setup::default() }).await);
    server.until_ready().await;
    let model = server.model();
    // Held until all of them are there.
    server.faults.on_decode(1, DecodeFault::Block);
    let mut open = Vec::new();
    for number in 0..16 {
        let server = Arc::clone(&server);
        open.push(tokio::spawn(async move {
            let (path, body) = call(number);
            (path, server.open(Method::POST, path, &[JSON], body.to_string().into()).await)
        }));
    }
    wait_until_held(&server).await;
    eventually("all requests", || model.status().queue_depth == 16).await;
    // Then until each has said something, and none can have ended.
    let before = server.faults.counts().decodes;
    server.faults.on_decode(SOME, DecodeFault::Block);
    server.faults.release();
    let faults = server.faults.clone();
    let decodes = tokio::task::spawn_blocking(move || faults.wait_for_decodes(before + SOME, PATIENCE));
    assert!(decodes.await.unwrap());
    wait_until_held(&server).await;
    let running = model.status().queue_depth;
    server.faults.on_decode(1, DecodeFault::Panic);
    server.faults.release();
    assert_eq!(running, 16);
    let mut streams = Vec::new();
    for one in open {
        streams.push(one.await.unwrap());
    }
    for (path, stream) in streams {
        let answer = tokio::time::timeout(PATIENCE, read(stream)).await.expect("a stream without an end");
        let message = error_of(path, &answer);
        assert!(message.as_str().is_some_and(|message| !message.is_empty()), "{path}: {message}");
        assert!(!answer.text.contains(".rs:"), "the error does not name a place in the source: {}", answer.text);
    }
    eventually("the end of all", || model.status().queue_depth == 0).await;
    server.chat(&with(asking("And on it goes"), &json!({"max_tokens": 3}))).await;
    for (path, body) in (0..4).map(call) {
        let short = with(
            body,
            &json!({"stream": false, "max_tokens": 3, "max_output_tokens": 16,
            "options": {"num_predict": 3}}),
        );
        let answer = server.post(path, &short).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
}
