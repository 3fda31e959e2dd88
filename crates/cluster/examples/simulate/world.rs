//! The simulated cluster: time, sessions, nodes, one router with the crate's own index and functions.
//!
//! Events lie in buckets of ten milliseconds. The router sees hints; what a node really has decides what it computes.

use poncho_cluster::blocks::Lookup;
use poncho_cluster::index::{CompactIndex, Match, PrefixIndex, Row, Slot};
use poncho_cluster::member::Rates;
use poncho_cluster::route::{Ask, Candidate, Expected, Held, Sample, Source, Starts, choose};
use poncho_kinds::{Key, Tier};

use crate::load::{Random, Session, Turn, mix};
use crate::node::Node;

/// How requests are routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routing {
    /// As a router of Poncho does.
    Cost,
    /// To any node, which uses its own cache.
    Random,
    /// To the node of the session's last turn.
    Sticky,
}

/// What is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) nodes: usize,
    pub(crate) sessions: usize,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    pub(crate) block_tokens: u32,
    pub(crate) bytes_per_token: f64,
    /// The line of each node.
    pub(crate) gigabits: f64,
    /// Share of announcements that do not arrive.
    pub(crate) lost: f64,
    /// Whether gaps are asked for.
    pub(crate) repairs: bool,
    /// Share of the nodes that are replaced by empty ones in an hour.
    pub(crate) churn: f64,
    /// When a tenth of the nodes cannot be reached, as a share of the run, and for how many seconds.
    pub(crate) partition: Option<(f64, f64)>,
    pub(crate) routing: Routing,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            nodes: 100,
            sessions: 100_000,
            seconds: 600.0,
            seed: 1,
            block_tokens: 512,
            bytes_per_token: 131_072.0,
            gigabits: 100.0,
            lost: 0.0,
            repairs: true,
            churn: 0.0,
            partition: None,
            routing: Routing::Cost,
        }
    }
}

/// Mean seconds from the end of a reply to the next turn; with the reply a turn a minute.
const PAUSE: f64 = 55.0;
/// Seconds that do not count: the nodes fill up.
const WARM_UP: f64 = 60.0;
/// Bytes of a node's cache.
const CACHE: f64 = 8e12;
const BUCKET: f64 = 0.01;
/// Seconds until a gap is noticed and repaired.
const REPAIR: f64 = 1.0;
/// Seconds until a replaced node is back.
const REPLACED: f64 = 60.0;

fn rates(scenario: &Scenario) -> Rates {
    Rates {
        prefill_tokens: 11_400.0,
        decode_step: 0.012,
        decode_stream: 0.000_05,
        bytes_per_token: scenario.bytes_per_token,
        ram_bytes: 20e9,
        disk_bytes: 6e9,
        peer_bytes: scenario.gigabits * 0.9 / 8.0 * 1e9,
        shared_bytes: 0.0,
        remote_delay: 0.002,
    }
}

#[derive(Debug)]
enum Event {
    Turn(u32),
    Ended { node: u32, session: Session },
    Announced { node: u32, row: Box<Row> },
    Leave(u32),
    Return(u32),
}

/// What came out.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) turns: u64,
    pub(crate) refused: u64,
    hit_tokens: u64,
    pulled_tokens: u64,
    infinite_tokens: u64,
    first_tokens: Vec<u64>,
    work: Vec<f64>,
}

impl Outcome {
    pub(crate) fn hit_ratio(&self) -> f64 {
        self.hit_tokens as f64 / self.infinite_tokens.max(1) as f64
    }

    pub(crate) fn pulled_share(&self) -> f64 {
        self.pulled_tokens as f64 / self.hit_tokens.max(1) as f64
    }

    pub(crate) fn imbalance(&self) -> f64 {
        let mean = self.work.iter().sum::<f64>() / self.work.len().max(1) as f64;
        self.work.iter().copied().fold(0.0, f64::max) / mean
    }

    /// Seconds until the first token, at a quantile.
    pub(crate) fn first_token(&self, quantile: f64) -> f64 {
        let wanted = quantile * self.first_tokens.iter().sum::<u64>() as f64;
        let mut seen = 0.0;
        for (place, count) in self.first_tokens.iter().enumerate() {
            seen += *count as f64;
            if seen >= wanted {
                return place as f64 * BUCKET;
            }
        }
        0.0
    }
}

/// The blocks of a prompt that has no tokens.
struct Blocks<'a>(&'a [u64]);

impl Lookup for Blocks<'_> {
    fn blocks(&self) -> &[u64] {
        self.0
    }

    fn root(&self) -> u64 {
        0
    }

    fn tail_hash(&self, _: usize, _: u16) -> Option<u64> {
        None
    }
}

