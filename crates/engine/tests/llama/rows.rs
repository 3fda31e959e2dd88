//! Rows on real llama.cpp: what was saved continues bit for bit, whatever the memory kind, the tier and the sequence.

use std::sync::Arc;

use poncho_cache::{HitKind, Tier};
use poncho_engine::backend::KvLayout;
use poncho_engine::{ModelConfig, Request, RestoreRule};
use poncho_testkit::ModelKind;

use crate::llama::real::{KINDS, LAYOUTS, cache_in, config, load, trace, traced};
use crate::support::{memory_cache, prompt};

const FIRST: u32 = 10;
const SECOND: u32 = 12;
/// Numbers per token in a trace: itself and twenty others.
const PER_TOKEN: usize = 21;

/// The unbroken run, then the same conversation broken after `FIRST` tokens and taken up by another model on the same
/// cache: the second part must be the unbroken run's, bit for bit.
fn resumes(kind: ModelKind, kv: KvLayout, n_seq: u32, tier: Tier, reopen: bool) {
    let what = format!("{kind:?} {kv:?} {n_seq} sequences {tier} reopen {reopen}");
    let tokens = prompt(1, 200);
    // With a resident session the conversation runs in another sequence, before and after.
    let resident = Request { session_id: Some("resident".to_owned()), ..traced(&prompt(9, 40), 2) };
    let settle = |model: &poncho_engine::Model| {
        if n_seq > 1 {
            model.complete(resident.clone()).unwrap();
        }
    };
    let model = load(config(kind, kv, n_seq), &memory_cache());
    settle(&model);
    let unbroken = model.complete(traced(&tokens, FIRST + SECOND)).unwrap();
    drop(model);

    let folder = tempfile::tempdir().unwrap();
    let mut cache = cache_in(tier, folder.path());
    let model = load(config(kind, kv, n_seq), &cache);
    settle(&model);
    let first = model.complete(traced(&tokens, FIRST)).unwrap();
    drop(model);
    cache.flush();
    if reopen {
        drop(cache);
        cache = cache_in(tier, folder.path());
    }
    let model = load(config(kind, kv, n_seq), &cache);
    settle(&model);
    // The last drawn token is not computed yet, so the row ends before it and its logits give that token again.
    let held = first.context_tokens[..first.committed_tokens].to_vec();
    let second = model.complete(traced(&held, SECOND + 1)).unwrap();
    assert_eq!((second.hit, second.cached_tokens), (HitKind::Exact, held.len()), "{what}");
    let (first, second, unbroken) = (trace(&first), trace(&second), trace(&unbroken));
    let joint = FIRST as usize * PER_TOKEN;
    assert_eq!(first, unbroken[..joint], "{what}: the first part");
    assert_eq!(second, unbroken[joint - PER_TOKEN..], "{what}: the second part");
}

#[test]
fn a_row_in_memory_continues_bit_for_bit() {
    for kind in KINDS {
        for kv in LAYOUTS {
            for n_seq in [1, 4] {
                resumes(kind, kv, n_seq, Tier::Ram, false);
            }
        }
    }
}

#[test]
fn a_row_in_memory_files_continues_bit_for_bit() {
    for kind in KINDS {
        for kv in LAYOUTS {
            resumes(kind, kv, 4, Tier::RamFile, false);
        }
    }
}

#[test]
fn a_row_on_disk_continues_bit_for_bit_also_after_reopening() {
    for kind in KINDS {
        for kv in LAYOUTS {
            for reopen in [false, true] {
                resumes(kind, kv, 1, Tier::Disk, reopen);
            }
            resumes(kind, kv, 4, Tier::Disk, true);
        }
    }
}

#[test]
fn a_conversation_of_many_turns_stays_bit_for_bit_what_a_live_one_is() {
    for kind in KINDS {
        let cache = memory_cache();
        let live = load(config(kind, KvLayout::Unified, 1), &memory_cache());
        let mut tokens = prompt(3, 50);
        for turn in 0..4 {
            // A fresh model each turn knows the conversation from its rows alone.
            let model = load(config(kind, KvLayout::Unified, 1), &cache);
            let stored = model.complete(traced(&tokens, 8)).unwrap();
            let session = Request { session_id: Some("live".to_owned()), ..traced(&tokens, 8) };
            let kept = live.complete(session).unwrap();
            assert_eq!(trace(&stored), trace(&kept), "{kind:?} turn {turn}");
            assert_eq!(stored.cached_tokens, kept.cached_tokens, "{kind:?} turn {turn}");
            tokens = stored.context_tokens;
            tokens.extend(prompt(10 + turn, 20));
        }
    }
}

