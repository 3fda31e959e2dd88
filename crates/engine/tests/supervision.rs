//! A worker that dies or hangs is replaced: its requests get the reason, the next ones are served, other models go on.

use std::io::Write;
use std::time::Duration;

use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::{DecodeFault, StubBackend, StubCall};
use poncho_engine::{EngineError, ModelConfig, Request, Stream};

use crate::stub::{KINDS, LONG, assert_idle, bench, bench_with, eventually, roomy, roomy_with, solo};
use crate::support::{greedy, memory_cache, prompt};

/// Far above an honest tick of the stub, also on a machine that is busy with something else.
const WATCHDOG: Duration = Duration::from_millis(400);

#[test]
fn a_panic_is_told_and_the_next_request_is_served() {
    for kind in KINDS {
        let cache = memory_cache();
        let bench = bench_with(roomy_with(2), &StubBackend::new(kind), &cache);
        let other = bench_with(ModelConfig { id: "other".to_owned(), ..roomy() }, &StubBackend::new(kind), &cache);
        other.faults.on_decode(3, DecodeFault::Block);
        let untouched = greedy(&prompt(9, 20), 20);
        let elsewhere = other.model.submit(untouched.clone()).unwrap();
        assert!(other.faults.wait_until_held(LONG));

        bench.faults.on_decode(4, DecodeFault::Block);
        bench.faults.on_decode(5, DecodeFault::Panic);
        let streams: Vec<Stream> =
            (0..3).map(|number| bench.model.submit(greedy(&prompt(number, 20), 20)).unwrap()).collect();
        assert!(bench.faults.wait_until_held(LONG));
        bench.faults.release();
        for stream in streams {
            let Err(EngineError::WorkerDied { model, reason }) = stream.wait() else { panic!("it went on") };
            assert_eq!(model, "stub");
            assert!(reason.contains("the stub was asked to panic"), "{reason}");
        }
        for number in 0..3 {
            let request = greedy(&prompt(number, 20), 20);
            assert_eq!(bench.model.complete(request.clone()).unwrap().generated, solo(kind, &request).generated);
        }
        assert_eq!(bench.model.status().starts, 2);
        assert_eq!(bench.faults.counts().live_contexts, 1);
        assert_idle(&bench);
        other.faults.release();
        assert_eq!(elsewhere.wait().unwrap().generated, solo(kind, &untouched).generated);
        assert_eq!(other.model.status().starts, 1);
    }
}

#[test]
fn what_a_dead_worker_saved_makes_the_next_one_warm() {
    let bench = bench(MemoryKind::Hybrid);
    let first = bench.model.complete(greedy(&prompt(1, 40), 6)).unwrap();
    bench.faults.on_decode(1, DecodeFault::Panic);
    bench.model.complete(greedy(&prompt(2, 40), 6)).unwrap_err();
    let again = bench.model.complete(greedy(&prompt(1, 40), 6)).unwrap();
    assert_eq!((again.cached_tokens, &again.generated), (40, &first.generated));
}

#[test]
fn adapters_outlive_the_worker() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"an adapter").unwrap();
    let request = greedy(&prompt(1, 20), 10);
    let bench = bench_with(
        ModelConfig { watchdog: WATCHDOG, ..roomy() },
        &StubBackend::new(MemoryKind::Attention),
        &memory_cache(),
    );
    let adapter = bench.model.load_adapter(file.path()).unwrap();
    bench.model.set_adapter_scale(adapter, 0.5).unwrap();
    let adapted = bench.model.complete(request.clone()).unwrap().generated;
    assert_ne!(adapted, solo(MemoryKind::Attention, &request).generated);
    for fault in [DecodeFault::Panic, DecodeFault::Hang] {
        bench.faults.on_decode(1, fault);
        bench.model.complete(greedy(&prompt(2, 20), 10)).unwrap_err();
        bench.cache.clear();
        assert_eq!(bench.model.complete(request.clone()).unwrap().generated, adapted, "{fault:?}");
        assert_eq!(bench.model.adapters()[0].scale, 0.5);
    }
    bench.faults.release();
}

