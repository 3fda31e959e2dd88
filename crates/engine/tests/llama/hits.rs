//! How a prompt is found: every hit kind is reached, reported with the right numbers, and changes nothing in the reply.

use poncho_cache::HitKind;
use poncho_engine::backend::{ContextOptions, KvLayout, MemoryKind};
use poncho_engine::{Mode, ModelConfig, Request, RestoreRule};
use poncho_testkit::ModelKind;

use crate::llama::real::{config, load};
use crate::support::{greedy, memory_cache, prompt, stub_model};

const KINDS: [MemoryKind; 4] =
    [MemoryKind::Attention, MemoryKind::Window { size: 16 }, MemoryKind::Recurrent, MemoryKind::Hybrid];

#[test]
fn every_hit_kind_is_reached_and_the_reply_stays_the_same() {
    for kind in KINDS {
        let tokens = prompt(1, 60);
        let cold = stub_model(kind, &memory_cache()).0.complete(greedy(&tokens, 12)).unwrap();
        assert_eq!((cold.hit, cold.cached_tokens, cold.new_tokens), (HitKind::Cold, 0, 60), "{kind:?}");

        // A second model on the same cache knows nothing but the rows.
        let cache = memory_cache();
        let first = stub_model(kind, &cache).0;
        first.complete(greedy(&tokens, 12)).unwrap();
        drop(first);
        let (second, backend) = stub_model(kind, &cache);
        let exact = second.complete(greedy(&tokens, 12)).unwrap();
        assert_eq!((exact.hit, exact.cached_tokens), (HitKind::Exact, 60), "{kind:?}");
        assert_eq!(exact.generated, cold.generated, "{kind:?}");
        assert_eq!(backend.faults().counts().decodes, 11, "the first token needs no decode ({kind:?})");

        // The next turn: prompt, reply and something new.
        let mut longer = exact.context_tokens.clone();
        longer.extend(prompt(2, 20));
        let other = stub_model(kind, &cache).0;
        let partial = other.complete(greedy(&longer, 5)).unwrap();
        assert_eq!((partial.hit, partial.cached_tokens), (HitKind::Partial, 71), "{kind:?}");
        let fresh = stub_model(kind, &memory_cache()).0.complete(greedy(&longer, 5)).unwrap();
        assert_eq!(partial.generated, fresh.generated, "{kind:?}");
    }
}

#[test]
fn a_session_continues_live() {
    for kind in KINDS {
        let model = stub_model(kind, &memory_cache()).0;
        let session = |request: Request| Request { session_id: Some("chat".to_owned()), ..request };
        let first = model.complete(session(greedy(&prompt(1, 30), 6))).unwrap();
        let mut next = first.context_tokens.clone();
        next.extend(prompt(3, 10));
        let sticky = model.complete(session(greedy(&next, 6))).unwrap();
        assert_eq!((sticky.hit, sticky.cached_tokens), (HitKind::Sticky, 35), "{kind:?}");
        let suffix = Request { mode: Mode::Continue, ..session(greedy(&prompt(4, 7), 6)) };
        let continued = model.complete(suffix).unwrap();
        assert_eq!((continued.hit, continued.cached_tokens), (HitKind::Continuation, 30 + 6 + 10 + 5), "{kind:?}");
        let mut whole = sticky.context_tokens.clone();
        whole.extend(prompt(4, 7));
        let fresh = stub_model(kind, &memory_cache()).0.complete(greedy(&whole, 6)).unwrap();
        assert_eq!(continued.generated, fresh.generated, "{kind:?}");
        assert!(model.end_session("chat").unwrap());
        assert!(!model.end_session("chat").unwrap());
    }
}

/// Sequences share one pool of cells. What finished requests left in it must not keep a stored prompt out.
#[test]
fn leftovers_of_others_make_room_for_a_stored_prompt() {
    for kind in [ModelKind::Attention, ModelKind::Window, ModelKind::Hybrid] {
        for session in [None, Some("pinned".to_owned())] {
            let cache = memory_cache();
            let base = config(kind, KvLayout::Unified, 4);
            let context = ContextOptions { n_ctx: 512, n_cells: Some(600), ..base.context.clone() };
            let tight = ModelConfig { context, restore_rule: RestoreRule::Always, ..base };
            let model = load(tight, &cache);
            let [one, two] = [prompt(1, 400), prompt(2, 400)];
            let cold = model.complete(greedy(&one, 4)).unwrap();
            model.complete(Request { session_id: session, ..greedy(&two, 4) }).unwrap();
            let warm = model.complete(greedy(&one, 4)).unwrap();
            assert_eq!((warm.hit, warm.cached_tokens), (HitKind::Exact, 400), "{kind:?}");
            assert_eq!(warm.generated, cold.generated, "{kind:?}");
            let back = model.complete(greedy(&two, 4)).unwrap();
            assert_eq!((back.hit, back.cached_tokens), (HitKind::Exact, 400), "{kind:?}");
        }
    }
}
