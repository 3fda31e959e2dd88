//! Two machines with one shared tier: what one has read the other finds, bit for bit, and whatever the store does, a reply is
//! the same and comes no later than without it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use poncho_cache::{Cache, CacheConfig, HitKind, HitTier, NO_TENANT, OfferReason, OwnerId};
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::{DecodeFault, StubBackend};
use poncho_engine::{Mode, ModelConfig, Privacy, Request, RestoreRule, Tenant};

use super::remote_tier::{MemoryTier, StoreFault};
use crate::stub::{Bench, KINDS, LONG, assert_serves, bench_with, eventually, roomy, roomy_with, solo};
use crate::support::{greedy, prompt};

/// A machine with memory of its own.
fn machine(kind: MemoryKind, tier: &Arc<MemoryTier>, rule: RestoreRule) -> Bench {
    machine_with(roomy(), kind, tier, rule)
}

fn machine_with(model: ModelConfig, kind: MemoryKind, tier: &Arc<MemoryTier>, rule: RestoreRule) -> Bench {
    let config = CacheConfig { remote: Some(Arc::<MemoryTier>::clone(tier)), ..CacheConfig::in_memory(1 << 30) };
    let cache = Arc::new(Cache::open(config).unwrap());
    bench_with(ModelConfig { restore_rule: rule, ..model }, &StubBackend::new(kind), &cache)
}

/// Serves requests on a machine of its own and shuts it down, which offers what it has.
fn warm(kind: MemoryKind, tier: &Arc<MemoryTier>, requests: &[Request]) -> Bench {
    let bench = machine(kind, tier, RestoreRule::Always);
    for request in requests {
        bench.model.complete(request.clone()).unwrap();
    }
    shut_down(&bench);
    bench
}

/// Ends a model and waits until its rows were offered.
fn shut_down(bench: &Bench) {
    bench.model.shut_down().unwrap();
    eventually("an end of the offers", || !has_thread("poncho-worker") && !has_thread("poncho-sharing"));
}

/// All sequences answer right. Without the tier: its requests would come in one by one, when their fetches are over.
fn assert_serves_alone(bench: &Bench, kind: MemoryKind, tier: &MemoryTier) {
    tier.is_off.store(true, Ordering::SeqCst);
    assert_serves(bench, kind);
    tier.is_off.store(false, Ordering::SeqCst);
}

/// Every row of the second machine that came from the first has the same bytes there.
fn assert_same_rows(one: &Bench, two: &Bench, owner: OwnerId, tokens: &[u32]) {
    let namespace = one.model.namespace();
    let shared = two.cache.boundaries(&namespace, tokens);
    assert!(!shared.is_empty());
    for row in shared.iter().filter(|row| one.cache.contains(&row.key)) {
        assert_eq!(one.cache.export(&row.key, owner).unwrap(), two.cache.export(&row.key, owner).unwrap());
    }
}

#[test]
fn what_one_machine_has_read_another_finds_with_equal_bytes() {
    for kind in KINDS {
        let tier = MemoryTier::new();
        let request = greedy(&prompt(1, 300), 6);
        let one = warm(kind, &tier, std::slice::from_ref(&request));
        let two = machine(kind, &tier, RestoreRule::Always);
        let done = two.model.complete(request.clone()).unwrap();
        assert_eq!((done.hit, done.cached_tokens), (HitKind::Exact, 300), "{kind:?}");
        assert_eq!(done.hit_tier, Some(HitTier::Shared), "{kind:?}");
        assert_eq!(done.generated, solo(kind, &request).generated, "{kind:?}");
        assert_same_rows(&one, &two, NO_TENANT, &request.tokens);
        // From now on it is a row like any other.
        let finds = tier.finds.load(Ordering::SeqCst);
        let again = two.model.complete(Request { max_tokens: Some(7), ..request.clone() }).unwrap();
        assert_ne!(again.hit_tier, Some(HitTier::Shared));
        assert_eq!((again.cached_tokens, tier.finds.load(Ordering::SeqCst)), (300, finds), "{kind:?}");
        assert_serves_alone(&two, kind, &tier);
    }
}

