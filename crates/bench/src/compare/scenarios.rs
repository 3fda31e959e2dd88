//! The scenarios, one file each. Called by `compare.rs` with both servers.
//!
//! A scenario runs its rounds, the first of which warms up and does not count, and adds pairs to the sheet. It must send
//! the same bytes to both servers and must not depend on what an earlier scenario left there.

mod again;
mod agents;
mod chat;
mod cold;
mod memory;
mod neighbours;
mod throughput;
mod traces;

use std::path::PathBuf;

use crate::compare::args::Scenario;
use crate::compare::round::Ring;

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
        Scenario::Neighbours => neighbours::run(ring).await,
    }
}
