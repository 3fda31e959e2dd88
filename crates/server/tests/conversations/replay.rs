//! Exact replay: a conversation with tool calls finds every token again, also after a restart and beside damage.

use std::path::PathBuf;
use std::sync::Arc;

use poncho_api::ChatSettings;
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::vocab;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, rendered, with};

const TOOL: &str = r#"{"type":"function","function":{"name":"weather","parameters":{"properties":{"z":{"type":"string"}},"type":"object"}}}"#;
/// With spaces that no template would write.
const REPLY: &str = r#"Look.<tool_call>{"name" :  "weather", "arguments": {"z":   "Rome"}}</tool_call>"#;

fn prompt() -> String {
    format!(
        "<s><|im_start|>system\nTools:\n[{TOOL}]<|im_end|>\n<|im_start|>user\nHow is it?<|im_end|>\n<|im_start|>assistant\n"
    )
}

fn setup(memory: MemoryKind, file: Option<PathBuf>) -> Setup {
    let replies = vec![(prompt(), format!("{REPLY}<|im_end|>"))];
    let chat = ChatSettings { replay_file: file, ..ChatSettings::default() };
    Setup { memory, replies, chat, ..Setup::default() }
}

fn body() -> Value {
    with(asking("How is it?"), &json!({"poncho": true, "tools": [serde_json::from_str::<Value>(TOOL).unwrap()]}))
}

/// The next request: the reply and the tool's answer added, as a client does.
fn next(first: &Value) -> Value {
    let mut messages = body()["messages"].as_array().unwrap().clone();
    let reply = &first["choices"][0]["message"];
    messages.push(json!({"role": "assistant", "content": reply["content"], "tool_calls": reply["tool_calls"]}));
    messages.push(json!({"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "Sunny"}));
    with(body(), &json!({"messages": messages, "max_tokens": 4, "ignore_eos": true}))
}

fn written() -> usize {
    vocab::tokens(&(prompt() + REPLY)).len()
}

fn cached(answer: &Value) -> usize {
    usize::try_from(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()).unwrap()
}

#[tokio::test]
async fn the_second_turn_finds_everything_that_was_written() {
    for memory in [MemoryKind::Attention, MemoryKind::Recurrent] {
        let server = Server::start(setup(memory, None)).await;
        let first = server.chat(&body()).await;
        assert_eq!(first["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"z\":\"Rome\"}");
        let second = server.chat(&next(&first)).await;
        assert!(cached(&second) >= written(), "{memory:?}: {} of {}: {second}", cached(&second), written());
        // A third turn goes through both.
        let tokens = server.ask("/apply-template", &next(&first)).await["tokens"].clone();
        let tokens: Vec<u32> = serde_json::from_value(tokens).unwrap();
        let rest = "<|im_end|>\n<|im_start|>tool\nSunny<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(tokens, vocab::tokens(&(prompt() + REPLY + rest)));
    }
}

#[tokio::test]
async fn a_turn_that_was_changed_or_is_unknown_is_rendered_plainly() {
    let server = Server::start(setup(MemoryKind::Attention, None)).await;
    let first = server.chat(&body()).await;
    for (place, value) in [
        ("/messages/1/tool_calls/0/id", json!("call_0123456789abcdef")),
        ("/messages/1/tool_calls/0/function/arguments", json!("{\"z\":\"Oslo\"}")),
        ("/messages/1/content", json!("Look!")),
    ] {
        let mut changed = next(&first);
        *changed.pointer_mut(place).unwrap() = value;
        let one = server.ask("/apply-template", &changed).await;
        let two = server.ask("/apply-template", &changed).await;
        assert_eq!(one, two, "the same again");
        let text = server.ask("/detokenize", &json!({"tokens": one["tokens"]})).await;
        let prompt = format!("<s>{}", one["prompt"].as_str().unwrap());
        assert_eq!(text["content"], prompt, "what is read is what the template wrote: {place}");
    }
}

#[tokio::test]
async fn calls_are_remembered_across_restarts_and_damage() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cache.replay");
    let mut server = Server::start(setup(MemoryKind::Attention, Some(file.clone()))).await;
    let first = server.chat(&body()).await;
    let chat = || ChatSettings { replay_file: Some(file.clone()), ..ChatSettings::default() };
    let restart = async |mut server: Server| {
        let engine = Arc::clone(&server.engine);
        server.begin_shutdown();
        server.stopped().await;
        engine
    };
    server.until_ready().await;
    let engine = restart(server).await;
    server = Server::chatting(Arc::clone(&engine), ServerConfig::default(), chat()).await;
    let second = server.chat(&next(&first)).await;
    assert!(cached(&second) >= written(), "{second}");

    // Junk before, a torn record after.
    restart(server).await;
    let kept = std::fs::read(&file).unwrap();
    std::fs::write(&file, [b"junk\n\xff\n".as_slice(), &kept, &kept[..kept.len() / 2]].concat()).unwrap();
    server = Server::chatting(Arc::clone(&engine), ServerConfig::default(), chat()).await;
    let third = server.chat(&next(&first)).await;
    assert!(cached(&third) >= written(), "{third}");

    // The record itself damaged: the answer still comes, from fewer cached tokens.
    restart(server).await;
    let mut damaged = kept;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&file, damaged).unwrap();
    server = Server::chatting(engine, ServerConfig::default(), chat()).await;
    let tokens = server.ask("/apply-template", &next(&first)).await["tokens"].clone();
    assert_ne!(tokens.as_array().unwrap().len(), written());
    server.chat(&next(&first)).await;
}

#[tokio::test]
async fn a_text_reply_is_found_again_to_the_token() {
    // The model writes a special token inside its text; as the text of a message it would be read as bytes.
    let reply = "so</think>yes";
    let server = Server::saying("Hi", &format!("{reply}<|im_end|>")).await;
    let first = server.chat(&asking("Hi")).await;
    assert_eq!(first["choices"][0]["message"]["content"], reply);
    let ask = |content: &str| {
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content},
            {"role": "user", "content": "Go on"}]);
        with(asking("Hi"), &json!({"messages": messages, "max_tokens": 2}))
    };
    let tokens = async |content: &str| -> Vec<u32> {
        serde_json::from_value(server.ask("/apply-template", &ask(content)).await["tokens"].clone()).unwrap()
    };
    let written = vocab::tokens(&(rendered("Hi") + reply));
    assert!(tokens(reply).await.starts_with(&written));
    assert!(!tokens("so</think>no").await.contains(&vocab::THINK_CLOSE), "another text is only text");
    let second = server.chat(&ask(reply)).await;
    assert!(cached(&second) >= written.len(), "{second}");
}
