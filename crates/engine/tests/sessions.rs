//! Conversations: parents that are waited for, sessions that stay pinned and give way, and prompts that part from what a
//! sequence holds.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use poncho_cache::{Cache, CacheConfig, Gates, HitKind, Key, SaveReason, Stage, StageObserver};
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::{DecodeFault, StubBackend};
use poncho_engine::{
    Completion, EngineError, FingerprintSource, FinishReason, Mode, ModelConfig, Request, RequestStage, Sampling,
    Stream,
};

use crate::stub::{
    Bench, KINDS, LONG, assert_idle, bench, bench_with, endless, eventually, roomy, roomy_with, solo, until_first_token,
};
use crate::support::{greedy, memory_cache, prompt};

fn in_session(name: &str, request: Request) -> Request {
    Request { session_id: Some(name.to_owned()), ..request }
}

/// The next turn of a conversation: all that was said, and something new.
fn next_turn(so_far: &Completion, number: u32) -> Vec<u32> {
    let mut tokens = so_far.context_tokens.clone();
    tokens.extend(prompt(number, 10));
    tokens
}

fn names(bench: &Bench) -> Vec<String> {
    let mut names: Vec<String> = bench.model.sessions().into_iter().map(|session| session.name).collect();
    names.sort();
    names
}

/// Lets no file pass until it is opened.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl StageObserver for Gate {
    fn reached(&self, stage: Stage, _key: &Key) {
        if stage == Stage::Reserved {
            drop(self.changed.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
        }
    }
}

/// Everyday use 10: 6 of 2,705 tokens were called a partial hit.
#[test]
fn a_tiny_overlap_is_cold_and_its_tokens_are_counted() {
    let bench = bench_with(endless(), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    let model = &bench.model;
    let first = prompt(1, 60);
    model.complete(greedy(&first, 1)).unwrap();
    let second: Vec<u32> = first.iter().take(6).copied().chain(prompt(2, 700)).collect();
    let found = model.complete(greedy(&second, 1)).unwrap();
    // Whether the few tokens are worth copying is another question; they are counted either way.
    assert_eq!((found.hit, found.cached_tokens + found.new_tokens), (HitKind::Cold, 706));
    assert!(found.cached_tokens <= 6, "{}", found.cached_tokens);
    assert_eq!(model.status().last_hit.unwrap().kind, HitKind::Cold);
}

#[test]
fn a_parent_whose_save_is_in_flight_is_found() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate::default());
        let config = CacheConfig::on_disk(folder.path(), 1 << 30);
        let cache = Arc::new(Cache::open(CacheConfig { observer: Some(gate.clone()), ..config }).unwrap());
        let first = bench_with(roomy(), &StubBackend::new(kind), &cache);
        let turn = first.model.complete(greedy(&prompt(1, 30), 6)).unwrap();
        let key = turn.finish_key.unwrap();
        let row = cache.row(&key).unwrap();
        assert!(row.pending && row.meta.reason == SaveReason::Finish, "no file is written yet");
        let second = bench_with(roomy(), &StubBackend::new(kind), &cache);
        let request = Request { parent_key: Some(key), ..greedy(&next_turn(&turn, 2), 6) };
        let found = second.model.complete(request.clone()).unwrap();
        assert_eq!((found.hit, found.cached_tokens), (HitKind::Partial, 35), "{kind:?}");
        assert_eq!(found.generated, solo(kind, &request).generated, "{kind:?}");
        gate.open();
        cache.flush();
        assert!(!cache.row(&key).unwrap().pending);
        assert_idle(&second);
    }
}

fn waiting_for_parents(ms: u64) -> ModelConfig {
    let config = roomy();
    ModelConfig { gates: Gates { session_resume_wait_ms: ms, ..config.gates }, ..config }
}

#[test]
fn a_parent_that_is_still_being_said_is_waited_for() {
    for kind in KINDS {
        let cache = memory_cache();
        let first = bench_with(roomy(), &StubBackend::new(kind), &cache);
        let parent = greedy(&prompt(1, 30), 6);
        let said = solo(kind, &parent);
        let key = first.model.key_of(&said.context_tokens[..said.committed_tokens]);
        first.faults.on_decode(4, DecodeFault::Block);
        let speaking = first.model.submit(parent).unwrap();
        assert!(first.faults.wait_until_held(LONG));
        let second = bench_with(waiting_for_parents(60_000), &StubBackend::new(kind), &cache);
        let request = Request { parent_key: Some(key), ..greedy(&next_turn(&said, 2), 6) };
        let waiting = second.model.submit(request.clone()).unwrap();
        assert!(!cache.contains(&key));
        first.faults.release();
        assert_eq!(speaking.wait().unwrap().finish_key, Some(key));
        let found = waiting.wait().unwrap();
        assert_eq!((found.hit, found.cached_tokens), (HitKind::Partial, 35), "{kind:?}");
        assert_eq!(found.generated, solo(kind, &request).generated, "{kind:?}");
    }
}

