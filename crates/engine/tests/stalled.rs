//! A cache folder that does not answer: requests that need nothing of it do not notice, those that do are computed after a
//! while, and the end of a model does not wait for it. A late read changes the time of a reply and never its tokens.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use poncho_cache::testing::{Fault, FaultFs, MemoryFs, Operation};
use poncho_cache::{Cache, CacheConfig, Gates, HitKind};
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::{Exactness, FinishReason, ModelConfig, Request, RestoreRule};

use crate::stub::{Bench, KINDS, LONG, assert_idle, assert_serves, bench_with, eventually, roomy, roomy_with, solo};
use crate::support::{greedy, prompt};

/// A cache with rows in files only, and the file system that stalls them.
fn files() -> (Arc<Cache>, FaultFs) {
    let fs = FaultFs::new(Arc::new(MemoryFs::new()));
    let gates = Gates { evict_save_timeout_ms: 50, ..Gates::default() };
    let config =
        CacheConfig { ram_quota: 0, gates, fs: Arc::new(fs.clone()), ..CacheConfig::on_disk("/cache", 1 << 30) };
    (Arc::new(Cache::open(config).unwrap()), fs)
}

/// A cache that has a request's prompt, and a model that knows nothing else of it. From now on reads stall.
fn stalled(kind: MemoryKind, config: ModelConfig, known: &Request) -> (Bench, FaultFs) {
    let (cache, fs) = files();
    let first = ModelConfig { restore_rule: RestoreRule::Always, ..config.clone() };
    bench_with(first, &StubBackend::new(kind), &cache).model.complete(known.clone()).unwrap();
    cache.flush();
    fs.fail(Operation::Open, Fault::Stall);
    (bench_with(config, &StubBackend::new(kind), &cache), fs)
}

/// Waits for reads as long as it takes.
fn patient() -> ModelConfig {
    ModelConfig { restore_rule: RestoreRule::Always, ..roomy() }
}

/// Waits for reads no longer than it must.
fn impatient() -> ModelConfig {
    ModelConfig { read_wait: Duration::from_millis(300), ..roomy() }
}

/// Hardening 15: with reads stalled for 6 s, a prompt that needed nothing of the disk waited 6 s.
#[test]
fn a_request_that_needs_nothing_of_a_stalled_disk_does_not_wait_for_it() {
    for kind in KINDS {
        let known = greedy(&prompt(1, 60), 8);
        let (bench, fs) = stalled(kind, patient(), &known);
        let waits = bench.model.submit(known.clone()).unwrap();
        assert!(fs.wait_until_stalled(1, LONG));
        let other = greedy(&prompt(2, 40), 8);
        let done = bench.model.complete(other.clone()).unwrap();
        assert_eq!(done.generated, solo(kind, &other).generated, "{kind:?}");
        eventually("only the first still waits", || {
            let status = bench.model.status();
            (status.queue_depth, status.active) == (1, 1)
        });
        fs.release();
        let done = waits.wait().unwrap();
        assert_eq!((done.hit, done.cached_tokens), (HitKind::Exact, 60), "{kind:?}");
        assert_eq!(done.generated, solo(kind, &known).generated, "{kind:?}");
        assert_serves(&bench, kind);
    }
}

/// Hardening 15: a read that does not come in time means computing, and the folder is left alone for a while.
#[test]
fn a_request_whose_read_is_late_is_computed_and_the_row_serves_the_next_one() {
    for kind in KINDS {
        let known = greedy(&prompt(1, 60), 8);
        let (bench, fs) = stalled(kind, impatient(), &known);
        let done = bench.model.complete(known.clone()).unwrap();
        assert_eq!((done.hit, done.cached_tokens), (HitKind::Cold, 0), "{kind:?}");
        assert_eq!(done.generated, solo(kind, &known).generated, "{kind:?}");
        assert_eq!(bench.cache.counters().reads_late, 1, "{kind:?}");
        assert!(bench.cache.health()[0].slow.is_some(), "{kind:?}");
        // A second model does not wait at all: it is too early to ask again.
        let calls = fs.calls(Operation::Open);
        let second = bench_with(patient(), &StubBackend::new(kind), &bench.cache);
        let done = second.model.complete(known.clone()).unwrap();
        assert_eq!((done.hit, &done.generated), (HitKind::Cold, &solo(kind, &known).generated), "{kind:?}");
        assert_eq!((fs.calls(Operation::Open), bench.cache.counters().reads_late), (calls, 1), "{kind:?}");
        fs.release();
        assert!(fs.wait_until_none_stalled(LONG));
        eventually("the end of the lease", || bench.cache.pinned_rows() == 0);
        // The late bytes went nowhere; the answer itself is a reason to ask again.
        let third = bench_with(patient(), &StubBackend::new(kind), &bench.cache);
        let done = third.model.complete(known.clone()).unwrap();
        assert_eq!((done.hit, done.cached_tokens), (HitKind::Exact, 60), "{kind:?}");
        assert_eq!(done.generated, solo(kind, &known).generated, "{kind:?}");
        assert_eq!(bench.cache.health()[0].slow, None, "{kind:?}");
        assert_serves(&bench, kind);
        assert_idle(&third);
    }
}

