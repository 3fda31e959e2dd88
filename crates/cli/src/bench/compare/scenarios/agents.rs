//! Scenario 3: clients that start together with one system prompt and different tasks.
//!
//! Shows whether a prefix that several requests need at the same moment is computed once or by each of them.

use crate::bench::call::Call;
use crate::bench::compare::args::Scenario;
use crate::bench::compare::round::Ring;
use crate::bench::compare::scenarios::{at_once, milliseconds, time};
use crate::bench::compare::sheet::{Kind, Target, Unit};
use crate::bench::stats::quantile;

const SCENARIO: Scenario = Scenario::Agents;
/// Tokens of each reply.
const REPLY: usize = 16;

pub(super) async fn run(ring: &mut Ring) -> anyhow::Result<()> {
    for round in 0..=ring.plan.rounds {
        let system = ring.prompts.text(&format!("agents-{round}"), ring.plan.long);
        let task = |agent: usize| Call::new(&system, &ring.prompts.text(&format!("task-{round}-{agent}"), 32), REPLY);
        let calls = (0..ring.plan.agents).map(task).collect::<anyhow::Result<Vec<_>>>()?;
        let step = format!("{} clients, round {round}", calls.len());
        let both = ring.both((SCENARIO, round), &step, async |server| at_once(server, &calls).await).await;
        let total = both.pair(|answers| answers.iter().map(|answer| milliseconds(answer.ended)).reduce(f64::max));
        ring.add(round, time(SCENARIO, Some(Target::AtMost(0.6))), "total time", total);
        for (share, name) in [(0.5, "first token, median client"), (1.0, "first token, last client")] {
            let pair = both.pair(|answers| {
                let waits: Vec<f64> = answers.iter().map(|answer| milliseconds(answer.first_token)).collect();
                quantile(&waits, share)
            });
            ring.add(round, time(SCENARIO, None), name, pair);
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
