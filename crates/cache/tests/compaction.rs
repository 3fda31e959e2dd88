//! Chains that became long are shortened: the row keeps its name, its bytes and its readers, and there is no moment in
//! which it is missing.

use std::path::Path;
use std::sync::Arc;

use poncho_cache::testing::{Fault, FaultFs, MemoryFs, Operation};
use poncho_cache::{
    Cache, CacheConfig, Compaction, DropReason, Key, Needs, PartKind, PayloadPart, SaveOutcome, SaveRequest, Tier,
    inspect_folder,
};

use crate::chains::Gate;
use crate::support::{at_end, attention, check_plan, conversation, namespace, on_disk, reach, request, save};

/// A conversation of `turns` turns with ten tokens each; each turn is saved on top of the one before.
fn chain(cache: &Cache, turns: usize) -> (Vec<u32>, Vec<Key>) {
    let tokens = conversation(1, turns * 10);
    let keys = (1..=turns).map(|turn| save(cache, namespace(1), &tokens[..turn * 10]).key).collect();
    (tokens, keys)
}

fn parts(tokens: &[u32], start: u32) -> Vec<PayloadPart> {
    vec![
        PayloadPart { kind: PartKind::Attention, bytes: attention(tokens, start as usize).into() },
        PayloadPart { kind: PartKind::Logits, bytes: at_end(tokens, PartKind::Logits).into() },
    ]
}

fn with(key: impl std::borrow::Borrow<Key>, start: u32, parts: Vec<PayloadPart>) -> Compaction<'static> {
    Compaction { key: *key.borrow(), start, parts, give_up: &[] }
}

fn links(cache: &Cache, tokens: &[u32]) -> usize {
    let plan = cache.lookup(&namespace(1), tokens, Needs::ATTENTION).unwrap();
    assert_eq!(check_plan(&plan, tokens).unwrap(), tokens.len());
    plan.rows().len()
}

#[test]
fn a_long_chain_becomes_one_row_and_what_it_took_over_leaves() {
    let folder = tempfile::tempdir().unwrap();
    for config in [CacheConfig::in_memory(1 << 20), on_disk(folder.path(), 1 << 20)] {
        let cache = Cache::open(config).unwrap();
        let (tokens, keys) = chain(&cache, 12);
        cache.flush();
        assert_eq!(links(&cache, &tokens), 12);
        let last = *keys.last().unwrap();
        assert_eq!(cache.long_chain(&last, 13), None);
        let start = cache.long_chain(&last, 12).unwrap();
        assert_eq!(start, 0);
        cache.compact(with(last, start, parts(&tokens, start)));
        assert_eq!(links(&cache, &tokens), 1, "readable at once");
        cache.flush();
        assert_eq!(links(&cache, &tokens), 1);
        assert_eq!(cache.rows().len(), 1, "the others hold nothing that it does not");
        assert_eq!(reach(&cache, namespace(1), &tokens[..57]), 57, "a prompt may part inside of it");
        let bytes: u64 = cache.rows().iter().map(|row| row.bytes).sum();
        assert_eq!(cache.counters().tier_bytes.iter().sum::<u64>(), bytes);
    }
    let again = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
    assert_eq!(links(&again, &conversation(1, 120)), 1);
    drop(again);
    assert_eq!(inspect_folder(folder.path()).unwrap().findings.len(), 0);
}

#[test]
fn what_others_build_on_and_what_is_large_stays() {
    let cache = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
    // A long system prompt, and a turn that two conversations share.
    let system = conversation(7, 400);
    save(&cache, namespace(1), &system);
    let mut tokens = system.clone();
    let mut key = None;
    for turn in 0..10 {
        tokens.extend(conversation(20 + turn, 10));
        key = Some(save(&cache, namespace(1), &tokens).key);
    }
    assert_eq!(cache.long_chain(&key.unwrap(), 8), Some(400), "the system prompt is larger than all that follows");
    let mut other = tokens[..430].to_vec();
    other.extend(conversation(90, 10));
    save(&cache, namespace(1), &other);
    let start = cache.long_chain(&key.unwrap(), 8).unwrap();
    assert_eq!(start, 430, "the row at 430 has two children");
    assert_eq!(cache.compact(with(key.unwrap(), start, parts(&tokens, start))), SaveOutcome::Published);
    assert_eq!(links(&cache, &tokens), 5, "the system prompt, three shared turns, and the rest");
    assert_eq!(reach(&cache, namespace(1), &other), 440);
    assert_eq!(
        cache.compact(with(key.unwrap(), start, parts(&tokens, start))),
        SaveOutcome::Dropped(DropReason::Conflict)
    );
}

