//! What goes wrong goes wrong for whom it concerns: cancelled callers, failing decodes, lack of room. The others finish
//! right, and every sequence comes back.

use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;

use poncho_cache::HitKind;
use poncho_engine::backend::stub::{DecodeFault, StubBackend, StubCall};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{EngineError, Exactness, FinishReason, Mode, ModelConfig, Request, RequestId, Stream};

use crate::stub::{
    Bench, KINDS, LONG, assert_idle, assert_serves, bench, bench_with, endless, roomy, roomy_with, solo,
    until_first_token,
};
use crate::support::{greedy, memory_cache, prompt};

#[test]
fn a_prefill_is_cancelled_within_one_call() {
    for kind in KINDS {
        let bench = bench(kind);
        bench.faults.on_decode(2, DecodeFault::Block);
        let stream = bench.model.submit(greedy(&prompt(1, 300), 5)).unwrap();
        assert!(bench.faults.wait_until_held(LONG));
        // Nobody releases the call: it is aborted, because it works for this request alone.
        bench.model.cancel(stream.id());
        let done = stream.wait().unwrap();
        assert_eq!((done.finish_reason, done.completion_tokens), (FinishReason::Cancelled, 0), "{kind:?}");
        assert_eq!(done.committed_tokens, if kind == MemoryKind::Attention { 64 } else { done.committed_tokens });
        assert_eq!(bench.faults.counts().decodes, 2, "{kind:?}");
        let again = greedy(&prompt(1, 300), 5);
        assert_eq!(bench.model.complete(again.clone()).unwrap().generated, solo(kind, &again).generated, "{kind:?}");
        assert_serves(&bench, kind);
    }
}

#[test]
fn one_of_two_is_cancelled_and_the_other_goes_on() {
    for kind in KINDS {
        for tick in [1, 4] {
            let bench = bench(kind);
            bench.faults.on_decode(tick, DecodeFault::Block);
            let (gone, stays) = (greedy(&prompt(1, 40), 20), greedy(&prompt(2, 30), 20));
            let first = bench.model.submit(gone.clone()).unwrap();
            let second = bench.model.submit(stays.clone()).unwrap();
            assert!(bench.faults.wait_until_held(LONG));
            bench.model.cancel(first.id());
            bench.faults.release();
            let cancelled = first.wait().unwrap();
            let whole = solo(kind, &gone).generated;
            assert_eq!(cancelled.finish_reason, FinishReason::Cancelled);
            assert!(cancelled.generated.len() < whole.len() && whole.starts_with(&cancelled.generated), "{kind:?}");
            assert_eq!(second.wait().unwrap().generated, solo(kind, &stays).generated, "{kind:?}");
            // What the cancelled one left behind is a good place to start from.
            assert_eq!(bench.model.complete(gone.clone()).unwrap().generated, whole, "{kind:?}");
            assert_serves(&bench, kind);
        }
    }
}

