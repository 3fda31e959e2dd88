//! A prefix that one node computes at the moment and another one is going to pull.
//!
//! Made by the lookout when it chooses a node, and asked until the prefix is there. A request that came earlier would find
//! nothing to pull, and its node would compute the prefix once more. It must never hold up a request for a prefix that
//! nobody computes.

use std::time::Duration;

use crate::blocks::BLOCK_TOKENS;
use crate::index::{Match, Slot};
use crate::route::{Cost, Expected, Source, Starts};

/// How long a request waits, however long the prefix should take.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Awaited {
    /// The node that computes it.
    node: Slot,
    blocks: Vec<u64>,
    /// Seconds until it should be there.
    ready_in: f64,
}

impl Awaited {
    /// What a node with this cost has to wait for; `None` if it pulls nothing, or something that is there.
    pub(super) fn of(cost: &Cost, found: &[Match], expected: &[Expected], blocks: &[u64]) -> Option<Self> {
        let Source::Peer(node) = cost.source else { return None };
        let wanted = cost.from_cache as usize / BLOCK_TOKENS;
        let has = found.iter().find(|one| one.node == node).map_or(0, |one| one.blocks as usize);
        let computing = expected.iter().find(|one| one.node == node).filter(|_| has < wanted)?;
        Some(Self { node, blocks: blocks.get(..wanted)?.to_vec(), ready_in: computing.ready_in })
    }

    /// The longest wait: twice as long as it should take.
    pub(super) fn longest(&self) -> Duration {
        Duration::try_from_secs_f64(2.0 * self.ready_in).unwrap_or(LONGEST).clamp(SHORTEST, LONGEST)
    }

    /// Whether the node is still computing it.
    pub(super) fn is_computed(&self, starts: &Starts, now: f64) -> bool {
        let mut found = Vec::new();
        starts.find(&self.blocks, 1, now, &mut found);
        found.iter().any(|one| one.node == self.node && one.tokens as usize == self.blocks.len())
    }
}