#[test]
fn a_row_that_is_read_or_written_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let config = CacheConfig { observer: Some(Arc::<Gate>::clone(&gate)), ..on_disk(folder.path(), 1 << 20) };
    let cache = Cache::open(config).unwrap();
    let (tokens, keys) = chain(&cache, 5);
    let last = *keys.last().unwrap();
    cache.flush();
    let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
    let refused = cache.compact(with(last, 0, parts(&tokens, 0)));
    assert_eq!(refused, SaveOutcome::Dropped(DropReason::Conflict));
    drop(plan);
    gate.shut();
    assert_eq!(cache.compact(with(last, 0, parts(&tokens, 0))), SaveOutcome::Queued);
    // The old chain is held until the new file is in its place.
    cache.evict_bytes(u64::MAX, &Tier::ALL);
    assert_eq!(cache.rows().len(), 5);
    assert_eq!(links(&cache, &tokens), 1);
    assert_eq!(cache.compact(with(last, 0, parts(&tokens, 0))), SaveOutcome::Dropped(DropReason::Conflict));
    gate.open();
    cache.flush();
    assert_eq!(cache.rows().len(), 1);
}

#[test]
fn a_compaction_that_cannot_be_written_changes_nothing() {
    let fs = MemoryFs::new();
    let faulty = FaultFs::new(Arc::new(fs));
    let config = CacheConfig { fs: Arc::new(faulty.clone()), ..on_disk(Path::new("/cache"), 1 << 20) };
    let cache = Cache::open(config).unwrap();
    let (tokens, keys) = chain(&cache, 6);
    cache.flush();
    faulty.fail(Operation::WriteNew, Fault::Error(28));
    assert_eq!(cache.compact(with(keys.last().unwrap(), 0, parts(&tokens, 0))), SaveOutcome::Queued);
    cache.flush();
    faulty.clear();
    assert_eq!(cache.rows().len(), 6);
    assert_eq!(links(&cache, &tokens), 6, "it has what it had");
    let counters = cache.counters();
    assert_eq!((counters.save_failures, counters.corrupt_files), (1, 0));
}

/// Rows with a partial state are where a model that cannot be cut goes on.
#[test]
fn boundaries_of_models_that_cannot_be_cut_stay() {
    let cache = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
    let tokens = conversation(3, 60);
    let with_partial = |count: usize, start: u32| {
        let mut parts = parts(&tokens[..count], start);
        let bytes = at_end(&tokens[..count], PartKind::Partial).into();
        parts.push(PayloadPart { kind: PartKind::Partial, bytes });
        parts
    };
    for count in [10, 20, 30, 40, 50, 60] {
        let base = cache.base_for(&namespace(1), &tokens[..count], None);
        let start = base.as_ref().map_or(0, poncho_cache::SaveBase::start);
        let parts = with_partial(count, start);
        cache.save(SaveRequest { parts, ..request(namespace(1), &tokens[..count], base.as_ref()) }).unwrap();
    }
    let key = namespace(1).key(&tokens);
    let start = cache.long_chain(&key, 6).unwrap();
    cache.compact(with(key, start, with_partial(60, start)));
    assert_eq!(cache.rows().len(), 6);
    for count in [10, 20, 30, 40, 50, 60] {
        let plan = cache.lookup(&namespace(1), &tokens[..count], Needs::ATTENTION_AND_PARTIAL).unwrap();
        assert_eq!(check_plan(&plan, &tokens[..count]).unwrap(), count);
    }
}
