//! What is sent in each scenario, one file each. Called by `compare.rs` with both servers.
//!
//! A scenario runs its rounds, the first of which warms up and does not count, and adds pairs to the sheet. It must send
//! the same bytes to both servers and must not depend on what an earlier scenario left there.

mod again;
mod agents;
mod chat;
mod cold;
mod memory;
mod throughput;
mod traces;

use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::bench::call::{Answer, Call};
use crate::bench::compare::args::Scenario;
use crate::bench::compare::contender::Contender;
use crate::bench::compare::round::Ring;
use crate::bench::compare::sheet::{Kind, Target, Unit};

/// What scenarios need besides the servers.
#[derive(Debug)]
pub(crate) struct Extras {
    pub(crate) traces: Vec<PathBuf>,
    /// Streams and the tokens a second of llama.cpp's own loop.
    pub(crate) loop_speed: Vec<(usize, f64)>,
}

pub(crate) async fn run(scenario: Scenario, ring: &mut Ring, extras: &Extras) -> anyhow::Result<()> {
    match scenario {
        Scenario::Cold => cold::run(ring).await,
        Scenario::Again => again::run(ring).await,
        Scenario::Agents => agents::run(ring).await,
        Scenario::Chat => chat::run(ring).await,
        Scenario::Traces => traces::run(ring, &extras.traces).await,
        Scenario::Throughput => throughput::run(ring, &extras.loop_speed).await,
        Scenario::Memory => memory::run(ring).await,
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn time(scenario: Scenario, target: Option<Target>) -> Kind {
    Kind { scenario, unit: Unit::Milliseconds, target }
}

/// Sends all calls at once and waits for all answers.
async fn at_once(contender: &Contender, calls: &[Call]) -> anyhow::Result<Vec<Answer>> {
    let mut running = JoinSet::new();
    for call in calls {
        let (call, client, model) = (call.clone(), contender.client.clone(), contender.model.clone());
        running.spawn(async move { call.send(&client, &model).await });
    }
    let mut answers = Vec::with_capacity(calls.len());
    while let Some(answer) = running.join_next().await {
        answers.push(answer??);
    }
    Ok(answers)
}
