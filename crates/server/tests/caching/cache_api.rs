//! The cache over HTTP: why a prompt misses, rows by page, eviction, sessions.

use hyper::Method;
use poncho_api::ChatSettings;
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, eventually, with};

fn chat(messages: &Value) -> Value {
    with(asking(""), &json!({"messages": messages, "max_tokens": 8, "ignore_eos": true}))
}

async fn explained(server: &Server, body: &Value) -> Value {
    server.ask("/api/cache/explain", body).await
}

#[tokio::test]
async fn the_cause_of_a_miss_is_named() {
    // Without hygiene, so that its subjects can be seen.
    let unclean = ChatSettings { hygiene: Vec::new(), ..ChatSettings::default() };
    let server = Server::start(Setup { chat: unclean, ..Setup::default() }).await;
    let asked = json!([{"role": "system", "content": "x-anthropic-billing-header: cch=12345;\nYou help.\nCurrent time: 2025-11-15 06:42:55\nBe kind."},
        {"role": "user", "content": "First question about cats"}, {"role": "assistant", "content": "A long answer about cats"},
        {"role": "user", "content": "Second question about dogs"}]);
    let empty = explained(&server, &chat(&asked)).await;
    assert_eq!((&empty["cause"], &empty["agree"]), (&json!("never_seen"), &json!(0)));
    server.chat(&chat(&asked)).await;
    assert_eq!(explained(&server, &chat(&asked)).await["cause"], "cached");
    let system = asked[0]["content"].as_str().unwrap();
    let with_system = |text: &str| {
        let mut changed = asked.clone();
        changed[0]["content"] = text.into();
        changed
    };
    let mut edited = asked.clone();
    edited[1]["content"] = "First question about cows".into();
    let mut cut = asked.as_array().unwrap().clone();
    cut.drain(1..3);
    let mut grown = asked.as_array().unwrap().clone();
    grown.push(json!({"role": "assistant", "content": "zzz"}));
    assert_eq!(explained(&server, &chat(&Value::Array(grown))).await["cause"], "grown");
    for (messages, cause) in [
        (with_system(&system.replace("12345", "12777")), "billing_header"),
        (with_system(&system.replace(":55", ":58")), "clock"),
        (edited, "edited_history"),
        (Value::Array(cut), "truncated_history"),
    ] {
        let said = explained(&server, &chat(&messages)).await;
        assert_eq!(said["cause"], cause, "{said}");
        let at = said["offset"].as_u64().unwrap();
        assert!(at > 0 && at == said["agree"].as_u64().unwrap() && at < said["tokens"].as_u64().unwrap());
        assert_eq!(said["cached"]["before"], said["asked"]["before"]);
        assert_ne!(said["cached"]["after"], said["asked"]["after"]);
        assert_eq!(said["row"]["key"].as_str().unwrap().len(), 64);
    }
}

#[tokio::test]
async fn the_order_of_tools_is_a_cause() {
    let unclean = ChatSettings { hygiene: Vec::new(), ..ChatSettings::default() };
    let server = Server::start(Setup { chat: unclean, ..Setup::default() }).await;
    let body = |names: [&str; 2]| {
        let tools = names.map(|name| json!({"type": "function", "function": {"name": name}}));
        with(asking("Hi"), &json!({"tools": tools, "max_tokens": 4, "ignore_eos": true}))
    };
    server.chat(&body(["read", "write"])).await;
    assert_eq!(explained(&server, &body(["write", "read"])).await["cause"], "tool_order");
}

