//! The chain as a whole: order, seeds, modes, grammars, and how often tokens are drawn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

/// Allows a set of tokens at every step, and counts how many candidates it was asked about.
struct Only {
    steps: Vec<Vec<Token>>,
    at: usize,
    stuck: bool,
    asked: Arc<AtomicUsize>,
}

impl Only {
    fn boxed(steps: &[&[Token]]) -> (Box<dyn Grammar>, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let steps = steps.iter().map(|step| step.to_vec()).collect();
        (Box::new(Self { steps, at: 0, stuck: false, asked: Arc::clone(&asked) }), asked)
    }
}

impl Grammar for Only {
    fn constrain(&mut self, candidates: &mut [Candidate]) -> Result<(), GrammarError> {
        if self.stuck {
            return Err(GrammarError::Stuck);
        }
        self.asked.fetch_add(candidates.len(), Ordering::Relaxed);
        for candidate in candidates {
            if !self.steps[self.at].contains(&candidate.token) {
                candidate.logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        self.stuck |= !self.steps[self.at].contains(&token);
        self.at = (self.at + 1).min(self.steps.len() - 1);
        if self.stuck { Err(GrammarError::Stuck) } else { Ok(()) }
    }

    fn reset(&mut self) {
        self.at = 0;
    }

    fn duplicate(&self) -> Option<Box<dyn Grammar>> {
        None
    }
}

fn plain(temperature: f32) -> Sampling {
    Sampling { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() }
}

fn greedy(logits: &[f32], sampling: &Sampling) -> Result<Token, SampleError> {
    Sampler::new(sampling, 0, None, &[]).sample(logits, Draw::Own)
}

/// A row of a fixed but irregular shape.
fn row(len: usize, salt: u32) -> Vec<f32> {
    let hash = |token: u32| (token ^ salt).wrapping_mul(2_654_435_761).rotate_left(11).wrapping_mul(40_503) >> 12;
    (0..u32::try_from(len).unwrap()).map(|token| hash(token) as f32 / 100_000.0).collect()
}

fn reply(sampler: &mut Sampler, steps: u32) -> Vec<Token> {
    (0..steps)
        .map(|step| {
            let token = sampler.sample(&row(300, step), Draw::Own).unwrap();
            sampler.accept(token).unwrap();
            token
        })
        .collect()
}

#[test]
fn greedy_needs_no_buffer() {
    let mut sampler = Sampler::new(&Sampling::greedy(), 1, None, &[]);
    let logits = row(150_000, 3);
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let token = sampler.sample(&logits, Draw::Own).unwrap();
    assert_eq!(logits[token as usize], best);
    assert_eq!((sampler.changed.capacity(), sampler.candidates.capacity()), (0, 0));
}

#[test]
fn buffers_stop_growing_after_the_first_token() {
    let bias = vec![(7, 1.0)];
    let sampling = Sampling { frequency_penalty: 0.2, logit_bias: bias, seed: Some(4), ..Sampling::default() };
    let (grammar, _) = Only::boxed(&[&[1, 2, 3]]);
    let mut sampler = Sampler::new(&sampling, 1, Some(grammar), &[1, 2, 3]);
    let mut held = None;
    for step in 0..50 {
        let token = sampler.sample(&row(5000, step), Draw::Own).unwrap();
        sampler.accept(token).unwrap();
        let now = (sampler.changed.capacity(), sampler.candidates.capacity());
        assert!(held.is_none_or(|held| held == now), "{held:?} {now:?}");
        held = Some(now);
    }
}

#[test]
fn bias_bans_and_lifts() {
    let logits = [1.0, 2.0, 3.0];
    let with = |bias: &[(Token, f32)]| greedy(&logits, &Sampling { logit_bias: bias.to_vec(), ..plain(0.0) });
    assert_eq!(with(&[(2, f32::NEG_INFINITY)]), Ok(1));
    assert_eq!(with(&[(0, 5.0)]), Ok(0));
    assert_eq!(with(&[(0, 1.0), (0, 1.5)]), Ok(0), "several for one token add up");
    assert_eq!(with(&[(9, 100.0)]), Ok(2), "beyond the vocabulary");
    let all = [(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY), (2, f32::NEG_INFINITY)];
    assert_eq!(with(&all), Err(SampleError::NothingLeft));
    let sampling = Sampling { logit_bias: vec![(0, f32::NEG_INFINITY)], ..plain(0.0) };
    assert_eq!(greedy(&[f32::INFINITY, 0.0], &sampling), Ok(1), "a ban bans even that");
}

#[test]
fn a_ban_survives_every_penalty() {
    let sampling = Sampling {
        logit_bias: vec![(0, f32::NEG_INFINITY)],
        frequency_penalty: -100.0,
        repetition_penalty: 0.01,
        ..plain(0.0)
    };
    let mut sampler = Sampler::new(&sampling, 0, None, &[0, 0, 0]);
    assert_eq!(sampler.sample(&[9.0, -50.0], Draw::Own), Ok(1));
}

#[test]
fn penalties_come_before_the_filters() {
    // Token 0 leads and was seen; its penalty must push it out of a top_k of 1.
    let sampling = Sampling { top_k: 1, presence_penalty: 5.0, ..plain(1.0) };
    let mut sampler = Sampler::new(&sampling, 0, None, &[0]);
    assert_eq!(sampler.sample(&[3.0, 2.0, 1.0], Draw::Own), Ok(1));
    sampler.accept(1).unwrap();
    assert_eq!(sampler.sample(&[3.0, 2.0, 1.0], Draw::Own), Ok(2));
}

#[test]
fn temperature_comes_after_the_filters() {
    // At temperature 50 all would be about equally likely; the filter still sees the model's own distribution.
    let sampling = Sampling { min_p: 0.5, seed: Some(1), ..plain(50.0) };
    let mut sampler = Sampler::new(&sampling, 0, None, &[]);
    let drawn: Vec<Token> = (0..100).map(|_| sampler.sample(&[5.0, 4.9, 1.0], Draw::Own).unwrap()).collect();
    assert!(drawn.contains(&0) && drawn.contains(&1) && !drawn.contains(&2));
}

#[test]
fn the_greedy_mode_ignores_penalties_and_draws_no_number() {
    let sampling = Sampling { presence_penalty: 5.0, logit_bias: vec![(2, 1.5)], seed: Some(3), ..plain(2.0) };
    let mut sampler = Sampler::new(&sampling, 0, None, &[2]);
    let mut other = Sampler::new(&sampling, 0, None, &[2]);
    for _ in 0..10 {
        assert_eq!(sampler.sample(&[2.0, 0.0, 1.0], Draw::Greedy), Ok(2));
    }
    assert_eq!(reply(&mut sampler, 30), reply(&mut other, 30));
}

#[test]
fn a_seed_reproduces_and_another_differs() {
    let sampling = |seed| Sampling { seed, repetition_penalty: 1.1, temperature: 1.5, top_k: 0, ..Sampling::default() };
    let with = |seed, fresh| reply(&mut Sampler::new(&sampling(seed), fresh, None, &[5, 6]), 60);
    assert_eq!(with(Some(9), 1), with(Some(9), 2), "the request's seed decides");
    assert_eq!(with(None, 9), with(Some(9), 0), "else the fresh one");
    assert_ne!(with(Some(9), 0), with(Some(10), 0));
    assert_eq!(Sampler::new(&sampling(None), 77, None, &[]).seed(), 77);
}

#[test]
fn seeds_draw_what_they_always_drew() {
    // Recorded once: the same on every machine, or stored seeds lose their meaning.
    let drawn = reply(&mut Sampler::new(&Sampling { seed: Some(42), ..Sampling::default() }, 0, None, &[]), 12);
    assert_eq!(drawn, RECORDED);
    let wide = Sampling { seed: Some(42), top_k: 0, top_p: 0.99, temperature: 2.0, ..Sampling::default() };
    assert_eq!(reply(&mut Sampler::new(&wide, 0, None, &[]), 12), RECORDED_WIDE);
}

const RECORDED: [Token; 12] = [135, 44, 182, 109, 134, 95, 18, 88, 22, 172, 95, 154];
const RECORDED_WIDE: [Token; 12] = [49, 104, 232, 266, 25, 210, 46, 219, 73, 160, 194, 95];

#[test]
fn tokens_come_up_as_often_as_they_should() {
    let probabilities = [0.5_f32, 0.3, 0.15, 0.05];
    let logits = probabilities.map(f32::ln);
    let mut counts = [0_u32; 4];
    let mut sampler = Sampler::new(&Sampling { seed: Some(11), ..plain(1.0) }, 0, None, &[]);
    for _ in 0..20_000 {
        counts[sampler.sample(&logits, Draw::Own).unwrap() as usize] += 1;
    }
    for (count, probability) in counts.iter().zip(probabilities) {
        // Three and a half standard deviations; the seed is fixed, so the outcome is too.
        let (expected, spread) = (20_000.0 * probability, 3.5 * (20_000.0 * probability * (1.0 - probability)).sqrt());
        assert!((*count as f32 - expected).abs() < spread, "{counts:?}");
    }
}

#[test]
fn broken_rows_are_errors_in_every_mode() {
    let (grammar, _) = Only::boxed(&[&[0]]);
    let mut with_grammar = Sampler::new(&plain(1.0), 0, Some(grammar), &[]);
    let penalised = Sampling { presence_penalty: 1.0, logit_bias: vec![(1, f32::NEG_INFINITY)], ..plain(1.0) };
    let mut changing = Sampler::new(&penalised, 0, None, &[1]);
    let mut own = Sampler::new(&Sampling::default(), 0, None, &[]);
    for sampler in [&mut with_grammar, &mut changing, &mut own] {
        for mode in [Draw::Own, Draw::Greedy] {
            assert_eq!(sampler.sample(&[1.0, f32::NAN, 2.0], mode), Err(SampleError::NotANumber { position: 1 }));
            assert_eq!(sampler.sample(&[], mode), Err(SampleError::NothingLeft));
            assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 3], mode), Err(SampleError::NothingLeft));
            assert_eq!(sampler.sample(&[-3.0], mode), Ok(0));
        }
    }
}