#[test]
fn cancel_is_idempotent_and_always_yields_done() {
    let bench = bench_with(roomy_with(1), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    bench.faults.on_decode(2, DecodeFault::Block);
    let running = bench.model.submit(greedy(&prompt(1, 10), 20)).unwrap();
    assert!(bench.faults.wait_until_held(LONG));
    let waiting = bench.model.submit(greedy(&prompt(2, 10), 20)).unwrap();
    let next = bench.model.submit(greedy(&prompt(3, 10), 3)).unwrap();
    for id in [waiting.id(), running.id(), running.id(), waiting.id(), RequestId(u64::MAX - 1)] {
        bench.model.cancel(id);
    }
    let (first, second) = (running.id(), waiting.id());
    let done = running.wait().unwrap();
    assert_eq!((done.finish_reason, done.completion_tokens, done.prompt_tokens), (FinishReason::Cancelled, 1, 10));
    let done = waiting.wait().unwrap();
    assert_eq!((done.finish_reason, done.completion_tokens, done.committed_tokens), (FinishReason::Cancelled, 0, 0));
    assert_eq!(done.context_tokens, prompt(2, 10));
    assert_eq!(next.wait().unwrap().finish_reason, FinishReason::Length, "its turn comes");
    bench.model.cancel(first);
    bench.model.cancel(second);
    assert_serves(&bench, MemoryKind::Attention);
}

#[test]
fn a_caller_that_is_gone_costs_nobody_anything() {
    for kind in KINDS {
        let bench = bench_with(roomy_with(2), &StubBackend::new(kind), &memory_cache());
        bench.faults.on_decode(4, DecodeFault::Block);
        let mut gone = bench.model.submit(greedy(&prompt(1, 20), 300)).unwrap();
        let stays = greedy(&prompt(2, 20), 20);
        let stream = bench.model.submit(stays.clone()).unwrap();
        until_first_token(&mut gone);
        assert!(bench.faults.wait_until_held(LONG));
        let waits = bench.model.submit(greedy(&prompt(3, 20), 300)).unwrap();
        drop(gone);
        drop(waits);
        bench.faults.release();
        assert_eq!(stream.wait().unwrap().generated, solo(kind, &stays).generated, "{kind:?}");
        assert!(bench.faults.counts().decodes < 40, "nobody generates for callers that are gone");
        assert_serves(&bench, kind);
    }
}

/// Six requests over two sequences, started together.
fn six(bench: &Bench) -> Vec<(Request, Stream)> {
    let requests = (0..6).map(|number| greedy(&prompt(number, 12 + number as usize * 17), 6 + number));
    requests.map(|request| (request.clone(), bench.model.submit(request).unwrap())).collect()
}

#[test]
fn a_decode_that_fails_costs_only_the_requests_in_its_batch() {
    for kind in KINDS {
        for code in [-2, -3] {
            for tick in [1, 2, 5, 11, 16] {
                let bench = bench_with(roomy_with(2), &StubBackend::new(kind), &memory_cache());
                bench.faults.record_batches();
                bench.faults.on_decode(tick as u64, DecodeFault::Fatal(code));
                let mut failed = Vec::new();
                for (request, stream) in six(&bench) {
                    match stream.wait() {
                        Ok(done) => assert_eq!(done.generated, solo(kind, &request).generated, "{kind:?} {tick}"),
                        Err(error) => failed.push(error),
                    }
                }
                let batches = bench.faults.take_batches();
                let mut rows: Vec<u32> = batches[tick - 1].rows.iter().map(|row| row.seq).collect();
                rows.sort_unstable();
                rows.dedup();
                assert_eq!(failed, vec![EngineError::Decode { code }; rows.len()], "{kind:?} {tick}");
                assert_eq!(bench.faults.counts().contexts, 1, "one failure is not a reason to build a new context");
                assert_serves(&bench, kind);
            }
        }
    }
}

#[test]
fn an_aborted_call_is_made_again_and_nobody_notices() {
    for kind in KINDS {
        for tick in [1, 2, 5, 11, 16] {
            let bench = bench_with(roomy_with(2), &StubBackend::new(kind), &memory_cache());
            bench.faults.on_decode(tick, DecodeFault::Aborted);
            bench.faults.on_decode(tick + 1, DecodeFault::Aborted);
            for (request, stream) in six(&bench) {
                assert_eq!(stream.wait().unwrap().generated, solo(kind, &request).generated, "{kind:?} {tick}");
            }
            assert_serves(&bench, kind);
        }
    }
}

#[test]
fn two_failures_in_a_row_build_the_context_anew_and_the_others_go_on() {
    for kind in KINDS {
        let cache = memory_cache();
        let known = prompt(3, 40);
        // Exact prompts have a batch of their own, so that the others have no row in it.
        let exact_grid = NonZeroUsize::new(64).unwrap();
        let config = ModelConfig { exactness: Exactness::OnRequest, exact_grid, ..roomy() };
        bench_with(config.clone(), &StubBackend::new(kind), &cache).model.prefill_only(known.clone()).unwrap();
        let bench = bench_with(config, &StubBackend::new(kind), &cache);
        bench.faults.on_decode(1, DecodeFault::Block);
        let holder = bench.model.submit(greedy(&prompt(9, 4), 1)).unwrap();
        assert!(bench.faults.wait_until_held(LONG));
        let mut longer = known.clone();
        longer.extend(prompt(4, 100));
        let exact = |number| Request { exact: true, ..greedy(&prompt(number, 400), 5) };
        // They take turns, and the second is next.
        let requests = [greedy(&longer, 12), exact(1), greedy(&prompt(5, 100), 7), exact(2)];
        let streams: Vec<Stream> =
            requests.iter().map(|request| bench.model.submit(request.clone()).unwrap()).collect();
        bench.faults.on_decode(1, DecodeFault::Fatal(-3));
        bench.faults.on_decode(2, DecodeFault::Fatal(-2));
        bench.faults.release();
        holder.wait().unwrap();
        let [one, first, other, second] = <[Stream; 4]>::try_from(streams).unwrap();
        assert_eq!(first.wait(), Err(EngineError::Decode { code: -3 }), "{kind:?}");
        assert_eq!(second.wait(), Err(EngineError::Decode { code: -2 }), "{kind:?}");
        for (request, stream) in [(&requests[0], one), (&requests[2], other)] {
            assert_eq!(stream.wait().unwrap().generated, solo(kind, request).generated, "{kind:?}");
        }
        let counts = bench.faults.counts();
        assert_eq!((counts.contexts, counts.live_contexts), (2, 1), "{kind:?}");
        assert_serves(&bench, kind);
    }
}

#[test]
fn requests_with_other_adapters_survive_a_failing_batch() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"an adapter").unwrap();
    for kind in KINDS {
        let request = |count| greedy(&prompt(3, 20), count);
        let expected: Vec<Vec<u32>> = [0.0, 1.0, 0.5]
            .into_iter()
            .map(|scale| {
                let fresh = bench(kind);
                let adapter = fresh.model.load_adapter(file.path()).unwrap();
                fresh.model.set_adapter_scale(adapter, scale).unwrap();
                fresh.model.complete(request(400)).unwrap().generated
            })
            .collect();
        let bench = bench_with(endless(), &StubBackend::new(kind), &memory_cache());
        let plain = bench.model.submit(request(29_000)).unwrap();
        let adapter = bench.model.load_adapter(file.path()).unwrap();
        let strong = bench.model.submit(request(29_000)).unwrap();
        bench.model.set_adapter_scale(adapter, 0.5).unwrap();
        let mut weak = bench.model.submit(request(29_000)).unwrap();
        until_first_token(&mut weak);
        // The three take turns; two failing calls in a row hit two of them and the third is put back.
        bench.faults.on_decode(3, DecodeFault::Fatal(-3));
        bench.faults.on_decode(4, DecodeFault::Fatal(-3));
        assert!(bench.faults.wait_for_decodes(bench.faults.counts().decodes + 40, LONG));
        let mut failed = 0;
        for (stream, right) in [plain, strong, weak].into_iter().zip(&expected) {
            bench.model.cancel(stream.id());
            match stream.wait() {
                Ok(done) => {
                    let count = done.generated.len().min(right.len());
                    assert!(count > 8, "{kind:?}");
                    assert_eq!(done.generated[..count], right[..count], "{kind:?}");
                }
                Err(error) => {
                    assert_eq!(error, EngineError::Decode { code: -3 });
                    failed += 1;
                }
            }
        }
        assert_eq!((failed, bench.faults.counts().contexts), (2, 2), "{kind:?}");
        bench.model.unload_adapter(adapter).unwrap();
        assert_serves(&bench, kind);
    }
}

