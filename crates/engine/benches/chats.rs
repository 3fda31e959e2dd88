//! What a chat that was sent before costs until its tokens are known: 10, 100 and 400 messages with the same text.
//!
//! `cargo bench -p poncho-engine --bench chats --profile release` renders chats of about 20,000 tokens with the tokenizer
//! and the chat template of the default model, and with templates of llama.cpp's test set where they are fetched. Nothing
//! is decoded. Each figure is the median of several rounds, and also a ratio to the chat of 10 messages in the same run.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a benchmark may stop at once")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_api::{ChatSettings, ChatTurn, Generate, Node as _, Prompt};
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{ChatRequest, ContextOptions};
use poncho_engine::{Engine, Host, ModelConfig, Request};
use serde_json::{Value, json};

/// The allocator of the `poncho` binary, for llama.cpp's allocations too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Bytes of a chat: about 20,000 tokens.
const LONG_CHAT: usize = 80_000;
const ROUNDS: usize = 9;
/// Templates of different families, by their file names.
const FAMILIES: [&str; 4] =
    ["Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-120b", "google-gemma-4-31B-it"];

/// A chat of `count` messages that ends with a question; `round` makes that one new.
fn chat(count: usize, round: usize) -> Vec<Value> {
    let bytes = LONG_CHAT / (count - 1);
    let message = |at: usize| {
        let role = match at {
            0 => "system",
            at if at.is_multiple_of(2) => "assistant",
            _ => "user",
        };
        let words = "the quick brown fox jumps over a lazy dog and ".chars().cycle().skip(at);
        json!({"role": role, "content": words.take(bytes).collect::<String>()})
    };
    let question = json!({"role": "user", "content": format!("And now, in round {round}?")});
    (0..count - 1).map(message).chain([question]).collect()
}

fn template(name: &str) -> Option<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.tools/llama.cpp/models/templates");
    std::fs::read_to_string(folder.join(format!("{name}.jinja"))).ok()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

#[tokio::main]
async fn main() {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 28)).unwrap());
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), cache));
    // A prompt that is only rendered may be four times as long as the context.
    let context = ContextOptions { n_ctx: 8192, n_seq_max: 1, ..ContextOptions::default() };
    let path = poncho_testkit::default_model_path();
    let model = engine.load(ModelConfig { context, ..ModelConfig::new("bench", &path) }).unwrap();
    let host = Host::new(engine, ChatSettings::default());
    let own = std::iter::once(("the model's own", None));
    let families = FAMILIES.into_iter().filter_map(|name| Some((name, Some(template(name)?))));
    println!(
        "| Template | Messages | Tokens | llama.cpp's template, ms | The same chat again, ms | A new question, ms |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, template) in own.chain(families) {
        let mut first = None;
        for count in [10, 100, 400] {
            let asked = |messages: &[Value]| {
                let turn = ChatTurn { messages: messages.to_vec(), template: template.clone(), ..ChatTurn::default() };
                Generate::new(Prompt::Chat(Box::new(turn)), Request::new(Vec::new()))
            };
            let messages = chat(count, 0);
            let hosted = host.model("bench").unwrap();
            let tokens = hosted.render(asked(&messages)).await.unwrap().tokens.len();
            let (mut alone, mut again, mut new) = (Vec::new(), Vec::new(), Vec::new());
            for round in 1..=ROUNDS {
                let messages_json = Value::from(messages.clone()).to_string();
                let request =
                    ChatRequest { messages_json, template_override: template.clone(), ..ChatRequest::default() };
                let began = Instant::now();
                model.apply_chat_template(&request).unwrap();
                alone.push(began.elapsed());
                let generate = asked(&messages);
                let began = Instant::now();
                hosted.render(generate).await.unwrap();
                again.push(began.elapsed());
                let generate = asked(&chat(count, round));
                let began = Instant::now();
                hosted.render(generate).await.unwrap();
                new.push(began.elapsed());
            }
            let times = [median(alone), median(again), median(new)];
            let first = *first.get_or_insert(times);
            let shown = |at: usize| format!("{:.2} ({:.2})", times[at], times[at] / first[at]);
            println!("| {name} | {count} | {tokens} | {} | {} | {} |", shown(0), shown(1), shown(2));
        }
    }
}
