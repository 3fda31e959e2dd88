//! Log probabilities from raw logits: the drawn token's, and those of the most likely ones.
//!
//! Called by the worker for requests that ask for them, with the model's logits before any sampler changed them. The sum
//! runs in 64 bits after subtracting the largest logit, so that neither size nor spread of the vocabulary matters. Equal
//! logits are ordered by token, so that the answer is the same on every run. It must never sort the whole vocabulary.

/// A token and its natural log probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// The token.
    pub token: u32,
    /// Minus infinity for a token that cannot be drawn.
    pub logprob: f32,
}

/// The answer for one position.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// The token that was asked for.
    pub chosen: Ranked,
    /// The most likely tokens, best first; at most as many as the vocabulary has.
    pub top: Vec<Ranked>,
}

/// The log probabilities of `chosen` and of the `top_n` most likely tokens.
///
/// `None` if `chosen` is not in the vocabulary or no logit is finite. A NaN counts as minus infinity.
#[must_use]
pub fn logprobs(logits: &[f32], chosen: u32, top_n: u8) -> Option<Logprobs> {
    let chosen_logit = sane(*logits.get(usize::try_from(chosen).ok()?)?);
    let max = logits.iter().copied().map(sane).fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() {
        return None;
    }
    let sum: f64 = logits.iter().map(|&logit| (f64::from(sane(logit)) - f64::from(max)).exp()).sum();
    // The largest logit is subtracted first: added to the logarithm, it could swallow it.
    let logprob = |logit: f32| narrow(f64::from(logit) - f64::from(max) - sum.ln());
    let top = best(logits, top_n.into()).into_iter();
    Some(Logprobs {
        chosen: Ranked { token: chosen, logprob: logprob(chosen_logit) },
        top: top.map(|(token, logit)| Ranked { token, logprob: logprob(logit) }).collect(),
    })
}

/// The `count` largest logits, largest first, the smaller token first among equals.
fn best(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (token, &logit) in (0..).zip(logits) {
        let logit = sane(logit);
        // Nearly every token ends here: it is no better than the worst that was kept.
        if best.len() == count && best.last().is_none_or(|&(_, worst)| logit <= worst) {
            continue;
        }
        let place = best.partition_point(|&(_, kept)| kept >= logit);
        best.insert(place, (token, logit));
        best.truncate(count);
    }
    best
}

fn sane(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is what is wanted")]
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_equal_logits_share_the_probability() {
        let answer = logprobs(&[0.0, f32::NEG_INFINITY, 0.0], 2, 5).unwrap();
        assert!((answer.chosen.logprob + std::f32::consts::LN_2).abs() < 1e-6);
        assert_eq!(answer.top.iter().map(|ranked| ranked.token).collect::<Vec<_>>(), [0, 2, 1]);
        assert_eq!(answer.top[2].logprob, f32::NEG_INFINITY);
    }

    #[test]
    fn large_and_small_logits_do_not_overflow() {
        for shift in [3e38_f32, -3e38] {
            let answer = logprobs(&[shift, shift], 0, 1).unwrap();
            assert!((answer.chosen.logprob + std::f32::consts::LN_2).abs() < 1e-6, "{answer:?}");
        }
        let answer = logprobs(&[1000.0, 0.0], 1, 0).unwrap();
        assert_eq!((answer.chosen.logprob, answer.top.len()), (-1000.0, 0));
    }

    #[test]
    fn what_has_no_answer_gets_none() {
        assert_eq!(logprobs(&[1.0], 1, 1), None);
        assert_eq!(logprobs(&[], 0, 1), None);
        assert_eq!(logprobs(&[f32::NEG_INFINITY, f32::NAN], 0, 1), None);
        assert_eq!(logprobs(&[f32::INFINITY, 0.0], 0, 1), None);
        assert_eq!(logprobs(&[f32::NAN, 0.0], 1, 1).unwrap().chosen.logprob, 0.0);
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_full_sort(
            logits in prop::collection::vec((-8_i8..8).prop_map(f32::from), 1..200), chosen in any::<prop::sample::Index>(),
            top_n in 0_u8..=20,
        ) {
            let chosen = chosen.index(logits.len());
            let answer = logprobs(&logits, u32::try_from(chosen).unwrap(), top_n).unwrap();
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let expected = |token: usize| f64::from(logits[token]) - sum.ln();
            prop_assert!((f64::from(answer.chosen.logprob) - expected(chosen)).abs() < 1e-5);
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            order.truncate(top_n.into());
            let tokens: Vec<usize> = answer.top.iter().map(|ranked| ranked.token as usize).collect();
            prop_assert_eq!(&tokens, &order);
            for ranked in &answer.top {
                prop_assert!((f64::from(ranked.logprob) - expected(ranked.token as usize)).abs() < 1e-5);
            }
        }
    }
}
