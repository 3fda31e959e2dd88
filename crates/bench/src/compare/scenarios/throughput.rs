//! Scenario 6: several streams at the same time, with short and with long replies.
//!
//! Shows how decoding scales: tokens a second in all and while nothing but decoding goes on, the gaps between the pieces that a
//! reader sees, and the wait for the first. Prompts are short and new, so that decoding is most of the work.

use std::time::Duration;

use crate::compare::args::Scenario;
use crate::compare::round::Ring;
use crate::compare::sheet::{Kind, Pair, Target, Unit};
use crate::measure::call::{Answer, Call};
use crate::measure::stats::{milliseconds, quantile};

const SCENARIO: Scenario = Scenario::Throughput;
const PROMPT: usize = 32;

pub(super) async fn run(ring: &mut Ring, loop_speed: &[(usize, f64)]) -> anyhow::Result<()> {
    let [short, long] = ring.plan.replies;
    for streams in ring.plan.streams.clone() {
        for reply in [short, long] {
            for round in 0..=ring.plan.rounds {
                let prompt =
                    |stream: usize| ring.prompts.text(&format!("stream-{streams}-{reply}-{round}-{stream}"), PROMPT);
                let calls = (0..streams).map(|stream| Call::new(&prompt(stream), "Go on.", reply));
                let calls = calls.collect::<anyhow::Result<Vec<_>>>()?;
                let step = format!("{streams} streams of {reply} tokens, round {round}");
                let both = ring.both((SCENARIO, round), &step, async |server| server.send_all(&calls).await).await;
                let name = format!("{streams} x {reply} tokens");
                let speed = |target| Kind { scenario: SCENARIO, unit: Unit::TokensPerSecond, target };
                let speeds = both.pair(|answers| tokens_per_second(answers));
                ring.add(round, speed(Some(Target::AtLeast(1.0))), &format!("{name}, with prompts"), speeds);
                if reply == long {
                    let speeds = both.pair(|answers| decode_speed(answers));
                    ring.add(round, speed(Some(Target::AtLeast(1.1))), &format!("{name}, decoding"), speeds);
                    if let Some((_, bare)) = loop_speed.iter().find(|(count, _)| *count == streams) {
                        let beside = Pair { poncho: speeds.poncho, peer: Some(*bare) };
                        let bare_loop = speed(Some(Target::AtLeast(0.97)));
                        ring.add(round, bare_loop, &format!("{name}, beside llama.cpp's own loop"), beside);
                    }
                }
                for (share, label) in [(0.5, "p50"), (0.99, "p99")] {
                    let gap = both.pair(|answers| quantile(&gaps(answers), share));
                    ring.add(round, Kind::time(SCENARIO, None), &format!("{name}, gap {label}"), gap);
                    let first = both.pair(|answers| quantile(&waits(answers), share));
                    ring.add(round, Kind::time(SCENARIO, None), &format!("{name}, first token {label}"), first);
                }
            }
        }
    }
    Ok(())
}

/// All tokens by the time until the last stream was over.
fn tokens_per_second(answers: &[Answer]) -> Option<f64> {
    let tokens: usize = answers.iter().map(|answer| answer.completion).sum();
    let end = answers.iter().map(|answer| answer.ended).max().filter(|end| *end > Duration::ZERO)?;
    Some(tokens as f64 / end.as_secs_f64())
}

/// Tokens a second while all streams were decoding: from the last first token to the first last one.
fn decode_speed(answers: &[Answer]) -> Option<f64> {
    let begin = answers.iter().map(|answer| answer.first_token).max()?;
    let end = answers.iter().filter_map(|answer| answer.pieces.last()).min()?;
    let time = end.checked_sub(begin).filter(|time| *time > Duration::ZERO)?;
    let tokens = answers.iter().map(|answer| {
        let pieces = answer.pieces.iter().filter(|piece| **piece > begin && *piece <= end).count();
        // A token may be a part of a letter and no piece of its own.
        pieces as f64 * answer.completion as f64 / answer.pieces.len().max(1) as f64
    });
    Some(tokens.sum::<f64>() / time.as_secs_f64())
}

/// The times between the pieces of each stream.
fn gaps(answers: &[Answer]) -> Vec<f64> {
    let of_one = |answer: &Answer| {
        let next = answer.pieces.iter().skip(1);
        let gaps: Vec<f64> =
            answer.pieces.iter().zip(next).map(|(before, after)| milliseconds(after.saturating_sub(*before))).collect();
        gaps
    };
    answers.iter().flat_map(of_one).collect()
}

fn waits(answers: &[Answer]) -> Vec<f64> {
    answers.iter().map(|answer| milliseconds(answer.first_token)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(pieces: &[u64], ended: u64, completion: usize) -> Answer {
        let pieces: Vec<Duration> = pieces.iter().copied().map(Duration::from_millis).collect();
        let first_token = pieces.first().copied().unwrap_or_default();
        Answer { first_token, ended: Duration::from_millis(ended), pieces, prompt: 9, cached: None, completion }
    }

    #[test]
    fn speed_is_that_of_all_streams_until_the_last_is_over() {
        let answers = [answer(&[10], 500, 40), answer(&[10], 2000, 60)];
        assert_eq!(tokens_per_second(&answers), Some(50.0));
        assert_eq!(tokens_per_second(&[]), None);
    }

    #[test]
    fn decoding_counts_while_all_streams_do() {
        let one = answer(&[100, 200, 300, 400, 500, 600], 600, 6);
        let late = answer(&[300, 400, 500, 600, 700, 800], 800, 6);
        assert_eq!(decode_speed(&[one.clone(), late.clone()]), Some(20.0), "six tokens between 300 and 600 ms");
        let halves = Answer { completion: 12, ..late };
        assert_eq!(decode_speed(&[one, halves]), Some(30.0), "two tokens to a piece");
        assert_eq!(decode_speed(&[answer(&[10], 10, 1)]), None, "no time passed");
        assert_eq!(decode_speed(&[]), None);
    }

    #[test]
    fn gaps_are_inside_a_stream() {
        let answers = [answer(&[10, 30, 60], 60, 3), answer(&[500], 500, 1), answer(&[], 1, 0)];
        assert_eq!(gaps(&answers), [20.0, 30.0]);
        assert_eq!(waits(&answers), [10.0, 500.0, 0.0]);
    }
}
