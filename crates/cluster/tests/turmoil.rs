//! The protocol under turmoil: fifty nodes and two routers on a network that drops, delays, repeats and splits, with
//! restarts of everything. Each seed is one deterministic run.
//!
//! `PONCHO_CLUSTER_SEEDS` and `PONCHO_CLUSTER_SECONDS` bound the number of runs and their time; a failure prints its seed,
//! and `PONCHO_CLUSTER_SEED` runs that one alone.

mod network;
mod world;

use std::time::{Duration, Instant};

use world::World;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn hints_converge_and_every_request_ends_once_whatever_the_network_does() {
    if let Some(seed) = number("PONCHO_CLUSTER_SEED") {
        World::new(seed, 50).run();
        return;
    }
    let seeds = number("PONCHO_CLUSTER_SEEDS").unwrap_or(10_000);
    let limit = Duration::from_secs(number("PONCHO_CLUSTER_SECONDS").unwrap_or(25));
    let began = Instant::now();
    let mut done = 0;
    let mut requests = 0;
    for seed in 0..seeds {
        requests += World::new(seed, 50).run();
        done += 1;
        if began.elapsed() > limit {
            break;
        }
    }
    println!("{done} seeds, {requests} requests in {:.1} s", began.elapsed().as_secs_f64());
    assert!(done >= seeds.min(20), "{done} seeds only: this machine is too slow for the test");
}