/// The second conversation stores only what it does not share with the first. The first one's row is longer than that: the
/// restore takes the shared part of it and no more.
#[test]
fn a_conversation_that_parted_from_another_is_found_again_bit_for_bit() {
    for kind in KINDS {
        for kv in LAYOUTS {
            let cache = memory_cache();
            let hints = |tokens: &[u32]| Request { boundary_hints: vec![64], ..traced(tokens, 8) };
            let always = || ModelConfig { restore_rule: RestoreRule::Always, ..config(kind, kv, 1) };
            load(always(), &cache).complete(hints(&prompt(1, 150))).unwrap();
            let mut parted = prompt(1, 150)[..100].to_vec();
            parted.extend(prompt(2, 60));
            let first = load(always(), &cache).complete(hints(&parted)).unwrap();
            let again = load(always(), &cache).complete(hints(&parted)).unwrap();
            assert_eq!((again.hit, again.cached_tokens), (HitKind::Exact, 160), "{kind:?} {kv:?}");
            assert_eq!(trace(&again), trace(&first), "{kind:?} {kv:?}");
        }
    }
}

/// A window model's saved state lacks the cells that its last position masks. A prompt that parts before the boundary
/// must not be served from it; recurrent and hybrid models resume at saved boundaries and nowhere else.
#[test]
fn what_cannot_be_cut_is_resumed_at_saved_boundaries_only() {
    for kind in [ModelKind::Window, ModelKind::Recurrent, ModelKind::Hybrid] {
        let cache = memory_cache();
        let tokens = prompt(1, 300);
        let hint = 128;
        load(config(kind, KvLayout::Unified, 1), &cache)
            .complete(Request { boundary_hints: vec![hint], ..traced(&tokens, 4) })
            .unwrap();
        for parting in [hint + 40, 260, 299] {
            let mut other = tokens[..parting].to_vec();
            other.extend(prompt(5, 30));
            let warm = load(config(kind, KvLayout::Unified, 1), &cache).complete(traced(&other, 6)).unwrap();
            assert_eq!((warm.hit, warm.cached_tokens), (HitKind::Partial, hint), "{kind:?} parting at {parting}");
            // Chunked as the warm run was: to the hint, then the rest.
            let cold = load(config(kind, KvLayout::Unified, 1), &memory_cache())
                .complete(Request { boundary_hints: vec![hint], ..traced(&other, 6) })
                .unwrap();
            assert_eq!(cold.hit, HitKind::Cold);
            assert_eq!(trace(&warm), trace(&cold), "{kind:?} parting at {parting}");
        }
        let mut before = tokens[..hint - 1].to_vec();
        before.extend(prompt(6, 30));
        let cold = load(config(kind, KvLayout::Unified, 1), &cache).complete(traced(&before, 2)).unwrap();
        assert_eq!(cold.hit, HitKind::Cold, "{kind:?}: nothing is saved before the hint");
    }
}

#[test]
fn attention_reuses_every_token_before_a_parting() {
    for kv in LAYOUTS {
        let cache = memory_cache();
        let tokens = prompt(1, 250);
        load(config(ModelKind::Attention, kv, 1), &cache).complete(traced(&tokens, 4)).unwrap();
        for parting in [17, 130, 249] {
            let mut other = tokens[..parting].to_vec();
            other.extend(prompt(5, 30));
            let warm = load(config(ModelKind::Attention, kv, 1), &cache).complete(traced(&other, 6)).unwrap();
            assert_eq!((warm.hit, warm.cached_tokens), (HitKind::Partial, parting), "{kv:?}");
        }
    }
}

#[test]
fn a_damaged_row_makes_a_request_colder_and_never_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = prompt(1, 200);
    let cold = load(config(ModelKind::Attention, KvLayout::Unified, 1), &memory_cache());
    let expected = trace(&cold.complete(traced(&tokens, 6)).unwrap());
    let cache = cache_in(Tier::Disk, folder.path());
    load(config(ModelKind::Attention, KvLayout::Unified, 1), &cache).complete(traced(&tokens, 6)).unwrap();
    drop(cache);
    for entry in walk(folder.path()) {
        let mut bytes = std::fs::read(&entry).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&entry, bytes).unwrap();
    }
    let cache = cache_in(Tier::Disk, folder.path());
    let model = load(config(ModelKind::Attention, KvLayout::Unified, 1), &cache);
    let reply = model.complete(traced(&tokens, 6)).unwrap();
    assert_eq!(trace(&reply), expected);
    assert_ne!(reply.hit, HitKind::Exact);
    assert!(cache.counters().corrupt_files > 0);
    drop(model);
    assert_eq!(Arc::strong_count(&cache), 1, "nothing outlives the model");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "kvc") {
                files.push(path);
            }
        }
    }
    files
}