#[test]
fn the_next_turn_on_another_machine_goes_on_where_the_reply_ended() {
    for kind in KINDS {
        let tier = MemoryTier::new();
        let one = machine(kind, &tier, RestoreRule::Always);
        let first = one.model.complete(greedy(&prompt(1, 200), 9)).unwrap();
        shut_down(&one);
        // The template closes the reply with two tokens more, and a message follows.
        let said = first.committed_tokens;
        let mut tokens = first.context_tokens[..said].to_vec();
        tokens.extend([251, 252]);
        let boundary_hints = vec![tokens.len()];
        tokens.extend(prompt(9, 40));
        let next = Request { boundary_hints, ..greedy(&tokens, 5) };
        let two = machine(kind, &tier, RestoreRule::Always);
        let done = two.model.complete(next.clone()).unwrap();
        assert_eq!((done.hit_tier, done.cached_tokens), (Some(HitTier::Shared), said), "{kind:?}");
        assert_eq!(done.generated, solo(kind, &next).generated, "{kind:?}");
        assert_same_rows(&one, &two, NO_TENANT, &tokens);
    }
}

#[test]
fn a_system_prompt_is_shared_by_its_own_name() {
    for kind in KINDS {
        let tier = MemoryTier::new();
        let system = prompt(1, 250);
        let conversation = |number: u32| Request {
            boundary_hints: vec![system.len()],
            ..greedy(&[system.clone(), prompt(40 + number, 30)].concat(), 4)
        };
        let _one = warm(kind, &tier, &[conversation(1)]);
        let two = machine(kind, &tier, RestoreRule::Always);
        let done = two.model.complete(conversation(2)).unwrap();
        assert_eq!((done.hit_tier, done.cached_tokens), (Some(HitTier::Shared), 250), "{kind:?}");
        assert_eq!(done.generated, solo(kind, &conversation(2)).generated, "{kind:?}");
    }
}

#[test]
fn a_tenant_never_finds_the_rows_of_another() {
    for (kind, privacy) in KINDS.into_iter().zip([Privacy::Open, Privacy::Discreet, Privacy::Isolated, Privacy::Open]) {
        let tier = MemoryTier::new();
        let sent_by = |number: u8| {
            let tenant = Some(Tenant { id: OwnerId::from_bytes([number; 16]), privacy });
            Request { tenant, ..greedy(&prompt(1, 300), 6) }
        };
        let _one = warm(kind, &tier, &[sent_by(1)]);
        for stranger in [sent_by(2), Request { tenant: None, ..sent_by(1) }] {
            let two = machine(kind, &tier, RestoreRule::Always);
            let done = two.model.complete(stranger).unwrap();
            assert_eq!((done.hit, done.cached_tokens, done.hit_tier), (HitKind::Cold, 0, None), "{kind:?}");
            assert_eq!(tier.fetches.load(Ordering::SeqCst), 0);
        }
        let two = machine(kind, &tier, RestoreRule::Always);
        let done = two.model.complete(sent_by(1)).unwrap();
        assert_eq!((done.hit_tier, done.cached_tokens), (Some(HitTier::Shared), 300), "{kind:?}");
        tier.fetches.store(0, Ordering::SeqCst);
    }
}

