//! Cold-exact replies on real llama.cpp: whatever was cached, wherever it lies and whichever other requests run, an exact reply
//! is the one of a freshly started, idle server with nothing cached, to the last bit of its log probabilities.

use std::num::NonZeroUsize;
use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig, FileTierConfig, HitKind, Tier};
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::backend::{ContextOptions, KvLayout, MemoryKind};
use poncho_engine::{
    Completion, EngineError, Exactness, Mode, Model, ModelConfig, Request, RequestError, RestoreRule, Sampling, Stream,
};
use poncho_testkit::{ModelKind, default_model_path};

use crate::llama::real::{KINDS, cache_in, load, trace, traced};
use crate::support::{memory_cache, prompt, small_gates, stub_config};

const GRID: usize = 32;
const REPLY: u32 = 12;

/// The kinds of files that are served exactly in these tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    Tiny(ModelKind),
    SmolLm2,
}

fn config(served: Served, n_seq_max: u32) -> ModelConfig {
    let base = match served {
        Served::Tiny(kind) => crate::llama::real::config(kind, KvLayout::Unified, n_seq_max),
        Served::SmolLm2 => ModelConfig {
            gates: small_gates(),
            context: ContextOptions {
                n_ctx: 512,
                n_seq_max,
                threads: Some(1),
                threads_batch: Some(1),
                ..ContextOptions::default()
            },
            ..ModelConfig::new("smollm2", default_model_path())
        },
    };
    ModelConfig {
        exactness: Exactness::OnRequest,
        exact_grid: NonZeroUsize::new(GRID).unwrap(),
        // Models this small compute faster than they are restored.
        restore_rule: RestoreRule::Always,
        ..base
    }
}

fn exact(tokens: &[u32], sampling: Sampling) -> Request {
    Request { exact: true, sampling, ..traced(tokens, REPLY) }
}

/// What a reply shows: its tokens, its text, and every bit of its log probabilities.
type Shown = (Vec<u32>, String, Vec<(u32, u32)>);

fn shown(completion: &Completion) -> Shown {
    (completion.generated.clone(), completion.reply.clone(), trace(completion))
}

/// The reply of a server that was started for it and serves nobody else.
fn cold(served: Served, n_seq_max: u32, request: &Request) -> Shown {
    let completion = load(config(served, n_seq_max), &memory_cache()).complete(request.clone()).unwrap();
    assert_eq!(completion.hit, HitKind::Cold);
    shown(&completion)
}

/// Sends requests together; each must say what a cold server says. Returns what became of them.
fn check(what: &str, served: Served, n_seq_max: u32, model: &Model, requests: &[Request]) -> Vec<Completion> {
    let streams: Vec<Stream> = requests.iter().map(|request| model.submit(request.clone()).unwrap()).collect();
    let done: Vec<Completion> = streams.into_iter().map(|stream| stream.wait().unwrap()).collect();
    for (place, (request, completion)) in requests.iter().zip(&done).enumerate() {
        let expected = cold(served, n_seq_max, &Request { session_id: None, ..request.clone() });
        let facts = (completion.hit, completion.cached_tokens, completion.prompt_tokens);
        assert!(shown(completion) == expected, "{served:?} {what}, request {place} of {}: {facts:?}", requests.len());
    }
    done
}

/// Others that run beside the request in question: other prompts, lengths and samplers.
fn crowd(first: Request, count: usize) -> Vec<Request> {
    let others = (1..u32::try_from(count).unwrap()).map(|number| {
        let sampling = match number % 2 {
            0 => Sampling::greedy(),
            _ => Sampling { seed: Some(number.into()), ..Sampling::default() },
        };
        exact(&prompt(50 + number, 20 + number as usize * 17 % 90), sampling)
    });
    std::iter::once(first).chain(others).collect()
}

