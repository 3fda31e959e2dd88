//! Scenario 2: a prompt comes back: at once, with a new tail, after others, after a restart of both servers.
//!
//! Shows what a known prefix saves. Each round has a prompt of its own, read once before anything is measured.

use crate::compare::args::Scenario;
use crate::compare::round::Ring;
use crate::compare::sheet::{Kind, Target};
use crate::measure::call::Call;
use crate::measure::stats::milliseconds;

const SCENARIO: Scenario = Scenario::Again;

pub(super) async fn run(ring: &mut Ring) -> anyhow::Result<()> {
    let with_restart = ring.can_restart("again: after a restart");
    for round in 0..=ring.plan.rounds {
        let system = ring.prompts.text(&format!("again-{round}"), ring.plan.long);
        let call = Call::new(&system, "Go on.", 1)?;
        let tail = Call::new(&system, &ring.prompts.text(&format!("tail-{round}"), 24), 1)?;
        first_token(ring, round, "read", &call, None).await;
        first_token(ring, round, "the same again", &call, Some(0.3)).await;
        first_token(ring, round, "a new tail", &tail, None).await;
        for other in 0..ring.plan.others {
            let other = Call::new(&ring.prompts.text(&format!("other-{round}-{other}"), ring.plan.other), "Go on.", 1)?;
            first_token(ring, round, "read", &other, None).await;
        }
        let name = format!("back after {} others", ring.plan.others);
        first_token(ring, round, &name, &call, Some(0.3)).await;
        if with_restart {
            ring.restart(SCENARIO).await;
            first_token(ring, round, "after a restart", &call, Some(0.01)).await;
        }
    }
    Ok(())
}

/// Sends a request to both; what is only read is not noted.
async fn first_token(ring: &mut Ring, round: u32, name: &str, call: &Call, at_most: Option<f64>) {
    let step = format!("{name}, round {round}");
    let both = ring.both((SCENARIO, round), &step, async |server| call.send(&server.client, &server.model).await).await;
    if name != "read" {
        let pair = both.pair(|answer| Some(milliseconds(answer.first_token)));
        ring.add(round, Kind::time(SCENARIO, at_most.map(Target::AtMost)), &format!("{name}, first token"), pair);
    }
}