#[test]
fn a_request_that_ends_as_it_starts_takes_nobody_with_it() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"an adapter").unwrap();
    let config = endless();
    // A recurrent state is put back whatever it costs; a chain of segments only where that is quicker.
    let context = ContextOptions { n_seq_max: 2, ..config.context.clone() };
    let bench =
        bench_with(ModelConfig { context, ..config }, &StubBackend::new(MemoryKind::Recurrent), &memory_cache());
    let innocent = bench.model.submit(greedy(&prompt(2, 30), 29_000)).unwrap();
    let adapter = bench.model.load_adapter(file.path()).unwrap();
    let known = greedy(&prompt(1, 20), 1);
    bench.model.complete(known.clone()).unwrap();
    for number in 0..4 {
        // The known one waits for a sequence; when it gets one, its only token is there already, and the request that
        // goes on has other adapters. The two that run take turns, so one of two rounds ends in each one's turn.
        let mut before = bench.model.submit(greedy(&prompt(3 + number, 10), 29_000)).unwrap();
        until_first_token(&mut before);
        bench.faults.on_decode(1 + u64::from(number % 2), DecodeFault::Block);
        assert!(bench.faults.wait_until_held(LONG));
        let queued = bench.model.submit(known.clone()).unwrap();
        bench.model.cancel(before.id());
        bench.faults.release();
        assert_eq!(before.wait().unwrap().finish_reason, FinishReason::Cancelled);
        assert_eq!(queued.wait().unwrap().new_tokens, 0);
    }
    bench.model.cancel(innocent.id());
    assert_eq!(innocent.wait().unwrap().finish_reason, FinishReason::Cancelled, "it was still running");
    bench.model.unload_adapter(adapter).unwrap();
    assert_serves(&bench, MemoryKind::Recurrent);
}

