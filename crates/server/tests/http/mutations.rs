//! Request bodies that are almost right: valid bodies of every endpoint with fields dropped, doubled, renamed, swapped,
//! replaced, nested and cut. Whatever comes, the answer is a reply or a refusal in the family's shape, and the server
//! goes on. Cases are random on every run; a failing one is made smaller and printed.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::stub::{StubBackend, StubTemplate};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Engine, FingerprintSource, ModelConfig};
use poncho_server::ServerConfig;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::support::{Answer, Server};

const CASES: u32 = 3000;
/// On a machine that is busy, fewer cases are tried.
const MOST_TIME: Duration = Duration::from_secs(25);
/// Short, so that a body without a limit does not cost a whole context.
const CONTEXT: u32 = 512;

/// A change to a body. Numbers choose a place or a value, whatever there is.
#[derive(Debug, Clone)]
enum Mutation {
    Drop(usize),
    /// Gives a field of the body a second time, with another value.
    Double(usize, usize),
    /// Gives a field the name of another.
    Rename(usize, usize),
    /// Puts a value where another stands.
    Move(usize, usize),
    Replace(usize, usize),
    Nest(usize, u8),
    /// Cuts the text.
    Cut(usize),
    /// Writes raw bytes into the text.
    Splice(usize, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let place = any::<usize>;
    prop_oneof![
        1 => place().prop_map(Mutation::Drop),
        1 => (place(), place()).prop_map(|(at, with)| Mutation::Double(at, with)),
        1 => (place(), place()).prop_map(|(at, with)| Mutation::Rename(at, with)),
        1 => (place(), place()).prop_map(|(at, with)| Mutation::Move(at, with)),
        6 => (place(), place()).prop_map(|(at, with)| Mutation::Replace(at, with)),
        1 => (place(), any::<u8>()).prop_map(|(at, depth)| Mutation::Nest(at, depth)),
        1 => place().prop_map(Mutation::Cut),
        1 => (place(), place()).prop_map(|(at, with)| Mutation::Splice(at, with)),
    ]
}

fn odd_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("x"),
        json!("\u{0}"),
        json!("<|im_start|>"),
        json!("../../etc/passwd"),
        json!("é".repeat(3000)),
        json!([]),
        json!({}),
        json!([null]),
        json!([[]]),
        json!({"type": "object"}),
        json!({"": ""}),
        json!(["x", 1, {}]),
        json!(vec![0; 500]),
    ]
}

const ODD_BYTES: [&[u8]; 9] =
    [b"\xff", b"\xed\xa0\x80", b"\0", b"NaN", b"1e999", b"-", b"\"", b"}", b"123456789012345678901234567890"];

/// Every value of a body, the body itself first, by its path.
fn paths(value: &Value) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (name, child) in children {
        all.extend(paths(child).into_iter().map(|path| [vec![name.clone()], path].concat()));
    }
    all
}

fn at<'v>(value: &'v mut Value, path: &[String]) -> &'v mut Value {
    path.iter().fold(value, |value, name| match value {
        Value::Object(fields) => &mut fields[name],
        Value::Array(items) => &mut items[name.parse::<usize>().unwrap()],
        _ => unreachable!("paths are taken from the value"),
    })
}

fn remove(value: &mut Value, path: &[String]) -> Option<Value> {
    let (last, parent) = path.split_last()?;
    match at(value, parent) {
        Value::Object(fields) => fields.remove(last),
        Value::Array(items) => Some(items.remove(last.parse().unwrap())),
        _ => None,
    }
}

fn pick<T: Clone>(all: &[T], number: usize) -> T {
    all[number % all.len()].clone()
}

