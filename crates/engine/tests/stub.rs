//! A model on the stub as the tests of the worker want it: room enough, quick restarts, and the same reply from a fresh
//! model to compare with. Used by the modules that steer the stub; it holds no test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::{Cache, Gates};
use poncho_engine::backend::stub::{DecodeFault, StubBackend, StubFaults, vocab};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Completion, Model, ModelConfig, Request, Stream, StreamEvent};

use crate::support::{greedy, memory_cache, prompt, stub_config};

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

/// Settings for replies that go on until somebody ends them: tens of thousands of tokens.
pub(crate) fn endless() -> ModelConfig {
    let config = roomy();
    let context = ContextOptions { n_ctx: 30_000, n_cells: Some(100_000), ..config.context.clone() };
    let gates = Gates { continued_interval: 10_000, ..config.gates };
    ModelConfig { context, gates, ..config }
}

pub(crate) fn bench(kind: MemoryKind) -> Bench {
    bench_with(roomy(), &StubBackend::new(kind), &memory_cache())
}

pub(crate) fn bench_with(config: ModelConfig, backend: &StubBackend, cache: &Arc<Cache>) -> Bench {
    let model = Model::load(config, Arc::new(backend.clone()), Arc::clone(cache)).unwrap();
    Bench { model, faults: backend.faults(), cache: Arc::clone(cache) }
}

/// Submits all requests while the first one's first decode is held, so that they are in the worker's hands together, and
/// records the batches.
pub(crate) fn submit_together(bench: &Bench, requests: &[Request]) -> Vec<Stream> {
    bench.faults.record_batches();
    bench.faults.on_decode(1, DecodeFault::Block);
    let mut streams = Vec::new();
    for request in requests {
        streams.push(bench.model.submit(request.clone()).unwrap());
        if streams.len() == 1 {
            assert!(bench.faults.wait_until_held(LONG));
        }
    }
    bench.faults.release();
    streams
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
    // An answer to a command means that the worker has noted how it stands; a request that was given up just before may
    // take it one more round.
    eventually("an idle model", || {
        bench.model.end_session("nobody's").unwrap();
        let status = bench.model.status();
        (status.active, status.pending, status.queue_depth) == (0, 0, 0) && bench.cache.pinned_rows() == 0
    });
    assert_eq!(bench.faults.counts().invalid, 0, "a batch that contradicts what the context holds");
}

/// All sequences can be used at once, and each of them answers right.
pub(crate) fn assert_serves(bench: &Bench, kind: MemoryKind) {
    assert_idle(bench);
    bench.faults.record_batches();
    drop(bench.faults.take_batches());
    let n_seq = bench.model.config().context.n_seq_max;
    let requests: Vec<Request> = (0..n_seq).map(|number| greedy(&prompt(50 + number, 15), 8)).collect();
    bench.faults.on_decode(1, DecodeFault::Block);
    let streams: Vec<Stream> = requests.iter().map(|request| bench.model.submit(request.clone()).unwrap()).collect();
    assert!(bench.faults.wait_until_held(LONG));
    bench.faults.release();
    for (request, stream) in requests.iter().zip(streams) {
        assert_eq!(stream.wait().unwrap().generated, solo(kind, request).generated, "{kind:?}");
    }
    let widest = bench.faults.take_batches().into_iter().map(|batch| {
        let mut sequences: Vec<u32> = batch.rows.iter().map(|row| row.seq).collect();
        sequences.sort_unstable();
        sequences.dedup();
        sequences.len()
    });
    assert_eq!(widest.max(), Some(n_seq as usize), "a sequence is lost ({kind:?})");
    assert_idle(bench);
}