#[test]
fn whatever_the_store_does_the_reply_is_the_same() {
    for kind in KINDS {
        let tier = MemoryTier::new();
        let request = greedy(&prompt(1, 300), 6);
        let expected = solo(kind, &request).generated;
        let _one = warm(kind, &tier, &[request.clone(), greedy(&prompt(2, 200), 3)]);
        for fault in StoreFault::ALL {
            tier.break_with(Some(fault));
            // The estimates of a store that does not answer are wrong: it must not matter.
            let two = machine(kind, &tier, RestoreRule::Faster);
            two.faults.record_batches();
            let done = two.model.complete(request.clone()).unwrap();
            assert_eq!(done.generated, expected, "{kind:?} {fault:?}");
            // The other row may be a checkpoint of this very prompt, which is right to take.
            let is_prefix = fault == StoreFault::OtherRow && done.hit == HitKind::Partial;
            assert!(done.hit == HitKind::Cold || is_prefix, "{:?} ({kind:?} {fault:?})", done.hit);
            let rows = two.faults.take_batches().iter().map(|batch| batch.rows.len()).sum::<usize>();
            assert!(rows == 300 + 5 || is_prefix, "{rows} rows: nothing is computed twice ({kind:?} {fault:?})");
            let is_refused = matches!(fault, StoreFault::WrongBytes | StoreFault::Truncated | StoreFault::OtherRow);
            if is_refused && !is_prefix {
                eventually("a refused row", || tier.distrusted.swap(0, Ordering::SeqCst) > 0);
            }
            assert_serves_alone(&two, kind, &tier);
        }
        tier.break_with(None);
        let two = machine(kind, &tier, RestoreRule::Always);
        assert_eq!(two.model.complete(request).unwrap().hit_tier, Some(HitTier::Shared), "it is back ({kind:?})");
    }
}

#[test]
fn a_request_computes_while_the_store_is_silent() {
    let tier = MemoryTier::new();
    tier.break_with(Some(StoreFault::BlackHole));
    let bench = machine(MemoryKind::Attention, &tier, RestoreRule::Faster);
    let request = greedy(&prompt(1, 400), 6);
    // The deadline of the fetch is half of the time for computing, and a request does not wait for it.
    let done = bench.model.complete(request.clone()).unwrap();
    assert_eq!(done.generated, solo(MemoryKind::Attention, &request).generated);
    eventually("an end of the fetch", || tier.given_up.load(Ordering::SeqCst) == 1);
    tier.is_off.store(true, Ordering::SeqCst);
    let finds = tier.finds.load(Ordering::SeqCst);
    bench.model.complete(greedy(&prompt(2, 400), 6)).unwrap();
    assert_eq!(tier.finds.load(Ordering::SeqCst), finds, "a tier that is left alone is not asked");
}

/// Whether this process has a thread of that name.
fn has_thread(wanted: &str) -> bool {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok())
        .any(|name| name.trim() == wanted)
}

#[test]
fn a_fetch_that_comes_while_the_prompt_is_computed_overtakes_it() {
    // With one sequence too: a tick that reads the whole prompt would end long after the row is there.
    for (kind, sequences) in KINDS.into_iter().flat_map(|kind| [(kind, roomy().context.n_seq_max), (kind, 1)]) {
        let tier = MemoryTier::new();
        let request = greedy(&prompt(1, 400), 6);
        let one = warm(kind, &tier, std::slice::from_ref(&request));
        let two = machine_with(roomy_with(sequences), kind, &tier, RestoreRule::Faster);
        two.faults.record_batches();
        tier.shut();
        // The first decode call of the prompt is held until the row is there.
        two.faults.on_decode(1, DecodeFault::Block);
        let stream = two.model.submit(request.clone()).unwrap();
        assert!(two.faults.wait_until_held(LONG));
        tier.open();
        let key = one.model.key_of(&request.tokens);
        eventually("an import", || two.cache.contains(&key));
        eventually("an end of the fetch", || !has_thread("poncho-fetch"));
        two.faults.release();
        let done = stream.wait().unwrap();
        assert_eq!(done.generated, solo(kind, &request).generated, "{kind:?}");
        assert_eq!((done.hit_tier, done.cached_tokens), (Some(HitTier::Shared), 400), "{kind:?}");
        let rows = two.faults.take_batches().iter().map(|batch| batch.rows.len()).sum::<usize>();
        // With one sequence and plain attention the whole prompt is one call, which is ended when the row comes.
        let is_ended = sequences == 1 && kind == MemoryKind::Attention;
        assert!(rows < 200 || is_ended, "{rows} rows were computed ({kind:?})");
        assert_same_rows(&one, &two, NO_TENANT, &request.tokens);
        assert_serves_alone(&two, kind, &tier);
    }
}

