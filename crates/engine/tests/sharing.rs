//! Requests that begin alike and run at the same time: what they share is read once, even if one of them leaves or fails, and
//! each says what it says alone.

mod remote;
mod remote_tier;

use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::{DecodeFault, StubBackend};
use poncho_engine::{Exactness, Mode, ModelConfig, Request, Stream, StreamEvent};

use crate::stub::{Bench, KINDS, LONG, assert_idle, assert_serves, bench, bench_with, roomy, solo, submit_together};
use crate::support::{greedy, memory_cache, prompt};

const SHARED: usize = 200;
const TAIL: usize = 30;

/// Prompts with the same beginning and different ends.
fn alike(count: u32) -> Vec<Request> {
    let request = |number: u32| greedy(&[prompt(1, SHARED), prompt(90 + number, TAIL)].concat(), 6);
    (0..count).map(request).collect()
}

/// Rows that were computed for the shared beginning.
fn shared_rows(bench: &Bench) -> usize {
    let batches = bench.faults.take_batches();
    batches.iter().flat_map(|batch| &batch.rows).filter(|row| (row.pos as usize) < SHARED).count()
}

/// What the stream said it found, and its end.
fn read_and_reply(stream: Stream) -> (usize, Vec<u32>) {
    let mut found = None;
    for event in stream {
        match event {
            StreamEvent::Started { cached_tokens, .. } => {
                assert_eq!(found.replace(cached_tokens), None, "a request starts once")
            }
            StreamEvent::Done(done) => {
                let read = found.unwrap();
                assert_eq!(done.cached_tokens, read);
                return (read, done.generated);
            }
            StreamEvent::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("the stream broke off");
}

#[test]
fn what_four_requests_share_is_read_once() {
    for kind in KINDS {
        let bench = bench(kind);
        let requests = alike(4);
        for (number, (request, stream)) in requests.iter().zip(submit_together(&bench, &requests)).enumerate() {
            let (read, reply) = read_and_reply(stream);
            assert_eq!(read, if number == 0 { 0 } else { SHARED }, "request {number} ({kind:?})");
            assert_eq!(reply, solo(kind, request).generated, "request {number} ({kind:?})");
        }
        assert_eq!(shared_rows(&bench), SHARED, "{kind:?}");
        assert_serves(&bench, kind);
    }
}

#[test]
fn equal_prompts_are_read_once_and_each_draws_its_own_reply() {
    for kind in KINDS {
        let bench = bench(kind);
        let seeded = |seed: u64| {
            let mut request = greedy(&prompt(3, 150), 12);
            (request.sampling.temperature, request.sampling.seed) = (1.0, Some(seed));
            request
        };
        let requests: Vec<Request> = (0..4).map(seeded).collect();
        let mut replies = Vec::new();
        for (request, stream) in requests.iter().zip(submit_together(&bench, &requests)) {
            let (_, reply) = read_and_reply(stream);
            assert_eq!(reply, solo(kind, request).generated, "{kind:?}");
            replies.push(reply);
        }
        let batches = bench.faults.take_batches();
        let prompt_rows = batches.iter().flat_map(|batch| &batch.rows).filter(|row| row.pos < 150).count();
        assert_eq!(prompt_rows, 150, "{kind:?}");
        replies.sort_unstable();
        replies.dedup();
        assert_eq!(replies.len(), 4, "four seeds, four replies");
        assert_idle(&bench);
    }
}

#[test]
fn a_request_that_comes_later_takes_over_what_one_in_flight_holds() {
    let bench = bench(MemoryKind::Attention);
    bench.faults.record_batches();
    // The first one has read its prompt and is replying.
    bench.faults.on_decode(6, DecodeFault::Block);
    let requests = alike(2);
    let first = bench.model.submit(Request { max_tokens: Some(30), ..requests[0].clone() }).unwrap();
    assert!(bench.faults.wait_until_held(LONG));
    let second = bench.model.submit(requests[1].clone()).unwrap();
    bench.faults.release();
    let (read, reply) = read_and_reply(second);
    assert_eq!((read, &reply), (SHARED, &solo(MemoryKind::Attention, &requests[1]).generated));
    first.wait().unwrap();
    assert_eq!(shared_rows(&bench), SHARED);
    assert_idle(&bench);
}

#[test]
fn followers_go_on_when_their_leader_leaves() {
    for kind in KINDS {
        let bench = bench(kind);
        let requests = alike(4);
        bench.faults.record_batches();
        // Two ticks of 64 rows are over, the third is running.
        bench.faults.on_decode(3, DecodeFault::Block);
        let mut streams: Vec<Stream> = Vec::new();
        for request in &requests {
            streams.push(bench.model.submit(request.clone()).unwrap());
        }
        assert!(bench.faults.wait_until_held(LONG));
        drop(streams.remove(0));
        bench.faults.release();
        for (request, stream) in requests[1..].iter().zip(streams) {
            let (_, reply) = read_and_reply(stream);
            assert_eq!(reply, solo(kind, request).generated, "{kind:?}");
        }
        // Whatever was not taken over was read once more, by one of them for all.
        assert!(shared_rows(&bench) <= 2 * SHARED, "{kind:?}");
        assert_serves(&bench, kind);
    }
}

#[test]
fn followers_go_on_when_their_leader_fails() {
    for kind in KINDS {
        let bench = bench(kind);
        let requests = alike(4);
        bench.faults.on_decode(1, DecodeFault::Block);
        bench.faults.on_decode(2, DecodeFault::Fatal(-3));
        let streams: Vec<Stream> =
            requests.iter().map(|request| bench.model.submit(request.clone()).unwrap()).collect();
        assert!(bench.faults.wait_until_held(LONG));
        bench.faults.release();
        let mut ends = streams.into_iter().map(Stream::wait);
        assert!(ends.next().unwrap().is_err(), "{kind:?}");
        for (request, end) in requests[1..].iter().zip(ends) {
            assert_eq!(end.unwrap().generated, solo(kind, request).generated, "{kind:?}");
        }
        assert_serves(&bench, kind);
    }
}

#[test]
fn a_follower_that_leaves_is_not_missed() {
    for kind in KINDS {
        let bench = bench(kind);
        let requests = alike(4);
        bench.faults.on_decode(2, DecodeFault::Block);
        let mut streams: Vec<Stream> =
            requests.iter().map(|request| bench.model.submit(request.clone()).unwrap()).collect();
        assert!(bench.faults.wait_until_held(LONG));
        drop(streams.remove(2));
        bench.faults.release();
        for (number, stream) in [0, 1, 3].into_iter().zip(streams) {
            let (_, reply) = read_and_reply(stream);
            assert_eq!(reply, solo(kind, &requests[number]).generated, "{kind:?}");
        }
        assert_serves(&bench, kind);
    }
}

#[test]
fn a_few_tokens_in_common_are_nothing_to_wait_for() {
    let bench = bench(MemoryKind::Attention);
    // Long enough that none is stored before the others start.
    let request = |number: u32| greedy(&[prompt(1, 20), prompt(90 + number, 200)].concat(), 4);
    let requests: Vec<Request> = (0..3).map(request).collect();
    for (request, stream) in requests.iter().zip(submit_together(&bench, &requests)) {
        let (read, reply) = read_and_reply(stream);
        assert_eq!((read, reply), (0, solo(MemoryKind::Attention, request).generated));
    }
}

#[test]
fn requests_that_part_at_different_places_each_take_what_is_theirs() {
    for kind in KINDS {
        let bench = bench(kind);
        // The third shares more with the second than with the first, which it cannot know of before that one has read it.
        let second = [prompt(1, 100), prompt(5, 150)].concat();
        let third = [&second[..200], &prompt(6, 40)].concat();
        let requests = [greedy(&prompt(1, 260), 6), greedy(&second, 6), greedy(&third, 6)];
        let reads: Vec<usize> = requests
            .iter()
            .zip(submit_together(&bench, &requests))
            .map(|(request, stream)| {
                let (read, reply) = read_and_reply(stream);
                assert_eq!(reply, solo(kind, request).generated, "{kind:?}");
                read
            })
            .collect();
        assert_eq!(reads, [0, 100, 200], "{kind:?}");
        assert_idle(&bench);
    }
}

#[test]
fn exact_requests_share_whole_steps_of_the_grid_and_reply_as_if_alone() {
    for kind in KINDS {
        let config = || ModelConfig {
            exactness: Exactness::Always,
            exact_grid: std::num::NonZeroUsize::new(32).unwrap(),
            ..roomy()
        };
        let exact = || bench_with(config(), &StubBackend::new(kind), &memory_cache());
        let bench = exact();
        let requests = alike(3);
        for (number, (request, stream)) in requests.iter().zip(submit_together(&bench, &requests)).enumerate() {
            let (read, reply) = read_and_reply(stream);
            assert_eq!(read, if number == 0 { 0 } else { SHARED / 32 * 32 }, "request {number} ({kind:?})");
            let alone = exact().model.complete(request.clone()).unwrap();
            assert_eq!(reply, alone.generated, "{kind:?}");
        }
        assert_idle(&bench);
    }
}

#[test]
fn prompts_that_are_only_read_share_too() {
    let bench = bench(MemoryKind::Attention);
    let requests: Vec<Request> =
        alike(3).into_iter().map(|request| Request { mode: Mode::PrefillOnly, ..request }).collect();
    for stream in submit_together(&bench, &requests) {
        stream.wait().unwrap();
    }
    assert_eq!(shared_rows(&bench), SHARED);
    assert_idle(&bench);
}
