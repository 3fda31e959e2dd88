//! Status answers while a model computes: they come from what its worker published, and never wait for it.

use std::time::Duration;

use hyper::Method;
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, wait_until_held, with};

const PATH: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("content-type", "application/json");

/// The routes that say what a server does, and lists that change with the requests.
const ROUTES: [&str; 12] = [
    "/",
    "/health",
    "/health/ready",
    "/metrics",
    "/api/sessions",
    "/api/ps",
    "/api/tags",
    "/api/cache",
    "/api/cache/rows",
    "/api/adapters",
    "/api/version",
    "/v1/models",
];

/// A reply that does not end by itself for a while.
fn long(user: &str) -> Value {
    with(asking(user), &json!({"max_tokens": 3000, "ignore_eos": true, "stream": true}))
}

/// Everyday use 3: `/api/sessions` took 6.7 s during a prefill, and `poncho top` stayed blank.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_status_route_answers_while_a_decode_call_runs() {
    let server = Server::plain().await;
    server.chat(&with(asking("Hi"), &json!({"max_tokens": 4, "session_id": "kept"}))).await;
    server.faults.on_decode(1, DecodeFault::Block);
    let busy = server.open(Method::POST, PATH, &[JSON], long("Hello").to_string().into()).await;
    wait_until_held(&server).await;
    for path in ROUTES {
        let answer = tokio::time::timeout(Duration::from_secs(60), server.get(path)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{path} waits for the worker"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
    let listed = server.get("/api/sessions").await.json();
    assert_eq!(listed["sessions"][0]["id"], "kept", "{listed}");
    assert_eq!(listed["requests"][0]["stage"], "prefilling", "{listed}");
    drop(busy);
    server.faults.release();
}

/// Everyday use 3: nobody could see how far a prompt was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_shows_the_tokens_of_each_request_and_its_speed() {
    let server = Server::start(Setup { sequences: 1, ..Setup::default() }).await;
    // More than two full batches: held in the second.
    let user = "word ".repeat(260);
    server.faults.on_decode(2, DecodeFault::Block);
    let body = with(long(&user), &json!({"session_id": "mine"}));
    let first = server.open(Method::POST, PATH, &[JSON], body.to_string().into()).await;
    wait_until_held(&server).await;
    // It waits for a sequence; the worker has not even seen it.
    let second = server.open(Method::POST, PATH, &[JSON], long("Hello").to_string().into()).await;
    let listed = server.get("/api/sessions").await.json();
    let [reading, queued] = listed["requests"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}"));
    assert_eq!((&reading["stage"], &reading["session"]), (&json!("prefilling"), &json!("mine")), "{listed}");
    let processed = number(reading, "processed_tokens");
    assert!(processed > 0 && processed < number(reading, "prompt_tokens"), "{listed}");
    assert_eq!(number(reading, "cached_tokens") + number(reading, "new_tokens"), number(reading, "prompt_tokens"));
    assert!(number(reading, "prompt_tokens") > 1024, "{listed}");
    assert!(reading["tokens_per_second"].as_f64().unwrap() > 0.0, "{listed}");
    assert_eq!((&queued["stage"], &queued["session"]), (&json!("queued"), &Value::Null), "{listed}");
    assert_eq!((number(queued, "processed_tokens"), &queued["tokens_per_second"]), (0, &Value::Null), "{listed}");
    // Held again while it generates.
    server.faults.on_decode(100, DecodeFault::Block);
    server.faults.release();
    wait_until_held(&server).await;
    let listed = server.get("/api/sessions").await.json();
    let writing = &listed["requests"][0];
    assert_eq!(writing["stage"], "generating", "{listed}");
    assert_eq!(number(writing, "processed_tokens"), number(writing, "prompt_tokens"), "{listed}");
    let is_moving = number(writing, "generated_tokens") > 1 && writing["tokens_per_second"].as_f64().unwrap() > 0.0;
    assert!(is_moving, "{listed}");
    drop((first, second));
    server.faults.release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_sees_its_own_requests_and_an_admin_all() {
    let config = ServerConfig {
        keys: vec!["one".into(), "two".into()],
        admin_keys: vec!["boss".into()],
        ..ServerConfig::default()
    };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    server.faults.on_decode(1, DecodeFault::Block);
    let body = with(long("Hello"), &json!({"session_id": "mine"})).to_string();
    let busy = server.open(Method::POST, PATH, &[JSON, ("x-api-key", "one")], body.into()).await;
    wait_until_held(&server).await;
    let mut seen = Vec::new();
    for key in ["one", "two", "boss"] {
        let listed = server.send(Method::GET, "/api/sessions", &[("x-api-key", key)], Vec::new()).await.json();
        let requests = listed["requests"].as_array().unwrap();
        seen.push((requests.len(), requests.first().map(|request| request["session"].clone())));
    }
    assert_eq!(seen, [(1, Some(json!("mine"))), (0, None), (1, Some(Value::Null))]);
    drop(busy);
    server.faults.release();
}