/// A model with few cells for all its sequences.
fn cramped(kind: MemoryKind) -> Bench {
    let config = roomy();
    let context = ContextOptions { n_ctx: 128, n_cells: Some(128), ..config.context.clone() };
    bench_with(ModelConfig { context, ..config }, &StubBackend::new(kind), &memory_cache())
}

#[test]
fn what_is_idle_makes_room_and_then_smaller_steps() {
    for kind in [MemoryKind::Attention, MemoryKind::Window { size: 16 }, MemoryKind::Hybrid] {
        let bench = cramped(kind);
        let session = |request: Request| Request { session_id: Some("chat".to_owned()), ..request };
        let pinned = bench.model.complete(session(greedy(&prompt(1, 40), 5))).unwrap();
        bench.model.complete(greedy(&prompt(2, 40), 5)).unwrap();
        // 44 cells are left over, 44 are pinned: the leftover goes, the session stays.
        let request = greedy(&prompt(3, 60), 5);
        assert_eq!(
            bench.model.complete(request.clone()).unwrap().generated,
            solo(kind, &request).generated,
            "{kind:?}"
        );
        assert_eq!(bench.model.sessions().len(), 1, "{kind:?}");
        // Now the session has to go too.
        let request = greedy(&prompt(4, 100), 5);
        assert_eq!(
            bench.model.complete(request.clone()).unwrap().generated,
            solo(kind, &request).generated,
            "{kind:?}"
        );
        assert!(bench.faults.counts().no_room > 0, "{kind:?}");
        assert_eq!(bench.model.sessions(), [], "{kind:?}");
        let more = Request { mode: Mode::Continue, ..session(greedy(&prompt(5, 5), 5)) };
        assert_eq!(bench.model.complete(more), Err(EngineError::NoSession { session: "chat".to_owned() }));
        // It was saved before it was released. A model that has measured nothing yet restores whatever it can.
        let fresh = bench_with(roomy(), &StubBackend::new(kind), &bench.cache);
        let mut next = pinned.context_tokens.clone();
        next.extend(prompt(6, 5));
        let found = fresh.model.complete(greedy(&next, 5)).unwrap();
        assert_eq!((found.hit, found.cached_tokens), (HitKind::Partial, 44), "{kind:?}");
        assert_eq!(found.generated, solo(kind, &greedy(&next, 5)).generated, "{kind:?}");
        assert_idle(&bench);
    }
}

#[test]
fn nothing_idle_to_give_up_halves_the_prefill() {
    for kind in KINDS {
        let bench = bench(kind);
        bench.faults.record_batches();
        bench.faults.on_decode(1, DecodeFault::NoRoom);
        bench.faults.on_decode(2, DecodeFault::NoRoom);
        let request = greedy(&prompt(1, 64), 5);
        assert_eq!(
            bench.model.complete(request.clone()).unwrap().generated,
            solo(kind, &request).generated,
            "{kind:?}"
        );
        let rows: Vec<usize> = bench.faults.take_batches().iter().map(|batch| batch.rows.len()).collect();
        assert!(rows[1] == rows[0] / 2 && rows[2] == rows[0] / 4, "{rows:?}");
        assert_serves(&bench, kind);
    }
}

#[test]
fn at_last_the_youngest_fails_and_says_why() {
    for kind in [MemoryKind::Attention, MemoryKind::Window { size: 16 }, MemoryKind::Hybrid] {
        let bench = cramped(kind);
        bench.faults.on_decode(1, DecodeFault::Block);
        let (old, young) = (greedy(&prompt(1, 60), 30), greedy(&prompt(2, 50), 30));
        let first = bench.model.submit(old.clone()).unwrap();
        assert!(bench.faults.wait_until_held(LONG));
        let second = bench.model.submit(young.clone()).unwrap();
        bench.faults.release();
        assert_eq!(first.wait().unwrap().generated, solo(kind, &old).generated, "{kind:?}");
        let error = second.wait().unwrap_err();
        assert!(matches!(error, EngineError::NoRoom { needed, free } if needed > free), "{error:?}");
        assert_eq!(bench.model.complete(young.clone()).unwrap().generated, solo(kind, &young).generated, "{kind:?}");
        assert_idle(&bench);
    }
}

