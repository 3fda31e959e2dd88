//! Tests of the slots: the lease counts what the context holds, and a broken count or owner is loud.
//!
//! Run by `cargo test` only, on the stub.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock};

use poncho_api::{FingerprintSource, ModelConfig, ModelLimits};
use poncho_cache::{Cache, CacheConfig};

use super::*;
use crate::backend::stub::{StubBackend, StubCall};
use crate::backend::{Backend, BatchRow, ContextOptions, FlashAttention};
use crate::files::file_watch::FileWatch;
use crate::schedule::admission::Place;
use crate::shared::embedding::OpenEmbeddings;
use crate::shared::running::Running;
use crate::shared::status::Status;
use crate::state::identity::FileIdentity;

/// What a model on the stub shares, with three sequences.
fn shared(backend: &StubBackend, kv: KvLayout) -> Shared {
    let context =
        ContextOptions { n_ctx: 64, n_batch: 32, n_ubatch: 32, n_seq_max: 3, kv, ..ContextOptions::default() };
    let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
    let config = ModelConfig { fingerprint, context, ..ModelConfig::new("stub", "stub") };
    let model = backend.load_model(&config.model).unwrap();
    Shared {
        library: None,
        file: FileIdentity::of(&config.model, &config.fingerprint, &mut |_, _| {}).unwrap(),
        watch: Arc::new(FileWatch::new(&config.model)),
        limits: ModelLimits { context: 64, vocab: model.info().n_vocab, sequences: 1, exact: false, queue: 4 },
        backend: Arc::new(backend.clone()),
        cache: Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap()),
        status: Status::default(),
        sessions: crate::shared::session_list::SessionList::default(),
        streams: Arc::default(),
        embeddings: OpenEmbeddings::default(),
        running: Arc::new(Running::default()),
        readers: Arc::default(),
        context_hash: OnceLock::new(),
        adapters: Mutex::default(),
        model,
        config,
    }
}

fn slots(shared: &Shared) -> Slots {
    Slots::new(shared, shared.running.new_worker(), Arc::new(|| {})).unwrap()
}

fn admit(slots: &mut Slots, request: u64) -> Lease {
    let ticket = Ticket { request: RequestId(request), session: None, needs_session: false, owner: None };
    match slots.submit(ticket) {
        Submitted::Admitted(Place::Fresh(seq)) => slots.lease(seq),
        other => panic!("not admitted: {other:?}"),
    }
}

/// Computes the tokens `0..count` in an empty sequence.
fn compute(slots: &mut Slots, shared: &Shared, lease: &mut Lease, count: u32) {
    let row = |pos| BatchRow { token: pos, pos, seq: lease.seq(), want_logits: false };
    let batch = Batch { rows: (0..count).map(row).collect() };
    assert_eq!(slots.decode(&batch, shared, None, None).0, DecodeOutcome::Done);
    lease.advance(count as usize);
}

fn held(slots: &Slots, count: u32) -> Held {
    Held {
        tokens: (0..count).collect(),
        n_past: count as usize,
        logits: None,
        on_grid: 0,
        namespace: slots.adapters().namespace,
        tenant: None,
    }
}

#[test]
fn a_lease_and_the_context_agree_after_each_step() {
    for kv in [KvLayout::Unified, KvLayout::Split] {
        let backend = StubBackend::new(MemoryKind::Attention);
        let shared = shared(&backend, kv);
        let mut slots = slots(&shared);
        let count =
            |slots: &Slots, lease: &Lease| slots.context.pos_max(lease.seq()).map_or(0, |last| last as usize + 1);
        let mut first = admit(&mut slots, 1);
        compute(&mut slots, &shared, &mut first, 20);
        assert_eq!((first.n_past(), count(&slots, &first)), (20, 20));
        let mut second = admit(&mut slots, 2);
        assert!(slots.copy_prefix(first.seq(), 20, &mut second, 12), "{kv:?}");
        assert_eq!((second.n_past(), count(&slots, &second)), (12, 12));
        let left = held(&slots, 20);
        let old = first.seq();
        slots.release(first, Some(left));
        let mut third = admit(&mut slots, 3);
        assert!(slots.adopt(&mut third, old, 7));
        assert_eq!((third.seq(), third.n_past(), count(&slots, &third)), (old, 7, 7));
        assert!(slots.held().get(old).is_none(), "a request runs on it");
        slots.clear(&mut third);
        assert_eq!((third.n_past(), count(&slots, &third)), (0, 0));
        slots.release(third, None);
        slots.release(second, None);
        assert_eq!(slots.free().count(), 3);
    }
}

#[test]
fn a_copy_that_fails_leaves_an_empty_sequence() {
    let backend = StubBackend::new(MemoryKind::Attention);
    let shared = shared(&backend, KvLayout::Split);
    let mut slots = slots(&shared);
    let mut first = admit(&mut slots, 1);
    compute(&mut slots, &shared, &mut first, 20);
    let mut second = admit(&mut slots, 2);
    compute(&mut slots, &shared, &mut second, 5);
    backend.faults().fail_next(StubCall::Pack, 1);
    assert!(!slots.copy_prefix(first.seq(), 20, &mut second, 12));
    assert_eq!((second.n_past(), slots.context.pos_max(second.seq())), (0, None));
}

#[test]
fn a_sequence_with_two_owners_or_none_is_loud() {
    let backend = StubBackend::new(MemoryKind::Attention);
    let shared = shared(&backend, KvLayout::Unified);
    let mut slots = slots(&shared);
    let loud = |work: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(work)).is_err();
    assert!(loud(&mut || slots.release(Lease { seq: 0, n_past: 0 }, None)), "nobody runs on it");
    let mut first = admit(&mut slots, 1);
    let second = admit(&mut slots, 2);
    let mut steal = || {
        slots.adopt(&mut first, second.seq(), 0);
    };
    assert!(loud(&mut steal), "another request runs on it");
    assert!(loud(&mut || slots.release(Lease { seq: 9, n_past: 0 }, None)), "the context has three sequences");
}

#[test]
fn exact_rows_are_computed_alone_on_a_processor_with_flash_attention() {
    for (flash_attention, expected) in [(FlashAttention::Off, true), (FlashAttention::On, false)] {
        let backend = StubBackend::new(MemoryKind::Attention);
        let mut shared = shared(&backend, KvLayout::Split);
        let grid = std::num::NonZeroUsize::MIN.saturating_add(7);
        (shared.config.exactness, shared.config.exact_grid) = (Exactness::OnRequest, grid);
        (shared.config.context.flash_attention, shared.config.drafts) = (flash_attention, Drafts::Context);
        let slots = slots(&shared);
        assert_eq!((slots.shares_decodes(), slots.exact_draft_rows(4) > 0), (expected, expected));
    }
}

/// Only builds with debug assertions look.
#[test]
#[cfg(debug_assertions)]
fn a_count_that_differs_from_the_context_is_loud() {
    let backend = StubBackend::new(MemoryKind::Attention);
    let shared = shared(&backend, KvLayout::Unified);
    let mut slots = slots(&shared);
    let mut lease = admit(&mut slots, 1);
    compute(&mut slots, &shared, &mut lease, 8);
    lease.advance(1);
    let left = held(&slots, 9);
    assert!(catch_unwind(AssertUnwindSafe(|| slots.release(lease, Some(left)))).is_err());
}
