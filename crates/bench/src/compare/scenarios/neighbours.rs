//! Scenario 8: one client sends a long prompt, and while it is being read, eight others send short ones.
//!
//! Shows what a person waits for who asks something small beside somebody's large document, and what that costs the owner of
//! the document. All prompts are new. The servers need nine slots: without them, the short requests wait for a slot.

use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;

use crate::compare::args::Scenario;
use crate::compare::contender::Contender;
use crate::compare::round::Ring;
use crate::compare::sheet::{Kind, Target};
use crate::measure::call::{Answer, Call};
use crate::measure::stats::{milliseconds, quantile};

const SCENARIO: Scenario = Scenario::Neighbours;
/// Clients with short prompts.
const CLIENTS: usize = 8;
/// Tokens of a short prompt; with a chat template around them they are at most 64.
const PROMPT: usize = 16;
/// Tokens of the reply to a short prompt.
const REPLY: usize = 4;
/// How long the long prompt is being read before the short ones are sent.
const HEAD_START: Duration = Duration::from_millis(500);

/// The answers of one side.
struct Answers {
    long: Answer,
    short: Vec<Answer>,
}

pub(super) async fn run(ring: &mut Ring) -> anyhow::Result<()> {
    for round in 0..=ring.plan.rounds {
        let long = Call::new(&ring.prompts.text(&format!("document-{round}"), ring.plan.document), "Go on.", 1)?;
        let short = |client: usize| {
            Call::new(&ring.prompts.text(&format!("neighbour-{round}-{client}"), PROMPT), "Go on.", REPLY)
        };
        let short = (0..CLIENTS).map(short).collect::<anyhow::Result<Vec<_>>>()?;
        let step = format!("1 long and {CLIENTS} short prompts, round {round}");
        let both = ring.both((SCENARIO, round), &step, async |server| send(server, &long, &short).await).await;
        let limit = Some(Target::AtMost(0.3));
        for (share, name, target) in [
            (0.5, "short prompt, first token, median client", limit),
            (1.0, "short prompt, first token, last client", None),
        ] {
            let pair = both.pair(|answers| {
                let waits: Vec<f64> = answers.short.iter().map(|answer| milliseconds(answer.first_token)).collect();
                quantile(&waits, share)
            });
            ring.add(round, Kind::time(SCENARIO, target), name, pair);
        }
        let last = both.pair(|answers| answers.short.iter().map(|answer| milliseconds(answer.ended)).reduce(f64::max));
        ring.add(round, Kind::time(SCENARIO, None), "short prompt, end of the last reply", last);
        let total = both.pair(|answers| Some(milliseconds(answers.long.first_token)));
        ring.add(round, Kind::time(SCENARIO, Some(Target::AtMost(1.1))), "long prompt, first token", total);
    }
    Ok(())
}

/// Sends the long prompt, and the short ones while it is being read.
async fn send(server: &Contender, long: &Call, short: &[Call]) -> anyhow::Result<Answers> {
    let (call, client, model) = (long.clone(), server.client.clone(), server.model.clone());
    let mut reading = JoinSet::new();
    reading.spawn(async move { call.send(&client, &model).await });
    tokio::time::sleep(HEAD_START).await;
    let short = server.send_all(short).await?;
    let long = reading.join_next().await.context("the long prompt was not sent")???;
    Ok(Answers { long, short })
}
