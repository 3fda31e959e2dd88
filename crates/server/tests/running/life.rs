//! Clients that leave, requests that take too long, workers that die, many streams at once, and the shutdown.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{PATIENCE, Server, Setup, asking, eventually, joined, read, wait_until_held, with};

const PATH: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("content-type", "application/json");

/// A reply that does not end by itself for a while.
fn long(user: &str) -> Value {
    with(asking(user), &json!({"max_tokens": 3000, "ignore_eos": true, "stream": true}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_a_stream_cancels_it() {
    let server = Server::plain().await;
    // Held at a decode in the middle, so that the reply cannot end before the client leaves.
    server.faults.on_decode(20, DecodeFault::Block);
    let mut response = server.open(Method::POST, PATH, &[JSON], long("Hello").to_string().into()).await;
    assert_eq!(response.status(), 200);
    let first = response.body_mut().frame().await.unwrap().unwrap();
    assert!(first.data_ref().unwrap().starts_with(b"data: "));
    server.leave(response).await;
    server.chat(&with(asking("x"), &json!({"max_tokens": 1}))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_it_waits_cancels_too() {
    let server = Server::plain().await;
    server.faults.on_decode(1, DecodeFault::Block);
    let mut socket = server.connect().await;
    let body = with(long("Hello"), &json!({"stream": false})).to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    wait_until_held(&server).await;
    drop(socket);
    let page = async || server.get("/metrics").await.text;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !page().await.contains("poncho_http_in_flight 0\n") {
        assert!(tokio::time::Instant::now() < deadline, "the request stayed in flight");
    }
    server.faults.release();
    let model = server.model();
    eventually("the end of the request", || model.status().queue_depth == 0).await;
    assert!(model.status().generated_tokens < 3000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_at_once_all_end_well_formed() {
    let server = Arc::new(Server::plain().await);
    let tasks: Vec<_> = (0..32)
        .map(|number| {
            let server = server.clone();
            tokio::spawn(async move {
                let fields = json!({"max_tokens": 60, "stream_options": {"include_usage": true}});
                let body = with(long(&format!("Stream number {number}")), &fields);
                let chunks =
                    read(server.open(Method::POST, PATH, &[JSON], body.to_string().into()).await).await.chunks();
                let alone = with(body, &json!({"stream": false}));
                (number, chunks, alone)
            })
        })
        .collect();
    for task in tasks {
        let (number, chunks, alone) = task.await.unwrap();
        let (usage, pieces) = chunks.split_last().unwrap();
        assert_eq!(usage["usage"]["completion_tokens"], 60, "stream {number}");
        assert_eq!(pieces.last().unwrap()["choices"][0]["finish_reason"], "length");
        let whole = server.chat(&alone).await;
        assert_eq!(joined(pieces, 0, "content"), whole["choices"][0]["message"]["content"].as_str().unwrap());
    }
    let model = server.model();
    eventually("the end of all", || model.status().queue_depth == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_a_normal_answer() {
    let refused = Server::overload(PATH, &with(asking("Hello"), &json!({"max_tokens": 2}))).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("overloaded")), "{}", refused.text);
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_may_not_take_for_ever() {
    let config = ServerConfig { request_timeout: Some(Duration::from_secs(1)), ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    server.faults.on_decode(1, DecodeFault::Block);
    let body = with(asking("Hello"), &json!({"max_tokens": 2}));
    let (answer, ()) = tokio::join!(server.post(PATH, &body), wait_until_held(&server));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (504, &json!("request_timeout")));
    server.faults.release();
    server.faults.on_decode(30, DecodeFault::Block);
    let (response, ()) = tokio::join!(
        server.open(Method::POST, PATH, &[JSON], long("Hello").to_string().into()),
        wait_until_held(&server)
    );
    let streamed = read(response).await;
    let last: Value = serde_json::from_str(streamed.events().last().unwrap()).unwrap();
    assert_eq!((streamed.status, &last["error"]["code"]), (200, &json!("request_timeout")), "{}", streamed.text);
    server.faults.release();
    let model = server.model();
    eventually("the end of both", || model.status().queue_depth == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_takes_no_connection_with_it() {
    let server = Server::plain().await;
    server.faults.on_decode(1, DecodeFault::Panic);
    let answer = server.post(PATH, &asking("Hello")).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (500, &json!("worker_died")), "{}", answer.text);
    let model = server.model();
    eventually("the restart", || model.status().starts == 2).await;
    server.faults.on_decode(20, DecodeFault::Block);
    let response = server.open(Method::POST, PATH, &[JSON], long("Hello").to_string().into()).await;
    wait_until_held(&server).await;
    server.faults.on_decode(1, DecodeFault::Panic);
    server.faults.release();
    let streamed = read(response).await;
    let events = streamed.events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "worker_died", "{last}");
    assert!(events.len() > 1 && events.iter().all(|event| event != "[DONE]"));
    eventually("the second restart", || model.status().starts == 3).await;
    server.chat(&with(asking("x"), &json!({"max_tokens": 1}))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_slow_bodies_are_given_up() {
    let short = Duration::from_millis(200);
    let config = ServerConfig { header_timeout: short, body_timeout: short, ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let mut head = server.connect().await;
    head.write_all(b"POST / HTTP/1.1\r\nhost:").await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, head.read_to_end(&mut rest)).await.expect("it stayed open").unwrap();
    let mut body = server.connect().await;
    let text = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{{"
    );
    body.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, body.read_to_string(&mut answer)).await.expect("it stayed open").unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("body_timeout"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_refuses_new_work_and_finishes_the_old() {
    let mut server = Server::saying("Hi", "Hello there<|im_end|>").await;
    server.faults.on_decode(3, DecodeFault::Block);
    let body = with(asking("Hi"), &json!({"stream": true})).to_string();
    let response = server.open(Method::POST, PATH, &[JSON], body.into()).await;
    wait_until_held(&server).await;
    server.begin_shutdown();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while server.get("/health/ready").await.status == 200 {
        assert!(tokio::time::Instant::now() < deadline, "readiness stayed on");
    }
    assert_eq!(server.get("/health/ready").await.json()["status"], "shutting_down");
    assert_eq!(server.get("/health").await.status, 200);
    let refused = server.post(PATH, &asking("Hi")).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("shutting_down")));
    server.faults.release();
    assert_eq!(joined(&read(response).await.chunks(), 0, "content"), "Hello there");
    let engine = server.engine.clone();
    server.stopped().await;
    tokio::task::spawn_blocking(move || engine.unload("stub").unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlives_the_grace_is_cancelled() {
    let config = ServerConfig { shutdown_grace: Duration::from_millis(200), ..ServerConfig::default() };
    let mut server = Server::start(Setup { config, ..Setup::default() }).await;
    server.faults.on_decode(20, DecodeFault::Block);
    let response = server.open(Method::POST, PATH, &[JSON], long("Hello").to_string().into()).await;
    wait_until_held(&server).await;
    server.begin_shutdown();
    let (faults, model) = (server.faults.clone(), server.model());
    server.stopped().await;
    faults.release();
    eventually("the end of the request", || model.status().queue_depth == 0).await;
    assert!(model.status().generated_tokens < 3000, "it was cancelled, not finished");
    let events = read(response).await.events();
    assert!(events.iter().all(|event| event != "[DONE]"), "a stream that was cut does not look complete");
    assert!(events.last().unwrap().contains("shutting_down"), "{events:?}");
}

#[tokio::test]
async fn an_idle_server_stops_at_once_and_wrong_settings_never_start() {
    let mut server = Server::plain().await;
    let idle = server.connect().await;
    server.begin_shutdown();
    server.stopped().await;
    drop(idle);
    let config = ServerConfig { keys: vec![String::new()], ..ServerConfig::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let engine = Server::plain().await.engine.clone();
    let node = Arc::new(poncho_engine::Host::new(engine, poncho_api::ChatSettings::default()));
    let refused = poncho_server::serve(listener, node, config, std::future::pending()).await;
    assert_eq!(refused, Err(poncho_server::ConfigError::EmptyKey { number: 1 }));
}
