//! Simulates a cluster that is larger than the machines at hand: `cargo run --release -p poncho-cluster --example simulate`.
//!
//! Discrete events drive the index, costs, choice and admission of this crate; the nodes, the network and the load are
//! models. `docs/cluster-simulation.md` has the results. Prints one line of a Markdown table for each scenario, and
//! draws them if `PLOT` names a file. It must never decide where a request goes: that is what it measures.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    reason = "a model with numbers of its own; nothing comes from outside"
)]

mod chart;
mod load;
mod node;
mod world;

use std::time::Instant;

use world::{Outcome, Routing, Scenario, World};

/// The scenarios of the table, named as they can be asked for.
fn scenarios(base: &Scenario) -> Vec<(&'static str, Scenario)> {
    let of = |change: &dyn Fn(&mut Scenario)| {
        let mut scenario = base.clone();
        change(&mut scenario);
        scenario
    };
    let small: f64 = 23e3;
    vec![
        ("131 kB, 100 Gbit", of(&|_| {})),
        ("131 kB, 10 Gbit", of(&|one| one.gigabits = 10.0)),
        ("131 kB, 1 Gbit", of(&|one| one.gigabits = 1.0)),
        ("23 kB, 100 Gbit", of(&|one| one.bytes_per_token = small)),
        ("23 kB, 10 Gbit", of(&|one| (one.bytes_per_token, one.gigabits) = (small, 10.0))),
        ("23 kB, 1 Gbit", of(&|one| (one.bytes_per_token, one.gigabits) = (small, 1.0))),
        ("5 % of announcements lost", of(&|one| one.lost = 0.05)),
        ("half of the announcements lost", of(&|one| one.lost = 0.5)),
        ("half lost, gaps not repaired", of(&|one| (one.lost, one.repairs) = (0.5, false))),
        ("churn 1 % an hour", of(&|one| one.churn = 0.01)),
        ("partition of 60 s, a tenth of the nodes", of(&|one| one.partition = Some((0.25, 60.0)))),
        ("random routing", of(&|one| one.routing = Routing::Random)),
        ("sticky sessions only", of(&|one| one.routing = Routing::Sticky)),
    ]
}

fn number<T: std::str::FromStr>(name: &str, usual: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn main() {
    let base = Scenario {
        nodes: number("NODES", 100),
        sessions: number("SESSIONS", 100_000),
        seconds: number("SECONDS", 600.0),
        seed: number("SEED", 1),
        block_tokens: number("BLOCK", 512),
        ..Scenario::default()
    };
    let wanted = std::env::var("SCENARIO").unwrap_or_default();
    println!(
        "{} nodes, {} sessions, {} simulated seconds, blocks of {} tokens, seed {}\n",
        base.nodes, base.sessions, base.seconds, base.block_tokens, base.seed
    );
    println!(
        "| Scenario | Turns | Hit tokens, of one infinite node | Max / mean load | First token p50, p99 | Pulled | Refused | Wall time of a simulated hour |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut bars = Vec::new();
    for (name, scenario) in scenarios(&base).into_iter().filter(|(name, _)| name.contains(&wanted)) {
        let began = Instant::now();
        let seconds = scenario.seconds;
        let outcome = World::new(scenario).run();
        print(name, &outcome, began.elapsed().as_secs_f64() / seconds * 3600.0);
        bars.push((name, outcome.hit_ratio()));
    }
    if let Some(file) = std::env::var_os("PLOT") {
        let title = format!("hit tokens of {} nodes, of one infinite node", base.nodes);
        if let Err(error) = std::fs::write(&file, chart::bars(&title, &bars)) {
            eprintln!("cannot write {}: {error}", file.display());
        }
    }
}

fn print(name: &str, outcome: &Outcome, hour: f64) {
    println!(
        "| {name} | {} | {:.3} | {:.2} | {:.2} s, {:.2} s | {:.1} % | {} | {hour:.0} s |",
        outcome.turns,
        outcome.hit_ratio(),
        outcome.imbalance(),
        outcome.first_token(0.5),
        outcome.first_token(0.99),
        outcome.pulled_share() * 100.0,
        outcome.refused,
    );
}