#[test]
fn a_context_that_cannot_be_made_is_tried_again() {
    let bench = bench(MemoryKind::Attention);
    bench.faults.fail_next(StubCall::NewContext, 2);
    bench.faults.on_decode(1, DecodeFault::Panic);
    bench.model.complete(greedy(&prompt(1, 20), 5)).unwrap_err();
    let request = greedy(&prompt(2, 20), 5);
    let served = loop {
        // Requests on a failing context get an error too.
        match bench.model.complete(request.clone()) {
            Ok(done) => break done,
            Err(error) => assert!(matches!(error, EngineError::WorkerDied { .. }), "{error:?}"),
        }
    };
    assert_eq!(served.generated, solo(MemoryKind::Attention, &request).generated);
    assert_idle(&bench);
}

#[test]
fn the_watchdog_aborts_a_call_that_takes_too_long() {
    for kind in KINDS {
        let config = ModelConfig { watchdog: WATCHDOG, ..roomy() };
        let bench = bench_with(config, &StubBackend::new(kind), &memory_cache());
        bench.faults.on_decode(3, DecodeFault::Block);
        let Err(EngineError::WorkerDied { reason, .. }) = bench.model.complete(greedy(&prompt(1, 20), 20)) else {
            panic!("nobody watched")
        };
        assert!(reason.contains("exceeded its bound"), "{reason}");
        let request = greedy(&prompt(1, 20), 20);
        assert_eq!(bench.model.complete(request.clone()).unwrap().generated, solo(kind, &request).generated);
        assert_eq!(bench.model.status().starts, 2);
        assert_idle(&bench);
    }
}

#[test]
fn a_worker_that_hangs_is_given_up_and_never_heard_of_again() {
    for kind in KINDS {
        let config = ModelConfig { watchdog: WATCHDOG, ..roomy_with(1) };
        let bench = bench_with(config, &StubBackend::new(kind), &memory_cache());
        bench.faults.on_decode(3, DecodeFault::Hang);
        let stuck = bench.model.submit(greedy(&prompt(1, 20), 20)).unwrap();
        assert!(bench.faults.wait_until_held(LONG));
        // A command that waits behind the stuck call is answered by the next worker.
        assert!(!bench.model.end_session("nobody's").unwrap());
        let Err(EngineError::Watchdog { model, waited }) = stuck.wait() else { panic!("nobody watched") };
        assert!(model == "stub" && waited >= 2 * WATCHDOG);
        let request = greedy(&prompt(1, 20), 20);
        assert_eq!(bench.model.complete(request.clone()).unwrap().generated, solo(kind, &request).generated);
        assert_eq!(bench.faults.counts().live_contexts, 2, "the stuck one still holds its context");

        // It comes back while its successor is at work.
        let running = greedy(&prompt(2, 20), 30);
        let stream = bench.model.submit(running.clone()).unwrap();
        bench.faults.release();
        eventually("the end of the stuck worker", || bench.faults.counts().live_contexts == 1);
        assert_eq!(stream.wait().unwrap().generated, solo(kind, &running).generated);
        assert_eq!(bench.model.complete(request.clone()).unwrap().generated, solo(kind, &request).generated);
        assert_eq!(bench.model.status().starts, 2);
        assert_idle(&bench);
    }
}

#[test]
fn a_model_whose_worker_hangs_can_be_unloaded() {
    let config = ModelConfig { watchdog: WATCHDOG, ..roomy() };
    let bench = bench_with(config, &StubBackend::new(MemoryKind::Attention), &memory_cache());
    bench.faults.on_decode(1, DecodeFault::Hang);
    let stream = bench.model.submit(Request::new(prompt(1, 20))).unwrap();
    assert!(bench.faults.wait_until_held(LONG));
    let faults = bench.faults.clone();
    drop(bench);
    assert!(matches!(stream.wait(), Err(EngineError::Watchdog { .. })));
    faults.release();
    eventually("the end of the stuck worker", || faults.counts().live_contexts == 0);
}