#[test]
fn faults_while_states_are_packed_or_put_back_only_cost_time() {
    let calls = [
        StubCall::Pack,
        StubCall::StateRead,
        StubCall::StateWrite,
        StubCall::RestoreBegin,
        StubCall::RestoreSegment,
        StubCall::RestoreFinish,
    ];
    for kind in KINDS {
        for call in calls {
            for times in [1, 2, 1000] {
                let cache = memory_cache();
                let first = bench_with(roomy(), &StubBackend::new(kind), &cache);
                let turn = greedy(&prompt(1, 60), 8);
                first.faults.fail_next(call, times);
                let cold = first.model.complete(turn.clone()).unwrap();
                assert_eq!(cold.generated, solo(kind, &turn).generated, "{kind:?} {call:?}");
                first.faults.clear();
                let mut next = cold.context_tokens.clone();
                next.extend(prompt(2, 10));
                let next = greedy(&next, 8);
                // Twice from a model that knows only the rows: once while it fails, once after.
                let second = bench_with(roomy(), &StubBackend::new(kind), &cache);
                second.faults.fail_next(call, times);
                let failing = second.model.complete(next.clone()).unwrap();
                assert_eq!(failing.generated, solo(kind, &next).generated, "{kind:?} {call:?}");
                second.faults.clear();
                second.model.evict().unwrap();
                let healed = second.model.complete(next.clone()).unwrap();
                assert_eq!(healed.generated, failing.generated, "{kind:?} {call:?}");
                assert_idle(&second);
            }
        }
    }
}

#[test]
fn a_shutdown_saves_and_says_goodbye() {
    for kind in KINDS {
        let cache = memory_cache();
        let bench = bench_with(endless(), &StubBackend::new(kind), &cache);
        let session = Request { session_id: Some("chat".to_owned()), ..greedy(&prompt(1, 30), 5) };
        let pinned = bench.model.complete(session).unwrap();
        cache.clear();
        let running = greedy(&prompt(2, 30), 29_000);
        let mut stream = bench.model.submit(running.clone()).unwrap();
        until_first_token(&mut stream);
        assert_eq!(bench.model.shut_down(), Ok(()));
        let done = stream.wait().unwrap();
        assert_eq!(done.finish_reason, FinishReason::Cancelled);
        assert!(done.finish_key.is_some(), "{kind:?}");
        let refused = EngineError::ShuttingDown { model: "stub".to_owned() };
        assert_eq!(bench.model.complete(running.clone()), Err(refused.clone()));
        assert_eq!((bench.model.sessions(), bench.model.requests()), (Vec::new(), Vec::new()));
        assert_eq!(bench.model.end_session("chat"), Err(refused.clone()));
        assert_eq!(bench.model.shut_down(), Err(refused));
        let status = bench.model.status();
        assert_eq!((status.active, status.pending, status.queue_depth), (0, 0, 0));
        assert_eq!(status.phase.as_str(), "stopped");

        for (context, committed) in [(pinned.context_tokens, 34), (done.context_tokens, done.committed_tokens)] {
            let second = bench_with(endless(), &StubBackend::new(kind), &cache);
            let next = greedy(&context, 3);
            let found = second.model.complete(next.clone()).unwrap();
            assert_eq!((found.hit, found.cached_tokens), (HitKind::Partial, committed), "{kind:?}");
            let fresh = bench_with(endless(), &StubBackend::new(kind), &memory_cache()).model.complete(next).unwrap();
            assert_eq!(found.generated, fresh.generated, "{kind:?}");
        }
    }
}

#[test]
fn dropping_the_last_handle_ends_what_runs() {
    let bench = bench_with(endless(), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    let mut stream = bench.model.submit(greedy(&prompt(1, 30), 29_000)).unwrap();
    until_first_token(&mut stream);
    let Bench { model, cache, .. } = bench;
    let weak = Arc::downgrade(&cache);
    drop((model, cache));
    assert_eq!(stream.wait().unwrap().finish_reason, FinishReason::Cancelled);
    assert!(weak.upgrade().is_none(), "the worker has let go of the cache");
}
