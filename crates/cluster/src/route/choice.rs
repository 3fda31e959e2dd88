//! The choice of a node for one request.
//!
//! The caller gathers candidates: nodes that hold or compute a prefix, and a sample of the others. The cheapest one in
//! seconds wins. Two nodes at most compute the same prefix at the same time; a third one waits and pulls it, which makes
//! it a replica of a hot prefix. Equal costs are decided by a hash of prefix and node, so that two routers agree.

use super::admission::{Refusal, retry_after};
use super::cost::{Ask, Cost, Expected, Held, Prefixes, cost, line_wait};
use crate::index::Slot;
use crate::member::Member;

/// Nodes that may compute the same prefix at the same time.
const MOST_COLD_STARTS: usize = 2;

/// Fewer tokens are computed twice without regard: they are done before another node could send them.
const FEW_TOKENS: u32 = 512;

/// Costs that differ by less count as equal.
const TIE: f64 = 1e-3;

/// A node that could serve the request.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The node.
    pub node: Slot,
    /// What is known of it.
    pub member: &'a Member,
    /// What it announced of the prompt: it can use that, and others can pull it.
    pub held: Option<Held>,
    /// Tokens of the prompt that it computed lately and may not have announced yet: it alone can use them.
    pub live: u32,
}

/// A candidate with its cost; `explain` shows them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Considered {
    /// The node.
    pub node: Slot,
    /// The cost there.
    pub cost: Cost,
    /// Whether it was left out because two nodes compute the prefix already.
    pub is_third: bool,
}

/// Where the request goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The node.
    pub node: Slot,
    /// The cost there.
    pub cost: Cost,
    /// All candidates, the cheapest first.
    pub considered: Vec<Considered>,
}

/// Chooses among candidates. `all` are the members that admission counts when every candidate is full or draining.
///
/// # Errors
///
/// No candidate takes requests; the refusal says when to try again. The caller looks at further nodes first.
pub fn choose<'a>(
    ask: &Ask,
    candidates: &[Candidate<'_>],
    shared: u32,
    expected: &[Expected],
    tie: u64,
    all: impl Iterator<Item = &'a Member>,
) -> Result<Decision, Refusal> {
    // Two are enough: the longest prefix of another node for each of them.
    let mut longest: [Option<(Slot, Held, f64)>; 2] = [None, None];
    for candidate in candidates {
        let Some(held) = candidate.held else { continue };
        let wait = line_wait(candidate.member);
        let is_better = |than: Option<(Slot, Held, f64)>| {
            than.is_none_or(|(_, than, its)| held.tokens > than.tokens || (held.tokens == than.tokens && wait < its))
        };
        if is_better(longest[0]) {
            longest = [Some((candidate.node, held, wait)), longest[0]];
        } else if is_better(longest[1]) {
            longest[1] = Some((candidate.node, held, wait));
        }
    }
    let usable = candidates.iter().filter(|candidate| candidate.member.takes_requests());
    let mut considered: Vec<Considered> = usable
        .map(|candidate| {
            let peer = longest.iter().flatten().find(|(node, ..)| *node != candidate.node).copied();
            let (peer, peer_wait) = peer.map_or((None, 0.0), |(node, held, wait)| (Some((node, held)), wait));
            let (local, live) = (candidate.held, candidate.live);
            let mut prefixes = Prefixes { local, live, peer, peer_wait, shared, expected, not_computed: 0 };
            let mut cost = cost(ask, candidate.node, candidate.member, &prefixes);
            if is_third(&cost, expected) {
                // It may wait for one of the two and pull what that one computes.
                prefixes.not_computed = cost.from_cache + cost.doubled.saturating_sub(FEW_TOKENS);
                cost = super::cost::cost(ask, candidate.node, candidate.member, &prefixes);
            }
            Considered { node: candidate.node, is_third: is_third(&cost, expected), cost }
        })
        .collect();
    let rank = |node: Slot| mix(tie ^ u64::from(node.0).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    considered.sort_by(|a, b| {
        let steps = |one: &Considered| (one.cost.total() / TIE).round();
        let by_cost = steps(a).total_cmp(&steps(b));
        a.is_third.cmp(&b.is_third).then(by_cost).then_with(|| rank(a.node).cmp(&rank(b.node)))
    });
    let Some(first) = considered.first().copied() else { return Err(retry_after(all, 0)) };
    Ok(Decision { node: first.node, cost: first.cost, considered })
}

/// Whether the node would compute much that two others compute already.
fn is_third(cost: &Cost, expected: &[Expected]) -> bool {
    let starts = expected.iter().filter(|start| start.tokens > cost.from_cache + FEW_TOKENS).count();
    cost.doubled > FEW_TOKENS && starts >= MOST_COLD_STARTS
}

/// Some nodes out of many, for candidates beside those that hold a prefix: half of them by the prefix, so that routers
/// agree on where a cold one starts, the others by the request, so that a hot prefix can spread over all nodes.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Chosen by the prefix.
    pub by_prefix: u32,
    /// Chosen by the request.
    pub by_request: u32,
}

impl Sample {
    /// Places in a list of `count` nodes; they may repeat.
    pub fn places(self, prefix: u64, request: u64, count: usize) -> impl Iterator<Item = usize> {
        let count = count as u64;
        let place = move |seed: u64, number: u32| {
            let mixed = mix(seed.wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            mixed.checked_rem(count).and_then(|place| usize::try_from(place).ok())
        };
        let by_prefix = (0..self.by_prefix).filter_map(move |number| place(prefix, number));
        by_prefix.chain((0..self.by_request).filter_map(move |number| place(!request, number)))
    }
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
