//! `poncho bench compare`: Poncho and another server, the same requests to both in one run.
//!
//! Called by `main`. The flags become a plan, the two servers a ring, each scenario adds pairs of figures to a sheet, and
//! the report is made of that. docs/benchmarks.md explains what the scenarios show.

pub(crate) mod args;
mod contender;
mod plan;
mod report;
mod round;
mod scenarios;
mod sheet;

use std::io::Write;

use anyhow::Context;
use poncho_client::runtime;
use poncho_terminal::{Outcome, Unit};

use crate::compare::args::CompareArgs;
use crate::compare::contender::{Contender, ForeignSettings};
use crate::compare::plan::Plan;
use crate::compare::report::{Report, ServerFacts};
use crate::compare::round::Ring;
use crate::compare::scenarios::Extras;
use crate::measure::call::tokens_per_word;
use crate::measure::machine::Machine;
use crate::measure::prompts::Prompts;
use crate::measure::server::ServerSettings;

pub(crate) fn run(args: &CompareArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let runtime = runtime()?;
    let report = runtime.block_on(compare(args));
    // A restart command that never returns must not keep this process.
    runtime.shutdown_background();
    let report = report?;
    report.print(args, out)?;
    args.figures.write_json(&report.json())?;
    if let Some(folder) = &args.figures.plot {
        report.plot(folder)?;
    }
    Ok(if report.is_good(args.check) { Outcome::Good } else { Outcome::Bad })
}

async fn compare(args: &CompareArgs) -> anyhow::Result<Report> {
    let machine = Machine::look();
    let peer =
        ForeignSettings { url: args.peer.clone(), restart: args.peer_restart.clone(), pid: args.peer_pid.clone() };
    let peer = Contender::reach(peer).await.context("cannot use the peer")?;
    let poncho = poncho(args).await?;
    let tokens_per_word = tokens_per_word(&poncho.client, &poncho.model).await?;
    let (poncho_facts, peer_facts) = (facts(&poncho).await, facts(&peer).await);
    let mut ring = Ring::new(poncho, peer, Plan::new(args), Prompts::new(args.seed, tokens_per_word));
    let extras = Extras { traces: args.traces.clone(), loop_speed: args.loop_speed.clone() };
    let scenarios = ring.plan.scenarios.clone();
    ring.progress.begin("measuring", Unit::Items("scenarios"), u64::try_from(scenarios.len()).ok());
    for scenario in scenarios {
        scenarios::run(scenario, &mut ring, &extras).await?;
        ring.progress.add(1);
    }
    ring.progress.clear();
    Ok(Report {
        machine,
        poncho: poncho_facts,
        peer: peer_facts,
        quick: args.quick,
        rounds: ring.plan.rounds,
        measures: ring.sheet.measures,
        failures: ring.failures,
        refused_by_both: ring.refused_by_both,
        skipped: ring.skipped,
    })
}

async fn poncho(args: &CompareArgs) -> anyhow::Result<Contender> {
    if let Some(url) = &args.poncho {
        let (restart, pid) = (args.poncho_restart.clone(), args.poncho_pid.clone());
        let settings = ForeignSettings { url: url.clone(), restart, pid };
        return Contender::reach(settings).await.context("cannot use the running Poncho");
    }
    let model = args.model.clone().context("give a model with --model, or a running Poncho with --poncho")?;
    ServerSettings::check_model(&model)?;
    let (ctx_size, parallel, threads) = (args.ctx_size, args.parallel, args.threads);
    Contender::start(ServerSettings { model, ctx_size, parallel, threads, cache_size: None, min_tokens: None }).await
}

async fn facts(server: &Contender) -> ServerFacts {
    ServerFacts { model: server.model.clone(), build: server.build().await }
}
