//! Prompts that are too large: refused by their size before they are tokenized, in every dialect, and texts that cannot be
//! tokenized at all.

use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::ContextOptions;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Engine, ModelConfig};
use poncho_server::ServerConfig;
use poncho_testkit::{ModelKind, ModelSpec, path_of};
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, with};

/// One request for each place where a text can come in.
fn requests(text: &str) -> Vec<(&'static str, Value)> {
    let user = json!([{"role": "user", "content": text}]);
    vec![
        ("/v1/chat/completions", json!({"model": "m", "messages": user})),
        ("/v1/completions", json!({"model": "m", "prompt": text})),
        ("/v1/completions", json!({"model": "m", "prompt": ["a", text]})),
        ("/v1/completions", json!({"model": "m", "prompt": "a", "suffix": text})),
        ("/v1/responses", json!({"model": "m", "input": text})),
        ("/v1/responses", json!({"model": "m", "input": text, "truncation": "auto"})),
        ("/v1/embeddings", json!({"model": "m", "input": text})),
        ("/v1/messages", json!({"model": "m", "max_tokens": 4, "messages": user})),
        ("/v1/messages/count_tokens", json!({"model": "m", "messages": user})),
        ("/api/generate", json!({"model": "m", "prompt": text})),
        ("/api/generate", json!({"model": "m", "prompt": text, "raw": true})),
        ("/api/generate", json!({"model": "m", "prompt": text, "template": "{{ .Prompt }}"})),
        ("/api/generate", json!({"model": "m", "prompt": "a", "suffix": text})),
        ("/api/chat", json!({"model": "m", "messages": user})),
        ("/api/embed", json!({"model": "m", "input": text, "truncate": false})),
        ("/tokenize", json!({"model": "m", "content": text})),
        ("/apply-template", json!({"model": "m", "messages": user})),
        ("/api/cache/explain", json!({"model": "m", "messages": user})),
        ("/api/cache/explain", json!({"model": "m", "prompt": text})),
    ]
}

/// Hardening 13: 4 MB of text against a small context took seconds and hundreds of megabytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_cannot_fit_is_refused_by_its_size_in_every_dialect() {
    let server = Server::start(Setup { models: vec!["m"], fills_gaps: true, ..Setup::default() }).await;
    let text = "word ".repeat(800_000);
    for (path, body) in requests(&text) {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        // The answer gives only a bound, because nothing was tokenized; Anthropic's clients know one sentence.
        let told = if path.starts_with("/v1/messages") { "prompt is too long: 333" } else { "at least 333" };
        assert!(answer.text.contains(told), "{path}: {}", answer.text);
        if path.starts_with("/v1/chat") {
            assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
        }
    }
    // Ollama's embeddings are cut unless they must not be.
    let embedded = server.ask("/api/embed", &json!({"model": "m", "input": text})).await;
    assert_eq!(embedded["prompt_eval_count"], 4095);
    assert_eq!(
        server.post("/v1/chat/completions", &with(asking("x"), &json!({"model": "m", "max_tokens": 1}))).await.status,
        200
    );
}

/// Hardening 13: 16 MB of token ids took 611 MB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_lists_are_counted_while_they_are_read() {
    let server = Server::start(Setup { models: vec!["m"], ..Setup::default() }).await;
    let list = vec![7_u32; 5_000_000];
    for (path, body) in [
        ("/v1/completions", json!({"model": "m", "prompt": list})),
        ("/v1/embeddings", json!({"model": "m", "input": list})),
        ("/api/cache/explain", json!({"model": "m", "prompt": list})),
        ("/api/generate", json!({"model": "m", "prompt": "a", "context": list})),
        ("/detokenize", json!({"model": "m", "tokens": list})),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert!(answer.text.contains("more than 4194304 tokens"), "{path}: {}", answer.text);
    }
    let many = server.post("/v1/completions", &json!({"model": "m", "prompt": vec![7_u32; 5000]})).await;
    assert_eq!((many.status, &many.json()["error"]["code"]), (400, &json!("context_length_exceeded")), "{}", many.text);
}

/// A server of a tiny model with a pre-tokenizer that llama.cpp has no special code for.
async fn gpt4o() -> Server {
    let chatml = ModelSpec { pre_tokenizer: "gpt-4o", n_ctx_train: 65536, ..ModelSpec::tiny(ModelKind::Attention) };
    let context = ContextOptions { n_ctx: 32768, n_seq_max: 1, threads: Some(1), ..ContextOptions::default() };
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 28)).unwrap());
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), cache));
    engine.load(ModelConfig { context, ..ModelConfig::new("m", path_of(&chatml).unwrap()) }).unwrap();
    Server::of(engine, ServerConfig::default()).await
}

/// Hardening 1: each of these requests ended the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_runs_of_one_class_do_not_end_the_server() {
    let server = gpt4o().await;
    for run in ["a", "-", "你", " "] {
        let text = run.repeat(20_000);
        let body = json!({"model": "m", "content": text});
        let tokens = server.ask("/tokenize", &body).await["tokens"].as_array().unwrap().clone();
        let back = server.ask("/detokenize", &json!({"model": "m", "tokens": tokens})).await;
        assert_eq!(back["content"].as_str().unwrap(), text, "{run:?}");
    }
    let user = json!([{"role": "user", "content": "a".repeat(7_000)}]);
    let counted = server.ask("/v1/messages/count_tokens", &json!({"model": "m", "messages": user})).await;
    assert!(counted["input_tokens"].as_u64().unwrap() >= 7_000);
}

/// Hardening 1: what cannot be tokenized is refused, and the field is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_cannot_be_cut_is_refused_by_the_name_of_its_field() {
    let server = gpt4o().await;
    let text = "aB".repeat(60_000);
    for (path, body) in requests(&text) {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert!(answer.text.contains("120000 characters without a break"), "{path}: {}", answer.text);
        let field = match path {
            "/v1/chat/completions" | "/v1/messages" | "/v1/messages/count_tokens" | "/api/chat" | "/apply-template" => {
                "messages"
            }
            "/v1/responses" | "/v1/embeddings" | "/api/embed" => "input",
            "/tokenize" => "content",
            "/api/cache/explain" if body.get("messages").is_some() => "messages",
            "/v1/completions" if body.get("suffix").is_some() => "suffix",
            _ => "prompt",
        };
        assert!(answer.text.contains(&format!("\"{field}")), "{path} {field}: {}", answer.text);
    }
    let fine = json!({"model": "m", "prompt": "still here", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &fine).await.status, 200);
}
