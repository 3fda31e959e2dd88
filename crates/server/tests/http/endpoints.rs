//! Health, models, metrics, and Poncho's own endpoints.

use std::collections::BTreeMap;

use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, eventually, load, with};

#[tokio::test]
async fn readiness_follows_the_models() {
    let server = Server::start(Setup { models: vec![], ..Setup::default() }).await;
    assert_eq!(server.get("/health").await.json(), json!({"status": "ok"}));
    let not_yet = server.get("/health/ready").await;
    assert_eq!((not_yet.status, not_yet.json()), (503, json!({"status": "no_model"})));
    let refused = server.post("/v1/chat/completions", &asking("x")).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("not_ready")));
    assert!(refused.headers.contains_key("retry-after"));
    let engine = server.engine.clone();
    tokio::task::spawn_blocking(move || load(&engine, "late", &Setup::default())).await.unwrap();
    server.until_ready().await;
    assert_eq!(server.get("/health/ready").await.json(), json!({"status": "ready"}));
    server.chat(&with(asking("x"), &json!({"model": "late", "max_tokens": 1}))).await;
    let engine = server.engine.clone();
    tokio::task::spawn_blocking(move || engine.unload("late").unwrap()).await.unwrap();
    assert_eq!(server.get("/health/ready").await.status, 503);
}

#[tokio::test]
async fn models_and_their_aliases_are_listed_and_found() {
    let aliases = BTreeMap::from([("gpt-4o", "stub"), ("org/name", "stub"), ("gone", "nothing"), ("other", "stub")]);
    let aliases = aliases.into_iter().map(|(alias, target)| (alias.to_owned(), target.to_owned())).collect();
    let config = ServerConfig { aliases, ..ServerConfig::default() };
    let server = Server::start(Setup { models: vec!["stub", "other"], config, ..Setup::default() }).await;
    let list = server.get("/v1/models").await.json();
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((list["object"].as_str(), ids), (Some("list"), vec!["other", "stub", "gpt-4o", "org/name"]));
    let one = server.get("/v1/models/gpt-4o").await.json();
    assert_eq!(
        (&one["id"], &one["object"], &one["meta"]["model"]),
        (&json!("gpt-4o"), &json!("model"), &json!("stub"))
    );
    assert_eq!((&one["meta"]["n_ctx"], &one["meta"]["n_vocab"]), (&json!(4096), &json!(265)));
    assert_eq!(server.get("/v1/models/org/name").await.json()["id"], "org/name");
    assert_eq!(server.get("/v1/models/other").await.json()["meta"]["model"], "other", "a model keeps its own name");
    for unknown in ["/v1/models/gone", "/v1/models/..%2F..%2Fetc%2Fpasswd"] {
        let answer = server.get(unknown).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("model_not_found")), "{unknown}");
    }
    for (model, status) in [("gpt-4o", 200), ("org/name", 200), ("gone", 404), ("stubb", 404), ("", 404)] {
        let answer =
            server.post("/v1/chat/completions", &with(asking("x"), &json!({"model": model, "max_tokens": 1}))).await;
        assert_eq!(answer.status, status, "{model}: {}", answer.text);
    }
}

#[tokio::test]
async fn an_unknown_name_means_the_only_model_if_that_is_allowed() {
    let config = ServerConfig { any_model: true, ..ServerConfig::default() };
    let one = Server::start(Setup { config: config.clone(), ..Setup::default() }).await;
    let body = with(asking("x"), &json!({"model": "gpt-9", "max_tokens": 1}));
    assert_eq!(one.chat(&body).await["model"], "stub");
    let two = Server::start(Setup { config, models: vec!["a", "b"], ..Setup::default() }).await;
    assert_eq!(two.post("/v1/chat/completions", &body).await.status, 404);
    let unnamed = two.post("/tokenize", &json!({"content": "x"})).await;
    assert_eq!((unnamed.status, &unnamed.json()["error"]["param"]), (400, &json!("model")));
}

#[tokio::test]
async fn tokens_come_and_go() {
    let server = Server::plain().await;
    let ask = async |path: &str, body: Value| server.ask(path, &body).await;
    assert_eq!(ask("/tokenize", json!({"content": "a</s>"})).await, json!({"tokens": [97, 60, 47, 115, 62]}));
    let special = json!({"content": "a</s>", "add_special": true, "parse_special": true, "model": "stub"});
    assert_eq!(ask("/tokenize", special).await, json!({"tokens": [256, 97, 257]}));
    let pieces = ask("/tokenize", json!({"content": "é", "with_pieces": true})).await;
    assert_eq!(pieces["tokens"][0], json!({"id": 195, "piece": [195]}));
    assert_eq!(ask("/detokenize", json!({"tokens": [97, 257]})).await, json!({"content": "a</s>"}));
    assert_eq!(ask("/detokenize", json!({"tokens": [97, 257], "special": false})).await, json!({"content": "a"}));
    let unknown = server.post("/detokenize", &json!({"tokens": [97, 9999]})).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (400, &json!("tokens[1]")));
}

#[tokio::test]
async fn the_cache_and_the_version_can_be_read() {
    let server = Server::plain().await;
    server.chat(&with(asking("Hello"), &json!({"max_tokens": 4, "ignore_eos": true}))).await;
    let cache = server.get("/api/cache").await.json();
    let counters = cache["counters"].as_object().unwrap();
    let names: Vec<&str> = server.engine.cache().counters().fields().map(|field| field.0).collect();
    assert!(names.iter().all(|name| counters.contains_key(*name)) && counters.len() == names.len());
    assert_eq!(counters["misses"], 1);
    assert_eq!((&cache["tiers"][0]["tier"], &cache["tiers"][0]["on"]), (&json!("ram"), &json!(true)));
    assert_eq!(cache["tiers"].as_array().unwrap().len(), 3);
    assert!(cache["rows"].as_u64().unwrap() >= 1);
    assert_eq!(server.get("/api/version").await.json(), json!({"version": env!("CARGO_PKG_VERSION")}));
}

#[tokio::test]
async fn the_metrics_page_counts_what_happened() {
    let server = Server::plain().await;
    for _ in 0..2 {
        server.chat(&with(asking("Hello"), &json!({"max_tokens": 4, "ignore_eos": true}))).await;
    }
    server.get("/nowhere").await;
    let model = server.model();
    eventually("the end of both", || model.status().active == 0).await;
    let page = server.get("/metrics").await;
    assert!(page.headers["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let generated = server.model().status().generated_tokens;
    assert!(generated > 4);
    assert!(page.text.contains(&format!("\nponcho_model_generated_tokens_total{{model=\"stub\"}} {generated}\n")));
    for line in [
        "poncho_model_active{model=\"stub\"} 0",
        "poncho_model_starts_total{model=\"stub\"} 1",
        "poncho_time_to_first_token_seconds_count{model=\"stub\",hit=\"cold\"} 1",
        "poncho_request_duration_seconds_count{model=\"stub\",hit=\"cold\"} 1",
        "poncho_http_responses_total{route=\"/v1/chat/completions\",status=\"200\"} 2",
        "poncho_http_responses_total{route=\"unknown\",status=\"404\"} 1",
        "poncho_http_in_flight 0",
        "poncho_cache_misses_total 1",
    ] {
        assert!(page.text.lines().any(|found| found == line), "{line}\n{}", page.text);
    }
    let sum = |prefix: &str| page.text.lines().filter(|line| line.starts_with(prefix)).count();
    assert_eq!(sum("poncho_model_phase{"), 5);
    for line in page.text.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit_once(' ').unwrap().1;
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}