pub(crate) struct World {
    scenario: Scenario,
    random: Random,
    now: f64,
    nodes: Vec<Node>,
    sessions: Vec<Session>,
    buckets: Vec<Vec<Event>>,
    index: CompactIndex,
    starts: Starts,
    seen_systems: Vec<bool>,
    outcome: Outcome,
    // Reused from turn to turn.
    hashes: Vec<u64>,
    found: Vec<Match>,
    expected: Vec<Expected>,
    dropped: Vec<(u64, Vec<u32>)>,
}

/// A row of a conversation begins at this block.
fn key(conversation: u64, first: u32) -> Key {
    let mut bytes = [0; 32];
    for (place, byte) in bytes.iter_mut().zip(mix(conversation ^ u64::from(first)).to_be_bytes()) {
        *place = byte;
    }
    Key::from_bytes(bytes)
}

fn system_name(system: u32) -> u64 {
    mix(u64::from(system) + 1)
}

impl World {
    pub(crate) fn new(scenario: Scenario) -> Self {
        let mut random = Random(scenario.seed);
        let most_tokens = (CACHE / scenario.bytes_per_token) as u64;
        let nodes = (0..scenario.nodes).map(|_| Node::new(rates(&scenario), most_tokens)).collect();
        let sessions = (0..scenario.sessions).map(|_| Session::fresh(&mut random)).collect();
        let buckets = (0..(scenario.seconds / BUCKET) as usize + 1).map(|_| Vec::new()).collect();
        let mut world = Self {
            random,
            now: 0.0,
            nodes,
            sessions,
            buckets,
            index: CompactIndex::new(200_000_000),
            starts: Starts::default(),
            seen_systems: vec![false; 4_096],
            outcome: Outcome { first_tokens: vec![0; 100_000], ..Outcome::default() },
            hashes: Vec::new(),
            found: Vec::new(),
            expected: Vec::new(),
            dropped: Vec::new(),
            scenario,
        };
        world.fill();
        world.plan_faults();
        world
    }

    /// Sessions begin somewhere in the middle, on nodes that have their past.
    fn fill(&mut self) {
        for place in 0..self.sessions.len() {
            let node = (mix(place as u64) % self.nodes.len() as u64) as u32;
            let mut session = self.sessions[place];
            for _ in 0..1 + self.random.below(24) {
                session.turn(&mut self.random);
            }
            session.last = node;
            self.seen_systems[session.system as usize] = true;
            self.sessions[place] = session;
            self.keep(node, &session, session.tokens, true);
            let at = self.random.unit() * PAUSE;
            self.at(at, Event::Turn(place as u32));
        }
    }

    fn plan_faults(&mut self) {
        let count = self.nodes.len();
        if self.scenario.churn > 0.0 {
            let all = self.scenario.churn * count as f64 * self.scenario.seconds / 3600.0;
            for _ in 0..all.round().max(1.0) as usize {
                let node = self.random.below(count) as u32;
                let at = self.random.unit() * self.scenario.seconds;
                self.at(at, Event::Leave(node));
                self.at(at + REPLACED, Event::Return(node));
            }
        }
        if let Some((when, long)) = self.scenario.partition {
            let at = when * self.scenario.seconds;
            for node in 0..(count / 10) as u32 {
                self.at(at, Event::Leave(node));
                self.at(at + long, Event::Return(node));
            }
        }
    }

    fn at(&mut self, time: f64, event: Event) {
        let time = time.max(self.now + BUCKET);
        if let Some(bucket) = self.buckets.get_mut((time / BUCKET) as usize) {
            bucket.push(event);
        }
    }

    pub(crate) fn run(mut self) -> Outcome {
        for place in 0..self.buckets.len() {
            self.now = place as f64 * BUCKET;
            for event in std::mem::take(&mut self.buckets[place]) {
                match event {
                    Event::Turn(session) => self.turn(session),
                    Event::Ended { node, session } => {
                        let load = &mut self.nodes[node as usize].member.load;
                        load.running = load.running.saturating_sub(1);
                        if self.nodes[node as usize].alive {
                            self.keep(node, &session, session.tokens, false);
                        }
                    }
                    Event::Announced { node, row } => {
                        if self.nodes[node as usize].alive {
                            self.index.insert(Slot(node), &row);
                        }
                    }
                    Event::Leave(node) => self.leave(node),
                    Event::Return(node) => self.come_back(node),
                }
            }
        }
        self.outcome.work = self.nodes.iter().map(|node| node.work).collect();
        self.outcome
    }

