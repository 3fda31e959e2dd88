//! Passes over a whole row of logits: the best token, and the best `k`.
//!
//! A row has up to 256k entries and is read for every token, so a pass looks at blocks: the largest value of a block is
//! found with vector instructions, and only blocks that can matter are looked at value by value. Nothing is copied. Among
//! equal logits the smaller token is the better one. A NaN is reported wherever it stands; it must never win.

use std::cmp::Ordering;

use crate::backend::{Candidate, Token};

use super::error::SampleError;

/// Values in a block: long enough that the loop over blocks costs nothing, short enough that few values are looked at
/// one by one.
const BLOCK: usize = 128;
/// Values compared at once; the compiler spreads them over the vector registers that every machine has.
const LANES: usize = 16;

/// The best candidate first: by logit, then by token.
pub(super) fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// The token with the largest logit, the smallest such token among equals.
///
/// # Errors
/// [`SampleError::NotANumber`] for a NaN anywhere, [`SampleError::NothingLeft`] if every logit is minus infinity or
/// there is none.
pub fn argmax(logits: &[f32]) -> Result<Token, SampleError> {
    let mut best = (f32::NEG_INFINITY, 0, [].as_slice());
    for (start, block) in blocks(logits) {
        let peak = peak(block).ok_or_else(|| not_a_number(start, block))?;
        if peak > best.0 {
            best = (peak, start, block);
        }
    }
    let (peak, start, block) = best;
    let offset = block.iter().position(|&logit| logit == peak).ok_or(SampleError::NothingLeft)?;
    token_at(start + offset)
}

/// Puts the `k` best tokens into `best`, best first; fewer if the others are minus infinity.
///
/// # Errors
/// [`SampleError::NotANumber`] for a NaN anywhere.
pub(super) fn top_k(logits: &[f32], k: usize, best: &mut Vec<Candidate>) -> Result<(), SampleError> {
    best.clear();
    // Selecting costs as much as was collected, so it is done once in a while and not for every value.
    let full = k.saturating_mul(2).saturating_add(256).min(logits.len().saturating_add(1));
    best.reserve(full);
    let mut threshold = f32::NEG_INFINITY;
    for (start, block) in blocks(logits) {
        let peak = peak(block).ok_or_else(|| not_a_number(start, block))?;
        if peak <= threshold {
            continue;
        }
        for (token, &logit) in (token_at(start)?..).zip(block) {
            // A later token with the threshold's own logit is worse than the `k` that are there.
            if logit > threshold {
                best.push(Candidate { token, logit, p: 0.0 });
                if best.len() == full {
                    keep_best(best, k);
                    threshold = best.iter().fold(f32::INFINITY, |least, candidate| least.min(candidate.logit));
                }
            }
        }
    }
    keep_best(best, k);
    best.sort_unstable_by(better_first);
    Ok(())
}

/// Puts every token that is not minus infinity into `all`, in the order of the vocabulary.
///
/// # Errors
/// [`SampleError::NotANumber`] for a NaN anywhere.
pub(super) fn all(logits: &[f32], all: &mut Vec<Candidate>) -> Result<(), SampleError> {
    all.clear();
    for (start, block) in blocks(logits) {
        peak(block).ok_or_else(|| not_a_number(start, block))?;
        let candidates = (token_at(start)?..).zip(block).map(|(token, &logit)| Candidate { token, logit, p: 0.0 });
        all.extend(candidates.filter(|candidate| candidate.logit > f32::NEG_INFINITY));
    }
    Ok(())
}

/// Drops all but the `k` best, leaving them in no particular order.
pub(super) fn keep_best(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, better_first);
        candidates.truncate(k);
    }
}

fn blocks(logits: &[f32]) -> impl Iterator<Item = (usize, &[f32])> {
    (0..).step_by(BLOCK).zip(logits.chunks(BLOCK))
}

