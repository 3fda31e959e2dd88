//! What a request costs on one node, in seconds.
//!
//! The sum of the time in the queue, the cheapest way to get the prefix (local, another node, the shared tier, or
//! computing it), the rest of the prompt, and the reply. Called by `choice` for each candidate. The rates come from the
//! node, so that a slow machine and a fast one can be compared.

use poncho_kinds::Tier;

use crate::index::Slot;
use crate::member::Member;

/// How often a prefix of another machine does not come after all: its node then computes what was promised.
const MISSED: f64 = 0.02;

/// The request, as far as its cost depends on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Tokens that the reply will probably have.
    pub reply_tokens: u32,
}

/// A prefix of the prompt that exists somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its length.
    pub tokens: u32,
    /// Where its bytes are.
    pub tier: Tier,
}

/// A prefix that a node is computing at the moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// The node.
    pub node: Slot,
    /// The length of the prefix.
    pub tokens: u32,
    /// Seconds until it is there.
    pub ready_in: f64,
}

/// Where the prefix comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The node's own cache, or its own computation that is under way.
    Local,
    /// Another node.
    Peer(Slot),
    /// The shared tier.
    Shared,
    /// Nowhere: all of it is computed.
    Compute,
}

/// What a request costs on a node, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Until the node begins.
    pub queue: f64,
    /// Until the prefix is there.
    pub prefix: f64,
    /// Computing the rest of the prompt.
    pub rest: f64,
    /// The reply, with the streams that run beside it.
    pub decode: f64,
    /// Where the prefix comes from.
    pub source: Source,
    /// Its length.
    pub from_cache: u32,
    /// Tokens that the node computes although another one computes them already.
    pub doubled: u32,
}

impl Cost {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.queue + self.prefix + self.rest + self.decode
    }

    /// Until the first token of the reply.
    #[must_use]
    pub fn first_token(&self) -> f64 {
        self.queue + self.prefix + self.rest
    }
}

/// Everything that a node could start from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prefixes<'a> {
    /// In its own cache.
    pub local: Option<Held>,
    /// Tokens that it computed lately, which cost nothing while its sequence is not given away.
    pub live: u32,
    /// The longest one of another node.
    pub peer: Option<(Slot, Held)>,
    /// Seconds until the line of that node is free.
    pub peer_wait: f64,
    /// Tokens in the shared tier.
    pub shared: u32,
    /// Under way somewhere.
    pub expected: &'a [Expected],
    /// Tokens that the node must not compute itself, if there is any other way to get them.
    pub not_computed: u32,
}

/// The cost of a request on `node`.
#[must_use]
pub fn cost(ask: &Ask, node: Slot, member: &Member, prefixes: &Prefixes<'_>) -> Cost {
    let (rates, load) = (member.rates.checked(), &member.load);
    let compute = |tokens: u32| f64::from(tokens) / rates.prefill_tokens;
    let read = |held: Held| {
        let speed = if held.tier == Tier::Disk { rates.disk_bytes } else { rates.ram_bytes };
        f64::from(held.tokens) * rates.bytes_per_token / speed
    };
    let backlog = if load.backlog_tokens.is_finite() { load.backlog_tokens.max(0.0) } else { 0.0 };
    let line = line_wait(member);
    let queue = backlog / rates.prefill_tokens + wait_for_place(member);
    let reply = rates.decode_step + f64::from(load.running) * rates.decode_stream;
    let decode = f64::from(ask.reply_tokens) * reply;
    let with = |source: Source, tokens: u32, prefix: f64| {
        let tokens = tokens.min(ask.tokens);
        Cost { queue, prefix, rest: compute(ask.tokens - tokens), decode, source, from_cache: tokens, doubled: 0 }
    };
    let remote = |tokens: u32, bytes: f64| {
        let tokens = tokens.min(ask.tokens);
        rates.remote_delay + f64::from(tokens) * rates.bytes_per_token / bytes + MISSED * compute(tokens)
    };

    let mut best = with(Source::Compute, 0, 0.0);
    let is_short = |cost: &Cost| cost.from_cache < prefixes.not_computed;
    let mut consider = |other: Cost| {
        let is_better = match (is_short(&other), is_short(&best)) {
            (false, true) => true,
            (true, false) => false,
            _ => other.total() < best.total(),
        };
        if is_better {
            best = other;
        }
    };
    if let Some(held) = prefixes.local {
        consider(with(Source::Local, held.tokens, read(held)));
    }
    if prefixes.live > 0 {
        consider(with(Source::Local, prefixes.live, 0.0));
    }
    let pulls = rates.peer_bytes > 0.0;
    if let Some((peer, held)) = prefixes.peer.filter(|(peer, _)| pulls && *peer != node) {
        let wait = line.max(prefixes.peer_wait);
        consider(with(Source::Peer(peer), held.tokens, wait + remote(held.tokens, rates.peer_bytes)));
    }
    if prefixes.shared > 0 && rates.shared_bytes > 0.0 {
        consider(with(Source::Shared, prefixes.shared, remote(prefixes.shared, rates.shared_bytes)));
    }
    for expected in prefixes.expected.iter().filter(|expected| pulls || expected.node == node) {
        // The wait runs while the request is in the queue.
        let wait = (expected.ready_in - queue).max(0.0) + if expected.node == node { 0.0 } else { line };
        let held = Held { tokens: expected.tokens, tier: Tier::Ram };
        consider(if expected.node == node {
            with(Source::Local, expected.tokens, wait + read(held))
        } else {
            with(Source::Peer(expected.node), expected.tokens, wait + remote(expected.tokens, rates.peer_bytes))
        });
    }
    let elsewhere = prefixes.expected.iter().filter(|expected| expected.node != node);
    best.doubled = elsewhere.map(|expected| expected.tokens.saturating_sub(best.from_cache)).max().unwrap_or(0);
    best
}

/// Seconds until a node's line to the others is free.
pub(super) fn line_wait(member: &Member) -> f64 {
    let (bytes, speed) = (member.load.line_bytes, member.rates.checked().peer_bytes);
    if bytes.is_finite() && speed > 0.0 { bytes.max(0.0) / speed } else { 0.0 }
}

/// Seconds until a sequence is free, if all are taken.
pub(super) fn wait_for_place(member: &Member) -> f64 {
    let load = &member.load;
    if load.running < load.places {
        return 0.0;
    }
    let stay = if load.mean_stay.is_finite() { load.mean_stay.max(0.0) } else { 0.0 };
    f64::from(load.waiting + 1) * stay / f64::from(load.places.max(1))
}
