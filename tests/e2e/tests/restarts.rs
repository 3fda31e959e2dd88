//! The same request has the same prompt on a server that has just written the turn before and on one that has not: on
//! llama.cpp, on models of every memory kind, under a script that writes a turn in other tokens than its text has.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use poncho_api::{ChatSettings, ReplayScope};
use poncho_cache::Gates;
use poncho_engine::backend::stub::{StubBackend, StubTemplate, vocab};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Engine, Exactness, ModelConfig, RestoreRule};
use poncho_server::ServerConfig;
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::scripted::{Script, ScriptedBackend};
use crate::support::{Server, Setup, asking, load, rendered, reopened, small_gates, with};

/// A text that the tokenizer joins into fewer tokens than it has bytes; the script writes it byte by byte.
const TEXT: &str = r#""the thing and the other thing""#;
const CALL: &str = "<tool_call>\n{\"name\": \"tell\", \"arguments\": {\"zone\":\"the thing\"}}\n</tool_call>";
/// Long enough that a row is worth its file.
const QUESTION: &str = "You tell me what the thing is and what the other thing is, and then you tell me the world.";

fn config(kind: ModelKind, exactness: Exactness) -> ModelConfig {
    let gates = Gates { cold_max_tokens: 4096, continued_interval: 64, ..small_gates() };
    let context = ContextOptions {
        n_ctx: 4096,
        n_cells: Some(8192),
        n_batch: 256,
        n_ubatch: 256,
        n_seq_max: 2,
        threads: Some(1),
        threads_batch: Some(1),
        ..ContextOptions::default()
    };
    let exact_grid = NonZeroUsize::new(32).unwrap();
    let restore_rule = RestoreRule::Always;
    ModelConfig { gates, context, exactness, exact_grid, restore_rule, ..ModelConfig::new("stub", model_path(kind)) }
}

/// A server on a folder, with the journal beside the rows; its model writes `said` wherever a grammar lets it.
async fn server(folder: &Path, config: ModelConfig, said: &str, replay: ReplayScope) -> Server {
    let script = Script::default();
    *script.lock().unwrap() = said.bytes().map(u32::from).collect();
    let cache = reopened(&folder.join("rows")).await;
    let engine = Arc::new(Engine::new(Arc::new(ScriptedBackend(script)), cache));
    let loading = Arc::clone(&engine);
    tokio::task::spawn_blocking(move || loading.load(config).unwrap()).await.unwrap();
    Server::chatting(engine, ServerConfig::default(), journal_in(folder, replay)).await
}

fn journal_in(folder: &Path, replay: ReplayScope) -> ChatSettings {
    ChatSettings { replay_file: Some(folder.join("replay")), replay, ..ChatSettings::default() }
}

/// The first turn: a text of a certain form.
fn text_turn() -> Value {
    let schema = json!({"type": "string", "enum": [TEXT.trim_matches('"')]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "t", "schema": schema}});
    with(asking(QUESTION), &json!({"response_format": format, "max_tokens": 200}))
}

fn call_turn() -> Value {
    let parameters = json!({"type": "object", "properties": {"zone": {"enum": ["the thing"]}}, "required": ["zone"], "additionalProperties": false});
    let tools = json!([{"type": "function", "function": {"name": "tell", "parameters": parameters}}]);
    let choice = json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 300});
    with(asking(QUESTION), &choice)
}

/// The second turn, as a client sends it.
fn next(first: &Value, answer: &Value) -> Value {
    let reply = &answer["choices"][0]["message"];
    let mut messages = first["messages"].as_array().unwrap().clone();
    let mut message = json!({"role": "assistant", "content": reply["content"]});
    let mut follows = json!({"role": "user", "content": "And then?"});
    if let Some(calls) = reply["tool_calls"].as_array() {
        message["tool_calls"] = calls.clone().into();
        follows = json!({"role": "tool", "tool_call_id": calls[0]["id"], "content": "noon"});
    }
    messages.extend([message, follows]);
    let mut body =
        with(first.clone(), &json!({"messages": messages, "max_tokens": 8, "ignore_eos": true, "logprobs": true}));
    body.as_object_mut().unwrap().remove("response_format");
    if body.get("tool_choice").is_some() {
        body["tool_choice"] = "auto".into();
    }
    body
}

async fn tokens(server: &Server, body: &Value) -> Vec<u32> {
    serde_json::from_value(server.ask("/apply-template", body).await["tokens"].clone()).unwrap()
}

fn number(answer: &Value, place: &str) -> usize {
    answer.pointer(place).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok()).unwrap()
}

fn prompt_tokens(answer: &Value) -> usize {
    number(answer, "/usage/prompt_tokens")
}

fn cached(answer: &Value) -> usize {
    number(answer, "/usage/prompt_tokens_details/cached_tokens")
}

/// Hardening 9: a turn that was written here was replayed with its own tokens, so that an exact second turn had another
/// prompt and another reply than on a fresh server, on every memory kind.
#[tokio::test]
async fn an_exact_second_turn_is_the_same_on_the_server_that_wrote_the_first_and_on_a_fresh_one() {
    let asked = || json!({"exact": true});
    for kind in ModelKind::ALL {
        for (first, said, exactness, asks) in [
            (text_turn(), TEXT, Exactness::Always, json!({})),
            (text_turn(), TEXT, Exactness::OnRequest, asked()),
            (call_turn(), CALL, Exactness::OnRequest, asked()),
        ] {
            let what = format!("{kind:?} {exactness:?} {said}");
            let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let living = server(folders[0].path(), config(kind, exactness), said, ReplayScope::All).await;
            let first = with(first, &asks);
            let answer = living.chat(&first).await;
            assert_ne!(answer["choices"][0]["finish_reason"], "length", "{what}: {answer}");
            let second = next(&first, &answer);
            let here = living.chat(&second).await;
            let fresh = server(folders[1].path(), config(kind, exactness), said, ReplayScope::All).await;
            assert_eq!(tokens(&living, &second).await, tokens(&fresh, &second).await, "{what}");
            let there = fresh.chat(&second).await;
            assert_eq!(prompt_tokens(&here), prompt_tokens(&there), "{what}");
            assert_eq!(here["choices"], there["choices"], "{what}");
            living.ended().await;
            fresh.ended().await;
        }
    }
}