    fn leave(&mut self, node: u32) {
        self.nodes[node as usize].alive = false;
        self.index.remove_node(Slot(node));
        self.starts.remove_node(Slot(node));
        if self.scenario.partition.is_none() {
            self.nodes[node as usize].restart(self.now);
        }
    }

    /// The router asks for all rows of a node that is there again.
    fn come_back(&mut self, node: u32) {
        self.nodes[node as usize].alive = true;
        let sessions = std::mem::take(&mut self.sessions);
        for session in &sessions {
            let kept = self.nodes[node as usize].kept.get(&session.conversation);
            let Some(cuts) = kept.map(|kept| kept.cuts.clone()) else { continue };
            self.announce_range(node, session, &cuts);
            let shared = session.system_tokens / self.scenario.block_tokens;
            if self.nodes[node as usize].has(system_name(session.system)) > 0 {
                let row = self.row(session, system_name(session.system), 0, shared);
                self.index.insert(Slot(node), &row);
            }
        }
        self.sessions = sessions;
    }

    fn announce_range(&mut self, node: u32, session: &Session, cuts: &[u32]) {
        for pair in cuts.windows(2) {
            let row = self.row(session, session.conversation, pair[0], pair[1]);
            self.index.insert(Slot(node), &row);
        }
    }

    fn row(&mut self, session: &Session, of: u64, first: u32, end: u32) -> Row {
        session.blocks(end, self.scenario.block_tokens, &mut self.hashes);
        let blocks = self.hashes[first as usize..].to_vec();
        Row { key: key(of, first), parent: None, blocks, boundaries: Vec::new(), tier: Tier::Ram, bytes: 0 }
    }

    /// A node has a conversation now, and announces what is new.
    fn keep(&mut self, node: u32, session: &Session, tokens: u32, arrives: bool) {
        let size = self.scenario.block_tokens;
        let shared = session.system_tokens / size;
        let mut dropped = std::mem::take(&mut self.dropped);
        let place = node as usize;
        let system = system_name(session.system);
        let (from, to) = self.nodes[place].keep(system, shared * size, (0, shared), &mut dropped);
        let rows = [
            (system, (from, to)),
            (
                session.conversation,
                self.nodes[place].keep(session.conversation, tokens, (shared, tokens / size), &mut dropped),
            ),
        ];
        for (of, (first, end)) in rows {
            if end <= first {
                continue;
            }
            let row = self.row(session, of, first, end);
            if arrives || self.random.unit() >= self.scenario.lost {
                self.starts.announced(Slot(node), &row.blocks);
                self.index.insert(Slot(node), &row);
            } else if self.scenario.repairs {
                let at = self.now + REPAIR;
                self.at(at, Event::Announced { node, row: Box::new(row) });
            }
        }
        for (of, cuts) in dropped.drain(..) {
            for first in cuts.iter().take(cuts.len().saturating_sub(1)) {
                self.index.remove(Slot(node), &key(of, *first));
            }
        }
        self.dropped = dropped;
    }

    /// Tokens that a node really has of a turn.
    fn truth(&self, node: u32, session: &Session, turn: &Turn) -> u32 {
        let node = &self.nodes[node as usize];
        let kept = node.has(session.conversation).min(turn.prompt);
        if kept > 0 { kept } else { node.has(system_name(session.system)).min(turn.prompt) }
    }

