//! The record of requests over HTTP: what it shows, to whom, progress, cancelling, and why a prompt missed.

use hyper::Method;
use poncho_api::ChatSettings;
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Server, Setup, asking, eventually, wait_until_held, with};

const PATH: &str = "/api/requests";
const CHAT: &str = "/v1/chat/completions";

fn requests(answer: &Value) -> Vec<Value> {
    answer["requests"].as_array().unwrap().clone()
}

async fn listed(server: &Server, key: &str) -> Vec<Value> {
    let authorization = format!("Bearer {key}");
    let headers = [("authorization", authorization.as_str())];
    let answer = server.send(Method::GET, PATH, if key.is_empty() { &[] } else { &headers }, Vec::new()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    requests(&answer.json())
}

/// Waits until the record says so: a reply is noted after it was sent.
async fn until(server: &Server, key: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let listed = listed(server, key).await;
        if is_so(&listed) {
            return listed;
        }
        assert!(tokio::time::Instant::now() < deadline, "{listed:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_request_is_recorded_with_the_figures_of_its_answer() {
    let server = Server::plain().await;
    let body = with(asking("Tell me of the sea, at some length."), &json!({"max_tokens": 5, "ignore_eos": true}));
    let mut facts = Vec::new();
    for _ in 0..2 {
        let headers = [("content-type", "application/json"), ("x-poncho", "1"), ("x-request-id", "mine")];
        let answer = server.send(Method::POST, CHAT, &headers, body.to_string().into()).await;
        facts.push(answer.json());
    }
    let recorded = until(&server, "", |all| all.len() == 2 && all.iter().all(|one| one["stage"] == "ended")).await;
    for (one, answer) in recorded.iter().zip(&facts) {
        assert_eq!(one["hit"], answer["poncho"]["hit"], "{one}");
        assert_eq!(one["cached_tokens"], answer["poncho"]["cached_tokens"]);
        assert_eq!(one["prompt_tokens"], answer["usage"]["prompt_tokens"]);
        assert_eq!(one["generated_tokens"], 5);
        assert_eq!(
            (&one["title"], &one["request_id"]),
            (&json!("Tell me of the sea, at some length."), &json!("mine"))
        );
        assert_eq!((&one["outcome"], &one["model"], &one["key"]), (&json!("length"), &json!("stub"), &Value::Null));
    }
    assert_eq!(recorded[0]["conversation"], recorded[1]["conversation"]);
    assert_eq!((&recorded[0]["source"], &recorded[0]["hit"]), (&Value::Null, &json!("cold")));
    assert_eq!(recorded[1]["source"], "sequence", "its sequence still held the prompt: {}", recorded[1]);
    // The metrics that `poncho top` reads count the same tokens.
    let page = server.get("/metrics").await.text;
    for source in ["cached", "new"] {
        let field = format!("{source}_tokens");
        let sum: u64 = recorded.iter().map(|one| one[&field].as_u64().unwrap()).sum();
        let label = format!("source=\"{source}\"}} ");
        let counted: u64 = page
            .lines()
            .filter(|line| line.starts_with("poncho_prompt_tokens_total{"))
            .filter_map(|line| line.split_once(&label)?.1.parse::<u64>().ok())
            .sum();
        assert_eq!(sum, counted, "{source}");
    }
    let saved = server.get("/api/savings").await.json();
    assert_eq!(saved["days"][0]["models"][0]["requests"], 2, "{saved}");
    assert_eq!(saved["days"][0]["models"][0]["cached_tokens"], recorded[1]["cached_tokens"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_request_shows_the_reports_of_its_model_and_can_be_cancelled() {
    let server = Server::plain().await;
    server.until_ready().await;
    server.faults.on_decode(3, DecodeFault::Block);
    let body = with(asking(&"long ".repeat(250)), &json!({"max_tokens": 50, "ignore_eos": true}));
    let headers = [("content-type", "application/json")];
    let (answer, ()) = tokio::join!(server.send(Method::POST, CHAT, &headers, body.to_string().into()), async {
        until(&server, "", |all| all.iter().any(|one| one["processed_tokens"] != Value::Null)).await;
        // Before that, the numbers grow between two answers.
        wait_until_held(&server).await;
        let [running] = &until(&server, "", |_| true).await[..] else { panic!("one request runs") };
        let sessions = server.get("/api/sessions").await.json();
        let reported = &sessions["requests"][0];
        for field in ["prompt_tokens", "cached_tokens", "new_tokens", "processed_tokens", "generated_tokens"] {
            assert_eq!(running[field], reported[field], "{field}: {running} {reported}");
        }
        assert!(running["outcome"].is_null() && running["id"] == 1, "{running}");
        let cancelled = server.send(Method::DELETE, "/api/requests/1", &[], Vec::new()).await;
        assert_eq!(cancelled.json(), json!({"id": 1, "cancelled": true}));
    });
    assert_eq!(answer.status, 410, "{}", answer.text);
    assert_eq!(answer.json()["error"]["code"], "cancelled");
    assert!(answer.headers.get("retry-after").is_none(), "a client must not send it again by itself");
    server.faults.clear();
    server.faults.release();
    let model = server.model();
    eventually("the end of the request", || model.status().queue_depth == 0).await;
    let [ended] = &until(&server, "", |all| all[0]["stage"] == "ended").await[..] else { panic!("one request") };
    assert_eq!((&ended["outcome"], &ended["error"]), (&json!("cancelled"), &json!("cancelled")));
    let again = server.send(Method::DELETE, "/api/requests/1", &[], Vec::new()).await.json();
    assert_eq!(again["cancelled"], false);
    for (id, status) in [("99", 404), ("x", 400)] {
        assert_eq!(server.send(Method::DELETE, &format!("{PATH}/{id}"), &[], Vec::new()).await.status, status);
    }
}

/// Text and titles are for the key that sent them, also among admins.
#[tokio::test]
async fn no_key_sees_a_word_or_a_request_of_another() {
    let keys = ["one", "two"].map(str::to_owned).to_vec();
    let config = ServerConfig { keys, admin_keys: vec!["boss".to_owned()], ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    for key in ["one", "two"] {
        let authorization = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
        let body = with(asking(&format!("the secret of {key}, which is long enough")), &json!({"max_tokens": 3}));
        assert_eq!(server.send(Method::POST, CHAT, &headers, body.to_string().into()).await.status, 200);
    }
    let boss = until(&server, "boss", |all| all.len() == 2 && all.iter().all(|one| one["stage"] == "ended")).await;
    assert!(boss.iter().all(|one| one["title"].is_null() && one["request_id"].is_null()), "{boss:?}");
    assert_eq!([&boss[0]["key"], &boss[1]["key"]], [&json!(1), &json!(2)]);
    for (key, other) in [("one", "two"), ("two", "one")] {
        let [own] = &listed(&server, key).await[..] else { panic!("{key} sees its own request only") };
        assert!(own["title"].as_str().unwrap().contains(&format!("secret of {key}")), "{own}");
        assert!(!own.to_string().contains(&format!("secret of {other}")));
    }
    let of = |key: &'static str, id: u64, method: Method, end: &str| {
        let (server, path) = (&server, format!("{PATH}/{id}{end}"));
        async move { server.send(method, &path, &[("authorization", &format!("Bearer {key}"))], Vec::new()).await }
    };
    assert_eq!(of("one", 1, Method::GET, "/why").await.status, 200);
    for stranger in ["two", "boss"] {
        let refused = of(stranger, 1, Method::GET, "/why").await;
        assert_eq!(refused.status, 404, "{}", refused.text);
        assert!(!refused.text.contains("secret"), "{}", refused.text);
    }
    assert_eq!(of("two", 1, Method::DELETE, "").await.status, 404);
    assert_eq!(of("boss", 1, Method::DELETE, "").await.status, 200);
    for path in [PATH, "/api/requests?follow=1", "/api/requests/1/why", "/api/savings", "/api/system"] {
        for key in ["", "wrong"] {
            let authorization = format!("Bearer {key}");
            let answer = server.send(Method::GET, path, &[("authorization", &authorization)], Vec::new()).await;
            assert_eq!(answer.status, 401, "{path} {key}");
            assert!(!answer.text.contains("secret"));
        }
    }
    for path in ["/api/savings", "/api/system"] {
        let answer = server.send(Method::GET, path, &[("authorization", "Bearer one")], Vec::new()).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.text);
    }
    // A prompt that begins as the other one does: the words behind the difference were quoted for an admin.
    let near = asking("the secret of on");
    for (key, quotes) in [("one", true), ("two", false), ("boss", false)] {
        let authorization = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
        let found = server.send(Method::POST, "/api/cache/explain", &headers, near.to_string().into()).await;
        assert_eq!(found.status, 200, "{}", found.text);
        assert_eq!(found.text.contains("\"e, which is"), quotes, "{key}: {}", found.text);
    }
    let rows = |key: &'static str| {
        let server = &server;
        async move {
            server
                .send(Method::GET, "/api/cache/rows", &[("authorization", &format!("Bearer {key}"))], Vec::new())
                .await
        }
    };
    let (one, boss) = (rows("one").await.text, rows("boss").await.text);
    assert!(one.contains("the secret of one") && !one.contains("secret of two"), "{one}");
    assert!(!boss.contains("the secret"), "{boss}");
}

const SYSTEM: &str = "You are a careful assistant for the files of a small workshop. Read a file before you speak of it, and \
    name it in the answer. Keep answers short, and never invent a file.";

fn tools(names: &[&str]) -> Value {
    let tool = |name: &&str| {
        json!({"type": "function", "function": {"name": name, "description": format!("Does {name} with a file."),
            "parameters": {"type": "object", "properties": {"file": {"type": "string"}}}}})
    };
    names.iter().map(tool).collect()
}

fn turn(system: &str, question: &str, names: &[&str]) -> Value {
    let messages = json!([
        {"role": "system", "content": system},
        {"role": "user", "content": format!("{question} Which kinds of wood are in the workshop?")},
        {"role": "assistant", "content": "Oak, ash and a little walnut, all of it dry and ready to be used."},
        {"role": "user", "content": "Put all of it into one list, sorted by how much there is."},
    ]);
    with(asking(""), &json!({"messages": messages, "tools": tools(names), "max_tokens": 4, "ignore_eos": true}))
}

/// After a request has run, its own row is the most similar one, and it explains nothing.
#[tokio::test]
async fn a_request_that_has_ended_is_explained_as_of_then() {
    let unclean = ChatSettings { hygiene: Vec::new(), ..ChatSettings::default() };
    let server = Server::start(Setup { chat: unclean, context: 8192, ..Setup::default() }).await;
    let clock = |time: &str| format!("The time is {time}. {SYSTEM}");
    let names = ["list", "read", "write"];
    let cases = [
        (turn(&clock("12:04:11"), "Hello.", &names), turn(&clock("12:05:37"), "Hello.", &names), "clock"),
        (turn(SYSTEM, "Good day.", &names), turn(SYSTEM, "Good day.", &["write", "read", "list"]), "tool_order"),
        (turn(SYSTEM, "Chairs.", &names), turn(SYSTEM, "Tables.", &names), "edited_history"),
    ];
    for (number, (before, after, cause)) in cases.into_iter().enumerate() {
        server.chat(&before).await;
        server.chat(&after).await;
        let id = 2 * number + 2;
        let all = until(&server, "", |all| all.len() == id && all[id - 1]["stage"] == "ended").await;
        let why = server.get(&format!("{PATH}/{id}/why")).await.json();
        assert_eq!(why["cause"], cause, "{why}");
        assert_eq!(why["found"], all[id - 1]["cached_tokens"]);
        assert!(why["lost"].as_u64().unwrap() > 0 && why["fix"].is_string(), "{why}");
        assert!(why["cached"]["after"] != why["asked"]["after"], "{why}");
    }
    // The next turn of a conversation grows; sent again, all of it is cached.
    let mut grown = turn(SYSTEM, "Chairs.", &names);
    let more = json!([{"role": "assistant", "content": "Oak 12, ash 4."}, {"role": "user", "content": "Thank you. And pine?"}]);
    grown["messages"].as_array_mut().unwrap().extend(more.as_array().unwrap().clone());
    for cause in ["grown", "cached"] {
        server.chat(&grown).await;
        let id = listed(&server, "").await.len();
        until(&server, "", |all| all[id - 1]["stage"] == "ended").await;
        let why = server.get(&format!("{PATH}/{id}/why")).await.json();
        assert!(why["cause"] == cause || why["cause"] == "branched", "{cause}: {why}");
    }
}

/// Only the first reply has the copy of the prompt, and the others were said to have lost it.
#[tokio::test]
async fn every_reply_to_a_prompt_is_explained() {
    let server = Server::plain().await;
    server.chat(&with(asking("Two answers, please."), &json!({"n": 2, "max_tokens": 2}))).await;
    until(&server, "", |all| all.len() == 2 && all.iter().all(|one| one["stage"] == "ended")).await;
    for id in 1..=2 {
        let why = server.get(&format!("{PATH}/{id}/why")).await;
        assert_eq!(why.status, 200, "{}", why.text);
    }
}

/// What a live context had is not a row, and the request was said to be like no other.
#[tokio::test]
async fn a_request_that_a_live_context_served_was_seen_before() {
    let server = Server::plain().await;
    let body = with(asking("A short question that is sent twice, word for word."), &json!({"max_tokens": 2}));
    for _ in 0..2 {
        server.chat(&body).await;
    }
    let all = until(&server, "", |all| all.len() == 2 && all[1]["stage"] == "ended").await;
    assert!(all[1]["cached_tokens"].as_u64().unwrap() > 16, "{all:?}");
    let why = server.get(&format!("{PATH}/2/why")).await.json();
    assert!(why["cause"] == "cached" || why["cause"] == "branched", "{why}");
}

#[tokio::test]
async fn the_stream_begins_with_all_requests_and_goes_on_with_changes() {
    use http_body_util::BodyExt;

    let server = Server::plain().await;
    server.chat(&with(asking("First"), &json!({"max_tokens": 2}))).await;
    let mut stream = server.open(Method::GET, "/api/requests?follow=1", &[], Vec::new()).await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut is_sent = false;
    while !(text.contains("\"First\"") && text.contains("\"Second\"")) {
        let frame =
            tokio::time::timeout_at(deadline, stream.body_mut().frame()).await.expect("an event").unwrap().unwrap();
        text += std::str::from_utf8(&frame.into_data().unwrap()).unwrap();
        if !is_sent {
            server.chat(&with(asking("Second"), &json!({"max_tokens": 2}))).await;
            is_sent = true;
        }
    }
    assert!(text.starts_with("event: requests\ndata: {"), "{text}");
    assert_eq!(server.get("/api/requests?other=1").await.status, 400);
}

/// An open page must not hold the server.
#[tokio::test]
async fn an_open_stream_ends_when_the_server_does() {
    let mut server = Server::plain().await;
    let stream = server.open(Method::GET, "/api/requests?follow=1", &[], Vec::new()).await;
    server.begin_shutdown();
    crate::support::read(stream).await;
    server.stopped().await;
}

#[tokio::test]
async fn a_server_that_keeps_no_requests_serves_all_the_same() {
    let config = ServerConfig { requests_kept: 0, ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    server.chat(&with(asking("Hi"), &json!({"max_tokens": 2, "n": 2}))).await;
    assert!(listed(&server, "").await.is_empty());
}