/// Every way in which a prompt can be found, among `count` requests at once.
fn matrix(served: Served, n_seq_max: u32, count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let disk = Some(FileTierConfig { folder: folder.path().to_owned(), quota: 1 << 30 });
        let config = CacheConfig { ram_quota: 1 << 30, disk, keep_hot: true, ..CacheConfig::default() };
        Arc::new(Cache::open(config).unwrap())
    };
    let seeded = Sampling { seed: Some(11), ..Sampling::default() };
    let tokens = prompt(1, 150);
    let check = |what: &str, model: &Model, request: Request| {
        let done = check(what, served, n_seq_max, model, &crowd(request, count));
        done.into_iter().next().unwrap()
    };
    let mut cache = open();
    let mut model = load(config(served, n_seq_max), &cache);

    let first = check("cold", &model, exact(&tokens, Sampling::greedy()));
    assert_eq!(first.hit, HitKind::Cold, "{served:?}");
    let again = check("again", &model, exact(&tokens, seeded.clone()));
    assert!(again.cached_tokens > 0, "{served:?}: {:?}", again.cached_tokens);

    // The next turn: what was generated, and more.
    let mut next = first.context_tokens.clone();
    next.extend(prompt(2, 40));
    let turn = check("partial", &model, exact(&next, Sampling::greedy()));
    assert!(turn.cached_tokens >= 128, "{served:?}: {:?}", turn.cached_tokens);
    assert_eq!(turn.cached_tokens % GRID, 0);

    // A prompt that parts in the middle of a chunk.
    let mut parted = tokens[..100].to_vec();
    parted.extend(prompt(3, 60));
    check("parted", &model, exact(&parted, seeded.clone()));

    // Sticky: a session's own sequence.
    let session = |tokens: &[u32]| Request { session_id: Some("s".into()), ..exact(tokens, Sampling::greedy()) };
    let opened = check("session", &model, session(&parted));
    let mut longer = opened.context_tokens.clone();
    longer.extend(prompt(4, 30));
    let kept = check("sticky", &model, session(&longer));
    assert!(kept.cached_tokens > 0, "{served:?}: {:?}", kept.hit);

    // After eviction to disk.
    cache.flush();
    cache.evict_bytes(u64::MAX, &[Tier::Ram]);
    drop(model);
    model = load(config(served, n_seq_max), &cache);
    let disk = check("exact, from disk", &model, exact(&tokens, seeded.clone()));
    assert_eq!((disk.hit, disk.cached_tokens), (HitKind::Exact, 150), "{served:?}");
    check("partial, from disk", &model, exact(&next, seeded.clone()));

    // After a restart.
    drop(model);
    drop(cache);
    cache = open();
    model = load(config(served, n_seq_max), &cache);
    let restarted = check("exact, after a restart", &model, exact(&tokens, Sampling::greedy()));
    assert_eq!((restarted.hit, restarted.cached_tokens), (HitKind::Exact, 150), "{served:?}");
    check("partial, after a restart", &model, exact(&longer, Sampling::greedy()));
}

#[test]
fn an_exact_reply_is_the_cold_one_alone() {
    for kind in KINDS {
        matrix(Served::Tiny(kind), 1, 1);
    }
}

#[test]
fn an_exact_reply_is_the_cold_one_among_four() {
    for kind in KINDS {
        matrix(Served::Tiny(kind), 4, 4);
    }
}

#[test]
fn an_exact_reply_is_the_cold_one_among_sixteen() {
    for kind in KINDS {
        matrix(Served::Tiny(kind), 4, 16);
        let requests = crowd(exact(&prompt(1, 150), Sampling::greedy()), 16);
        let model = load(config(Served::Tiny(kind), 16), &memory_cache());
        check("sixteen sequences", Served::Tiny(kind), 16, &model, &requests);
    }
}

#[test]
fn the_default_model_is_exact_too() {
    let served = Served::SmolLm2;
    let cache = memory_cache();
    let model = load(config(served, 4), &cache);
    let tokens = prompt(1, 100);
    let first = check("cold", served, 4, &model, &crowd(exact(&tokens, Sampling::greedy()), 4));
    let mut next = first[0].context_tokens.clone();
    next.extend(prompt(2, 30));
    let turn = check("partial", served, 4, &model, &[exact(&next, Sampling::greedy())]);
    assert!(turn[0].cached_tokens >= 96, "{:?}", turn[0].cached_tokens);
    drop(model);
    let model = load(config(served, 4), &cache);
    let again = check("exact, after a restart", served, 4, &model, &crowd(exact(&tokens, Sampling::greedy()), 2));
    assert_eq!(again[0].hit, HitKind::Exact);
}

/// What was generated is read again while nobody waits, so that the next turn finds it.
#[test]
fn a_reply_is_read_again_on_the_grid_when_there_is_nothing_else_to_do() {
    for kind in KINDS {
        let cache = memory_cache();
        let model = load(config(Served::Tiny(kind), 2), &cache);
        let request = Request { max_tokens: Some(80), ..exact(&prompt(1, 50), Sampling::greedy()) };
        let first = model.complete(request).unwrap();
        // 130 tokens are said; 128 of them end on the grid. Shutting down ends what is under way, so wait for its row.
        let key = |count: usize| cache.rows().iter().any(|row| row.meta.token_count as usize == count);
        let started = std::time::Instant::now();
        while !key(128) {
            assert!(started.elapsed().as_secs() < 60, "{kind:?}: the reply is never read again");
            std::thread::yield_now();
        }
        let mut next = first.context_tokens.clone();
        next.extend(prompt(2, 20));
        let turn = check("next turn", Served::Tiny(kind), 2, &model, &[exact(&next, Sampling::greedy())]);
        assert_eq!(turn[0].cached_tokens, 128, "{kind:?}");
    }
}

