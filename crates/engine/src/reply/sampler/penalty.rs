//! Penalties for tokens that were seen lately: repetition, frequency, presence.
//!
//! The sampler owns one window, filled with the end of the prompt and moved on by every accepted token. A token's penalty
//! depends on its own count alone, so the order in which counts are visited cannot matter. It must never turn a number
//! into a NaN, nor bring a banned token back.

use std::collections::{HashMap, VecDeque};

use crate::backend::Token;
use crate::calls::request::Sampling;

use super::number::narrow;

/// The last tokens, and what their logits lose.
#[derive(Debug)]
pub(super) struct Penalties {
    repetition: f64,
    frequency: f64,
    presence: f64,
    /// The most tokens in the window; `None` means unlimited.
    limit: Option<usize>,
    window: VecDeque<Token>,
    counts: HashMap<Token, u32>,
}

impl Penalties {
    /// `recent` are the tokens before the first draw, oldest first.
    pub(super) fn new(sampling: &Sampling, recent: &[Token]) -> Self {
        let limit = sampling.penalty_last_n.map(|last| usize::try_from(last).unwrap_or(usize::MAX));
        let mut penalties = Self {
            repetition: sampling.repetition_penalty.into(),
            frequency: sampling.frequency_penalty.into(),
            presence: sampling.presence_penalty.into(),
            limit,
            window: VecDeque::new(),
            counts: HashMap::new(),
        };
        if penalties.is_on() {
            let skipped = limit.map_or(0, |limit| recent.len().saturating_sub(limit));
            // A bounded window never grows again after this.
            let room = limit.map_or(recent.len(), |limit| limit.min(MOST_RESERVED)).saturating_add(1);
            penalties.window.reserve(room);
            penalties.counts.reserve(room);
            recent.iter().skip(skipped).for_each(|&token| penalties.push(token));
        }
        penalties
    }

    /// Whether any logit can change.
    pub(super) fn is_on(&self) -> bool {
        let neutral = self.repetition == 1.0 && self.frequency == 0.0 && self.presence == 0.0;
        !neutral && self.limit != Some(0)
    }

    /// Moves the window on past a token.
    pub(super) fn push(&mut self, token: Token) {
        if !self.is_on() {
            return;
        }
        self.window.push_back(token);
        *self.counts.entry(token).or_default() += 1;
        if self.limit.is_none_or(|limit| self.window.len() <= limit) {
            return;
        }
        if let Some(oldest) = self.window.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
    }

    /// Lowers the logits of the tokens in the window; tokens beyond the row are left out.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (&token, &count) in &self.counts {
            if let Some(logit) = usize::try_from(token).ok().and_then(|index| logits.get_mut(index)) {
                *logit = self.penalised(*logit, count);
            }
        }
    }

    fn penalised(&self, logit: f32, count: u32) -> f32 {
        // 64 bits hold every product of 32-bit values, so nothing overflows on the way to a NaN.
        let logit = f64::from(logit);
        let scaled = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        narrow(scaled - f64::from(count) * self.frequency - self.presence)
    }
}

/// A window larger than this grows on demand.
const MOST_RESERVED: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampling(repetition: f32, frequency: f32, presence: f32, last: Option<u32>) -> Sampling {
        Sampling {
            repetition_penalty: repetition,
            frequency_penalty: frequency,
            presence_penalty: presence,
            penalty_last_n: last,
            ..Sampling::default()
        }
    }

    fn applied(penalties: &Penalties, logits: &[f32]) -> Vec<f32> {
        let mut changed = logits.to_vec();
        penalties.apply(&mut changed);
        changed
    }

    #[test]
    fn each_penalty_does_its_own_thing() {
        let seen = [0, 0, 1, 2];
        let logits = [4.0, -4.0, 0.0, 4.0];
        let with = |r, f, p| applied(&Penalties::new(&sampling(r, f, p, None), &seen), &logits);
        assert_eq!(with(2.0, 0.0, 0.0), [2.0, -8.0, 0.0, 4.0], "divides what is positive, multiplies what is not");
        assert_eq!(with(1.0, 0.5, 0.0), [3.0, -4.5, -0.5, 4.0], "once for each time");
        assert_eq!(with(1.0, 0.0, 0.5), [3.5, -4.5, -0.5, 4.0], "once");
        assert_eq!(with(1.0, -0.5, 0.0), [5.0, -3.5, 0.5, 4.0], "a negative penalty is a reward");
    }

    #[test]
    fn the_window_forgets_what_left_it() {
        let mut penalties = Penalties::new(&sampling(1.0, 1.0, 0.0, Some(3)), &[0, 0, 1, 1, 2]);
        assert_eq!(applied(&penalties, &[0.0; 4]), [0.0, -2.0, -1.0, 0.0]);
        penalties.push(3);
        assert_eq!(applied(&penalties, &[0.0; 4]), [0.0, -1.0, -1.0, -1.0]);
        for _ in 0..3 {
            penalties.push(3);
        }
        assert_eq!(applied(&penalties, &[0.0; 4]), [0.0, 0.0, 0.0, -3.0]);
        assert_eq!(penalties.counts.len(), 1);
    }

    #[test]
    fn a_window_of_none_is_off_and_no_limit_sees_everything() {
        assert!(!Penalties::new(&sampling(2.0, 1.0, 1.0, Some(0)), &[1, 2]).is_on());
        assert!(!Penalties::new(&sampling(1.0, 0.0, 0.0, None), &[1, 2]).is_on());
        let penalties = Penalties::new(&sampling(1.0, 1.0, 0.0, None), &[0; 1000]);
        assert_eq!(applied(&penalties, &[0.0]), [-1000.0]);
    }

    #[test]
    fn extreme_values_never_make_a_nan_and_bans_stay() {
        let most = f32::MAX;
        for (r, f, p) in [(most, most, -most), (f32::MIN_POSITIVE, -most, most), (most, -most, -most)] {
            let penalties = Penalties::new(&sampling(r, f, p, None), &[0, 0, 1, 2, 3, 4, 5]);
            let changed = applied(&penalties, &[most, -most, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0]);
            assert!(changed.iter().all(|logit| !logit.is_nan()), "{changed:?}");
            assert_eq!(changed[3], f32::NEG_INFINITY);
        }
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_last_tokens(
            prompt in prop::collection::vec(0_u32..6, 0..40), drawn in prop::collection::vec(0_u32..6, 0..40),
            last in prop::option::of(0_u32..20),
        ) {
            let mut penalties = Penalties::new(&sampling(1.0, 1.0, 0.0, last), &prompt);
            drawn.iter().for_each(|&token| penalties.push(token));
            let history = [prompt, drawn].concat();
            let window = &history[history.len() - history.len().min(last.map_or(usize::MAX, |last| last as usize))..];
            let expected: Vec<f32> =
                (0..8).map(|token| -(window.iter().filter(|&&seen| seen == token).count() as f32)).collect();
            let changed = applied(&penalties, &[0.0; 8]);
            prop_assert!(changed.iter().zip(&expected).all(|(a, b)| a == b), "{:?} {:?}", changed, expected);
        }
    }
}
