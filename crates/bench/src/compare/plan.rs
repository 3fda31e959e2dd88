//! How much is sent: the sizes of every scenario, whole or quick.
//!
//! Pure; made from the flags and read by the scenarios.

use std::time::Duration;

use crate::compare::args::{CompareArgs, Scenario};

/// Sizes and counts of a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) scenarios: Vec<Scenario>,
    /// Rounds that count.
    pub(crate) rounds: u32,
    pub(crate) cold: Vec<usize>,
    /// Tokens of a prompt that comes back, and of the system prompts of agents and of a conversation.
    pub(crate) long: usize,
    /// Tokens of each of the prompts in between.
    pub(crate) other: usize,
    pub(crate) others: usize,
    pub(crate) agents: usize,
    /// Tokens of the prompt that short ones are sent beside.
    pub(crate) document: usize,
    pub(crate) turns: usize,
    pub(crate) streams: Vec<usize>,
    /// Tokens of a short and of a long reply.
    pub(crate) replies: [usize; 2],
    /// The most requests that are sent of a trace.
    pub(crate) trace_requests: usize,
    /// Silence before a server's turn: the other one may still be writing, or its threads looking for more work.
    pub(crate) settle: Duration,
}

impl Plan {
    pub(crate) fn new(args: &CompareArgs) -> Self {
        use Scenario::{Again, Agents, Chat, Cold, Memory, Neighbours, Throughput, Traces};
        let mut scenarios = args.scenario.clone();
        if scenarios.is_empty() {
            scenarios = vec![Cold, Again, Agents, Chat, Throughput, Memory, Neighbours];
            if !args.traces.is_empty() {
                scenarios.push(Traces);
            }
        }
        scenarios.sort_unstable();
        scenarios.dedup();
        let mut plan = if args.quick { Self::quick(scenarios) } else { Self::whole(scenarios) };
        plan.rounds = args.rounds.unwrap_or(plan.rounds);
        if !args.prompt_tokens.is_empty() {
            plan.cold.clone_from(&args.prompt_tokens);
        }
        if !args.streams.is_empty() {
            plan.streams.clone_from(&args.streams);
        }
        plan
    }

    fn whole(scenarios: Vec<Scenario>) -> Self {
        Self {
            scenarios,
            rounds: 5,
            cold: vec![512, 2048, 8192],
            long: 2000,
            other: 1000,
            others: 8,
            agents: 8,
            document: 8000,
            turns: 20,
            streams: vec![1, 4, 8, 16],
            replies: [32, 192],
            trace_requests: usize::MAX,
            settle: Duration::from_secs(1),
        }
    }

    fn quick(scenarios: Vec<Scenario>) -> Self {
        Self {
            rounds: 1,
            cold: vec![512],
            long: 1000,
            other: 128,
            document: 1000,
            turns: 5,
            streams: vec![1, 4],
            replies: [16, 64],
            trace_requests: 4,
            settle: Duration::ZERO,
            ..Self::whole(scenarios)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CompareArgs,
    }

    fn plan(words: &[&str]) -> Plan {
        let words = ["x", "--peer", "http://a", "--poncho", "http://b"].iter().chain(words);
        Plan::new(&Line::try_parse_from(words).unwrap().args)
    }

    #[test]
    fn traces_are_replayed_if_there_are_some() {
        assert!(!plan(&[]).scenarios.contains(&Scenario::Traces));
        assert!(plan(&["--traces", "a.json"]).scenarios.contains(&Scenario::Traces));
        assert_eq!(plan(&["--scenario", "again", "cold", "again"]).scenarios, [Scenario::Cold, Scenario::Again]);
    }

    #[test]
    fn flags_win_over_quick_and_quick_is_smaller_everywhere() {
        let (whole, quick) = (plan(&[]), plan(&["--quick"]));
        assert!(
            quick.rounds < whole.rounds
                && quick.long < whole.long
                && quick.document < whole.document
                && quick.turns < whole.turns
        );
        assert_eq!((whole.agents, whole.others, whole.turns), (8, 8, 20));
        let own = plan(&["--quick", "--rounds", "3", "--prompt-tokens", "64,128", "--streams", "2"]);
        assert_eq!((own.rounds, own.cold, own.streams), (3, vec![64, 128], vec![2]));
    }
}