/// Hardening 15: the end of a model hung for as long as the disk did.
#[test]
fn the_end_of_a_model_does_not_wait_for_a_stalled_disk() {
    for kind in KINDS {
        let known = greedy(&prompt(1, 60), 8);
        let (bench, fs) = stalled(kind, patient(), &known);
        let waits = bench.model.submit(known.clone()).unwrap();
        assert!(fs.wait_until_stalled(1, LONG));
        assert_eq!(bench.model.shut_down(), Ok(()));
        assert_eq!(waits.wait().unwrap().finish_reason, FinishReason::Cancelled, "{kind:?}");
        let Bench { model, cache, .. } = bench;
        drop(model);
        assert!(fs.wait_until_stalled(1, Duration::ZERO), "the read is still under way ({kind:?})");
        fs.release();
        eventually("the end of the lease", || cache.pinned_rows() == 0);
        let again = bench_with(patient(), &StubBackend::new(kind), &cache);
        assert_eq!(again.model.complete(known.clone()).unwrap().hit, HitKind::Exact, "{kind:?}");
    }
}

#[test]
fn a_request_that_waits_for_a_stalled_disk_can_be_cancelled() {
    let kind = MemoryKind::Attention;
    let known = greedy(&prompt(1, 60), 8);
    let (bench, fs) = stalled(kind, patient(), &known);
    let waits = bench.model.submit(known.clone()).unwrap();
    assert!(fs.wait_until_stalled(1, LONG));
    bench.model.cancel(waits.id());
    let done = waits.wait().unwrap();
    assert_eq!((done.finish_reason, done.committed_tokens), (FinishReason::Cancelled, 0));
    fs.release();
    assert_serves(&bench, kind);
}

#[test]
fn those_behind_a_request_that_waits_for_a_stalled_disk_get_their_turn() {
    let kind = MemoryKind::Attention;
    let known = greedy(&prompt(1, 60), 8);
    let config = ModelConfig { read_wait: Duration::from_millis(300), ..roomy_with(1) };
    let (bench, fs) = stalled(kind, config, &known);
    let waits = bench.model.submit(known.clone()).unwrap();
    let other = greedy(&prompt(2, 40), 8);
    let behind = bench.model.submit(other.clone()).unwrap();
    assert_eq!(waits.wait().unwrap().generated, solo(kind, &known).generated);
    assert_eq!(behind.wait().unwrap().generated, solo(kind, &other).generated);
    fs.release();
    assert_serves(&bench, kind);
}

/// Exact replies have the same tokens from a stalled disk, from one that answers, and from none.
#[test]
fn a_late_read_leaves_an_exact_reply_as_it_is() {
    for kind in KINDS {
        let exact_grid = NonZeroUsize::new(32).unwrap();
        let exact = |config: ModelConfig| ModelConfig { exactness: Exactness::Always, exact_grid, ..config };
        let known = greedy(&prompt(1, 300), 8);
        let (bench, fs) = stalled(kind, exact(impatient()), &known);
        let late = bench.model.complete(known.clone()).unwrap();
        assert_eq!(late.hit, HitKind::Cold, "{kind:?}");
        fs.release();
        assert!(fs.wait_until_none_stalled(LONG));
        let again = bench_with(exact(patient()), &StubBackend::new(kind), &bench.cache);
        let found = again.model.complete(known.clone()).unwrap();
        assert_eq!((found.hit, found.generated), (HitKind::Exact, late.generated), "{kind:?}");
    }
}

/// Verifying and drafting run alone on the worker: they wait for a disk, but not for long.
#[test]
fn a_draft_does_not_wait_for_a_stalled_disk_for_ever() {
    let kind = MemoryKind::Attention;
    let known = greedy(&prompt(1, 60), 8);
    let (bench, fs) = stalled(kind, impatient(), &known);
    let drafted = bench.model.draft(known.tokens.clone(), 4).unwrap();
    assert_eq!(drafted, solo(kind, &known).generated[..4]);
    assert_eq!(bench.cache.counters().reads_late, 1);
    fs.release();
    assert_serves(&bench, kind);
}