/// The bytes that are sent.
fn mutated(body: &Value, mutations: &[Mutation]) -> Vec<u8> {
    let mut body = body.clone();
    let mut doubled = String::new();
    for mutation in mutations {
        let all = paths(&body);
        let names: Vec<String> = body.as_object().map_or_else(Vec::new, |fields| fields.keys().cloned().collect());
        match mutation {
            Mutation::Drop(place) => drop(remove(&mut body, &pick(&all, *place))),
            Mutation::Double(place, value) if !names.is_empty() => {
                doubled = format!("{}:{},", json!(pick(&names, *place)), pick(&odd_values(), *value));
            }
            Mutation::Rename(place, name) if !names.is_empty() => {
                let value = remove(&mut body, &[pick(&names, *place)]);
                body[pick(&names, *name)] = value.unwrap_or_default();
            }
            Mutation::Move(from, to) => {
                let value = at(&mut body, &pick(&all, *from)).clone();
                *at(&mut body, &pick(&all, *to)) = value;
            }
            Mutation::Replace(place, value) => *at(&mut body, &pick(&all, *place)) = pick(&odd_values(), *value),
            Mutation::Nest(place, depth) => {
                let place = at(&mut body, &pick(&all, *place));
                *place = (0..*depth).fold(place.take(), |inner, level| match level % 2 {
                    0 => json!([inner]),
                    _ => Value::Object(Map::from_iter([("type".to_owned(), inner)])),
                });
            }
            _ => {}
        }
    }
    let mut text = body.to_string().into_bytes();
    if text.first() == Some(&b'{') && text.len() > 2 {
        text.splice(1..1, doubled.into_bytes());
    }
    for mutation in mutations {
        match mutation {
            Mutation::Cut(place) => text.truncate(place % (text.len() + 1)),
            Mutation::Splice(place, bytes) => {
                let place = place % (text.len() + 1);
                text.splice(place..place, pick(&ODD_BYTES, *bytes).iter().copied());
            }
            _ => {}
        }
    }
    text
}

/// A body with most of what each endpoint knows.
fn bodies() -> Vec<(&'static str, Value)> {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let function = json!({"name": "weather", "description": "The weather", "parameters": schema});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Rome\"}"}}
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]);
    let chat = json!({
        "model": "stub", "messages": messages, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 1,
        "stop": ["end"], "n": 1, "logprobs": true, "top_logprobs": 2, "logit_bias": {"65": 1}, "frequency_penalty": 0.1,
        "tools": [{"type": "function", "function": function}], "tool_choice": "auto", "stream": false,
        "stream_options": {"include_usage": true}, "user": "me", "poncho": true, "session_id": "s",
        "chat_template_kwargs": {"enable_thinking": false},
    });
    let formatted = json!({
        "model": "stub", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 3, "stream": true,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": true}},
    });
    let anthropic = json!({
        "model": "stub", "max_tokens": 3, "system": [{"type": "text", "text": "Be brief."}], "stream": false,
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]},
        ],
        "tools": [{"name": "weather", "input_schema": schema}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"}, "stop_sequences": ["end"], "temperature": 0.5, "metadata": {"user_id": "me"},
    });
    let counted = json!({"model": "stub", "messages": anthropic["messages"], "tools": anthropic["tools"]});
    let options = json!({"num_predict": 3, "temperature": 0.5, "top_k": 4, "stop": ["end"], "seed": 1, "num_ctx": 64});
    vec![
        ("/v1/chat/completions", chat.clone()),
        ("/v1/chat/completions", formatted),
        (
            "/v1/completions",
            json!({
                "model": "stub", "prompt": ["Once", "Twice"], "max_tokens": 3, "echo": false, "logprobs": 2, "n": 1,
                "best_of": 1, "stream": false, "stop": "end", "presence_penalty": 0.5,
                "poncho": {"prefill_only": false, "parent_key": "0".repeat(64), "continue": false},
            }),
        ),
        (
            "/v1/responses",
            json!({
                "model": "stub", "instructions": "Be brief.", "max_output_tokens": 3, "store": true, "stream": false,
                "input": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
                    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
                ],
                "tools": [{"type": "function", "name": "weather", "parameters": schema}], "tool_choice": "auto",
                "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "truncation": "disabled",
                "include": [], "metadata": {"a": "b"}, "top_p": 0.9,
            }),
        ),
        ("/v1/embeddings", json!({"model": "stub", "input": ["a", "b"], "encoding_format": "float", "user": "me"})),
        ("/v1/messages", anthropic),
        ("/v1/messages/count_tokens", counted),
        (
            "/api/generate",
            json!({
                "model": "stub", "prompt": "Once", "system": "Be brief.", "stream": false, "raw": false, "options": options,
                "keep_alive": "5m", "format": schema, "think": false, "context": [65, 66],
            }),
        ),
        (
            "/api/chat",
            json!({
                "model": "stub", "stream": true, "options": options, "tools": [{"type": "function", "function": function}],
                "messages": [
                    {"role": "user", "content": "Hello"},
                    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
                    {"role": "tool", "content": "sunny", "tool_name": "weather"},
                ],
            }),
        ),
        ("/api/embed", json!({"model": "stub", "input": ["a", "b"], "truncate": true, "keep_alive": 10})),
        ("/api/embeddings", json!({"model": "stub", "prompt": "a", "options": options})),
        ("/api/show", json!({"model": "stub", "verbose": true})),
        ("/tokenize", json!({"model": "stub", "content": "Hello", "add_special": true, "with_pieces": true})),
        ("/detokenize", json!({"model": "stub", "tokens": [65, 66], "special": true})),
        ("/apply-template", chat.clone()),
        ("/api/cache/explain", chat),
        ("/api/cache/evict", json!({"bytes": 1, "tiers": ["ram"]})),
    ]
}

