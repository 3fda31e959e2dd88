//! Scenario 5: recorded conversations, sent one after the other, interleaved, with a restart in the middle, and with a
//! clock in the system prompt that changes with every request.
//!
//! Shows real prompts. Replies are one token long. A request that both servers refuse, usually because the context is too
//! short, is counted separately and left out.

use std::path::PathBuf;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::compare::args::Scenario;
use crate::compare::contender::Contender;
use crate::compare::round::Ring;
use crate::compare::sheet::{Kind, Pair, Unit};
use crate::measure::call::{Answer, Call};
use crate::measure::stats::milliseconds;
use crate::measure::trace::{self, Trace};

const SCENARIO: Scenario = Scenario::Traces;

/// How the traces are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Sequential,
    Interleaved,
    RestartInTheMiddle,
    Clock,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Sequential => "one after the other",
            Self::Interleaved => "interleaved",
            Self::RestartInTheMiddle => "restart in the middle",
            Self::Clock => "with a clock",
        }
    }
}

pub(super) async fn run(ring: &mut Ring, paths: &[PathBuf]) -> anyhow::Result<()> {
    if paths.is_empty() {
        ring.skipped.push("traces: needs --traces".to_owned());
        return Ok(());
    }
    let mut traces = trace::read_all(paths)?;
    for trace in &mut traces {
        trace.requests.truncate(ring.plan.trace_requests);
    }
    let restarts = ring.can_restart("traces: restart in the middle");
    for way in [Way::Sequential, Way::Interleaved, Way::RestartInTheMiddle, Way::Clock] {
        if way == Way::RestartInTheMiddle && !restarts {
            continue;
        }
        // Every round is long, and it has the mean of many requests; three of them show the spread.
        for round in 1..=ring.plan.rounds.min(3) {
            replay(ring, &traces, way, round).await?;
        }
    }
    Ok(())
}

async fn replay(ring: &mut Ring, traces: &[Trace], way: Way, round: u32) -> anyhow::Result<()> {
    let tag = format!("{} {round}", way.name());
    let calls = calls(traces, way, &ring.prompts.text(&tag, 1))?;
    let mut sums = [Sums::default(), Sums::default()];
    for (place, call) in calls.iter().enumerate() {
        if way == Way::RestartInTheMiddle && place == calls.len() / 2 {
            ring.restart(SCENARIO).await;
        }
        let step = format!("{}, round {round}, request {place}", way.name());
        let work = async |server: &Contender| call.send(&server.client, &server.model).await;
        let refused = ring.refused_by_both;
        let both = ring.both((SCENARIO, round), &step, work).await;
        if ring.refused_by_both == refused {
            let [poncho, peer] = &mut sums;
            poncho.add(both.poncho.as_ref());
            peer.add(both.peer.as_ref());
        }
    }
    let [poncho, peer] = sums;
    let pair = |figure: fn(&Sums) -> Option<f64>| Pair { poncho: figure(&poncho), peer: figure(&peer) };
    ring.add(round, Kind::time(SCENARIO, None), &format!("{}, total time", way.name()), pair(Sums::total));
    let tokens = Kind { scenario: SCENARIO, unit: Unit::Tokens, target: None };
    ring.add(round, tokens, &format!("{}, prompt tokens computed", way.name()), pair(Sums::prefilled));
    Ok(())
}

/// What a replay came to on one server.
#[derive(Debug, Default)]
struct Sums {
    total: f64,
    prefilled: Option<usize>,
    answers: usize,
    /// A request failed, so the sum is incomplete.
    broken: bool,
}

impl Sums {
    fn add(&mut self, answer: Option<&Answer>) {
        let Some(answer) = answer else {
            self.broken = true;
            return;
        };
        self.total += milliseconds(answer.ended);
        let before = if self.answers == 0 { Some(0) } else { self.prefilled };
        self.prefilled = before.zip(answer.prefilled()).map(|(before, now)| before + now);
        self.answers += 1;
    }

    fn total(&self) -> Option<f64> {
        (!self.broken && self.answers > 0).then_some(self.total)
    }

    fn prefilled(&self) -> Option<f64> {
        self.total().and(self.prefilled).map(|tokens| tokens as f64)
    }
}

