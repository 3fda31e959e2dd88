//! Several API keys on one server: what one key has sent, another cannot test, list or evict; and keys that share nothing.

use std::path::Path;
use std::sync::Arc;

use hyper::Method;
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::Engine;
use poncho_engine::backend::stub::{StubBackend, StubTemplate, vocab};
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, asking, load, rendered, reopened, with};

/// The model writes a special token inside its text; as the text of a message it would be read as bytes.
const REPLY: &str = "so</think>yes";

fn config(isolate_keys: bool) -> ServerConfig {
    let (keys, admin_keys) = (vec!["one".into(), "two".into()], vec!["boss".into()]);
    ServerConfig { keys, admin_keys, isolate_keys, ..ServerConfig::default() }
}

/// A server with a cache in memory, or in a folder.
async fn server(folder: Option<&Path>, config: ServerConfig) -> Server {
    let setup = Setup::default();
    let backend = StubBackend::new(setup.memory).with_template(StubTemplate::Full);
    let backend = backend.with_reply(&vocab::tokens(&rendered("Hi")), &vocab::tokens(&format!("{REPLY}<|im_end|>")));
    let cache = match folder {
        Some(folder) => reopened(folder).await,
        None => Arc::new(Cache::open(CacheConfig::in_memory(1 << 28)).unwrap()),
    };
    let engine = Arc::new(Engine::new(Arc::new(backend), cache));
    load(&engine, "stub", &setup);
    Server::of(engine, config).await
}

async fn send(server: &Server, key: &str, method: Method, path: &str, body: &Value) -> Answer {
    let key = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", key.as_str())];
    server.send(method, path, &headers, body.to_string().into()).await
}