/// Hardening 9: a text turn was remembered in memory only, so that the same second turn had another prompt after a
/// restart; and a turn with calls was lost by a kill if its line was still to be written.
#[tokio::test]
async fn a_plain_second_turn_has_the_same_prompt_before_and_after_a_restart_or_a_kill() {
    for kind in ModelKind::ALL {
        for (first, said) in [(text_turn(), TEXT), (call_turn(), CALL)] {
            let what = format!("{kind:?} {said}");
            let folder = tempfile::tempdir().unwrap();
            let open = async |folder: &Path| server(folder, config(kind, Exactness::Off), said, ReplayScope::All).await;
            let living = open(folder.path()).await;
            let answer = living.chat(&first).await;
            assert_ne!(answer["choices"][0]["finish_reason"], "length", "{what}: {answer}");
            let second = next(&first, &answer);
            let before = tokens(&living, &second).await;
            // Whatever a process that is killed now leaves behind.
            let killed = tempfile::tempdir().unwrap();
            std::fs::copy(folder.path().join("replay"), killed.path().join("replay")).unwrap();
            let after_kill = open(killed.path()).await;
            assert_eq!(tokens(&after_kill, &second).await, before, "{what}");
            after_kill.ended().await;
            let written = number(&answer, "/usage/total_tokens") - 1;
            living.ended().await;
            let restarted = open(folder.path()).await;
            assert_eq!(tokens(&restarted, &second).await, before, "{what}");
            let there = restarted.chat(&second).await;
            assert_eq!(prompt_tokens(&there), before.len(), "{what}");
            assert!(cached(&there) >= written, "{what}: {} of {written}: {there}", cached(&there));
            restarted.ended().await;
            // On a server that never knew the turn it is another prompt: the test would show a difference.
            let elsewhere = tempfile::tempdir().unwrap();
            let stranger = open(elsewhere.path()).await;
            assert_ne!(tokens(&stranger, &second).await, before, "{what}");
            stranger.ended().await;
        }
    }
}

/// Hardening 9: who wants prompts that depend on requests alone can have them.
#[tokio::test]
async fn replay_can_be_switched_off_for_texts_and_for_all_turns() {
    for (scope, first, said) in [
        (ReplayScope::Calls, text_turn(), TEXT),
        (ReplayScope::Nothing, text_turn(), TEXT),
        (ReplayScope::Nothing, call_turn(), CALL),
    ] {
        let kind = ModelKind::Attention;
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let living = server(folders[0].path(), config(kind, Exactness::Off), said, scope).await;
        let answer = living.chat(&first).await;
        let second = next(&first, &answer);
        let fresh = server(folders[1].path(), config(kind, Exactness::Off), said, scope).await;
        assert_eq!(tokens(&living, &second).await, tokens(&fresh, &second).await, "{scope:?} {said}");
        living.ended().await;
        fresh.ended().await;
    }
}

/// Hardening 9: a reply with thinking comes back without it, or with it as a field of its own.
#[tokio::test]
async fn a_turn_with_thinking_has_the_same_prompt_before_and_after_a_restart() {
    for memory in [MemoryKind::Attention, MemoryKind::Window { size: 8 }, MemoryKind::Recurrent, MemoryKind::Hybrid] {
        let folder = tempfile::tempdir().unwrap();
        let open = async || {
            let backend = StubBackend::new(memory).with_template(StubTemplate::Full);
            let reply = vocab::tokens("<think>hm so</think>yes<|im_end|>");
            let backend = backend.with_reply(&vocab::tokens(&rendered("Hi")), &reply);
            let cache = reopened(&folder.path().join("rows")).await;
            let engine = Arc::new(Engine::new(Arc::new(backend), cache));
            load(&engine, "stub", &Setup { memory, ..Setup::default() });
            let chat = journal_in(folder.path(), ReplayScope::All);
            Server::chatting(engine, ServerConfig::default(), chat).await
        };
        let living = open().await;
        let answer = living.chat(&asking("Hi")).await;
        let reply = answer["choices"][0]["message"].clone();
        assert_eq!((&reply["content"], &reply["reasoning_content"]), (&json!("yes"), &json!("hm so")), "{answer}");
        let with_thinking = json!([{"role": "user", "content": "Hi"}, reply, {"role": "user", "content": "Go on"}]);
        let mut without = with_thinking.clone();
        without[1].as_object_mut().unwrap().remove("reasoning_content");
        let bodies = [with_thinking, without]
            .map(|messages| with(asking("Hi"), &json!({"messages": messages, "max_tokens": 4})));
        let mut before = Vec::new();
        for body in &bodies {
            before.push(tokens(&living, body).await);
        }
        living.ended().await;
        let restarted = open().await;
        for (body, before) in bodies.iter().zip(before) {
            assert_eq!(tokens(&restarted, body).await, before, "{memory:?}");
            assert_eq!(prompt_tokens(&restarted.chat(body).await), before.len(), "{memory:?}");
        }
        restarted.ended().await;
    }
}