#[tokio::test]
async fn prompts_are_explained_too_and_nonsense_is_refused() {
    let server = Server::plain().await;
    let text = "A prompt that is long enough to be stored";
    server.ask("/v1/completions", &json!({"model": "stub", "prompt": text, "max_tokens": 4, "temperature": 0})).await;
    let grown = explained(&server, &json!({"prompt": format!("{text} ZZZ")})).await;
    assert_eq!((grown["agree"].as_u64(), &grown["cause"]), (Some(1 + text.len() as u64), &json!("grown")));
    assert_eq!(explained(&server, &json!({"prompt": [1, 2, 3]})).await["cause"], "never_seen");
    for (body, param) in [
        (json!({}), "messages"),
        (json!({"prompt": "x", "messages": []}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": 5}), "messages"),
    ] {
        let answer = server.post("/api/cache/explain", &body).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{}", answer.text);
    }
}

#[tokio::test]
async fn rows_come_in_pages_and_go_when_asked() {
    let server = Server::plain().await;
    for text in ["one question", "two questions", "three questions"] {
        server.chat(&with(asking(text), &json!({"max_tokens": 4, "ignore_eos": true}))).await;
    }
    let all = server.get("/api/cache/rows").await.json();
    let total = all["total"].as_u64().unwrap();
    assert!(total >= 3 && all["rows"].as_array().unwrap().len() as u64 == total && all["next_offset"].is_null());
    let (mut offset, mut keys) = (json!(0), Vec::new());
    while !offset.is_null() {
        let page = server.get(&format!("/api/cache/rows?offset={offset}&limit=2")).await.json();
        keys.extend(page["rows"].as_array().unwrap().iter().map(|row| row["key"].clone()));
        offset = page["next_offset"].clone();
    }
    let whole: Vec<Value> = all["rows"].as_array().unwrap().iter().map(|row| row["key"].clone()).collect();
    assert_eq!(keys, whole);
    for wrong in ["limit=0", "limit=1001", "offset=-1", "limit=x"] {
        assert_eq!(server.get(&format!("/api/cache/rows?{wrong}")).await.status, 400, "{wrong}");
    }
    let freed = server.ask("/api/cache/evict", &json!({"bytes": 1, "tiers": ["ram"]})).await;
    assert!(freed["freed_bytes"].as_u64().unwrap() >= 1, "{freed}");
    assert_eq!(server.ask("/api/cache/evict", &json!({"bytes": 1, "tiers": ["disk"]})).await["freed_bytes"], 0);
    let wrong = server.post("/api/cache/evict", &json!({"bytes": 1, "tiers": ["ram", "tape"]})).await;
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("tiers[1]")));
    let left = server.get("/api/cache/rows").await.json()["total"].clone();
    assert_eq!(server.ask("/api/cache/gc", &json!({})).await["freed_bytes"], 0, "no file is damaged");
    assert_eq!(server.get("/api/cache/rows").await.json()["total"], left, "usable rows stay");
    server.ask("/api/cache/clear", &json!({})).await;
    assert_eq!(server.get("/api/cache/rows").await.json()["total"], 0);
    let browser = server.send(Method::POST, "/api/cache/gc", &[("content-type", "text/plain")], Vec::new()).await;
    assert_eq!(browser.status, 415);
}

#[tokio::test]
async fn sessions_are_listed_and_ended() {
    let server = Server::plain().await;
    assert_eq!(server.get("/api/sessions").await.json(), json!({"sessions": [], "requests": []}));
    server.chat(&with(asking("Hello there"), &json!({"session_id": "a/b", "max_tokens": 4, "ignore_eos": true}))).await;
    let model = server.model();
    eventually("the session's rest", || model.status().sessions == 1).await;
    let listed = server.get("/api/sessions").await.json();
    assert_eq!((&listed["sessions"][0]["id"], &listed["sessions"][0]["model"]), (&json!("a/b"), &json!("stub")));
    assert!(listed["sessions"][0]["tokens"].as_u64().unwrap() > 4);
    let ended = server.send(Method::DELETE, "/api/sessions/a/b", &[], Vec::new()).await;
    assert_eq!((ended.status, &ended.json()["ended_on"]), (200, &json!(["stub"])));
    let again = server.send(Method::DELETE, "/api/sessions/a/b", &[], Vec::new()).await;
    assert_eq!((again.status, &again.json()["error"]["code"]), (404, &json!("session_not_found")));
}
