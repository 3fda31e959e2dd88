//! Calls for embeddings beside requests, on the stub: turns, callers that leave, calls that take too long.

use std::time::Duration;

use poncho_engine::backend::stub::{DecodeFault, StubBackend};
use poncho_engine::backend::{Batch, MemoryKind};
use poncho_engine::{Embedding, EngineError, ModelConfig, Phase};

use crate::stub::{Bench, KINDS, LONG, assert_idle, bench, bench_with, eventually, roomy, solo};
use crate::support::{greedy, memory_cache, prompt};

/// Far above an honest call of the stub, also on a machine that is busy with something else.
const WATCHDOG: Duration = Duration::from_millis(400);
/// Tokens of an input, by which its batch is known.
const INPUT: usize = 11;

fn inputs(count: u32) -> Vec<Vec<u32>> {
    (0..count).map(|number| prompt(number, INPUT)).collect()
}

/// Whether a batch is one input: every row of it wants its result.
fn is_input(batch: &Batch) -> bool {
    batch.rows.len() == INPUT && batch.rows.iter().all(|row| row.want_logits)
}

/// Starts a call and returns when its first input is being computed, which stays so until it is released.
fn held(bench: &Bench, inputs: Vec<Vec<u32>>) -> Embedding {
    bench.faults.record_batches();
    bench.faults.on_decode(1, DecodeFault::Block);
    let embedding = bench.model.start_embedding(inputs, false).unwrap();
    assert!(bench.faults.wait_until_held(LONG));
    embedding
}

/// Hardening 11: 250 inputs were one command, and every other request waited for all of them.
#[test]
fn a_request_gets_its_tokens_while_250_inputs_are_embedded() {
    for kind in KINDS {
        let bench = bench(kind);
        let embedding = held(&bench, inputs(250));
        let request = greedy(&prompt(7, 30), 20);
        let stream = bench.model.submit(request.clone()).unwrap();
        bench.faults.release();
        assert_eq!(stream.wait().unwrap().generated, solo(kind, &request).generated);
        let vectors = embedding.wait().unwrap();
        assert_eq!(vectors.len(), 250);
        let batches = bench.faults.take_batches();
        let ticks = batches.iter().filter(|batch| !is_input(batch)).count();
        let last = batches.iter().rposition(|batch| !is_input(batch)).unwrap();
        let before = batches.iter().take(last).filter(|batch| is_input(batch)).count();
        assert!(before <= ticks + 1, "{before} inputs were computed during {ticks} ticks of the request");
        assert_eq!(batches.len() - ticks, 250, "each input once");
        let alone = crate::stub::bench(kind).model.embed(inputs(250), false).unwrap();
        assert_eq!(alone, vectors, "the same vectors without a neighbour");
        assert_idle(&bench);
    }
}

#[test]
fn calls_take_turns_input_by_input() {
    let bench = bench(MemoryKind::Attention);
    let long = held(&bench, inputs(100));
    let short = bench.model.start_embedding(vec![prompt(3, 5)], false).unwrap();
    bench.faults.release();
    assert_eq!((short.wait().unwrap().len(), long.wait().unwrap().len()), (1, 100));
    let place = bench.faults.take_batches().iter().position(|batch| batch.rows.len() == 5).unwrap();
    assert!(place <= 2, "it waited for {place} inputs of the other call");
}

/// Hardening 11: the inputs of a caller that had left were computed to the last.
#[test]
fn a_caller_that_leaves_ends_its_embedding_at_once() {
    let bench = bench(MemoryKind::Attention);
    bench.faults.on_decode(3, DecodeFault::Block);
    let embedding = bench.model.start_embedding(inputs(250), false).unwrap();
    assert!(bench.faults.wait_until_held(LONG));
    // Nobody releases the call: leaving aborts it.
    drop(embedding);
    eventually("an idle model", || bench.model.status().phase == Phase::Idle);
    assert_eq!(bench.faults.counts().decodes, 3, "it went on without its caller");
    assert_eq!(bench.model.embed(inputs(1), true).unwrap().len(), 1);
    assert_eq!(bench.faults.counts().decodes, 4);
    assert_idle(&bench);
}

