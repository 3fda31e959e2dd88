//! Scenario 4: a long conversation with tool calls, once on servers that stay up, once with a restart before every turn.
//!
//! The history is scripted: what the model replies is measured and thrown away, so that both servers get the same bytes
//! in every turn. It therefore does not show how replies that were generated here are found again.

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::compare::args::Scenario;
use crate::compare::contender::Contender;
use crate::compare::round::{Both, Ring};
use crate::compare::sheet::{Kind, Pair, Target, Unit};
use crate::measure::call::{Answer, Call, message};
use crate::measure::prompts::Prompts;
use crate::measure::stats::{milliseconds, quantile};

const SCENARIO: Scenario = Scenario::Chat;
const REPLY: usize = 8;
/// Tokens of a question, of a tool's result and of a scripted reply.
const QUESTION: usize = 40;
const RESULT: usize = 150;
const ANSWER: usize = 40;

pub(super) async fn run(ring: &mut Ring) -> anyhow::Result<()> {
    conversation(ring, "up", false).await?;
    if ring.can_restart("chat: with restarts") {
        conversation(ring, "restarted", true).await?;
    }
    Ok(())
}

async fn conversation(ring: &mut Ring, name: &str, restart: bool) -> anyhow::Result<()> {
    for round in 0..=ring.plan.rounds {
        // The warm-up of a conversation is two turns: it only has to wake the servers.
        let turns = if round == 0 { 2 } else { ring.plan.turns };
        let calls = script(&ring.prompts, &format!("chat-{name}-{round}"), ring.plan.long, turns)?;
        let (mut poncho, mut peer) = (Vec::new(), Vec::new());
        for (turn, call) in calls.iter().enumerate() {
            if restart && turn > 0 {
                ring.restart(SCENARIO).await;
            }
            let step = format!("{name}, round {round}, turn {turn}");
            let work = async |server: &Contender| call.send(&server.client, &server.model).await;
            let Both { poncho: ours, peer: theirs } = ring.both((SCENARIO, round), &step, work).await;
            poncho.push(ours);
            peer.push(theirs);
        }
        note(ring, round, if restart { ", restarts" } else { "" }, [poncho, peer]);
    }
    Ok(())
}

/// Sums count only if every turn was answered.
fn note(ring: &mut Ring, round: u32, suffix: &str, [poncho, peer]: [Vec<Option<Answer>>; 2]) {
    let whole = |answers: Vec<Option<Answer>>| answers.into_iter().collect::<Option<Vec<Answer>>>();
    let both = Both { poncho: whole(poncho), peer: whole(peer) };
    let target = (!suffix.is_empty()).then_some(Target::AtMost(0.1));
    let total: Pair = both.pair(|answers| Some(answers.iter().map(|answer| milliseconds(answer.ended)).sum()));
    ring.add(round, Kind::time(SCENARIO, target), &format!("total time{suffix}"), total);
    let first = both.pair(|answers| {
        quantile(&answers.iter().map(|answer| milliseconds(answer.first_token)).collect::<Vec<_>>(), 0.5)
    });
    ring.add(round, Kind::time(SCENARIO, None), &format!("first token, median turn{suffix}"), first);
    let prefilled = both.pair(|answers| {
        let sum: Option<usize> = answers.iter().map(Answer::prefilled).sum();
        sum.map(|sum| sum as f64)
    });
    let tokens = Kind { scenario: SCENARIO, unit: Unit::Tokens, target: None };
    ring.add(round, tokens, &format!("prompt tokens computed{suffix}"), prefilled);
}

/// The requests of a conversation with a system prompt of this length: each contains the one before it. Every second turn
/// answers a tool call.
fn script(prompts: &Prompts, tag: &str, system: usize, turns: usize) -> anyhow::Result<Vec<Call>> {
    let mut messages: Vec<Box<RawValue>> = vec![message("system", &prompts.text(tag, system))?];
    let text = |what: &str, turn: usize, tokens| prompts.text(&format!("{tag}-{what}-{turn}"), tokens);
    let mut calls = Vec::with_capacity(turns);
    for turn in 0..turns {
        if turn % 2 == 0 {
            messages.push(message("user", &text("question", turn, QUESTION))?);
        } else {
            let id = format!("call_{turn}");
            let arguments = json!({"path": format!("notes/{turn}.txt")}).to_string();
            let function = json!({"name": "read_file", "arguments": arguments});
            messages.push(to_raw_value(&json!({"role": "assistant", "content": "",
                "tool_calls": [{"id": id, "type": "function", "function": function}]}))?);
            let result = text("result", turn, RESULT);
            messages.push(to_raw_value(&json!({"role": "tool", "tool_call_id": id, "content": result}))?);
        }
        calls.push(Call { messages: messages.clone(), tools: tools()?, reply: REPLY });
        if turn % 2 == 1 {
            messages.push(message("assistant", &text("answer", turn, ANSWER))?);
        }
    }
    Ok(calls)
}

fn tools() -> anyhow::Result<Vec<Box<RawValue>>> {
    let tool = |name: &str, description: &str, parameter: &str| {
        to_raw_value(&json!({"type": "function", "function": {"name": name, "description": description,
            "parameters": {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}}}))
    };
    Ok(vec![tool("read_file", "Reads a file", "path")?, tool("run", "Runs a command", "command")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_begins_with_the_turn_before_it() {
        let calls = script(&Prompts::new(1, 1.0), "t", 50, 20).unwrap();
        assert_eq!(calls.len(), 20);
        let texts = |call: &Call| call.messages.iter().map(|message| message.get().to_owned()).collect::<Vec<_>>();
        for pair in calls.windows(2) {
            let (before, after) = (texts(&pair[0]), texts(&pair[1]));
            assert!(after.len() > before.len() && after[..before.len()] == before[..]);
        }
    }

    #[test]
    fn every_tool_call_has_its_result() {
        let calls = script(&Prompts::new(1, 1.0), "t", 50, 6).unwrap();
        let last = calls.last().unwrap();
        let values: Vec<serde_json::Value> =
            last.messages.iter().map(|message| serde_json::from_str(message.get()).unwrap()).collect();
        let asked: Vec<_> = values.iter().filter_map(|value| value.pointer("/tool_calls/0/id")).collect();
        let answered: Vec<_> = values.iter().filter_map(|value| value.get("tool_call_id")).collect();
        assert_eq!((asked.len(), asked), (3, answered));
        assert_eq!(last.tools.len(), 2);
    }
}
