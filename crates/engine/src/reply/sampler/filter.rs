//! The filters of one request and its seeded draw: `top_k`, `top_p`, `min_p`, then temperature.
//!
//! The sampler gathers candidates here and draws from them. Sums run in 64 bits over a fixed order (that of the vocabulary,
//! or the best first where `top_k` sorted anyway), so that a seed draws the same token everywhere. The best candidate
//! passes every filter. It must never sort a whole vocabulary when a part of it decides.

use crate::backend::{Candidate, Token};
use crate::calls::request::Sampling;

use super::error::SampleError;
use super::number::{exp, ln, narrow};
use super::scan::{self, better_first};

/// Most distributions are decided within this number of tokens; four times as many are sorted when they are not.
const FIRST_SORTED: usize = 256;

/// What a request keeps of a distribution, and how it flattens the rest. `None` is off.
#[derive(Debug, Clone)]
pub(super) struct Filters {
    top_k: Option<usize>,
    top_p: Option<f64>,
    /// The logarithm of `min_p`: how far below the best logit a kept one may lie.
    min_gap: Option<f64>,
    temperature: f64,
}

impl Filters {
    pub(super) fn new(sampling: &Sampling) -> Self {
        Self {
            top_k: usize::try_from(sampling.top_k).ok().filter(|&k| k > 0),
            top_p: Some(f64::from(sampling.top_p)).filter(|&p| p < 1.0),
            min_gap: Some(f64::from(sampling.min_p)).filter(|&p| p > 0.0).map(|p| ln(p.min(1.0))),
            temperature: sampling.temperature.into(),
        }
    }

    /// Whether the best token is taken without a draw.
    pub(super) fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// How many of the best candidates suffice for a draw; `None` if all are needed.
    pub(super) fn enough(&self) -> Option<usize> {
        self.top_k
    }

    /// Collects what passes `top_k` from a row.
    pub(super) fn gather(&self, logits: &[f32], candidates: &mut Vec<Candidate>) -> Result<(), SampleError> {
        match self.top_k {
            Some(k) => scan::top_k(logits, k, candidates),
            None => scan::all(logits, candidates),
        }
    }

    /// Cuts candidates in the order of the vocabulary down to what passes `top_k`.
    pub(super) fn cut_to_k(&self, candidates: &mut Vec<Candidate>) {
        if let Some(k) = self.top_k {
            scan::keep_best(candidates, k);
            candidates.sort_unstable_by(better_first);
        }
    }

    /// Applies the other filters and draws with a number in `0.0..1.0`; `None` if there is no candidate.
    pub(super) fn draw(&self, candidates: &mut Vec<Candidate>, unit: f64) -> Option<Token> {
        self.narrow_down(candidates);
        let best = best_logit(candidates)?;
        let mut total = 0.0;
        for candidate in candidates.iter_mut() {
            candidate.p = narrow(exp(gap(candidate, best) / self.temperature));
            total += f64::from(candidate.p);
        }
        let target = unit * total;
        let mut sum = 0.0;
        let mut last = None;
        for candidate in candidates.iter().filter(|candidate| candidate.p > 0.0) {
            sum += f64::from(candidate.p);
            last = Some(candidate.token);
            if target < sum {
                break;
            }
        }
        // The product may have been rounded up to the total itself; then the last one is meant.
        last
    }

    /// `top_p`, then `min_p`. Both keep the best ones up to some rank, so the cheaper one may go first, as long as
    /// `top_p` counts the probability of all.
    fn narrow_down(&self, candidates: &mut Vec<Candidate>) {
        let Some(best) = best_logit(candidates) else { return };
        let all: Option<f64> =
            self.top_p.map(|p| p * candidates.iter().map(|candidate| exp(gap(candidate, best))).sum::<f64>());
        if let Some(least) = self.min_gap {
            candidates.retain(|candidate| gap(candidate, best) >= least);
        }
        if let Some(enough) = all {
            let sorted = if self.top_k.is_some() { candidates.len() } else { 0 };
            keep_nucleus(candidates, sorted, enough);
        }
    }
}

/// Keeps the smallest number of best candidates with weights, relative to the best, that sum up to `enough`. The first
/// `sorted` are in order already.
fn keep_nucleus(candidates: &mut Vec<Candidate>, mut sorted: usize, enough: f64) {
    let Some(best) = best_logit(candidates) else { return };
    let mut step = FIRST_SORTED;
    let (mut sum, mut kept) = (0.0, 0);
    while kept < candidates.len() {
        if kept == sorted {
            sorted = sort_more(candidates, sorted, step);
            step = step.saturating_mul(4);
        }
        let Some(candidate) = candidates.get(kept) else { return };
        sum += exp(gap(candidate, best));
        kept += 1;
        if sum >= enough {
            candidates.truncate(kept);
        }
    }
}

