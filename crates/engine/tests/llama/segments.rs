//! Each token's state is written once: what a conversation costs on disk, what two of them share, what becomes of long
//! chains and of many boundaries, and a tier that is slower than computing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use poncho_cache::testing::{WatchedFs, Watcher};
use poncho_cache::{Cache, CacheConfig, Gates, HitKind, PartKind, StdFs, Tier};
use poncho_engine::backend::KvLayout;
use poncho_engine::{Completion, Model, ModelConfig, Request, RestoreRule};
use poncho_testkit::ModelKind;

use crate::llama::real::{LAYOUTS, cache_in, config, load, trace, traced};
use crate::support::{greedy, memory_cache, prompt};

fn always(config: ModelConfig) -> ModelConfig {
    ModelConfig { restore_rule: RestoreRule::Always, ..config }
}

/// A conversation of `turns` turns: 20 tokens from the user, 6 from the model. Each turn's prompt ends at a hint.
fn converse(model: &Model, number: u32, turns: u32) -> (Vec<u32>, Vec<Completion>) {
    let mut tokens = prompt(number, 60);
    let mut replies = Vec::new();
    for turn in 0..turns {
        tokens.extend(prompt(100 + number * 37 + turn, 20));
        let hints = vec![60, tokens.len() - 20, tokens.len()];
        let reply = model.complete(Request { boundary_hints: hints, ..traced(&tokens, 6) }).unwrap();
        tokens.clone_from(&reply.context_tokens);
        replies.push(reply);
    }
    (tokens, replies)
}

fn bytes_of(cache: &Cache, kind: PartKind) -> u64 {
    cache
        .rows()
        .iter()
        .filter(|row| row.parts.contains(&kind))
        .filter_map(|row| cache.chain_of(&row.key).and_then(|chain| chain.boundary()?.length(kind)))
        .sum()
}

#[test]
fn thirty_turns_write_each_token_once() {
    for kv in LAYOUTS {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache_in(Tier::Disk, folder.path());
        // The gates of a real model, but for the shortest states that they let pass.
        let gates = Gates { min_tokens: 4, cold_min_tokens: 4, ..Gates::default() };
        let model = load(ModelConfig { gates, ..always(config(ModelKind::Attention, kv, 2)) }, &cache);
        let (tokens, _) = converse(&model, 1, 30);
        drop(model);
        cache.flush();
        let per_token = {
            let alone = memory_cache();
            let model = load(config(ModelKind::Attention, kv, 2), &alone);
            model.complete(greedy(&tokens[..512], 1)).unwrap();
            drop(model);
            alone.rows().iter().map(|row| row.bytes).sum::<u64>() as f64 / 512.0
        };
        let state = per_token * tokens.len() as f64;
        let logits = bytes_of(&cache, PartKind::Logits) as f64;
        let attention = bytes_of(&cache, PartKind::Attention) as f64;
        let written = cache.counters().save_bytes as f64;
        assert!(attention <= 1.1 * state, "{kv:?}: {attention} bytes of state for {state}");
        // Headers and token lists are small beside real states; these are tiny.
        let headers = cache.rows().len() as f64 * 1024.0;
        assert!(written <= 1.1 * state + logits + headers, "{kv:?}: {written} written, {state} of state");
    }
}

#[test]
fn two_conversations_share_their_system_prompt() {
    let cache = memory_cache();
    let model = load(always(config(ModelKind::Attention, KvLayout::Unified, 2)), &cache);
    let system = prompt(1, 400);
    let ask = |number: u32| {
        let mut tokens = system.clone();
        tokens.extend(prompt(number, 30));
        model.complete(greedy(&tokens, 1)).unwrap()
    };
    ask(2);
    let before = bytes_of(&cache, PartKind::Attention);
    let second = ask(3);
    assert_eq!((second.cached_tokens, second.prompt_tokens), (400, 430));
    let grown = bytes_of(&cache, PartKind::Attention) - before;
    assert!(grown * 10 < before, "{grown} bytes more than {before} for 30 of 430 tokens");
}

#[test]
fn long_chains_are_joined_and_stay_bit_for_bit_what_they_were() {
    for kind in [ModelKind::Attention, ModelKind::Window, ModelKind::Hybrid] {
        for kv in LAYOUTS {
            let folder = tempfile::tempdir().unwrap();
            let cache = cache_in(Tier::Disk, folder.path());
            let joined = || ModelConfig { chain_limit: 6, ..always(config(kind, kv, 1)) };
            let (mut replies, mut tokens) = (Vec::new(), prompt(1, 60));
            for turn in 0..16 {
                // A model for each turn, so that every turn is read back from its rows.
                let model = load(joined(), &cache);
                tokens.extend(prompt(50 + turn, 20));
                let reply = model.complete(traced(&tokens, 6)).unwrap();
                tokens.clone_from(&reply.context_tokens);
                replies.push(reply);
                drop(model);
                cache.flush();
            }
            let longest = cache.rows().iter().map(|row| cache.chain_of(&row.key).unwrap().rows().len()).max();
            assert!(
                longest.unwrap() <= 9,
                "{kind:?} {kv:?}: {longest:?} links after {} saves",
                cache.counters().saves_cold
            );
            let plain = memory_cache();
            let (mut live, mut said) = (Vec::new(), prompt(1, 60));
            for turn in 0..16 {
                let model = load(ModelConfig { chain_limit: 0, ..always(config(kind, kv, 1)) }, &plain);
                said.extend(prompt(50 + turn, 20));
                let reply = model.complete(traced(&said, 6)).unwrap();
                said.clone_from(&reply.context_tokens);
                live.push(reply);
            }
            for (turn, (one, two)) in replies.iter().zip(&live).enumerate() {
                assert_eq!(trace(one), trace(two), "{kind:?} {kv:?} turn {turn}");
            }
            assert_eq!(cache.counters().corrupt_files, 0);
        }
    }
}