/// The requests in the order of the way. A mark at the start of each system prompt keeps ways and rounds apart.
fn calls(traces: &[Trace], way: Way, mark: &str) -> anyhow::Result<Vec<Call>> {
    let longest = traces.iter().map(|trace| trace.requests.len()).max().unwrap_or(0);
    let places: Vec<(usize, usize)> = match way {
        Way::Interleaved => (0..longest).flat_map(|place| (0..traces.len()).map(move |trace| (trace, place))).collect(),
        _ => (0..traces.len()).flat_map(|trace| (0..longest).map(move |place| (trace, place))).collect(),
    };
    let requests = places.into_iter().filter_map(|(trace, place)| traces.get(trace)?.requests.get(place));
    let call = |(number, request): (usize, &trace::TraceRequest)| {
        // Minutes and seconds that never come twice.
        let clock =
            format!("\nCurrent time: 2026-11-15 {:02}:{:02}:{:02}", number / 3600, number / 60 % 60, number % 60);
        let opening = if way == Way::Clock { format!("{mark}{clock}\n") } else { format!("{mark}\n") };
        let messages = with_opening(&request.messages, &opening)?;
        Ok(Call { messages, tools: request.tools.clone(), reply: 1 })
    };
    requests.enumerate().map(call).collect()
}

/// The messages with a text before the system prompt, which is made if there is none.
fn with_opening(messages: &[Box<RawValue>], opening: &str) -> anyhow::Result<Vec<Box<RawValue>>> {
    let mut changed = messages.to_vec();
    let first: Option<Value> = messages.first().map(|first| serde_json::from_str(first.get())).transpose()?;
    let system = first.filter(|first| first.get("role").and_then(Value::as_str) == Some("system"));
    let text = system.as_ref().and_then(|first| first.get("content")).and_then(Value::as_str);
    let message =
        to_raw_value(&json!({"role": "system", "content": format!("{opening}{}", text.unwrap_or_default())}))?;
    match changed.first_mut().filter(|_| text.is_some()) {
        Some(first) => *first = message,
        None => changed.insert(0, message),
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::call::message;
    use crate::measure::trace::TraceRequest;

    fn trace(name: &str, requests: usize) -> Trace {
        let request = |place: usize| {
            let messages =
                vec![message("system", "Be short.").unwrap(), message("user", &format!("{name}{place}")).unwrap()];
            TraceRequest { thread: None, messages, tools: Vec::new(), reply: None }
        };
        Trace { name: name.to_owned(), requests: (0..requests).map(request).collect() }
    }

    fn asked(calls: &[Call]) -> Vec<String> {
        let last = |call: &Call| serde_json::from_str::<Value>(call.messages.last().unwrap().get()).unwrap();
        calls.iter().map(|call| last(call)["content"].as_str().unwrap().to_owned()).collect()
    }

    fn systems(calls: &[Call]) -> Vec<String> {
        let first = |call: &Call| serde_json::from_str::<Value>(call.messages[0].get()).unwrap();
        calls.iter().map(|call| first(call)["content"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_request_is_sent_once_in_the_order_of_the_way() {
        let traces = [trace("a", 3), trace("b", 1)];
        assert_eq!(asked(&calls(&traces, Way::Sequential, "m").unwrap()), ["a0", "a1", "a2", "b0"]);
        assert_eq!(asked(&calls(&traces, Way::Interleaved, "m").unwrap()), ["a0", "b0", "a1", "a2"]);
    }

    #[test]
    fn a_clock_never_shows_the_same_time_twice_and_the_rest_stays() {
        let traces = [trace("a", 70)];
        let mut with = systems(&calls(&traces, Way::Clock, "m").unwrap());
        assert!(with.iter().all(|system| system.starts_with("m\nCurrent time: ") && system.ends_with("\nBe short.")));
        with.dedup();
        assert_eq!(with.len(), 70);
        let mut without = systems(&calls(&traces, Way::Sequential, "m").unwrap());
        without.dedup();
        assert_eq!(without, ["m\nBe short."]);
    }

    #[test]
    fn a_conversation_without_a_system_prompt_gets_one() {
        let messages = with_opening(&[message("user", "x").unwrap()], "m\n").unwrap();
        assert_eq!((messages.len(), messages[1].get()), (2, message("user", "x").unwrap().get()));
    }

    #[test]
    fn an_incomplete_sum_is_not_reported() {
        let at = std::time::Duration::from_millis(5);
        let answer =
            Answer { first_token: at, ended: at, pieces: Vec::new(), prompt: 9, cached: Some(2), completion: 1 };
        let mut sums = Sums::default();
        assert_eq!(sums.total(), None);
        sums.add(Some(&answer));
        sums.add(Some(&answer));
        assert_eq!((sums.total(), sums.prefilled()), (Some(10.0), Some(14.0)));
        sums.add(Some(&Answer { cached: None, ..answer.clone() }));
        assert_eq!((sums.total(), sums.prefilled()), (Some(15.0), None));
        sums.add(None);
        assert_eq!((sums.total(), sums.prefilled()), (None, None));
    }
}
