//! Scenario 3: clients that start together with one system prompt and different tasks.
//!
//! Shows whether a prefix that several requests need at the same moment is computed once or by each of them.

use crate::compare::args::Scenario;
use crate::compare::round::Ring;
use crate::compare::sheet::{Kind, Target, Unit};
use crate::measure::call::Call;
use crate::measure::stats::{milliseconds, quantile};

const SCENARIO: Scenario = Scenario::Agents;
/// Tokens of each reply.
const REPLY: usize = 16;

pub(super) async fn run(ring: &mut Ring) -> anyhow::Result<()> {
    for round in 0..=ring.plan.rounds {
        let system = ring.prompts.text(&format!("agents-{round}"), ring.plan.long);
        let task = |agent: usize| Call::new(&system, &ring.prompts.text(&format!("task-{round}-{agent}"), 32), REPLY);
        let calls = (0..ring.plan.agents).map(task).collect::<anyhow::Result<Vec<_>>>()?;
        let step = format!("{} clients, round {round}", calls.len());
        let both = ring.both((SCENARIO, round), &step, async |server| server.send_all(&calls).await).await;
        let total = both.pair(|answers| answers.iter().map(|answer| milliseconds(answer.ended)).reduce(f64::max));
        ring.add(round, Kind::time(SCENARIO, Some(Target::AtMost(0.6))), "total time", total);
        for (share, name) in [(0.5, "first token, median client"), (1.0, "first token, last client")] {
            let pair = both.pair(|answers| {
                let waits: Vec<f64> = answers.iter().map(|answer| milliseconds(answer.first_token)).collect();
                quantile(&waits, share)
            });
            ring.add(round, Kind::time(SCENARIO, None), name, pair);
        }
        let prefilled = both.pair(|answers| {
            let sum: Option<usize> = answers.iter().map(|answer| answer.prefilled()).sum();
            sum.map(|sum| sum as f64)
        });
        ring.add(
            round,
            Kind { scenario: SCENARIO, unit: Unit::Tokens, target: None },
            "prompt tokens computed",
            prefilled,
        );
    }
    Ok(())
}
