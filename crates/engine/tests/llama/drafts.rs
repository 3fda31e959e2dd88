//! Drafts on real llama.cpp: the same replies with and without them, for each kind of memory, alone and side by side.

use poncho_engine::backend::KvLayout;
use poncho_engine::{Completion, DraftObstacle, DraftRule, Drafts, Exactness, ModelConfig, Request, Sampling, Stream};
use poncho_testkit::ModelKind;

use crate::llama::real::{KINDS, LAYOUTS, config, load, trace, traced};
use crate::stub::eventually;
use crate::support::{memory_cache, prompt};

fn always(config: ModelConfig) -> ModelConfig {
    ModelConfig { drafts: Drafts::Auto, draft_rule: DraftRule::Always, ..config }
}

/// Replies to all requests at once, twice: the second time everything is stored.
fn replies(config: ModelConfig, requests: &[Request]) -> (Vec<Completion>, Option<DraftObstacle>) {
    let model = load(config, &memory_cache());
    let mut all = Vec::new();
    for _ in 0..2 {
        let streams: Vec<Stream> = requests.iter().map(|request| model.submit(request.clone()).unwrap()).collect();
        all.extend(streams.into_iter().map(|stream| stream.wait().unwrap()));
        let drafts = model.config().drafts != Drafts::Off && model.status().drafts.off.is_none();
        eventually("an index", || !drafts || model.status().drafts.index_tokens > 0);
    }
    (all, model.status().drafts.off)
}

/// Log probabilities that kernels for several rows may round to the other side. A wrong row is off by whole units.
const TIE: f32 = 0.02;

/// How much less probable the token of the second reply was in the first one, where they part; 0 if they do not.
fn gap_at_difference(one: &Completion, two: &Completion) -> f32 {
    let Some(at) = one.generated.iter().zip(&two.generated).position(|(one, two)| one != two) else {
        assert_eq!(one.generated.len(), two.generated.len());
        return 0.0;
    };
    let entry = &one.logprobs[at];
    let other = entry.top.iter().find(|token| token.id == two.generated[at]);
    other.map_or(f32::INFINITY, |other| (entry.token.logprob - other.logprob).abs())
}

#[test]
fn replies_with_and_without_drafts_are_equal_on_llama_cpp() {
    for kind in KINDS {
        for (kv, parallel) in [(LAYOUTS[0], 1), (LAYOUTS[0], 4), (LAYOUTS[1], 4)] {
            let requests: Vec<Request> = (0..parallel)
                .map(|number| {
                    // One prompt fits into the window with its reply, the next one does not.
                    let request = traced(&prompt(number, if number % 2 == 0 { 12 } else { 90 }), 40);
                    let sampling = Sampling { temperature: 0.7, seed: Some(u64::from(number)), ..Sampling::default() };
                    if number % 4 < 2 { request } else { Request { sampling, ..request } }
                })
                .collect();
            let plain = config(kind, kv, parallel);
            let (without, _) = replies(plain.clone(), &requests);
            let (with, obstacle) = replies(always(plain), &requests);
            for (number, (one, two)) in without.iter().zip(&with).enumerate() {
                let gap = gap_at_difference(one, two);
                // A draw beside the border of two tokens may take the other one, however probable both are.
                let most = if requests[number % requests.len()].sampling.temperature > 0.0 { f32::MAX } else { TIE };
                assert!(gap < most, "{kind:?}, {kv:?}, {parallel} at once, reply {number}: differs by {gap}");
            }
            let accepted: usize = with.iter().map(|one| one.drafts.accepted).sum();
            match kind {
                ModelKind::Attention | ModelKind::Window => assert!(accepted > 0 && obstacle.is_none(), "{kind:?}"),
                ModelKind::Recurrent | ModelKind::Hybrid => {
                    assert_eq!((accepted, obstacle), (0, Some(DraftObstacle::Memory)));
                }
            }
        }
    }
}

#[test]
fn exact_replies_have_the_same_bits_with_drafts() {
    let plain = ModelConfig {
        exactness: Exactness::Always,
        exact_grid: std::num::NonZeroUsize::new(32).unwrap(),
        ..config(ModelKind::Attention, KvLayout::Split, 2)
    };
    let requests = [Request { exact: true, ..traced(&prompt(1, 40), 40) }];
    let (without, _) = replies(plain.clone(), &requests);
    let (with, obstacle) = replies(always(plain), &requests);
    for (one, two) in without.iter().zip(&with) {
        assert_eq!((one.generated.clone(), trace(one)), (two.generated.clone(), trace(two)));
    }
    let drafted: usize = with.iter().map(|one| one.drafts.drafted).sum();
    assert_eq!(drafted == 0, obstacle.is_some(), "drafts are on where the bits allow them");
}