/// Requests that did not ask for it are served beside exact ones, and share no rows with them.
#[test]
fn exact_and_other_requests_live_side_by_side() {
    let served = Served::Tiny(ModelKind::Attention);
    let model = load(config(served, 4), &memory_cache());
    let tokens = prompt(1, 150);
    let plain = model.complete(traced(&tokens, REPLY)).unwrap();
    assert_eq!(plain.hit, HitKind::Cold);
    let crowd = crowd(exact(&tokens, Sampling::greedy()), 4);
    let plain_beside = model.submit(traced(&prompt(7, 120), 30)).unwrap();
    let done = check("beside", served, 4, &model, &crowd);
    assert_eq!(done[0].hit, HitKind::Cold, "the plain row is not used");
    assert_eq!(plain_beside.wait().unwrap().completion_tokens, 30);
}

#[test]
fn a_model_can_be_exact_for_everybody() {
    let always = ModelConfig { exactness: Exactness::Always, ..config(Served::Tiny(ModelKind::Attention), 2) };
    let model = load(always, &memory_cache());
    let request = traced(&prompt(1, 100), REPLY);
    let expected = cold(Served::Tiny(ModelKind::Attention), 2, &Request { exact: true, ..request.clone() });
    assert!(shown(&model.complete(request.clone()).unwrap()) == expected);
    assert!(shown(&model.complete(request).unwrap()) == expected);
}

#[test]
fn exactness_is_refused_where_it_cannot_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let plain = Model::load(
        stub_config("plain"),
        Arc::new(StubBackend::new(MemoryKind::Attention)),
        cache_in(Tier::Disk, folder.path()),
    )
    .unwrap();
    let refusal = plain.submit(Request { exact: true, ..Request::new(prompt(1, 10)) }).unwrap_err();
    assert_eq!(refusal, EngineError::BadRequest(RequestError::ExactUnavailable));

    let exact_grid = NonZeroUsize::new(GRID).unwrap();
    let config = ModelConfig { exactness: Exactness::OnRequest, exact_grid, ..stub_config("exact") };
    let backend = StubBackend::new(MemoryKind::Attention);
    let model = Model::load(config.clone(), Arc::new(backend), memory_cache()).unwrap();
    let request = Request { mode: Mode::Continue, session_id: Some("s".into()), ..Request::new(prompt(1, 10)) };
    let refusal = model.submit(Request { exact: true, ..request }).unwrap_err();
    assert_eq!(refusal, EngineError::BadRequest(RequestError::ExactContinue));

    let small = ContextOptions { n_batch: 34, n_ubatch: 34, ..config.context.clone() };
    let backend = StubBackend::new(MemoryKind::Attention);
    let refused = Model::load(ModelConfig { context: small, ..config }, Arc::new(backend), memory_cache());
    assert!(matches!(refused, Err(EngineError::Config { .. })), "a grid that no batch can hold");
}

/// Hardening 7: an upgrade that changes arithmetic hit the rows of the old build.
#[test]
fn the_rows_of_another_build_serve_plain_requests_and_no_exact_ones() {
    let cache = memory_cache();
    let config = ModelConfig {
        exactness: Exactness::OnRequest,
        exact_grid: NonZeroUsize::new(GRID).unwrap(),
        restore_rule: RestoreRule::Always,
        ..stub_config("stub")
    };
    let load = |build: &str| {
        let backend = StubBackend::new(MemoryKind::Attention).with_build(build);
        Model::load(config.clone(), Arc::new(backend), Arc::clone(&cache)).unwrap()
    };
    let plain = Request { max_tokens: Some(4), sampling: Sampling::greedy(), ..Request::new(prompt(1, 100)) };
    let exact = Request { exact: true, ..plain.clone() };
    let hits = |model: &Model| {
        let hit = |request: &Request| model.complete(request.clone()).unwrap().hit;
        (hit(&exact), hit(&plain))
    };
    assert_eq!(hits(&load("one")), (HitKind::Cold, HitKind::Cold));
    assert_eq!(hits(&load("one")), (HitKind::Exact, HitKind::Exact));
    assert_eq!(hits(&load("two")), (HitKind::Cold, HitKind::Exact), "the new build computes it again");
    assert_eq!(hits(&load("two")), (HitKind::Exact, HitKind::Exact));
}
