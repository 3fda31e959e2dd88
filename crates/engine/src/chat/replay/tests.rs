//! Replay against an oracle that knows the stub's template: only the kept turns' own tokens may differ.

use std::sync::Arc;

use poncho_api::ReplayScope;
use poncho_cache::{Cache, CacheConfig};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::backend::stub::{StubBackend, vocab};
use crate::backend::{ChatPrompt, ChatRequest, ContextOptions, MemoryKind};
use crate::chat::kept::KeptTurns;
use crate::chat::model::Conversations;
use crate::{Engine, FingerprintSource, ModelConfig};

fn model() -> ChatModel {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
    let engine = Engine::new(Arc::new(StubBackend::new(MemoryKind::Attention)), cache);
    let context = ContextOptions { n_ctx: 1024, n_seq_max: 1, ..ContextOptions::default() };
    let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
    let model = engine.load(ModelConfig { fingerprint, context, ..ModelConfig::new("stub", "stub") }).unwrap();
    ChatModel::new(model, Arc::new(Conversations::new(KeptTurns::open(None, ReplayScope::All), Vec::new())), None, None)
}

fn render(model: &ChatModel, messages: &[Value]) -> Option<ChatPrompt> {
    let messages_json = serde_json::to_string(messages).unwrap();
    model.apply_chat_template(&ChatRequest { messages_json, ..ChatRequest::default() }).ok()
}

fn spliced(model: &ChatModel, messages: &[Value]) -> Option<Vec<u32>> {
    let again = |messages: &[Value]| render(model, messages);
    let normal = render(model, messages).unwrap();
    splice(&Scene { model, messages, normal: &normal, render: &again }, Check::Surroundings)
}

/// A message of a made-up conversation.
#[derive(Debug, Clone)]
enum Step {
    User(String),
    Result(String),
    Text { content: String, kept: bool },
    Call { content: String, raw: String, kept: bool, changed: bool },
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec!["a", "é", " ", "\n", "<|im_end|>", "<tool_call>", "<|im_start|>assistant\n", "ok"]),
        1..4,
    )
    .prop_map(|parts| parts.concat())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        text().prop_map(Step::User),
        text().prop_map(Step::Result),
        (text(), any::<bool>()).prop_map(|(content, kept)| Step::Text { content, kept }),
        (text(), text(), any::<bool>(), any::<bool>()).prop_map(|(content, raw, kept, changed)| Step::Call {
            content,
            raw,
            kept,
            changed
        }),
    ]
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Plays a conversation: each reply is kept as `Recording` would, and the prompt's tokens are written by hand.
fn play(model: &ChatModel, steps: &[Step]) -> (Vec<Value>, Vec<u32>, usize) {
    let replay = &model.conversations().replay;
    let mut messages = Vec::new();
    let mut tokens = vec![vocab::BOS];
    let mut kept_turns = 0;
    let opening = "<|im_start|>assistant\n";
    for (at, step) in steps.iter().enumerate() {
        let mut write = |role: &str, inside: &[u32]| {
            tokens.extend(vocab::tokens(&format!("<|im_start|>{role}\n")));
            let before = tokens.clone();
            tokens.extend(inside);
            tokens.extend(vocab::tokens("<|im_end|>\n"));
            before
        };
        match step {
            Step::User(text) => {
                write("user", &bytes(text));
                messages.push(json!({"role": "user", "content": text}));
            }
            Step::Result(text) => {
                write("tool", &bytes(text));
                messages.push(json!({"role": "tool", "tool_call_id": "x", "content": text}));
            }
            Step::Text { content, kept } => {
                // Other tokens with the same text: a special token where the template would write bytes.
                let sampled = vocab::tokens(content);
                let before = write("assistant", if *kept { &sampled } else { &[] });
                if *kept {
                    let mut hash = begin(model);
                    add_tokens(&mut hash, &before);
                    replay.keep_text(text_key(hash, content), &sampled, None);
                    kept_turns += 1;
                } else {
                    tokens.truncate(before.len());
                    tokens.extend(bytes(content));
                    tokens.extend(vocab::tokens("<|im_end|>\n"));
                }
                messages.push(json!({"role": "assistant", "content": content}));
            }
            Step::Call { content, raw, kept, changed } => {
                let (id, arguments) = (format!("call_{at}"), r#"{"n":1}"#);
                let sampled = vocab::tokens(raw);
                if *kept {
                    let call = poncho_api::ChatToolCall {
                        id: id.clone(),
                        name: "f".to_owned(),
                        arguments: arguments.to_owned(),
                    };
                    let output =
                        ChatOutput { content: content.clone(), tool_calls: vec![call], ..ChatOutput::default() };
                    replay.keep_calls(CallTurn::new(
                        model.namespace().fingerprint,
                        model.private_to(),
                        &output,
                        opening,
                        &sampled,
                    ));
                }
                let arguments = if *changed { r#"{"n":2}"# } else { arguments };
                let function = json!({"name": "f", "arguments": arguments});
                let inside = if *kept && !changed {
                    kept_turns += 1;
                    sampled
                } else {
                    let call = bytes(&function.to_string());
                    [bytes(content), vec![vocab::TOOL_OPEN], call, vec![vocab::TOOL_CLOSE]].concat()
                };
                write("assistant", &inside);
                messages.push(json!({"role": "assistant", "content": content,
                    "tool_calls": [{"id": id, "type": "function", "function": function}]}));
            }
        }
    }
    tokens.extend(vocab::tokens(opening));
    (messages, tokens, kept_turns)
}

#[test]
fn only_the_turns_own_tokens_are_replaced() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 200, ..ProptestConfig::default() });
    runner
        .run(&prop::collection::vec(step(), 1..7), |steps| {
            let model = model();
            let (messages, expected, kept) = play(&model, &steps);
            match spliced(&model, &messages) {
                Some(tokens) => prop_assert_eq!(tokens, expected),
                None => prop_assert_eq!(kept, 0, "something was kept and not put back"),
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn another_models_tokens_are_never_used() {
    let model = model();
    let (messages, ..) =
        play(&model, &[Step::Call { content: String::new(), raw: "x".into(), kept: true, changed: false }]);
    assert!(spliced(&model, &messages).is_some());
    let replay = &model.conversations().replay;
    let mut other = replay.shelves().calls.values()[0].turn.as_ref().clone();
    other.fingerprint = [8; 32];
    replay.keep_calls(other);
    assert_eq!(spliced(&model, &messages), None);
}

#[test]
fn what_the_prompt_opened_is_put_back_too() {
    let model = model();
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let messages =
        [json!({"role": "user", "content": "x"}), json!({"role": "assistant", "content": "", "tool_calls": [call]})];
    let called = poncho_api::ChatToolCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
    let output = ChatOutput { tool_calls: vec![called], ..ChatOutput::default() };
    let keep = |opening: &str| {
        let turn =
            CallTurn::new(model.namespace().fingerprint, model.private_to(), &output, opening, &vocab::tokens("raw"));
        model.conversations().replay.keep_calls(turn);
        spliced(&model, &messages)
    };
    let tokens = keep("<|im_start|>assistant\n<think>\n\n</think>\n\n").unwrap();
    let expected = "<s><|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nraw<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(tokens, vocab::tokens(expected));
    assert_eq!(keep("<|other|>"), None, "an opening of another template fits nowhere");
}
