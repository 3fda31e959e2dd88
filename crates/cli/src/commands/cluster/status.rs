//! `poncho cluster status`: the nodes as they announce themselves.
//!
//! Wiring only.

use poncho_cluster::bus::Lookout;
use poncho_cluster::hints::{Beat, ModelBeat};
use poncho_cluster::member::State;
use poncho_terminal::{Align, Outcome, Output, Table, printable_line};
use serde_json::{Value, json};

use super::check_nodes;

pub(super) fn run(lookout: &Lookout, output: &mut Output<'_>) -> anyhow::Result<Outcome> {
    let nodes = lookout.nodes();
    if output.json {
        let nodes: Vec<Value> = nodes.iter().map(|(beat, is_current)| node_json(beat, *is_current)).collect();
        output.print_json(&json!({ "nodes": nodes, "rows": lookout.rows() }))?;
        return Ok(Outcome::Good);
    }
    check_nodes(lookout)?;
    let mut table = Table::new([
        ("NODE", Align::Left),
        ("ADDRESS", Align::Left),
        ("STATE", Align::Left),
        ("MODEL", Align::Left),
        ("RUNNING", Align::Right),
        ("WAITING", Align::Right),
        ("PREFILL", Align::Right),
    ]);
    for (beat, _) in &nodes {
        let (name, address) = (printable_line(&beat.node).to_string(), printable_line(&beat.address).to_string());
        let mut lines: Vec<[String; 4]> = beat.models.iter().map(model_cells).collect();
        if lines.is_empty() {
            lines.push(["none".to_owned(), String::new(), String::new(), String::new()]);
        }
        for [model, running, waiting, prefill] in lines {
            table.row([name.clone(), address.clone(), state(beat).to_owned(), model, running, waiting, prefill]);
        }
    }
    table.print(output.out)?;
    let noun = if nodes.len() == 1 { "node" } else { "nodes" };
    writeln!(output.out, "{} {noun}, {} cached rows", nodes.len(), lookout.rows())?;
    Ok(Outcome::Good)
}

fn state(beat: &Beat) -> &'static str {
    match beat.state {
        State::Up => "up",
        State::Draining => "draining",
    }
}

fn model_cells(model: &ModelBeat) -> [String; 4] {
    let load = &model.load;
    [
        printable_line(&model.name).to_string(),
        format!("{}/{}", load.running, load.places),
        format!("{}/{}", load.waiting, load.queue),
        if model.rates.prefill_tokens > 0.0 {
            format!("{:.0} tok/s", model.rates.prefill_tokens)
        } else {
            "not measured".to_owned()
        },
    ]
}

fn node_json(beat: &Beat, is_current: bool) -> Value {
    let models: Vec<Value> = beat
        .models
        .iter()
        .map(|model| json!({ "name": model.name, "rates": model.rates, "load": model.load, "can_cut": model.can_cut }))
        .collect();
    json!({
        "name": beat.node,
        "address": beat.address,
        "hints": beat.hints,
        "state": state(beat),
        "changes": beat.head,
        "is_current": is_current,
        "models": models,
    })
}
