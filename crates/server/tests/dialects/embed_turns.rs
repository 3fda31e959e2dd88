//! Many inputs at once: other requests go on, a client that leaves ends the work, and the memory is counted.

use std::sync::Arc;

use poncho_engine::backend::stub::{DecodeFault, StubBackend};
use poncho_engine::backend::{Batch, ContextOptions, MemoryKind};
use poncho_engine::{EmbeddingCost, FingerprintSource, ModelConfig, Phase, footprint};
use poncho_server::{LibraryError, LibraryModel, MemoryBudget, ModelLibrary, ServerConfig};
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::models::loading::gated_engine;
use crate::support::{Server, asking, eventually, wait_until_held, with};

const ENDPOINTS: [&str; 2] = ["/api/embed", "/v1/embeddings"];

/// Texts of the same length, by which their batches are known.
fn texts(count: usize) -> Value {
    let text = |number: usize| format!("text {number:05}");
    json!({"model": "stub", "input": (0..count).map(text).collect::<Vec<_>>()})
}

fn is_input(batch: &Batch) -> bool {
    batch.rows.len() == 11 && batch.rows.iter().all(|row| row.want_logits)
}

/// Hardening 11: 250 texts blocked every other request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_goes_on_while_250_texts_are_embedded() {
    for path in ENDPOINTS {
        let server = Server::plain().await;
        server.faults.record_batches();
        server.faults.on_decode(2, DecodeFault::Block);
        let chat = async {
            wait_until_held(&server).await;
            let body = with(asking("Hello"), &json!({"max_tokens": 20, "ignore_eos": true}));
            let released = async {
                let model = server.model();
                // It has a place in the queue before its prompt is prepared, and is listed after that.
                eventually("the chat in the queue", || model.requests().len() == 1).await;
                server.faults.release();
            };
            tokio::join!(server.chat(&body), released).0
        };
        let body = texts(250);
        let (embedded, chat) = tokio::join!(server.ask(path, &body), chat);
        assert_eq!(chat["usage"]["completion_tokens"], 20);
        let vectors = embedded["embeddings"].as_array().or(embedded["data"].as_array()).unwrap();
        assert_eq!(vectors.len(), 250);
        let batches = server.faults.take_batches();
        let ticks = batches.iter().filter(|batch| !is_input(batch)).count();
        let last = batches.iter().rposition(|batch| !is_input(batch)).unwrap();
        let before = batches.iter().take(last).filter(|batch| is_input(batch)).count();
        assert!(before <= ticks + 2, "{path}: {before} texts went first, and the chat took {ticks} ticks");
    }
}

/// Hardening 11: the texts of a client that had left were embedded to the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_ends_its_embedding() {
    for path in ENDPOINTS {
        let server = Server::plain().await;
        server.faults.on_decode(3, DecodeFault::Block);
        let body = texts(250).to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut socket = server.connect().await;
        socket.write_all((head + &body).as_bytes()).await.unwrap();
        wait_until_held(&server).await;
        // Nobody releases the decode call: leaving aborts it.
        drop(socket);
        let model = server.model();
        eventually("an idle model", || model.status().phase == Phase::Idle).await;
        assert_eq!(server.faults.counts().decodes, 3, "{path}: it went on without its client");
        server.ask(path, &texts(1)).await;
        assert_eq!(server.faults.counts().decodes, 4, "{path}");
    }
}

/// Real files, so that there is something to estimate, on the stub.
struct Files;

impl Files {
    fn config(name: &str) -> ModelConfig {
        let context = ContextOptions { n_ctx: 1024, n_seq_max: 2, ..ContextOptions::default() };
        let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
        ModelConfig { context, fingerprint, ..ModelConfig::new(name, model_path(ModelKind::Attention)) }
    }
}

impl ModelLibrary for Files {
    fn find(&self, name: &str) -> Result<Option<LibraryModel>, LibraryError> {
        Ok(matches!(name, "one" | "two").then(|| LibraryModel::new(Self::config(name))))
    }

    fn list(&self) -> Result<Vec<LibraryModel>, LibraryError> {
        Ok(["one", "two"].map(|name| LibraryModel::new(Self::config(name))).into())
    }
}

/// A server with this memory budget for its models.
async fn with_room(budget: u64) -> Server {
    let (engine, _) = gated_engine(StubBackend::new(MemoryKind::Attention));
    let config =
        ServerConfig { library: Some(Arc::new(Files)), memory: MemoryBudget::Bytes(budget), ..ServerConfig::default() };
    Server::of(engine, config).await
}

fn loaded(server: &Server) -> Vec<String> {
    server.engine.models().iter().map(|model| model.id().to_owned()).collect()
}

/// Hardening 20: the context for embeddings was made beside the budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_context_for_embeddings_is_within_the_budget() {
    let cost = EmbeddingCost::of(&Files::config("one"));
    let saying = |name: &str| with(asking("Hi"), &json!({"model": name, "max_tokens": 1}));
    let embedding = |name: &str, length: usize| json!({"model": name, "input": "x".repeat(length)});

    // Room for both models and a small context, or for one model and a large one.
    let model = footprint(&Files::config("one")).total();
    assert!(model > 0);
    let server = with_room(model + cost.bytes(1024).max(model + cost.bytes(512))).await;
    for name in ["one", "two"] {
        server.chat(&saying(name)).await;
    }
    server.ask("/v1/embeddings", &embedding("two", 100)).await;
    assert_eq!(loaded(&server), ["one", "two"], "it fits");
    let shown = server.get("/api/ps").await.json();
    let of = |name: &str| {
        let models = shown["models"].as_array().unwrap();
        models.iter().find(|model| model["name"] == format!("{name}:latest")).unwrap()["size"].as_u64().unwrap()
    };
    assert_eq!(of("two") - of("one"), cost.bytes(512), "it is shown: {shown}");
    server.ask("/v1/embeddings", &embedding("two", 100)).await;
    assert_eq!(loaded(&server), ["one", "two"], "it is counted once");
    // A longer input needs a larger one, and the model that nobody uses makes room.
    server.ask("/api/embed", &embedding("two", 1000)).await;
    assert_eq!(loaded(&server), ["two"]);

    // Too long for a context of its own is not a reason to unload anything.
    server.chat(&saying("one")).await;
    let long = server.post("/v1/embeddings", &embedding("one", 5000)).await;
    assert_eq!((long.status, &long.json()["error"]["code"]), (400, &json!("context_length_exceeded")), "{}", long.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_without_memory_is_refused_and_the_model_goes_on() {
    let one = footprint(&Files::config("one")).total();
    let server = with_room(one + 1).await;
    for path in ENDPOINTS {
        let refused = server.post(path, &json!({"model": "one", "input": "x"})).await;
        assert_eq!(refused.status, 503, "{}", refused.text);
        assert!(
            refused.text.contains("embedding an input of 2 tokens") && refused.text.contains("--memory"),
            "{}",
            refused.text
        );
    }
    let answer = server.chat(&with(asking("Hi"), &json!({"model": "one", "max_tokens": 1}))).await;
    assert_eq!(answer["usage"]["completion_tokens"], 1);
}
