//! Scenario 1: new prompts of several lengths.
//!
//! Shows the cost of the path to llama.cpp without the help of a cache. The target is a speed: prompt tokens per second.

use anyhow::ensure;

use crate::compare::args::Scenario;
use crate::compare::round::Ring;
use crate::compare::sheet::{Kind, Target, Unit};
use crate::measure::call::{Answer, Call};
use crate::measure::stats::milliseconds;

/// The chat template's opening may be known; more than that means that the prompt is not cold.
const KNOWN_ANYHOW: usize = 64;

pub(super) async fn run(ring: &mut Ring) -> anyhow::Result<()> {
    let target = Some(Target::AtLeast(0.98));
    let speed = Kind { scenario: Scenario::Cold, unit: Unit::TokensPerSecond, target };
    for size in ring.plan.cold.clone() {
        for round in 0..=ring.plan.rounds {
            // The warm-up wakes threads and memory; it need not be as long.
            let tokens = if round == 0 { size.min(512) } else { size };
            let call = Call::new(&ring.prompts.text(&format!("cold-{size}-{round}"), tokens), "Go on.", 1)?;
            let step = format!("cold {size}, round {round}");
            let both = ring.both((Scenario::Cold, round), &step, async |server| {
                let answer = call.send(&server.client, &server.model).await?;
                check_cold(&answer)?;
                Ok(answer)
            });
            let both = both.await;
            ring.add(round, speed, &format!("{size} tokens, prefill speed"), both.pair(prefill_speed));
            let first = both.pair(|answer| Some(milliseconds(answer.first_token)));
            ring.add(round, Kind::time(Scenario::Cold, None), &format!("{size} tokens, first token"), first);
        }
    }
    Ok(())
}

fn prefill_speed(answer: &Answer) -> Option<f64> {
    let seconds = answer.first_token.as_secs_f64();
    (seconds > 0.0).then(|| answer.prompt as f64 / seconds)
}

fn check_cold(answer: &Answer) -> anyhow::Result<()> {
    let known = answer.cached.unwrap_or(0);
    ensure!(
        known <= KNOWN_ANYHOW.max(answer.prompt / 20),
        "{known} of {} tokens of a cold prompt were cached; use another --seed, or an empty cache folder",
        answer.prompt
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answer(prompt: usize, cached: Option<usize>) -> Answer {
        let at = Duration::from_millis(500);
        Answer { first_token: at, ended: at, pieces: Vec::new(), prompt, cached, completion: 1 }
    }

    #[test]
    fn a_known_prompt_is_not_measured_as_cold() {
        assert!(check_cold(&answer(500, Some(64))).is_ok() && check_cold(&answer(500, None)).is_ok());
        let said = check_cold(&answer(500, Some(65))).unwrap_err().to_string();
        assert!(said.contains("65 of 500") && said.contains("--seed"), "{said}");
        assert!(check_cold(&answer(8000, Some(390))).is_ok() && check_cold(&answer(8000, Some(401))).is_err());
    }

    #[test]
    fn speed_is_tokens_by_time() {
        assert_eq!(prefill_speed(&answer(500, None)), Some(1000.0));
    }
}
