//! One request on its way over nodes: tried, failed, tried elsewhere, ended.
//!
//! A router keeps one for each request that has not ended. It counts the nodes that died with the request in flight: a
//! request that two nodes died with is refused, because it may be the reason. It must end exactly once.

use crate::index::Slot;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The reply is complete.
    Done,
    /// The node refused before it did anything: full or draining.
    Refused,
    /// The node could not be reached, and it did not begin.
    Unreachable,
    /// The connection broke or the node died with the request in flight.
    Lost,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Choose a node that is not among the tried ones and send the request there, with the tokens that were generated.
    TryAgain,
    /// The reply is complete.
    Done,
    /// Two nodes were lost with it: refuse it, with its id.
    GiveUp,
    /// No node is left that was not tried: refuse it with a time to come back.
    TryLater,
}

/// Nodes that may be lost with one request.
const MOST_LOST: u32 = 2;

/// Nodes that one request tries at most.
const MOST_TRIED: usize = 8;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dispatch {
    tried: Vec<Slot>,
    lost: u32,
    ended: Option<Step>,
}

impl Dispatch {
    /// A request that was not sent yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a node may be tried.
    #[must_use]
    pub fn may_try(&self, node: Slot) -> bool {
        self.ended.is_none() && !self.tried.contains(&node)
    }

    /// How it ended.
    #[must_use]
    pub fn ended(&self) -> Option<Step> {
        self.ended
    }

    /// An attempt on a node ended. The first end stays.
    pub fn attempted(&mut self, node: Slot, attempt: Attempt) -> Step {
        if let Some(ended) = self.ended {
            return ended;
        }
        if !self.tried.contains(&node) {
            self.tried.push(node);
        }
        self.lost += u32::from(attempt == Attempt::Lost);
        let step = match attempt {
            Attempt::Done => Step::Done,
            _ if self.lost >= MOST_LOST => Step::GiveUp,
            _ if self.tried.len() >= MOST_TRIED => Step::TryLater,
            _ => Step::TryAgain,
        };
        self.end_with(step)
    }

    /// All nodes were tried.
    pub fn exhausted(&mut self) -> Step {
        let step = self.ended.unwrap_or(Step::TryLater);
        self.end_with(step)
    }

    fn end_with(&mut self, step: Step) -> Step {
        if step != Step::TryAgain {
            self.ended = Some(step);
        }
        step
    }
}