/// Puts the next `step` of the best in order; returns how many are now.
fn sort_more(candidates: &mut [Candidate], sorted: usize, step: usize) -> usize {
    let Some(rest) = candidates.get_mut(sorted..) else { return sorted };
    let step = step.min(rest.len());
    if step < rest.len() {
        rest.select_nth_unstable_by(step, better_first);
    }
    rest.get_mut(..step).unwrap_or_default().sort_unstable_by(better_first);
    sorted + step
}

fn best_logit(candidates: &[Candidate]) -> Option<f32> {
    candidates.iter().map(|candidate| candidate.logit).reduce(f32::max)
}

/// How far a logit lies below the best one: 0 or negative. An infinite best one leaves only its equals.
fn gap(candidate: &Candidate, best: f32) -> f64 {
    if candidate.logit == best { 0.0 } else { f64::from(candidate.logit) - f64::from(best) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn off() -> Sampling {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() }
    }

    /// The tokens that pass all filters, best first.
    fn kept(sampling: &Sampling, logits: &[f32]) -> Vec<Token> {
        let filters = Filters::new(sampling);
        let mut candidates = Vec::new();
        filters.gather(logits, &mut candidates).unwrap();
        filters.narrow_down(&mut candidates);
        candidates.sort_by(better_first);
        candidates.iter().map(|candidate| candidate.token).collect()
    }

    /// The same by definition: sort everything, apply one filter after the other, normalise before each.
    fn naive(sampling: &Sampling, logits: &[f32]) -> Vec<Token> {
        let mut rest: Vec<(f64, Token)> = logits.iter().map(|&logit| f64::from(logit)).zip(0..).collect();
        rest.retain(|&(logit, _)| logit > f64::NEG_INFINITY);
        rest.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        if sampling.top_k > 0 {
            rest.truncate(sampling.top_k as usize);
        }
        let probabilities = |rest: &[(f64, Token)]| {
            let weights: Vec<f64> = rest.iter().map(|&(logit, _)| (logit - rest[0].0).exp()).collect();
            let sum: f64 = weights.iter().sum();
            weights.into_iter().map(|weight| weight / sum).collect::<Vec<_>>()
        };
        if sampling.top_p < 1.0 {
            let mut sum = 0.0;
            let reached = probabilities(&rest).iter().position(|p| {
                sum += p;
                sum >= f64::from(sampling.top_p)
            });
            rest.truncate(reached.map_or(usize::MAX, |index| index + 1));
        }
        if sampling.min_p > 0.0 {
            let probabilities = probabilities(&rest);
            let least = f64::from(sampling.min_p) * probabilities.first().copied().unwrap_or(0.0);
            rest.truncate(probabilities.iter().take_while(|&&p| p >= least).count());
        }
        rest.into_iter().map(|(_, token)| token).collect()
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_it() {
        let logits = [0.5_f32, 0.25, 0.125, 0.125].map(f32::ln);
        let with = |top_p| kept(&Sampling { top_p, ..off() }, &logits);
        assert_eq!(with(0.0), [0], "at least one");
        assert_eq!(with(0.49), [0]);
        assert_eq!(with(0.51), [0, 1]);
        assert_eq!(with(0.8), [0, 1, 2], "the smaller token first among equals");
        assert_eq!(with(0.9), [0, 1, 2, 3]);
        assert_eq!(with(1.0), [0, 1, 2, 3]);
    }

    #[test]
    fn min_p_is_relative_to_the_best() {
        let logits = [0.1_f32, 0.4, 0.2, 0.05].map(f32::ln);
        let with = |min_p| kept(&Sampling { min_p, ..off() }, &logits);
        assert_eq!(with(0.0), [1, 2, 0, 3]);
        assert_eq!(with(0.2), [1, 2, 0]);
        assert_eq!(with(0.3), [1, 2]);
        assert_eq!(with(1.0), [1]);
        assert_eq!(kept(&Sampling { min_p: 1.0, ..off() }, &[3.0, 3.0, 2.9]), [0, 1]);
    }

    #[test]
    fn top_p_counts_what_top_k_left_and_ignores_the_temperature() {
        let logits = [0.4_f32, 0.3, 0.2, 0.1].map(f32::ln);
        // Of the two that are left, the first has 4/7.
        assert_eq!(kept(&Sampling { top_k: 2, top_p: 0.5, ..off() }, &logits), [0]);
        assert_eq!(kept(&Sampling { top_k: 0, top_p: 0.5, ..off() }, &logits), [0, 1]);
        assert_eq!(kept(&Sampling { top_p: 0.5, temperature: 100.0, ..off() }, &logits), [0, 1]);
    }

    #[test]
    fn a_flat_distribution_is_sorted_in_several_steps() {
        let logits = vec![1.0; 3000];
        let kept = kept(&Sampling { top_p: 0.7, ..off() }, &logits);
        assert_eq!(kept, (0..2100).collect::<Vec<_>>());
    }

    #[test]
    fn infinite_and_far_apart_logits_can_be_drawn() {
        let filters = Filters::new(&off());
        let draw = |logits: &[f32], unit| {
            let mut candidates = Vec::new();
            filters.gather(logits, &mut candidates).unwrap();
            filters.draw(&mut candidates, unit)
        };
        assert_eq!(draw(&[1.0, f32::INFINITY, f32::INFINITY], 0.0), Some(1));
        assert_eq!(draw(&[1.0, f32::INFINITY, f32::INFINITY], 0.999), Some(2));
        assert_eq!(draw(&[f32::MAX, -f32::MAX], 0.999_999), Some(0));
        assert_eq!(draw(&[-f32::MAX], 0.5), Some(0));
        assert_eq!(draw(&[], 0.5), None);
        assert_eq!(draw(&[f32::NEG_INFINITY], 0.5), None);
    }

    #[test]
    fn the_smallest_temperature_takes_the_best() {
        let filters = Filters::new(&Sampling { temperature: f32::from_bits(1), ..off() });
        let mut candidates = Vec::new();
        filters.gather(&[1.0, 1.000_001, 0.5], &mut candidates).unwrap();
        assert_eq!(filters.draw(&mut candidates, 0.999_999), Some(1));
    }

    fn any_logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![8 => -6.0_f32..6.0, 4 => (-4_i8..4).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY)];
        prop::collection::vec(logit, 1..700)
    }

    /// The two ways round differently, so a set may differ by the token that sits on the line.
    fn agree(fast: &[Token], naive: &[Token]) -> bool {
        let shared = fast.len().min(naive.len());
        fast.len().abs_diff(naive.len()) <= 1 && fast[..shared] == naive[..shared]
    }

    proptest! {
        #[test]
        fn each_filter_alone_agrees_with_its_definition(
            logits in any_logits(), top_k in 1_u32..300, p in 0.0_f32..1.0,
        ) {
            let only_k = Sampling { top_k, ..off() };
            prop_assert_eq!(kept(&only_k, &logits), naive(&only_k, &logits));
            let only_p = Sampling { top_p: p, ..off() };
            prop_assert!(agree(&kept(&only_p, &logits), &naive(&only_p, &logits)));
            let only_min = Sampling { min_p: p, ..off() };
            prop_assert!(agree(&kept(&only_min, &logits), &naive(&only_min, &logits)));
        }

        #[test]
        fn all_filters_together_agree_with_their_definition(
            logits in any_logits(), top_k in 0_u32..300, top_p in 0.0_f32..=1.0, min_p in 0.0_f32..0.5,
        ) {
            let sampling = Sampling { top_k, top_p, min_p, ..off() };
            let (fast, naive) = (kept(&sampling, &logits), naive(&sampling, &logits));
            prop_assert!(agree(&fast, &naive), "{:?} {:?}", fast, naive);
        }

        #[test]
        fn a_draw_is_the_inverse_of_the_distribution(
            logits in any_logits(), unit in 0.0_f64..1.0, temperature in 0.1_f32..3.0,
        ) {
            prop_assume!(logits.iter().any(|logit| logit.is_finite()));
            let filters = Filters::new(&Sampling { temperature, ..off() });
            let mut candidates = Vec::new();
            filters.gather(&logits, &mut candidates).unwrap();
            let token = filters.draw(&mut candidates, unit).unwrap() as usize;
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weight = |logit: &f32| (f64::from(logit - max) / f64::from(temperature)).exp();
            let total: f64 = logits.iter().map(weight).sum();
            let below: f64 = logits[..token].iter().map(weight).sum::<f64>() / total;
            let upto = below + weight(&logits[token]) / total;
            prop_assert!(below - 1e-5 <= unit && unit <= upto + 1e-5);
        }
    }
}