async fn ask(server: &Server, key: &str, path: &str, body: &Value) -> Value {
    let answer = send(server, key, Method::POST, path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

async fn get(server: &Server, key: &str, path: &str) -> Answer {
    send(server, key, Method::GET, path, &json!({})).await
}

async fn rows(server: &Server, key: &str) -> Value {
    let answer = get(server, key, "/api/cache/rows").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

const CHAT: &str = "/v1/chat/completions";

fn conversation() -> Value {
    json!([{"role": "system", "content": "You help the people of the town of Poncho Springs with their taxes."},
        {"role": "user", "content": "First question about cats"}, {"role": "assistant", "content": "A long answer about cats"},
        {"role": "user", "content": "Second question about dogs"}])
}

fn chat(messages: &Value) -> Value {
    with(asking(""), &json!({"messages": messages, "max_tokens": 8, "ignore_eos": true, "poncho": true}))
}

/// Requests that would tell something about the conversation.
fn probes() -> Vec<Value> {
    let all = conversation();
    let mut edited = all.clone();
    edited[1]["content"] = "First question about cows".into();
    let mut cut = all.as_array().unwrap().clone();
    cut.drain(1..3);
    let mut grown = all.as_array().unwrap().clone();
    grown.push(json!({"role": "assistant", "content": "zzz"}));
    vec![chat(&all), chat(&edited), chat(&Value::Array(cut)), chat(&Value::Array(grown))]
}

/// What an answer says about the cache, without times.
fn told(answer: &Value) -> Value {
    let mut poncho = answer["poncho"].clone();
    poncho.as_object_mut().unwrap().remove("prefill_ms");
    json!({"usage": answer["usage"], "poncho": poncho, "choices": answer["choices"]})
}

/// Hardening 6: with two keys, `explain` told `truncated_history` from `edited_history` and named another key's row.
#[tokio::test]
async fn explaining_tells_the_same_whether_another_key_has_sent_a_prompt_or_nobody_has() {
    for isolate_keys in [false, true] {
        let used = server(None, config(isolate_keys)).await;
        let empty = server(None, config(isolate_keys)).await;
        ask(&used, "one", CHAT, &chat(&conversation())).await;
        let rendered = ask(&used, "one", "/apply-template", &chat(&conversation())).await;
        let mut probes = probes();
        probes.extend([json!({"prompt": rendered["tokens"]}), json!({"prompt": rendered["prompt"]})]);
        for probe in &probes {
            let there = ask(&used, "two", "/api/cache/explain", probe).await;
            assert_eq!(there, ask(&empty, "two", "/api/cache/explain", probe).await, "{probe}");
            assert_eq!(
                (&there["cause"], &there["row"], &there["agree"]),
                (&json!("never_seen"), &Value::Null, &json!(0))
            );
        }
        // Its own rows it may hear of, with the text after the place where they part.
        let causes = ["cached", "edited_history", "truncated_history", "grown"];
        for (probe, cause) in probes.iter().zip(causes) {
            let own = ask(&used, "one", "/api/cache/explain", probe).await;
            assert_eq!(own["cause"], cause, "{own}");
            assert!(own["row"]["key"].is_string() && (own["cached"].is_null() || own["cached"]["after"].is_string()));
        }
    }
}

/// Hardening 6, Everyday use 7: a prompt that is like another key's is as unknown as any other.
#[tokio::test]
async fn a_prompt_that_is_like_one_of_another_key_is_explained_as_if_nobody_had_sent_that() {
    let with_system = |text: &str| {
        let mut messages = conversation();
        messages[0]["content"] = text.into();
        chat(&messages)
    };
    let system = conversation()[0]["content"].as_str().unwrap().to_owned();
    let mut cut = conversation().as_array().unwrap().clone();
    cut.remove(0);
    let probes = [
        (with_system(&format!("Request 7f3a2b90\n{system}")), "changing_id"),
        (with_system(&system.replacen("You", "We", 1)), "edited_beginning"),
        (chat(&Value::Array(cut)), "truncated_history"),
    ];
    for isolate_keys in [false, true] {
        let used = server(None, config(isolate_keys)).await;
        let empty = server(None, config(isolate_keys)).await;
        ask(&used, "one", CHAT, &chat(&conversation())).await;
        for (probe, cause) in &probes {
            // The owner first, so that whatever is made for it is there when the other one asks.
            let own = ask(&used, "one", "/api/cache/explain", probe).await;
            assert_eq!(own["cause"], *cause, "{own}");
            assert!(own["cached"]["after"].is_string() && own["lost"].as_u64().unwrap() > 50, "{own}");
            let there = ask(&used, "two", "/api/cache/explain", probe).await;
            assert_eq!(there, ask(&empty, "two", "/api/cache/explain", probe).await, "{probe}");
            assert_eq!(
                (&there["cause"], &there["row"], &there["agree"]),
                (&json!("never_seen"), &Value::Null, &json!(0))
            );
        }
        if !isolate_keys {
            let seen = ask(&used, "boss", "/api/cache/explain", &probes[0].0).await;
            assert_eq!(seen["cause"], "changing_id", "an admin sees the rows of all: {seen}");
        }
    }
}

/// Hardening 6: a reply said how much of a prompt another key had sent before.
#[tokio::test]
async fn a_reply_tells_the_same_whether_another_key_has_sent_its_prompt_or_nobody_has() {
    for probe in probes().into_iter().take(3) {
        let used = server(None, config(false)).await;
        let empty = server(None, config(false)).await;
        ask(&used, "one", CHAT, &chat(&conversation())).await;
        let there = ask(&used, "two", CHAT, &probe).await;
        let read = used.model().status().last_hit.unwrap().cached_tokens;
        assert!(read > 0, "it is shared all the same, which takes less time: {there}");
        assert_eq!(told(&there), told(&ask(&empty, "two", CHAT, &probe).await));
        assert_eq!(there["poncho"]["hit"], "cold");
        // From now on it is its own.
        let again = ask(&used, "two", CHAT, &probe).await;
        assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0, "{again}");
        assert_eq!(ask(&used, "two", "/api/cache/explain", &probe).await["cause"], "cached");
    }
}

/// Hardening 6: one key listed and evicted the rows of all, and read their sums.
#[tokio::test]
async fn a_key_lists_and_evicts_its_own_rows_and_an_admin_those_of_all() {
    let server = server(None, config(false)).await;
    ask(&server, "one", CHAT, &chat(&conversation())).await;
    let all = rows(&server, "boss").await["total"].as_u64().unwrap();
    assert!(all > 0);
    assert_eq!(rows(&server, "one").await["total"], all);
    assert_eq!(rows(&server, "two").await, json!({"total": 0, "offset": 0, "rows": [], "next_offset": null}));
    for (path, body) in [("/api/cache/evict", json!({"bytes": 1_000_000})), ("/api/cache/clear", json!({}))] {
        assert_eq!(ask(&server, "two", path, &body).await, json!({"freed_bytes": 0}), "{path}");
    }
    assert_eq!(rows(&server, "boss").await["total"], all);
    for path in ["/metrics", "/api/cache"] {
        let refused = get(&server, "two", path).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (403, &json!("admin_key_needed")), "{path}");
        assert_eq!(get(&server, "boss", path).await.status, 200, "{path}");
    }
    // What both have sent stays when one of them lets go of its own; its use by another is not told.
    let mut shared = conversation();
    shared.as_array_mut().unwrap().truncate(2);
    ask(&server, "one", CHAT, &chat(&shared)).await;
    ask(&server, "two", CHAT, &chat(&shared)).await;
    let two = rows(&server, "two").await;
    assert!(two["total"].as_u64().unwrap() > 0);
    assert!(two["rows"].as_array().unwrap().iter().all(|row| row["hits"].is_null() && row["last_used"].is_null()));
    assert!(rows(&server, "boss").await["rows"].as_array().unwrap().iter().all(|row| row["hits"].is_number()));
    ask(&server, "one", "/api/cache/clear", &json!({})).await;
    assert_eq!(rows(&server, "two").await["total"], two["total"]);
    ask(&server, "boss", "/api/cache/clear", &json!({})).await;
    assert_eq!(rows(&server, "boss").await["total"], 0);
}

/// Hardening 6: with `isolate_keys` nothing is shared, not even the time that a hit saves; after a restart neither.
#[tokio::test]
async fn isolated_keys_share_nothing_and_find_their_own_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let read = |server: &Server| server.model().status().last_hit.unwrap().cached_tokens;
    let first = server(Some(folder.path()), config(true)).await;
    let mut prompt = 0;
    for (key, is_found) in [("one", false), ("two", false), ("one", true), ("two", true)] {
        let answer = ask(&first, key, CHAT, &chat(&conversation())).await;
        prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        let expected = if is_found { prompt } else { 0 };
        assert_eq!(read(&first), expected, "{key}");
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], expected, "{key}");
    }
    let count = async |server: &Server, key: &str| rows(server, key).await["total"].as_u64().unwrap();
    assert_eq!(count(&first, "boss").await, count(&first, "one").await + count(&first, "two").await);
    // A row that is still to be written does not go.
    first.engine.cache().flush();
    ask(&first, "one", "/api/cache/clear", &json!({})).await;
    assert!(count(&first, "one").await == 0 && count(&first, "two").await > 0);
    first.ended().await;
    let again = server(Some(folder.path()), config(true)).await;
    assert!(count(&again, "one").await == 0 && count(&again, "two").await > 0, "owners are in the files");
    for (key, expected) in [("one", 0), ("two", prompt), ("boss", 0)] {
        ask(&again, key, CHAT, &chat(&conversation())).await;
        assert_eq!(read(&again), expected, "{key}");
    }
}