/// What is wrong with an answer, if something is.
fn complaint(path: &str, answer: &Answer) -> Option<String> {
    if answer.status == 200 {
        // A stream that fails half-way says so in an event; a failure of ours must not hide there.
        let failed = ["internal_error", "worker_died", "backend_failed", "decode_failed", "watchdog"];
        return failed.iter().find(|code| answer.text.contains(*code)).map(|code| format!("it answered {code}"));
    }
    if ![400, 404, 409, 429].contains(&answer.status) {
        return Some(format!("status {}", answer.status));
    }
    let Ok(body) = serde_json::from_str::<Value>(&answer.text) else { return Some("no JSON".to_owned()) };
    let is_anthropic = path.starts_with("/v1/messages");
    let is_ollama = path.starts_with("/api/") && !path.starts_with("/api/cache");
    let (message, kind) = match (is_anthropic, is_ollama) {
        (true, _) => (&body["error"]["message"], body["type"] == "error" && body["error"]["type"].is_string()),
        (_, true) => (&body["error"], true),
        _ => (&body["error"]["message"], body["error"]["type"].is_string() && body["error"]["code"].is_string()),
    };
    let says_something = message.as_str().is_some_and(|text| text.len() > 10);
    (!kind || !says_something).then(|| "the shape is not the family's".to_owned())
}

async fn server() -> Server {
    let backend = StubBackend::new(MemoryKind::Attention).with_template(StubTemplate::Full);
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 26)).unwrap());
    let engine = Arc::new(Engine::new(Arc::new(backend), cache));
    let context =
        ContextOptions { n_ctx: CONTEXT, n_seq_max: 4, n_batch: 512, n_ubatch: 512, ..ContextOptions::default() };
    let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
    engine
        .load(ModelConfig { context, fingerprint, ..ModelConfig::new("stub", std::path::Path::new("stub")) })
        .unwrap();
    Server::of(engine, ServerConfig::default()).await
}

#[test]
fn bodies_that_are_almost_right_never_hurt() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(server());
    let bodies = bodies();
    let json = [("content-type", "application/json")];
    let post = |path: &str, body: Vec<u8>| runtime.block_on(server.send(Method::POST, path, &json, body));
    for (path, body) in &bodies {
        let answer = post(path, body.to_string().into());
        assert_eq!(answer.status, 200, "{path} as it is: {}", answer.text);
    }
    let started = Instant::now();
    let (tried, refused) = (Cell::new(0_u32), Cell::new(0_u32));
    let strategy = (0..bodies.len(), prop::collection::vec(mutation(), 1..4));
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&strategy, |(which, mutations)| {
        if started.elapsed() > MOST_TIME {
            return Ok(());
        }
        let (path, body) = &bodies[which];
        let sent = mutated(body, &mutations);
        let answer = post(path, sent.clone());
        let text = String::from_utf8_lossy(&sent);
        let complaint = complaint(path, &answer);
        prop_assert!(complaint.is_none(), "{path}: {complaint:?}\n{text}\n{}", answer.text);
        tried.set(tried.get() + 1);
        refused.set(refused.get() + u32::from(answer.status != 200));
        if tried.get() % 32 == 0 {
            let next = post(path, body.to_string().into());
            prop_assert!(next.status == 200, "the next request to {path}: {}\nafter {text}", next.text);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    for (path, body) in &bodies {
        assert_eq!(post(path, body.to_string().into()).status, 200, "{path} at the end");
    }
    let model = server.model();
    runtime.block_on(crate::support::eventually("the end of all", || model.status().queue_depth == 0));
    assert_eq!(model.status().starts, 1, "no worker died");
    println!("{} cases in {:?}", tried.get(), started.elapsed());
    assert!(
        refused.get() * 4 > tried.get(),
        "{} of {} were refused: the bodies hardly change",
        refused.get(),
        tried.get()
    );
}
