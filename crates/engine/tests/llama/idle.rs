//! What finished requests leave behind: how long it stays in the cells, and that it is never lost to somebody else.
//!
//! On real llama.cpp, mostly with gates that keep no row of such short prompts: what is found again was left.

use poncho_cache::{Gates, HitKind, Tier};
use poncho_engine::backend::KvLayout;
use poncho_engine::{Completion, Model, ModelConfig, RestoreRule};
use poncho_testkit::ModelKind;

use crate::llama::real::{LAYOUTS, cache_in, config, load, trace, traced};
use crate::support::{greedy, memory_cache, prompt};

fn forgetful(kind: ModelKind, kv: KvLayout, n_seq_max: u32) -> ModelConfig {
    ModelConfig { gates: Gates::default(), ..config(kind, kv, n_seq_max) }
}

/// The next turn of a conversation.
fn next_turn(model: &Model, first: &Completion) -> Completion {
    let mut tokens = first.context_tokens.clone();
    tokens.extend(prompt(9, 10));
    model.complete(traced(&tokens, 4)).unwrap()
}

#[test]
fn a_stored_state_that_many_rows_passed_leaves_the_cells_and_comes_back() {
    for kind in [ModelKind::Attention, ModelKind::Window, ModelKind::Hybrid] {
        let model = || {
            let base = config(kind, KvLayout::Unified, 2);
            load(ModelConfig { restore_rule: RestoreRule::Always, ..base }, &memory_cache())
        };
        let warm_model = model();
        let first = warm_model.complete(greedy(&prompt(1, 60), 6)).unwrap();
        let at_once = next_turn(&warm_model, &first);
        assert_eq!((at_once.hit, at_once.cached_tokens), (HitKind::Sticky, 65), "{kind:?}");
        warm_model.complete(greedy(&prompt(2, 20), 40)).unwrap();
        let warm = next_turn(&warm_model, &first);
        assert_ne!(warm.hit, HitKind::Sticky, "it left the cells ({kind:?})");
        assert!(warm.cached_tokens >= 65, "{kind:?}");
        let cold = next_turn(&model(), &first);
        assert_eq!(warm.generated, cold.generated, "{kind:?}");
    }
}

#[test]
fn a_state_is_carried_where_that_costs_nothing_or_nothing_could_keep_it() {
    let folder = tempfile::tempdir().unwrap();
    let split = (memory_cache(), KvLayout::Split);
    let short = (cache_in(Tier::Disk, folder.path()), KvLayout::Unified);
    for (cache, kv) in [split, short] {
        let model = load(forgetful(ModelKind::Attention, kv, 2), &cache);
        let first = model.complete(greedy(&prompt(1, 60), 6)).unwrap();
        model.complete(greedy(&prompt(2, 20), 40)).unwrap();
        assert!(cache.is_empty(), "{kv:?}");
        let warm = next_turn(&model, &first);
        assert_eq!((warm.hit, warm.cached_tokens), (HitKind::Sticky, 65), "{kv:?}");
    }
}

/// Every conversation begins with the opening of the template. That is not a reason to take the place of another one.
#[test]
fn a_conversation_that_begins_alike_leaves_the_other_one_whole() {
    for kv in LAYOUTS {
        let model = load(forgetful(ModelKind::Attention, kv, 4), &memory_cache());
        let first = model.complete(greedy(&prompt(1, 60), 6)).unwrap();
        let mut alike = prompt(1, 10);
        alike.extend(prompt(2, 10));
        let second = model.complete(traced(&alike, 4)).unwrap();
        assert_eq!(second.cached_tokens, if kv == KvLayout::Unified { 10 } else { 0 }, "{kv:?}");
        let fresh = load(forgetful(ModelKind::Attention, kv, 4), &memory_cache());
        assert_eq!(trace(&second), trace(&fresh.complete(traced(&alike, 4)).unwrap()), "{kv:?}");
        let warm = next_turn(&model, &first);
        assert_eq!((warm.hit, warm.cached_tokens), (HitKind::Sticky, 65), "{kv:?}");
    }
}

/// What lies in the place that a request is given goes in any case. Its opening is used where that of another conversation, though
/// longer, is not worth a copy; and the other one stays whole.
#[test]
fn the_opening_of_what_is_given_up_is_used() {
    let alike = |tokens: &[u32], number: u32| [tokens, &prompt(number, 50)].concat();
    let (first, second) = (alike(&prompt(1, 10), 2), alike(&prompt(1, 10), 3));
    let third = alike(&second[..12], 4);
    for (kv, expected) in [(KvLayout::Unified, 12), (KvLayout::Split, 10)] {
        let model = load(forgetful(ModelKind::Attention, kv, 2), &memory_cache());
        model.complete(greedy(&first, 6)).unwrap();
        let second = model.complete(greedy(&second, 6)).unwrap();
        let warm = model.complete(traced(&third, 4)).unwrap();
        assert_eq!(warm.cached_tokens, expected, "{kv:?}");
        let fresh = load(forgetful(ModelKind::Attention, kv, 2), &memory_cache());
        assert_eq!(warm.generated, fresh.complete(traced(&third, 4)).unwrap().generated, "{kv:?}");
        let next = next_turn(&model, &second);
        assert_eq!((next.hit, next.cached_tokens), (HitKind::Sticky, 65), "{kv:?}");
    }
}

/// A reply much longer than its prompt does not make the prompt another conversation's.
#[test]
fn a_short_prompt_asked_again_stays_in_its_place_however_long_its_reply_was() {
    for kv in LAYOUTS {
        let model = load(forgetful(ModelKind::Attention, kv, 4), &memory_cache());
        let first = model.complete(traced(&prompt(1, 8), 40)).unwrap();
        let again = model.complete(traced(&prompt(1, 8), 40)).unwrap();
        assert_eq!((again.hit, again.cached_tokens), (HitKind::Sticky, 7), "{kv:?}");
        assert_eq!(again.generated, first.generated, "{kv:?}");
    }
}

#[test]
fn a_prompt_is_saved_at_its_boundary_and_at_its_end_in_both_layouts() {
    for kv in LAYOUTS {
        let cache = memory_cache();
        let model = load(config(ModelKind::Attention, kv, 2), &cache);
        model.prefill_only(prompt(1, 60)).unwrap();
        let mut rows: Vec<u32> = cache.rows().iter().map(|row| row.meta.token_count).collect();
        rows.sort_unstable();
        assert_eq!(rows, [56, 60], "{kv:?}");
    }
}