    fn turn(&mut self, place: u32) {
        let mut session = self.sessions[place as usize];
        let turn = session.turn(&mut self.random);
        let pause = self.random.exponential(PAUSE);
        let number = self.random.next();
        let Some((node, source)) = self.route(&session, &turn, number) else {
            self.outcome.refused += 1;
            self.at(self.now + pause, Event::Turn(place));
            return;
        };
        let own = self.truth(node, &session, &turn);
        let (mut hit, mut wait) = (own, f64::from(own) * self.scenario.bytes_per_token / 20e9);
        let mut pulled = 0;
        if let Source::Peer(peer) = source {
            let there = self.truth(peer.0, &session, &turn);
            if there > own && self.nodes[peer.0 as usize].alive {
                let rates = self.nodes[node as usize].member.rates;
                (hit, pulled) = (there, there);
                // Both lines carry it, one transfer after the other.
                let sending = f64::from(there) * rates.bytes_per_token / rates.peer_bytes;
                let free = self.nodes[node as usize].line_until.max(self.nodes[peer.0 as usize].line_until);
                let arrives = free.max(self.now) + sending;
                self.nodes[node as usize].line_until = arrives;
                self.nodes[peer.0 as usize].line_until = arrives;
                wait = rates.remote_delay + arrives - self.now;
            }
        }
        let served = &mut self.nodes[node as usize];
        let computing = f64::from(turn.prompt - hit) / served.member.rates.prefill_tokens;
        // Another prompt is computed while a state is on its way.
        let queued = (served.busy_until - self.now).max(0.0);
        served.busy_until = served.busy_until.max(self.now) + computing;
        let first_token = queued.max(wait) + computing;
        served.member.load.running += 1;
        let step =
            served.member.rates.decode_step + f64::from(served.member.load.running) * served.member.rates.decode_stream;
        let ends = self.now + first_token + f64::from(turn.reply) * step;
        session.last = node;
        self.at(ends, Event::Ended { node, session });
        self.at(ends + pause, Event::Turn(place));
        let fresh = turn.known == 0;
        let infinite = if !fresh {
            turn.known
        } else if self.seen_systems[session.system as usize] {
            session.system_tokens / self.scenario.block_tokens * self.scenario.block_tokens
        } else {
            0
        };
        self.seen_systems[session.system as usize] = true;
        if self.now > WARM_UP {
            self.nodes[node as usize].work += computing + f64::from(turn.reply) / 20_000.0;
            self.outcome.turns += 1;
            self.outcome.hit_tokens += u64::from(hit);
            self.outcome.pulled_tokens += u64::from(pulled);
            self.outcome.infinite_tokens += u64::from(infinite);
            let bucket = ((first_token / BUCKET) as usize).min(self.outcome.first_tokens.len() - 1);
            self.outcome.first_tokens[bucket] += 1;
        }
        self.sessions[place as usize] = session;
    }

    /// The node that serves a turn, and where it takes the prefix from.
    fn route(&mut self, session: &Session, turn: &Turn, number: u64) -> Option<(u32, Source)> {
        let count = self.nodes.len();
        let alive = |world: &Self, node: u32| world.nodes.get(node as usize).is_some_and(|node| node.alive);
        if self.scenario.routing == Routing::Sticky && alive(self, session.last) {
            return Some((session.last, Source::Local));
        }
        if self.scenario.routing != Routing::Cost {
            let mut tried = (0..100_u64).map(|try_| (mix(number.wrapping_add(try_)) % count as u64) as u32);
            return tried.find(|node| alive(self, *node)).map(|node| (node, Source::Local));
        }
        let size = self.scenario.block_tokens;
        session.blocks(turn.prompt / size, size, &mut self.hashes);
        self.index.find(&Blocks(&self.hashes), 8, &mut self.found);
        self.starts.find(&self.hashes, size, self.now, &mut self.expected);
        let first = self.hashes.first().copied().unwrap_or_default();
        let sample = Sample { by_prefix: 4, by_request: 4 };
        let mut sampled = sample.places(first, number, count).map(|place| Slot(place as u32));
        self.index.held(&Blocks(&self.hashes), &mut sampled, &mut self.found);
        let mut listed: Vec<(u32, Option<Held>)> = Vec::with_capacity(20);
        for one in &self.found {
            listed.push((one.node.0, Some(Held { tokens: one.tokens(size, true), tier: one.tier })));
        }
        let others = self.expected.iter().map(|one| one.node.0);
        for node in others.chain(sample.places(first, number, count).map(|place| place as u32)) {
            if !listed.iter().any(|(known, _)| *known == node) {
                listed.push((node, None));
            }
        }
        listed.retain(|(node, _)| alive(self, *node));
        let now = self.now;
        for (node, _) in &listed {
            let node = &mut self.nodes[*node as usize];
            let (rates, load) = (node.member.rates, &mut node.member.load);
            load.backlog_tokens = (node.busy_until - now).max(0.0) * rates.prefill_tokens;
            load.line_bytes = (node.line_until - now).max(0.0) * rates.peer_bytes;
        }
        let candidates: Vec<Candidate<'_>> = listed
            .iter()
            .map(|(node, held)| Candidate {
                node: Slot(*node),
                member: &self.nodes[*node as usize].member,
                held: *held,
                // A row is announced with the reply that made it.
                live: 0,
            })
            .collect();
        let ask = Ask { tokens: turn.prompt, reply_tokens: 343 };
        let all = self.nodes.iter().map(|node| &node.member);
        let decision = choose(&ask, &candidates, 0, &self.expected, first, all).ok()?;
        let cold_from = (decision.cost.from_cache / size) as usize;
        if self.hashes.len() > cold_from + 2
            && let Some(new) = self.hashes.get(cold_from..)
        {
            let ready = now + decision.cost.first_token();
            self.starts.begin(decision.node, new, now, ready);
        }
        Some((decision.node.0, decision.cost.source))
    }
}
