//! `poncho cluster explain`: which node would compute a reply, and why.
//!
//! The same choice that a router makes, with what the nodes announce at this moment. Nothing is computed and nothing is
//! noted anywhere.

use std::sync::Arc;

use poncho_api::{ChatTurn, Generate, Input, Prompt, Request};
use poncho_cluster::bus::Lookout;
use poncho_cluster::route::{Cost, Source};
use poncho_node::Routed;
use poncho_terminal::{Align, Outcome, Output, Table, printable_line};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::args::ExplainArgs;
use super::check_nodes;
use crate::serving::engine_process::EngineProcess;
use crate::settings::args::nodes::NodeArgs;

pub(super) fn run(
    args: &ExplainArgs,
    runtime: &Runtime,
    nodes: &NodeArgs,
    lookout: &Arc<Lookout>,
    output: &mut Output<'_>,
) -> anyhow::Result<Outcome> {
    check_nodes(lookout)?;
    let EngineProcess::Fleet(fleet) = EngineProcess::fleet(runtime, nodes, Some(Arc::clone(lookout)))? else {
        anyhow::bail!("the nodes are elsewhere")
    };
    let prompt = if args.raw {
        Generate::new(Prompt::Written(Input::Text(args.prompt.clone())), Request::default())
    } else {
        let messages = vec![json!({ "role": "user", "content": args.prompt })];
        Generate::chat(ChatTurn { messages, ..ChatTurn::default() }, Request::default())
    };
    let routed = runtime.block_on(fleet.explain_route(args.model.as_deref(), &prompt))?;
    if output.json {
        output.print_json(&routed_json(&routed))?;
        return Ok(Outcome::Good);
    }
    let (chosen, name) = (&routed.chosen, printable_line(&routed.chosen.node).to_string());
    writeln!(
        output.out,
        "{name} at {} computes it: {} of {} tokens are there ({})",
        printable_line(&chosen.address),
        chosen.cost.from_cache,
        routed.tokens,
        source(&chosen.cost)
    )?;
    let mut table = Table::new([
        ("NODE", Align::Left),
        ("QUEUE", Align::Right),
        ("PREFIX", Align::Right),
        ("REST", Align::Right),
        ("REPLY", Align::Right),
        ("TOTAL", Align::Right),
        ("CACHED", Align::Right),
        ("FROM", Align::Left),
    ]);
    for (node, cost) in &chosen.considered {
        let seconds =
            [cost.queue, cost.prefix, cost.rest, cost.decode, cost.total()].map(|time| format!("{time:.3} s"));
        let [queue, prefix, rest, reply, total] = seconds;
        let cached = cost.from_cache.to_string();
        let from = source(cost).to_owned();
        table.row([printable_line(node).to_string(), queue, prefix, rest, reply, total, cached, from]);
    }
    table.print(output.out)?;
    Ok(Outcome::Good)
}

fn source(cost: &Cost) -> &'static str {
    match cost.source {
        Source::Local => "its own cache",
        Source::Peer(_) => "another node",
        Source::Shared => "the shared tier",
        Source::Compute => "nowhere",
    }
}

fn routed_json(routed: &Routed) -> Value {
    let one = |node: &str, cost: &Cost| {
        let source = match cost.source {
            Source::Local => "local",
            Source::Peer(_) => "peer",
            Source::Shared => "shared",
            Source::Compute => "compute",
        };
        json!({
            "node": node,
            "source": source,
            "cached_tokens": cost.from_cache,
            "seconds": {
                "queue": cost.queue, "prefix": cost.prefix, "rest": cost.rest, "reply": cost.decode,
                "total": cost.total(),
            },
        })
    };
    let considered: Vec<Value> = routed.chosen.considered.iter().map(|(node, cost)| one(node, cost)).collect();
    json!({
        "model": routed.model,
        "tokens": routed.tokens,
        "rendered_by": routed.rendered_by.to_string(),
        "node": routed.chosen.node,
        "address": routed.chosen.address,
        "considered": considered,
    })
}