#[test]
fn a_parent_that_never_comes_is_waited_for_so_long_and_no_longer() {
    let bench = bench_with(waiting_for_parents(50), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    let never = bench.model.key_of(&prompt(7, 20));
    let request = Request { parent_key: Some(never), ..greedy(&prompt(1, 30), 6) };
    let started = Instant::now();
    let cold = bench.model.complete(request.clone()).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(50));
    assert_eq!((cold.hit, &cold.generated), (HitKind::Cold, &solo(MemoryKind::Attention, &request).generated));
    let impatient = bench_with(waiting_for_parents(0), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    assert_eq!(impatient.model.complete(request).unwrap().hit, HitKind::Cold);
}

#[test]
fn a_request_that_waits_for_its_parent_holds_nobody_up() {
    let bench = bench_with(waiting_for_parents(60_000), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    let parent = greedy(&prompt(1, 30), 6);
    let said = solo(MemoryKind::Attention, &parent);
    let key = bench.model.key_of(&said.context_tokens[..said.committed_tokens]);
    let orphan = Request { parent_key: Some(key), ..greedy(&next_turn(&said, 2), 6) };
    let waiting = bench.model.submit(orphan.clone()).unwrap();
    let cancelled = bench.model.submit(orphan.clone()).unwrap();
    let dropped = bench.model.submit(orphan.clone()).unwrap();
    let other = greedy(&prompt(3, 30), 20);
    assert_eq!(bench.model.complete(other.clone()).unwrap().generated, solo(MemoryKind::Attention, &other).generated);
    assert_eq!((bench.model.status().pending, bench.model.status().queue_depth), (3, 3));
    bench.model.cancel(cancelled.id());
    assert_eq!(cancelled.wait().unwrap().finish_reason, FinishReason::Cancelled);
    drop(dropped);
    assert_eq!(bench.model.complete(parent).unwrap().finish_key, Some(key));
    assert_eq!(waiting.wait().unwrap().generated, solo(MemoryKind::Attention, &orphan).generated);
    assert_idle(&bench);
    // One that still waits when the model is unloaded gets an error.
    let never = Request { parent_key: Some(bench.model.key_of(&prompt(8, 30))), ..orphan };
    let waiting = bench.model.submit(never).unwrap();
    bench.model.shut_down().unwrap();
    assert_eq!(waiting.wait(), Err(EngineError::ShuttingDown { model: "stub".to_owned() }));
}

#[test]
fn a_parent_of_another_conversation_or_model_is_ignored() {
    for kind in KINDS {
        for parent in ["ours", "another conversation's", "another model's"] {
            let cache = memory_cache();
            let first = bench_with(roomy(), &StubBackend::new(kind), &cache);
            let ours = first.model.complete(greedy(&prompt(1, 30), 6)).unwrap();
            let others = first.model.complete(greedy(&prompt(2, 30), 6)).unwrap();
            let stranger = ModelConfig { fingerprint: FingerprintSource::FastUnsafe([8; 32]), ..roomy() };
            let stranger = bench_with(stranger, &StubBackend::new(kind), &cache);
            let strange = stranger.model.complete(greedy(&prompt(1, 30), 6)).unwrap();
            assert_ne!(strange.finish_key, ours.finish_key);
            let parent_key = match parent {
                "ours" => ours.finish_key,
                "another model's" => strange.finish_key,
                _ => others.finish_key,
            };
            // The longest prefix is found all the same, and a prompt that shares nothing stays cold.
            for (tokens, hit, read) in [(prompt(8, 30), HitKind::Cold, 0), (next_turn(&ours, 3), HitKind::Partial, 35)]
            {
                let request = Request { parent_key, ..greedy(&tokens, 6) };
                let second = bench_with(roomy(), &StubBackend::new(kind), &cache);
                let found = second.model.complete(request.clone()).unwrap();
                assert_eq!((found.hit, found.cached_tokens), (hit, read), "{kind:?} {parent}");
                assert_eq!(found.generated, solo(kind, &request).generated, "{kind:?} {parent}");
            }
        }
    }
}

#[test]
fn a_session_has_one_request_at_a_time() {
    let bench = bench(MemoryKind::Attention);
    let request = in_session("chat", greedy(&prompt(1, 20), 10));
    let busy = Err(EngineError::StickyBusy { session: "chat".to_owned() });
    bench.faults.on_decode(3, DecodeFault::Block);
    let running = bench.model.submit(request.clone()).unwrap();
    assert!(bench.faults.wait_until_held(LONG));
    let refused = bench.model.submit(request.clone()).unwrap();
    let also_refused = bench.model.submit(Request { mode: Mode::Continue, ..request.clone() }).unwrap();
    let other = bench.model.submit(in_session("another", request.clone())).unwrap();
    bench.faults.release();
    assert_eq!(refused.wait(), busy);
    assert_eq!(also_refused.wait(), busy);
    let right = solo(MemoryKind::Attention, &request).generated;
    assert_eq!(running.wait().unwrap().generated, right);
    assert_eq!(other.wait().unwrap().generated, right);
    assert_eq!(names(&bench), ["another", "chat"]);
    let unknown = Request { mode: Mode::Continue, ..in_session("unknown", request.clone()) };
    assert_eq!(bench.model.complete(unknown), Err(EngineError::NoSession { session: "unknown".to_owned() }));
    assert_eq!(bench.model.complete(request).unwrap().generated, right, "it is free again");
    assert_idle(&bench);
}

#[test]
fn a_session_ends_when_it_is_told_to() {
    let bench = bench_with(endless(), &StubBackend::new(MemoryKind::Hybrid), &memory_cache());
    let request = in_session("chat", greedy(&prompt(1, 20), 10));
    bench.model.complete(request.clone()).unwrap();
    assert_eq!(names(&bench), ["chat"]);
    // The worker notes it after the reply is sent.
    eventually("a session in the status", || bench.model.status().sessions == 1);
    assert!(bench.model.end_session("chat").unwrap());
    assert!(!bench.model.end_session("chat").unwrap());
    assert_eq!(names(&bench), [""; 0]);
    let more = Request { mode: Mode::Continue, ..request.clone() };
    assert_eq!(bench.model.complete(more), Err(EngineError::NoSession { session: "chat".to_owned() }));
    // Ended while it runs: the request goes on, and nothing stays pinned.
    let mut running = bench.model.submit(Request { max_tokens: Some(29_000), ..request.clone() }).unwrap();
    until_first_token(&mut running);
    assert!(bench.model.end_session("chat").unwrap());
    let again = bench.model.submit(request.clone()).unwrap();
    assert_eq!(
        again.wait().unwrap().generated,
        solo(MemoryKind::Hybrid, &request).generated,
        "the name is free at once"
    );
    bench.model.cancel(running.id());
    assert_eq!(running.wait().unwrap().finish_reason, FinishReason::Cancelled);
    assert_eq!(names(&bench), ["chat"]);
    assert_idle(&bench);
}

#[test]
fn the_session_that_was_idle_longest_gives_way_and_is_saved_first() {
    for kind in KINDS {
        let bench = bench_with(roomy_with(2), &StubBackend::new(kind), &memory_cache());
        let first = bench.model.complete(in_session("first", greedy(&prompt(1, 30), 6))).unwrap();
        bench.model.complete(in_session("second", greedy(&prompt(2, 30), 6))).unwrap();
        // Only what the release itself saves is there afterwards.
        bench.cache.clear();
        assert!(bench.cache.is_empty());
        let request = greedy(&prompt(3, 30), 6);
        assert_eq!(
            bench.model.complete(request.clone()).unwrap().generated,
            solo(kind, &request).generated,
            "{kind:?}"
        );
        assert_eq!(names(&bench), ["second"], "{kind:?}");
        let row = bench.cache.row(&bench.model.key_of(&first.context_tokens[..35])).unwrap();
        assert_eq!(row.meta.reason, SaveReason::Evict, "{kind:?}");
        let fresh = bench_with(roomy(), &StubBackend::new(kind), &bench.cache);
        let turn = greedy(&next_turn(&first, 4), 6);
        let found = fresh.model.complete(in_session("first", turn.clone())).unwrap();
        assert_eq!((found.hit, found.cached_tokens), (HitKind::Partial, 35), "{kind:?}");
        assert_eq!(found.generated, solo(kind, &turn).generated, "{kind:?}");
        // Where it was released it goes on too, whatever of it is left.
        let continued = bench.model.complete(in_session("first", turn.clone())).unwrap();
        assert_eq!(continued.generated, found.generated, "{kind:?}");
        assert_eq!(bench.model.evict().unwrap(), 2, "{kind:?}");
        assert_eq!(names(&bench), [""; 0], "{kind:?}");
        assert_idle(&bench);
    }
}

#[test]
fn pinned_sessions_never_starve_anybody() {
    let bench = bench_with(roomy_with(2), &StubBackend::new(MemoryKind::Window { size: 16 }), &memory_cache());
    for name in ["one", "two"] {
        bench.model.complete(in_session(name, greedy(&prompt(1, 20), 4))).unwrap();
    }
    let requests: Vec<Request> = (2..8).map(|number| greedy(&prompt(number, 20), 4)).collect();
    let streams: Vec<Stream> = requests.iter().map(|request| bench.model.submit(request.clone()).unwrap()).collect();
    for (request, stream) in requests.iter().zip(streams) {
        let right = solo(MemoryKind::Window { size: 16 }, request).generated;
        assert_eq!(stream.wait().unwrap().generated, right);
    }
    // More sessions than sequences take turns.
    for round in 0..3 {
        for number in 0..5 {
            let name = format!("session {number}");
            let request = in_session(&name, greedy(&prompt(number, 20 + round), 4));
            let right = solo(MemoryKind::Window { size: 16 }, &request).generated;
            assert_eq!(bench.model.complete(request).unwrap().generated, right);
        }
    }
    assert_eq!(names(&bench), ["session 3", "session 4"]);
    assert_idle(&bench);
}

#[test]
fn a_reply_that_a_stop_sequence_ended_is_continued_where_it_stands() {
    for kind in KINDS {
        let bench = bench(kind);
        let whole = solo(kind, &greedy(&prompt(1, 20), 40));
        // A letter of the reply, in its middle.
        let stop = whole.reply.chars().filter(char::is_ascii).nth(12).unwrap().to_string();
        let first = in_session("chat", Request { stop: vec![stop.clone()], ..greedy(&prompt(1, 20), 40) });
        let stopped = bench.model.complete(first).unwrap();
        assert_eq!((stopped.finish_reason, &stopped.stop_sequence), (FinishReason::Stop, &Some(stop)));
        assert!(whole.generated.starts_with(&stopped.generated));
        // Penalties look at what the session holds too.
        let sampling = Sampling { repetition_penalty: 1.5, penalty_last_n: None, ..Sampling::greedy() };
        let suffix = Request { mode: Mode::Continue, sampling, boundary_hints: vec![4], ..greedy(&prompt(2, 10), 12) };
        let continued = bench.model.complete(in_session("chat", suffix.clone())).unwrap();
        assert_eq!((continued.hit, continued.cached_tokens), (HitKind::Continuation, stopped.committed_tokens));
        let mut tokens = stopped.context_tokens.clone();
        let hint = tokens.len() + 4;
        tokens.extend(prompt(2, 10));
        let fresh = solo(kind, &Request { mode: Mode::Complete, tokens: tokens.clone(), ..suffix });
        assert_eq!((&continued.generated, continued.prompt_tokens), (&fresh.generated, tokens.len()), "{kind:?}");
        let saved = bench.cache.contains(&bench.model.key_of(&tokens[..hint]));
        assert_eq!(saved, kind != MemoryKind::Attention, "hints count from the start of what was sent ({kind:?})");
        assert_idle(&bench);
    }
}

#[test]
fn a_prompt_that_parts_from_its_session_is_answered_as_if_it_were_new() {
    for kind in KINDS {
        for kept in [10, 24, 25, 35, 36] {
            let bench = bench(kind);
            let first = bench.model.complete(in_session("chat", greedy(&prompt(1, 30), 6))).unwrap();
            let mut tokens = first.context_tokens[..kept].to_vec();
            tokens.extend(prompt(5, 12));
            let request = in_session("chat", greedy(&tokens, 8));
            let parted = bench.model.complete(request.clone()).unwrap();
            assert_eq!(parted.generated, solo(kind, &request).generated, "{kind:?} {kept}");
            match kind {
                _ if kept >= 35 => assert_eq!((parted.hit, parted.cached_tokens), (HitKind::Sticky, 35)),
                MemoryKind::Attention => assert_eq!((parted.hit, parted.cached_tokens), (HitKind::Sticky, kept)),
                _ => assert!(parted.hit != HitKind::Sticky && parted.cached_tokens <= kept, "{kind:?} {kept}"),
            }
            // Shorter than what is held, and all of it held.
            let request = in_session("chat", greedy(&parted.context_tokens[..kept], 8));
            assert_eq!(bench.model.complete(request.clone()).unwrap().generated, solo(kind, &request).generated);
            assert_eq!(names(&bench), ["chat"]);
            assert_idle(&bench);
        }
    }
}

#[test]
fn what_cannot_be_cut_resumes_at_the_hints() {
    for kind in KINDS.into_iter().filter(|kind| *kind != MemoryKind::Attention) {
        let cache = memory_cache();
        let hinted = Request { boundary_hints: vec![44, 20, 500, 20], ..greedy(&prompt(1, 60), 6) };
        bench_with(roomy(), &StubBackend::new(kind), &cache).model.complete(hinted).unwrap();
        for (parts_at, read) in [(50, 44), (44, 44), (43, 20), (20, 20), (19, 0)] {
            let mut tokens = prompt(1, parts_at);
            tokens.extend(prompt(6, 12));
            let request = greedy(&tokens, 6);
            let fresh = bench_with(roomy(), &StubBackend::new(kind), &cache);
            let found = fresh.model.complete(request.clone()).unwrap();
            assert_eq!(found.cached_tokens, read, "{kind:?} {parts_at}");
            assert_eq!(found.generated, solo(kind, &request).generated, "{kind:?} {parts_at}");
        }
    }
}

#[test]
fn an_idle_session_lends_its_prefix_and_keeps_its_state() {
    for kind in KINDS {
        let bench = bench(kind);
        let first = bench.model.complete(in_session("chat", greedy(&prompt(1, 30), 6))).unwrap();
        bench.cache.clear();
        let turn = greedy(&next_turn(&first, 2), 6);
        let copied = bench.model.complete(turn.clone()).unwrap();
        assert_eq!((copied.hit, copied.cached_tokens), (HitKind::Partial, 35), "{kind:?}");
        assert_eq!(copied.generated, solo(kind, &turn).generated, "{kind:?}");
        let more = Request { mode: Mode::Continue, ..in_session("chat", greedy(&prompt(3, 5), 6)) };
        let continued = bench.model.complete(more).unwrap();
        let whole = [&first.context_tokens[..], &prompt(3, 5)].concat();
        assert_eq!(continued.generated, solo(kind, &greedy(&whole, 6)).generated, "{kind:?}");
        assert_idle(&bench);
    }
}

/// Everyday use 3: a question about sessions waited for the decode call that ran.
#[test]
fn sessions_and_requests_are_listed_while_a_decode_call_runs() {
    for kind in KINDS {
        let bench = bench(kind);
        bench.model.complete(in_session("kept", greedy(&prompt(1, 30), 5))).unwrap();
        assert_eq!(names(&bench), ["kept"], "listed as soon as its reply ends");
        // Models that cannot be cut read their prompt in several calls.
        bench.faults.on_decode(4, DecodeFault::Block);
        let stream = bench.model.submit(in_session("new", greedy(&prompt(2, 30), 5))).unwrap();
        assert!(bench.faults.wait_until_held(LONG));
        let behind = bench.model.submit(greedy(&prompt(3, 20), 5)).unwrap();
        assert_eq!(names(&bench), ["kept"], "a session in flight belongs to its request");
        let [running, queued] = &bench.model.requests()[..] else { panic!("{:?}", bench.model.requests()) };
        assert_eq!((running.session.as_deref(), running.progress.stage), (Some("new"), RequestStage::Generating));
        let progress = &running.progress;
        assert_eq!((progress.prompt_tokens, progress.processed_tokens), (30, 30));
        assert!(progress.generated_tokens >= 1, "{progress:?}");
        assert_eq!((queued.progress.prompt_tokens, queued.progress.stage), (20, RequestStage::Queued));
        bench.faults.release();
        assert!(stream.wait().is_ok() && behind.wait().is_ok());
        assert_eq!(bench.model.requests(), [], "{kind:?}: it is gone before its last event");
        assert_eq!(names(&bench), ["kept", "new"]);
    }
}
