//! The end of a server that has replies in flight: what its clients get, and what its owner learns.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::{Draining, ServerConfig};
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, asking, eventually, read, rendered, wait_until_held, with};

const JSON: (&str, &str) = ("content-type", "application/json");

/// No test waits that long.
const HOUR: Duration = Duration::from_secs(3600);

/// A stream of each dialect that does not end by itself for a while.
fn streams() -> [(&'static str, Value); 6] {
    let chat = with(asking("Hello"), &json!({"stream": true, "ignore_eos": true}));
    let bare = json!({"model": "stub", "stream": true, "ignore_eos": true, "temperature": 0});
    let options = json!({"num_predict": 3000, "temperature": 0});
    [
        ("/v1/chat/completions", with(chat.clone(), &json!({"max_tokens": 3000}))),
        ("/v1/completions", with(bare.clone(), &json!({"prompt": "Hello", "max_tokens": 3000}))),
        ("/v1/responses", with(bare, &json!({"input": "Hello", "max_output_tokens": 3000}))),
        ("/v1/messages", with(chat, &json!({"max_tokens": 3000}))),
        ("/api/chat", with(asking("Hello"), &json!({"options": options}))),
        ("/api/generate", json!({"model": "stub", "prompt": "Hello", "options": options})),
    ]
}

async fn with_grace(grace: Duration) -> Server {
    let config = ServerConfig { shutdown_grace: grace, ..ServerConfig::default() };
    // For Ollama's dialect, which cannot ask the model to go on after its end.
    let replies = vec![(rendered("Hello"), "lorem ".repeat(100))];
    Server::start(Setup { config, replies, ..Setup::default() }).await
}

/// Opens a stream that is held after some of its events.
async fn held_stream(server: &Server, path: &str, body: &Value) -> Response<Incoming> {
    server.faults.on_decode(20, DecodeFault::Block);
    let mut response = server.open(Method::POST, path, &[JSON], body.to_string().into()).await;
    assert_eq!(response.status(), 200, "{path}");
    assert!(response.body_mut().frame().await.unwrap().is_ok(), "{path}");
    wait_until_held(server).await;
    response
}

/// Whether the end of a stream is the dialect's own error, and says why.
fn assert_told(path: &str, answer: &Answer) {
    let last_data = || {
        let last = answer.text.trim_end().rsplit("\n\n").next().unwrap();
        let data = last.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        (last.lines().next().unwrap().to_owned(), serde_json::from_str::<Value>(data).unwrap())
    };
    let text = &answer.text;
    assert!(!text.contains("[DONE]") && !text.contains("message_stop") && !text.contains("\"done\":true"), "{text}");
    match path {
        "/v1/chat/completions" | "/v1/completions" => {
            assert_eq!(last_data().1["error"]["code"], "shutting_down", "{text}");
        }
        "/v1/responses" => {
            let (event, data) = last_data();
            assert_eq!(event, "event: response.failed", "{text}");
            assert_eq!(data["response"]["status"], "failed", "{text}");
            assert!(text.contains("event: error\n") && text.contains("\"code\":\"shutting_down\""), "{text}");
        }
        "/v1/messages" => {
            let (event, data) = last_data();
            assert_eq!((event.as_str(), &data["type"]), ("event: error", &json!("error")), "{text}");
            assert!(data["error"]["message"].as_str().unwrap().contains("shutting down"), "{text}");
        }
        _ => {
            let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
            assert!(last["error"].as_str().unwrap().contains("shutting down"), "{text}");
        }
    }
}

/// Everyday use 11: streams were cut without an error event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_cut_ends_with_the_error_of_its_dialect() {
    for (path, body) in streams() {
        let mut server = with_grace(Duration::ZERO).await;
        let response = held_stream(&server, path, &body).await;
        server.begin_shutdown();
        // The client reads while the model is still busy.
        assert_told(path, &read(response).await);
        let (faults, model) = (server.faults.clone(), server.model());
        server.stopped().await;
        faults.release();
        eventually("the end of the request", || model.status().queue_depth == 0).await;
        assert!(model.status().generated_tokens < 3000, "{path}: it was cancelled, not finished");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_has_not_begun_is_refused_in_its_dialect() {
    for (path, body) in streams() {
        let mut server = with_grace(Duration::ZERO).await;
        server.faults.on_decode(1, DecodeFault::Block);
        let mut client = server.client().await;
        let body = with(body, &json!({"stream": false})).to_string();
        let request = Request::post(path).header("host", "localhost").header(JSON.0, JSON.1);
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let asked = tokio::spawn(async move { read(client.send_request(request).await.unwrap()).await });
        wait_until_held(&server).await;
        server.begin_shutdown();
        let answer = asked.await.unwrap();
        let status = if path == "/v1/messages" { 529 } else { 503 };
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
        let error = &answer.json()["error"];
        let message = error["message"].as_str().or(error.as_str()).unwrap();
        assert!(message.contains("shutting down"), "{path}: {}", answer.text);
        server.faults.release();
        server.stopped().await;
    }
}

/// Everyday use 11: Ctrl-C was followed by 30 s of silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_learns_how_many_replies_are_waited_for_and_may_hurry() {
    let mut server = with_grace(HOUR).await;
    let (path, body) = &streams()[0];
    let one = held_stream(&server, path, body).await;
    let two = server.open(Method::POST, path, &[JSON], body.to_string().into()).await;
    server.begin_shutdown();
    assert_eq!(server.draining().await, Some(Draining { replies: 2, limit: HOUR }));
    assert_eq!(server.get("/health").await.status, 200, "it still waits");
    server.hurry();
    for response in [one, two] {
        assert_told(path, &read(response).await);
    }
    server.faults.release();
    server.stopped().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_told_of_a_wait_that_does_not_happen() {
    let mut idle = with_grace(HOUR).await;
    idle.begin_shutdown();
    assert_eq!(idle.draining().await, None);
    idle.stopped().await;
}