#[test]
fn an_embedding_that_was_given_up_while_it_waited_is_never_computed() {
    let bench = bench(MemoryKind::Attention);
    let first = held(&bench, inputs(2));
    drop(bench.model.start_embedding(inputs(50), false).unwrap());
    bench.faults.release();
    assert_eq!(first.wait().unwrap().len(), 2);
    assert_idle(&bench);
    assert_eq!(bench.faults.counts().decodes, 2);
    assert_eq!(bench.model.embed(Vec::new(), true).unwrap(), Vec::<Vec<f32>>::new(), "no input, no vector");
}

/// Hardening 11: embeddings ran outside of the watchdog's sight.
#[test]
fn an_input_that_takes_too_long_fails_its_call_and_no_other() {
    let config = ModelConfig { watchdog: WATCHDOG, ..roomy() };
    let bench = bench_with(config, &StubBackend::new(MemoryKind::Attention), &memory_cache());
    bench.faults.on_decode(1, DecodeFault::Block);
    let embedding = bench.model.start_embedding(inputs(5), false).unwrap();
    assert!(bench.faults.wait_until_held(LONG));
    let request = greedy(&prompt(1, 20), 10);
    let stream = bench.model.submit(request.clone()).unwrap();
    let Err(EngineError::Watchdog { waited, .. }) = embedding.wait() else { panic!("nobody watched") };
    assert!(waited >= WATCHDOG);
    assert_eq!(stream.wait().unwrap().generated, solo(MemoryKind::Attention, &request).generated);
    assert_eq!(bench.model.embed(inputs(5), false).unwrap().len(), 5);
    assert_eq!(bench.model.status().starts, 1, "the worker lives on");
    assert_idle(&bench);
}

/// Hardening 23: the abort flag of a worker that was given up stayed set and failed the next embedding.
#[test]
fn an_abort_meant_for_a_stuck_call_does_not_reach_the_next_embedding() {
    let config = ModelConfig { watchdog: WATCHDOG, ..roomy() };
    let bench = bench_with(config, &StubBackend::new(MemoryKind::Attention), &memory_cache());
    bench.faults.on_decode(1, DecodeFault::Hang);
    let stuck = bench.model.complete(greedy(&prompt(1, 20), 10));
    assert!(matches!(stuck, Err(EngineError::Watchdog { .. })), "{stuck:?}");
    assert_eq!(bench.model.embed(inputs(3), false).unwrap().len(), 3);
    bench.faults.on_decode(1, DecodeFault::Hang);
    let stuck = bench.model.embed(inputs(3), false);
    assert!(matches!(stuck, Err(EngineError::Watchdog { .. })), "its caller gets the error too: {stuck:?}");
    assert_eq!(bench.model.embed(inputs(3), false).unwrap().len(), 3);
    let request = greedy(&prompt(1, 20), 10);
    assert_eq!(
        bench.model.complete(request.clone()).unwrap().generated,
        solo(MemoryKind::Attention, &request).generated
    );
    assert_eq!(bench.model.status().starts, 3);
    bench.faults.release();
}

#[test]
fn a_worker_that_dies_tells_whoever_waits_for_vectors() {
    let bench = bench(MemoryKind::Attention);
    let embedding = held(&bench, inputs(3));
    let waiting = bench.model.start_embedding(inputs(3), false).unwrap();
    bench.faults.on_decode(1, DecodeFault::Panic);
    bench.faults.release();
    for call in [embedding, waiting] {
        assert!(matches!(call.wait(), Err(EngineError::WorkerDied { .. })));
    }
    assert_eq!(bench.model.embed(inputs(3), false).unwrap().len(), 3);
}

#[test]
fn calls_that_wait_are_bounded_as_requests_are() {
    let config = ModelConfig { queue_limit: 2, ..roomy() };
    let bench = bench_with(config, &StubBackend::new(MemoryKind::Attention), &memory_cache());
    let first = held(&bench, inputs(1));
    let waiting: Vec<Embedding> = (0..2).map(|_| bench.model.start_embedding(inputs(1), false).unwrap()).collect();
    let refused = bench.model.start_embedding(inputs(1), false).map(|_| ());
    assert_eq!(refused, Err(EngineError::Overloaded { queued: 3, limit: 3 }));
    drop(first);
    for call in waiting {
        assert_eq!(call.wait().unwrap().len(), 1);
    }
    bench.model.shut_down().unwrap();
    let late = bench.model.embed(inputs(1), false);
    assert!(matches!(late, Err(EngineError::ShuttingDown { .. })), "{late:?}");
}
