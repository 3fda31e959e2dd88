//! A model on the stub as the tests of the worker want it: room enough, quick restarts, and the same reply from a fresh
//! model to compare with. Used by the modules that steer the stub; it holds no test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::Cache;
use poncho_engine::backend::stub::{StubBackend, StubFaults, vocab};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Completion, Model, ModelConfig, Request, Stream, StreamEvent};

use crate::support::{memory_cache, stub_config};

/// Every memory kind.
pub(crate) const KINDS: [MemoryKind; 4] =
    [MemoryKind::Attention, MemoryKind::Window { size: 16 }, MemoryKind::Recurrent, MemoryKind::Hybrid];

/// Longer than anything takes; only a bug waits so long.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A model with room for all that a test sends, and a hand on its backend.
pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) faults: StubFaults,
    pub(crate) cache: Arc<Cache>,
}

/// Settings with cells for every sequence and restarts that take no time.
pub(crate) fn roomy() -> ModelConfig {
    let config = stub_config("stub");
    let context = ContextOptions { n_cells: Some(2048), ..config.context.clone() };
    ModelConfig { context, restart_pause: Duration::from_millis(1), ..config }
}

/// The same with another number of sequences.
pub(crate) fn roomy_with(n_seq_max: u32) -> ModelConfig {
    let config = roomy();
    ModelConfig { context: ContextOptions { n_seq_max, ..config.context.clone() }, ..config }
}

pub(crate) fn bench(kind: MemoryKind) -> Bench {
    bench_with(roomy(), &StubBackend::new(kind), &memory_cache())
}

pub(crate) fn bench_with(config: ModelConfig, backend: &StubBackend, cache: &Arc<Cache>) -> Bench {
    let model = Model::load(config, Arc::new(backend.clone()), Arc::clone(cache)).unwrap();
    Bench { model, faults: backend.faults(), cache: Arc::clone(cache) }
}

/// What a fresh model without any history says to a request.
pub(crate) fn solo(kind: MemoryKind, request: &Request) -> Completion {
    let request = Request { session_id: None, parent_key: None, ..request.clone() };
    bench(kind).model.complete(request).unwrap()
}

/// The stub's tokens of a text, special ones recognised.
pub(crate) fn words(text: &str) -> Vec<u32> {
    vocab::tokens(text)
}

/// Reads a stream up to its first token.
pub(crate) fn until_first_token(stream: &mut Stream) {
    loop {
        match stream.next_blocking() {
            Some(StreamEvent::Token { .. }) => return,
            Some(event) if !event.is_last() => {}
            other => panic!("no token came, but {other:?}"),
        }
    }
}

/// Waits for something that nobody announces; panics if it never comes.
pub(crate) fn eventually(what: &str, reached: impl Fn() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(started.elapsed() < LONG, "{what} did not come");
        std::thread::yield_now();
    }
}

/// Whether nothing is left of any request: no sequence in use, nobody waiting, no row held.
pub(crate) fn assert_idle(bench: &Bench) {
    // An answer to a command means that the worker has noted how it stands.
    bench.model.sessions().unwrap();
    let status = bench.model.status();
    assert_eq!((status.active, status.pending, status.queue_depth), (0, 0, 0));
    assert_eq!(bench.cache.pinned_rows(), 0);
    assert_eq!(bench.faults.counts().invalid, 0, "a batch that contradicts what the context holds");
}