#[test]
fn an_allowed_token_costs_one_question() {
    let (grammar, asked) = Only::boxed(&[&[4]]);
    let mut sampler = Sampler::new(&plain(0.0), 0, Some(grammar), &[]);
    assert!(sampler.has_grammar());
    assert_eq!(sampler.sample(&[0.0, 0.0, 0.0, 0.0, 1.0], Draw::Own), Ok(4));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_greedy_draw_asks_about_a_shortlist_first() {
    let logits: Vec<f32> = (0..20_000_u16).map(|token| -f32::from(token)).collect();
    let (grammar, asked) = Only::boxed(&[&[100, 50], &[19_999]]);
    let mut sampler = Sampler::new(&plain(0.0), 0, Some(grammar), &[]);
    assert_eq!(sampler.sample(&logits, Draw::Own), Ok(50));
    assert_eq!(asked.load(Ordering::Relaxed), 1 + SHORTLIST);
    sampler.accept(50).unwrap();
    assert_eq!(sampler.sample(&logits, Draw::Greedy), Ok(19_999), "none of the shortlist fits");
}

#[test]
fn a_grammar_that_allows_nothing_is_stuck_and_stays_so() {
    let (grammar, _) = Only::boxed(&[&[]]);
    let mut sampler = Sampler::new(&plain(1.0), 0, Some(grammar), &[]);
    assert!(!sampler.is_stuck());
    assert_eq!(sampler.sample(&[1.0, 2.0], Draw::Own), Err(SampleError::GrammarStuck));
    assert!(sampler.is_stuck());
    assert_eq!(sampler.sample(&[1.0, 2.0], Draw::Greedy), Err(SampleError::GrammarStuck));
    // What the grammar allows may be banned by the bias.
    let (grammar, _) = Only::boxed(&[&[1]]);
    let sampling = Sampling { logit_bias: vec![(1, f32::NEG_INFINITY)], ..plain(0.0) };
    let mut sampler = Sampler::new(&sampling, 0, Some(grammar), &[]);
    assert_eq!(sampler.sample(&[1.0, 2.0], Draw::Own), Err(SampleError::GrammarStuck));
}

#[test]
fn a_refused_token_sticks_and_leaves_the_penalties_alone() {
    let (grammar, _) = Only::boxed(&[&[1], &[0]]);
    let mut sampler = Sampler::new(&plain(0.0), 0, Some(grammar), &[]);
    assert_eq!(sampler.accept(1), Ok(()));
    assert_eq!(sampler.accept(1), Err(GrammarError::Stuck));
    assert!(sampler.is_stuck());
    assert_eq!(sampler.sample(&[1.0, 2.0], Draw::Own), Err(SampleError::GrammarStuck));
}

#[test]
fn without_filters_the_second_draw_keeps_the_odds() {
    // Forbidden tokens hold most of the probability; the allowed ones stand 2 : 1.
    let logits = [0.7_f32, 0.2, 0.1].map(f32::ln);
    let (grammar, _) = Only::boxed(&[&[1, 2]]);
    let mut sampler = Sampler::new(&Sampling { seed: Some(5), ..plain(1.0) }, 0, Some(grammar), &[]);
    let first = (0..9000).filter(|_| sampler.sample(&logits, Draw::Own) == Ok(1)).count();
    assert!((5850..6150).contains(&first), "{first}");
}

proptest! {
    #[test]
    fn greedy_with_a_grammar_is_the_best_allowed_token(
        values in prop::collection::vec(-5_i8..5, 1..1500), allowed in prop::collection::btree_set(0_u32..1500, 0..20),
    ) {
        let logits: Vec<f32> = values.iter().map(|&value| value.into()).collect();
        let allowed: Vec<Token> = allowed.into_iter().filter(|&token| (token as usize) < logits.len()).collect();
        let best = allowed.iter().copied().reduce(|a, b| if logits[b as usize] > logits[a as usize] { b } else { a });
        for (sampling, mode) in [(plain(0.0), Draw::Own), (plain(1.0), Draw::Greedy)] {
            let (grammar, _) = Only::boxed(&[&allowed]);
            let mut sampler = Sampler::new(&sampling, 0, Some(grammar), &[]);
            prop_assert_eq!(sampler.sample(&logits, mode), best.ok_or(SampleError::GrammarStuck));
        }
    }

    #[test]
    fn a_draw_with_a_grammar_is_always_allowed_and_reproduces(
        salt in any::<u32>(), seed in any::<u64>(), top_k in 0_u32..60,
        allowed in prop::collection::vec(0_u32..700, 1..40),
    ) {
        let sampling = Sampling { seed: Some(seed), top_k, temperature: 1.0, ..Sampling::default() };
        let run = || {
            let (grammar, _) = Only::boxed(&[&allowed]);
            let mut sampler = Sampler::new(&sampling, 0, Some(grammar), &[]);
            (0..8).map(|step| sampler.sample(&row(700, salt ^ step), Draw::Own).unwrap()).collect::<Vec<_>>()
        };
        let tokens = run();
        prop_assert!(tokens.iter().all(|token| allowed.contains(token)));
        prop_assert_eq!(&tokens, &run());
    }
}