/// Hardening 6: rows that keys share belong to the key that sent them, after a restart too.
#[tokio::test]
async fn a_key_knows_its_rows_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let first = server(Some(folder.path()), config(false)).await;
    ask(&first, "one", CHAT, &chat(&conversation())).await;
    let before = rows(&first, "one").await["total"].clone();
    first.ended().await;
    let again = server(Some(folder.path()), config(false)).await;
    assert_eq!(rows(&again, "one").await["total"], before);
    assert_eq!(rows(&again, "two").await["total"], 0);
    assert_eq!(ask(&again, "one", "/api/cache/explain", &chat(&conversation())).await["cause"], "cached");
    assert_eq!(ask(&again, "two", "/api/cache/explain", &chat(&conversation())).await["cause"], "never_seen");
}

/// Hardening 6: the tokens of a prompt told whether the model had written this text for another key.
#[tokio::test]
async fn a_turn_is_replayed_only_for_the_key_that_it_was_written_for() {
    for isolate_keys in [false, true] {
        let server = server(None, config(isolate_keys)).await;
        let first = ask(&server, "one", CHAT, &asking("Hi")).await;
        assert_eq!(first["choices"][0]["message"]["content"], REPLY);
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": REPLY},
            {"role": "user", "content": "Go on"}]);
        let second = with(asking("Hi"), &json!({"messages": messages}));
        let tokens = async |key: &str| -> Vec<u32> {
            serde_json::from_value(ask(&server, key, "/apply-template", &second).await["tokens"].clone()).unwrap()
        };
        assert!(tokens("one").await.contains(&vocab::THINK_CLOSE));
        assert!(!tokens("two").await.contains(&vocab::THINK_CLOSE));
    }
}

/// With one key, or none, nothing is hidden.
#[tokio::test]
async fn a_single_key_hears_of_everything() {
    for keys in [Vec::new(), vec!["one".to_owned()]] {
        let server = server(None, ServerConfig { keys, ..ServerConfig::default() }).await;
        ask(&server, "one", CHAT, &chat(&conversation())).await;
        let again = ask(&server, "one", CHAT, &chat(&conversation())).await;
        assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], again["usage"]["prompt_tokens"]);
        let listed = rows(&server, "one").await;
        assert!(listed["rows"][0]["hits"].is_number(), "{listed}");
        for path in ["/metrics", "/api/cache"] {
            assert_eq!(get(&server, "one", path).await.status, 200, "{path}");
        }
    }
}
