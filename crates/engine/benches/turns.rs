//! What a turn costs as its conversation grows, on the stub: time, templates rendered, bytes tokenized.
//!
//! `cargo bench -p poncho-engine --no-default-features --features testing --bench turns` prints two tables. The first has
//! the same bytes as chats of 10, 100 and 400 messages, each sent twice to a model that has read it before. The second
//! has 200 turns of one conversation on models that resume only where they saved, by quarters. The stub computes next to
//! nothing, so what is left is the engine's own work. It must never be read as the speed of a model.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a benchmark may stop at once")]

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_core::Stream as _;
use poncho_api::{ChatSettings, ChatTurn, Generate, Node as _, NodeModel, Prompt, ReplyEvent};
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::stub::{StubBackend, StubCounts, StubFaults};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Engine, FingerprintSource, Host, ModelConfig, Request, Sampling};
use serde_json::{Value, json};

/// Bytes of a long chat; each is a token of the stub.
const LONG_CHAT: usize = 80_000;
const TURNS: usize = 200;

struct Server {
    host: Host,
    faults: StubFaults,
    _folder: tempfile::TempDir,
}

impl Server {
    fn new(kind: MemoryKind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = Arc::new(Cache::open(CacheConfig::on_disk(folder.path().join("kv"), 4 << 30)).unwrap());
        let backend = StubBackend::new(kind);
        let faults = backend.faults();
        let engine = Arc::new(Engine::new(Arc::new(backend), cache));
        let n_ctx = 200_000;
        let context = ContextOptions { n_ctx, n_cells: Some(n_ctx), n_seq_max: 1, ..ContextOptions::default() };
        let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
        engine.load(ModelConfig { fingerprint, context, ..ModelConfig::new("stub", "stub") }).unwrap();
        let settings = ChatSettings { replay_file: Some(folder.path().join("replay")), ..ChatSettings::default() };
        Self { host: Host::new(engine, settings), faults, _folder: folder }
    }

    /// One turn: how long it took, what was counted, and the reply.
    async fn turn(&self, messages: &[Value], max_tokens: u32) -> (Duration, Counted, String) {
        let model: Arc<dyn NodeModel> = self.host.model("stub").unwrap();
        let turn = ChatTurn { messages: messages.to_vec(), ..ChatTurn::default() };
        let request = Request { max_tokens: Some(max_tokens), ..Request::new(Vec::new()) };
        let request = Request { sampling: Sampling::greedy(), ..request };
        let before = self.faults.counts();
        let began = Instant::now();
        let asked = vec![Generate::new(Prompt::Chat(Box::new(turn)), request)];
        let mut reply = model.generate(asked).await.unwrap().pop().unwrap();
        let done = loop {
            match poll_fn(|context| Pin::new(&mut reply).poll_next(context)).await.unwrap() {
                ReplyEvent::Done(done) => break done,
                ReplyEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        };
        let time = began.elapsed();
        (time, Counted::between(before, self.faults.counts()), done.output.content)
    }
}

/// What the stub counted during some turns.
#[derive(Clone, Copy, Default)]
struct Counted {
    renders: u64,
    tokenized: u64,
    computed: u64,
}

impl Counted {
    fn between(before: StubCounts, after: StubCounts) -> Self {
        Self {
            renders: after.renders - before.renders,
            tokenized: after.tokenized_bytes - before.tokenized_bytes,
            computed: after.rows - before.rows,
        }
    }

    fn add(&mut self, other: Self) {
        self.renders += other.renders;
        self.tokenized += other.tokenized;
        self.computed += other.computed;
    }
}

/// A chat of `count` messages that waits for a reply.
fn chat(count: usize) -> Vec<Value> {
    let bytes = LONG_CHAT / count;
    let message = |at: usize| {
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        let text: String = format!("message {at}: ").chars().chain("some words ".chars().cycle()).take(bytes).collect();
        json!({"role": role, "content": text})
    };
    (0..count - 1).map(message).collect()
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

#[tokio::main]
async fn main() {
    println!("| Model | Messages | Turn, ms | Renders | Tokenized, bytes |\n| --- | --- | --- | --- | --- |");
    for kind in [MemoryKind::Attention, MemoryKind::Recurrent] {
        let server = Server::new(kind);
        for count in [10, 100, 400] {
            let messages = chat(count);
            // The first reads the prompt and leaves a reply that is kept.
            server.turn(&messages, 512).await;
            let mut times = Vec::new();
            let mut counted = Counted::default();
            for _ in 0..5 {
                let (time, now, _) = server.turn(&messages, 1).await;
                times.push(time);
                counted = now;
            }
            times.sort_unstable();
            let middle = times.get(2).unwrap().as_secs_f64() * 1e3;
            println!("| {kind:?} | {count} | {middle:.1} | {} | {} |", counted.renders, counted.tokenized);
        }
    }
    let turns = number("PONCHO_TURNS", TURNS);
    println!(
        "\n| Model | Turns | ms a turn | Renders | Tokenized, bytes | Computed |\n| --- | --- | --- | --- | --- | --- |"
    );
    for kind in [MemoryKind::Recurrent, MemoryKind::Hybrid] {
        let server = Server::new(kind);
        let mut messages = vec![json!({"role": "system", "content": "Be brief. ".repeat(60)})];
        let quarter = turns / 4;
        for begin in (0..turns).step_by(quarter) {
            let (mut time, mut counted) = (Duration::ZERO, Counted::default());
            for turn in begin..begin + quarter {
                let question = format!("Question {turn}: {}", "what is a llama? ".repeat(3));
                messages.push(json!({"role": "user", "content": question}));
                let (took, now, reply) = server.turn(&messages, 64).await;
                time += took;
                counted.add(now);
                messages.push(json!({"role": "assistant", "content": reply}));
            }
            let each = |sum: u64| sum / quarter as u64;
            println!(
                "| {kind:?} | {begin} to {} | {:.1} | {} | {} | {} |",
                begin + quarter,
                time.as_secs_f64() * 1e3 / quarter as f64,
                each(counted.renders),
                each(counted.tokenized),
                each(counted.computed),
            );
        }
    }
}