/// The largest value; `None` if there is a NaN.
fn peak(block: &[f32]) -> Option<f32> {
    let mut best = [f32::NEG_INFINITY; LANES];
    // All bits of a lane that met a NaN are set: masks of the width of the values need no conversion.
    let mut odd = [0_u32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for ((best, odd), &value) in best.iter_mut().zip(&mut odd).zip(chunk) {
            *best = if value > *best { value } else { *best };
            *odd |= if value.is_nan() { u32::MAX } else { 0 };
        }
    }
    let odd = odd.iter().any(|&mask| mask != 0) || rest.iter().any(|value| value.is_nan());
    let best = best.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &value| if value > best { value } else { best });
    (!odd).then_some(best)
}

fn not_a_number(start: usize, block: &[f32]) -> SampleError {
    let offset = block.iter().position(|value| value.is_nan()).unwrap_or(0);
    SampleError::NotANumber { position: start + offset }
}

fn token_at(index: usize) -> Result<Token, SampleError> {
    // A vocabulary has far fewer entries than 32 bits count.
    Token::try_from(index).map_err(|_| SampleError::NothingLeft)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(logits: &[f32]) -> Vec<Candidate> {
        let mut all: Vec<Candidate> =
            (0..).zip(logits).map(|(token, &logit)| Candidate { token, logit, p: 0.0 }).collect();
        all.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
        all.sort_by(better_first);
        all
    }

    #[test]
    fn the_smallest_token_wins_among_equals_in_any_block() {
        let mut logits = vec![0.0; 5000];
        assert_eq!(argmax(&logits), Ok(0));
        for place in [4999, 3100, 2047, 512, 31] {
            logits[place] = 1.0;
            assert_eq!(argmax(&logits), Ok(u32::try_from(place).unwrap()));
        }
        assert_eq!(argmax(&[-0.0, 0.0]), Ok(0), "the two zeros are equal");
    }

    #[test]
    fn what_has_no_answer_gets_an_error() {
        assert_eq!(argmax(&[]), Err(SampleError::NothingLeft));
        assert_eq!(argmax(&[f32::NEG_INFINITY; 700]), Err(SampleError::NothingLeft));
        assert_eq!(argmax(&[5.0]), Ok(0));
        assert_eq!(argmax(&[1.0, f32::INFINITY, 2.0]), Ok(1));
    }

    #[test]
    fn a_nan_is_reported_wherever_it_stands() {
        let mut kept = Vec::new();
        for len in [1_usize, 31, 32, 33, 511, 512, 513, 1500] {
            for place in [0, len / 2, len - 1] {
                let mut logits = vec![1.0; len];
                logits[place] = if place % 2 == 0 { f32::NAN } else { -f32::NAN };
                let expected = SampleError::NotANumber { position: place };
                assert_eq!(argmax(&logits), Err(expected.clone()));
                assert_eq!(top_k(&logits, 3, &mut kept), Err(expected.clone()));
                assert_eq!(all(&logits, &mut kept), Err(expected));
            }
        }
    }

    #[test]
    fn rising_logits_fill_the_collection_again_and_again() {
        let logits: Vec<f32> = (0..20_000_u16).map(f32::from).collect();
        let mut best = Vec::new();
        top_k(&logits, 5, &mut best).unwrap();
        assert_eq!(
            best.iter().map(|candidate| candidate.token).collect::<Vec<_>>(),
            [19999, 19998, 19997, 19996, 19995]
        );
    }

    fn any_logits() -> impl Strategy<Value = Vec<f32>> {
        // Few different values make many ties; minus infinity among them.
        prop::collection::vec(prop_oneof![4 => (-20_i8..20).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY)], 0..3000)
    }

    proptest! {
        #[test]
        fn a_pass_agrees_with_a_full_sort(logits in any_logits(), k in 1_usize..600) {
            let expected = sorted(&logits);
            prop_assert_eq!(argmax(&logits).ok(), expected.first().map(|candidate| candidate.token));
            let mut best = Vec::new();
            top_k(&logits, k, &mut best).unwrap();
            prop_assert_eq!(&best, &expected[..k.min(expected.len())]);
            let mut every = Vec::new();
            all(&logits, &mut every).unwrap();
            prop_assert!(every.is_sorted_by_key(|candidate| candidate.token));
            every.sort_by(better_first);
            prop_assert_eq!(&every, &expected);
        }
    }
}