#[test]
fn a_decode_call_that_computes_what_was_fetched_meanwhile_is_ended() {
    let (kind, tier) = (MemoryKind::Attention, MemoryTier::new());
    let request = greedy(&prompt(1, 400), 6);
    drop(warm(kind, &tier, std::slice::from_ref(&request)));
    let two = machine(kind, &tier, RestoreRule::Faster);
    tier.shut();
    // Nothing but an abort releases this call.
    two.faults.on_decode(1, DecodeFault::Block);
    let stream = two.model.submit(request.clone()).unwrap();
    assert!(two.faults.wait_until_held(LONG));
    tier.open();
    let done = stream.wait().unwrap();
    assert_eq!(done.generated, solo(kind, &request).generated);
    assert_eq!((done.hit_tier, done.cached_tokens), (Some(HitTier::Shared), 400));
    assert_serves_alone(&two, kind, &tier);
}

#[test]
fn a_cancelled_request_cancels_its_fetch() {
    let tier = MemoryTier::new();
    tier.break_with(Some(StoreFault::BlackHole));
    let bench = machine(MemoryKind::Attention, &tier, RestoreRule::Always);
    let stream = bench.model.submit(greedy(&prompt(1, 400), 6)).unwrap();
    eventually("a question to the store", || tier.finds.load(Ordering::SeqCst) == 1);
    drop(stream);
    // Long before its deadline.
    eventually("a cancelled fetch", || tier.given_up.load(Ordering::SeqCst) == 1);
    tier.break_with(None);
    assert_serves_alone(&bench, MemoryKind::Attention, &tier);
}

#[test]
fn requests_with_the_same_prompt_share_one_fetch() {
    let tier = MemoryTier::new();
    let request = greedy(&prompt(1, 300), 6);
    let _one = warm(MemoryKind::Attention, &tier, std::slice::from_ref(&request));
    let two = machine(MemoryKind::Attention, &tier, RestoreRule::Always);
    tier.finds.store(0, Ordering::SeqCst);
    tier.shut();
    let streams: Vec<_> = (0..3).map(|_| two.model.submit(request.clone()).unwrap()).collect();
    eventually("a question to the store", || tier.finds.load(Ordering::SeqCst) > 0);
    eventually("three requests that wait", || two.model.status().pending == 3);
    tier.open();
    for stream in streams {
        assert_eq!(stream.wait().unwrap().cached_tokens, 300);
    }
    assert_eq!(tier.finds.load(Ordering::SeqCst), 1);
}

#[test]
fn a_row_is_offered_when_a_second_conversation_uses_it_and_when_a_session_gives_up_its_sequence() {
    let tier = MemoryTier::new();
    let bench = machine(MemoryKind::Attention, &tier, RestoreRule::Always);
    let system = prompt(1, 200);
    let conversation = |number: u32| Request {
        boundary_hints: vec![system.len()],
        mode: Mode::PrefillOnly,
        ..greedy(&[system.clone(), prompt(40 + number, 60)].concat(), 1)
    };
    bench.model.complete(conversation(1)).unwrap();
    // Its sequence is cleared, so that the second one reads the row.
    bench.model.evict().unwrap();
    bench.model.complete(conversation(2)).unwrap();
    let key = bench.model.key_of(&system);
    eventually("an offer", || tier.chain(NO_TENANT, key).is_some());
    assert_eq!(*tier.reasons.lock().unwrap(), [OfferReason::Reused]);
    let session = Request { session_id: Some("one".to_owned()), ..greedy(&prompt(3, 100), 4) };
    let done = bench.model.complete(session).unwrap();
    bench.model.evict().unwrap();
    let key = bench.model.key_of(&done.context_tokens[..done.committed_tokens]);
    eventually("an offer", || tier.chain(NO_TENANT, key).is_some());
    assert!(tier.reasons.lock().unwrap().contains(&OfferReason::Evicted));
}

#[test]
fn a_short_prompt_is_not_worth_a_question() {
    let tier = MemoryTier::new();
    let bench = machine(MemoryKind::Attention, &tier, RestoreRule::Faster);
    bench.model.complete(greedy(&prompt(1, 3), 4)).unwrap();
    assert_eq!(tier.finds.load(Ordering::SeqCst), 0);
}
