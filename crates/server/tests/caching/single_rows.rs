//! Single rows over HTTP: pinned, checked, read, for the key that sent them; evictions over time; plans and devices.

use std::path::Path;
use std::sync::Arc;

use hyper::Method;
use poncho_server::{PlanLine, ServerConfig, ShownDevice, ShownMachine, ShownPlan, UnusedDevice};
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, asking, eventually, with};

async fn send(server: &Server, key: &str, method: Method, path: &str) -> Answer {
    let authorization = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
    let body = if method == Method::POST { b"{}".to_vec() } else { Vec::new() };
    server.send(method, path, if key.is_empty() { &headers[..1] } else { &headers }, body).await
}

async fn rows(server: &Server, key: &str) -> Vec<Value> {
    let answer = send(server, key, Method::GET, "/api/cache/rows").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["rows"].as_array().unwrap().clone()
}

async fn say(server: &Server, key: &str, text: &str) {
    let authorization = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
    let body = with(asking(text), &json!({"max_tokens": 4, "ignore_eos": true}));
    let answer = server.send(Method::POST, "/v1/chat/completions", &headers, body.to_string().into()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

fn path(row: &Value, end: &str) -> String {
    format!("/api/cache/rows/{}{end}", row["key"].as_str().unwrap())
}

#[tokio::test]
async fn a_pinned_row_survives_clear_and_evict_until_it_is_unpinned() {
    let server = Server::plain().await;
    for text in ["one question of some length", "two questions of some length"] {
        server.chat(&with(asking(text), &json!({"max_tokens": 4, "ignore_eos": true}))).await;
    }
    let row = rows(&server, "").await.into_iter().find(|row| row["children"] == 0).unwrap();
    assert_eq!(row["pinned"], false);
    let pinned = send(&server, "", Method::PUT, &path(&row, "/pin")).await;
    assert_eq!((pinned.status, &pinned.json()["pinned"]), (200, &json!(true)), "{}", pinned.text);
    assert_eq!(send(&server, "", Method::DELETE, &path(&row, "")).await.json()["removed"], false);
    server.ask("/api/cache/clear", &json!({})).await;
    let left = rows(&server, "").await;
    assert!(left.iter().any(|one| one["key"] == row["key"] && one["pinned"] == true), "{left:?}");
    let unpinned = send(&server, "", Method::DELETE, &path(&row, "/pin")).await.json();
    assert_eq!((&unpinned["pinned"], &unpinned["was_pinned"]), (&json!(false), &json!(true)));
    server.ask("/api/cache/clear", &json!({})).await;
    assert_eq!(rows(&server, "").await, Vec::<Value>::new());
    let gone = send(&server, "", Method::PUT, &path(&row, "/pin")).await;
    assert_eq!((gone.status, &gone.json()["error"]["code"]), (404, &json!("row_not_found")));
    assert_eq!(send(&server, "", Method::PUT, "/api/cache/rows/x/pin").await.status, 400);
    let evictions = server.get("/api/cache/evictions").await.json();
    let asked: u64 = evictions["evictions"].as_array().unwrap().iter().map(|sum| sum["rows"].as_u64().unwrap()).sum();
    let counted = server.get("/api/cache").await.json()["counters"]["evictions"].clone();
    assert_eq!(json!(asked), counted);
    assert!(asked >= 2 && evictions["evictions"][0]["cause"] == "asked", "{evictions}");
}

#[tokio::test]
async fn a_row_is_checked_and_read_by_the_key_that_sent_it_and_by_nobody_else() {
    let (keys, admin_keys) = (vec!["one".into(), "two".into()], vec!["boss".into()]);
    let config = ServerConfig { keys, admin_keys, ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    say(&server, "one", "the secret of one, which is long enough").await;
    say(&server, "two", "the secret of two, which is long enough").await;
    let model = server.model();
    eventually("rows", || model.status().active == 0).await;
    let own = rows(&server, "one").await;
    let row = own.iter().max_by_key(|row| row["tokens"].as_u64()).unwrap();
    let text = send(&server, "one", Method::GET, &path(row, "/text")).await;
    assert_eq!(text.status, 200, "{}", text.text);
    assert!(text.json()["text"].as_str().unwrap().contains("the secret of one"), "{}", text.text);
    assert_eq!(text.json()["model"], "stub");
    assert_eq!(text.json()["tokens"].as_array().unwrap().len() as u64, row["tokens"].as_u64().unwrap());
    let checked = send(&server, "one", Method::POST, &path(row, "/verify")).await;
    assert_eq!((checked.status, &checked.json()["whole"]), (200, &json!(true)), "{}", checked.text);
    assert_eq!(checked.json()["copies"][0]["tier"], "ram", "{}", checked.text);
    for (method, end) in [(Method::GET, "/text"), (Method::POST, "/verify"), (Method::PUT, "/pin")] {
        let refused = send(&server, "two", method.clone(), &path(row, end)).await;
        assert_eq!(refused.status, 404, "{method} {end}: {}", refused.text);
        assert!(!refused.text.contains("secret"), "{}", refused.text);
        for key in ["", "wrong"] {
            assert_eq!(send(&server, key, method.clone(), &path(row, end)).await.status, 401, "{method} {end}");
        }
    }
    // An admin checks and pins what all keys stored, and reads none of it.
    let refused = send(&server, "boss", Method::GET, &path(row, "/text")).await;
    assert!(refused.status == 404 && !refused.text.contains("secret"), "{}", refused.text);
    assert_eq!(send(&server, "boss", Method::POST, &path(row, "/verify")).await.status, 200);
    assert_eq!(send(&server, "boss", Method::PUT, &path(row, "/pin")).await.status, 200);
    assert!(rows(&server, "one").await.iter().all(|row| row["pinned"] == false), "the pin of another is not shown");
    assert_eq!(send(&server, "one", Method::DELETE, &path(row, "/pin")).await.json()["was_pinned"], false);
    assert!(rows(&server, "boss").await.iter().any(|row| row["pinned"] == true));
    for (key, status) in [("one", 403), ("boss", 200)] {
        assert_eq!(send(&server, key, Method::GET, "/api/cache/evictions").await.status, status, "{key}");
    }
}

#[tokio::test]
async fn the_system_has_devices_plans_and_nodes() {
    let device =
        ShownDevice { name: "GPU0".into(), description: "a chip".into(), kind: "gpu", total_bytes: 9, free_bytes: 7 };
    let unused = UnusedDevice { what: "libggml-hip.so".into(), why: "it crashed in a trial".into() };
    let plan = |_: &Path, id: &str| {
        let line = PlanLine { text: "context 4096 tokens".into(), flags: vec!["--ctx-size"], is_set: false };
        (id == "stub").then(|| ShownPlan { lines: vec![line], ..ShownPlan::default() })
    };
    let config = ServerConfig {
        machine: ShownMachine { devices: vec![device], unused: vec![unused] },
        plans: Some(Arc::new(plan)),
        ..ServerConfig::default()
    };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let system = server.get("/api/system").await.json();
    assert_eq!(system["devices"][0]["name"], "GPU0", "{system}");
    assert_eq!(system["unused_devices"][0]["why"], "it crashed in a trial");
    assert_eq!(system["models"][0]["plan"]["lines"][0]["flags"], json!(["--ctx-size"]));
    assert_eq!(system["nodes"], json!([]), "this process computes itself");
}