#[test]
fn a_conversation_keeps_a_bounded_number_of_partial_states() {
    for kind in [ModelKind::Window, ModelKind::Recurrent, ModelKind::Hybrid] {
        let cache = memory_cache();
        let few = ModelConfig { partial_limit: 5, ..always(config(kind, KvLayout::Unified, 1)) };
        let (mut tokens, mut reads) = (prompt(1, 60), Vec::new());
        for turn in 0..14 {
            let model = load(few.clone(), &cache);
            tokens.extend(prompt(50 + turn, 20));
            let hints = vec![60, tokens.len()];
            let reply = model.complete(Request { boundary_hints: hints, ..greedy(&tokens, 6) }).unwrap();
            reads.push((reply.cached_tokens, reply.prompt_tokens));
            tokens.clone_from(&reply.context_tokens);
        }
        let partials: Vec<u32> = {
            let rows = cache.rows();
            let mut counts: Vec<u32> = rows
                .iter()
                .filter(|row| row.parts.contains(&PartKind::Partial))
                .map(|row| row.meta.token_count)
                .collect();
            counts.sort_unstable();
            counts
        };
        assert!(partials.len() <= 5, "{kind:?}: {partials:?}");
        assert_eq!(partials[0], 60, "{kind:?}: the system prompt's end stays: {partials:?}");
        for (read, prompt) in &reads[1..] {
            assert!(prompt - read <= 21, "{kind:?}: each turn resumes at the last one's end: {reads:?}");
        }
    }
}

/// Damage in one row costs what comes after it, and no more.
#[test]
fn a_damaged_row_costs_only_what_follows_it() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, damaged) = {
        let cache = cache_in(Tier::Disk, folder.path());
        let model = load(always(config(ModelKind::Attention, KvLayout::Unified, 1)), &cache);
        let (tokens, _) = converse(&model, 1, 6);
        drop(model);
        cache.flush();
        let mut rows = cache.rows();
        rows.sort_by_key(|row| row.meta.token_count);
        let middle = rows.iter().find(|row| row.meta.start >= 90).unwrap();
        (tokens, (middle.key.to_hex(), middle.meta.start as usize))
    };
    let (key, start) = damaged;
    let path = folder.path().join("disk").join(&key[..2]).join(format!("{key}.kvc"));
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.len() - 1;
    bytes[end / 2] ^= 0x40;
    bytes[end] ^= 0x40;
    std::fs::write(&path, bytes).unwrap();
    let cache = cache_in(Tier::Disk, folder.path());
    let model = load(always(config(ModelKind::Attention, KvLayout::Unified, 1)), &cache);
    let warm = model.complete(greedy(&tokens, 4)).unwrap();
    assert_eq!(warm.hit, HitKind::Partial);
    assert!(warm.cached_tokens >= start && warm.cached_tokens < tokens.len(), "{:?}", warm.cached_tokens);
    let cold = load(config(ModelKind::Attention, KvLayout::Unified, 1), &memory_cache()).complete(greedy(&tokens, 4));
    assert_eq!(warm.generated, cold.unwrap().generated);
    assert_eq!(cache.counters().corrupt_files, 1);
}

/// Files that take a while to read.
#[derive(Debug, Default)]
struct Slow {
    delay_ms: AtomicU64,
}

impl Watcher for Slow {
    fn before_read(&self, bytes: usize) {
        // Headers stay fast: it is the payload that a slow disk makes wait for.
        if bytes > 16 << 10 {
            std::thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed)));
        }
    }
}

/// Never slower than cold: a disk that became slow is left alone, and used again once it is fast.
#[test]
fn a_tier_that_is_slower_than_computing_is_left_until_it_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let slow = Arc::new(Slow::default());
    let cache = Arc::new(
        Cache::open(CacheConfig {
            ram_quota: 0,
            fs: Arc::new(WatchedFs::new(StdFs, Arc::clone(&slow))),
            ..CacheConfig::on_disk(folder.path(), 1 << 30)
        })
        .unwrap(),
    );
    let model = load(config(ModelKind::Attention, KvLayout::Unified, 1), &cache);
    // Each prompt overwrites the sequence of the other, so that every hit comes from the disk.
    let prompts = [prompt(1, 900), prompt(2, 900)];
    let ask = |number: usize| model.complete(greedy(&prompts[number % 2], 1)).unwrap().hit;
    assert_eq!([ask(0), ask(1)], [HitKind::Cold; 2]);
    cache.flush();
    let warm = (0..4).filter(|number| ask(*number) == HitKind::Exact).count();
    assert!(warm > 0, "a fast disk is used");

    // Far slower than any machine computes 900 tokens of this model.
    slow.delay_ms.store(1_000, Ordering::Relaxed);
    let hits: Vec<HitKind> = (0..8).map(&ask).collect();
    let computed = hits.iter().filter(|hit| **hit == HitKind::Cold).count();
    assert!(computed >= 5, "the disk is left alone: {hits:?}");

    slow.delay_ms.store(0, Ordering::Relaxed);
    let recovered: Vec<HitKind> = (0..80).map(&ask).collect();
    let last = &recovered[recovered.len() - 4..];
    assert!(last.contains(&HitKind::Exact), "the disk is used again: {recovered:?}");
}
