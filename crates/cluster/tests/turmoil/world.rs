//! Nodes, routers and requests of one run, and what must be true of them.

use std::collections::{BTreeMap, BTreeSet};

use poncho_cluster::blocks::Lookup;
use poncho_cluster::hints::{
    Action, Announcer, Answer, Beat, Changes, Directory, Incarnation, ModelBeat, Question, Timing,
};
use poncho_cluster::index::{CompactIndex, Match, PrefixIndex, Row, Slot};
use poncho_cluster::member::{Member, State};
use poncho_cluster::route::{Ask, Attempt, Candidate, Dispatch, Expected, Held, Step, choose};
use poncho_kinds::{Key, Tier};

use super::network::{Network, Random};
use crate::support::idle;

const ROUTERS: usize = 2;
/// Prompts are made of these conversations, of at most as many blocks.
const FAMILIES: u64 = 6;
const LONGEST: u64 = 4;
const STEP: u64 = 250;
/// Milliseconds of faults, and then of peace.
const FAULTS: u64 = 12_000;
const PEACE: u64 = 9_000;
/// Milliseconds after which a request counts as lost.
const PATIENCE: u64 = 4_000;

const TIMING: Timing = Timing { ask_silent: 1.5, gone: 4.0, ask_again: 0.7 };

#[derive(Debug, Clone)]
enum Message {
    Beat(Beat),
    Changes(Changes),
    Ask(Question),
    Answer(Box<Answer>),
    Request {
        id: u64,
        prompt: Vec<u64>,
    },
    /// What the node computed, and the blocks that it took from its own cache.
    Reply {
        id: u64,
        prompt: Vec<u64>,
        reused: usize,
    },
}

#[derive(Debug, Clone)]
struct Sent {
    router: usize,
    node: usize,
    /// To the router, or to the node.
    up: bool,
    message: Message,
}

struct Prompt<'a>(&'a [u64]);

impl Lookup for Prompt<'_> {
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

fn prompt(family: u64, length: u64) -> Vec<u64> {
    (1..=length).map(|block| family * 1_000 + block).collect()
}

fn row(family: u64, length: u64) -> Row {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(family * 100 + length).to_be_bytes());
    let (key, blocks) = (Key::from_bytes(bytes), prompt(family, length));
    Row { key, parent: None, blocks, boundaries: Vec::new(), tier: Tier::Ram, bytes: 1 }
}

struct Node {
    name: String,
    announcer: Announcer,
    lives: u64,
    alive: bool,
    /// Everything that it ever announced in any life.
    ever: BTreeSet<u64>,
}

impl Node {
    fn new(place: usize, lives: u64) -> Self {
        let name = format!("node-{place}");
        let incarnation = Incarnation { started_ms: lives, random: 0 };
        let announcer = Announcer::new(&name, "address", "hints", incarnation, 4);
        Self { name, announcer, lives, alive: true, ever: BTreeSet::new() }
    }

    fn truth(&self, prompt: &[u64]) -> usize {
        let held: BTreeSet<u64> = self.announcer.rows().flat_map(|row| row.blocks.iter().copied()).collect();
        prompt.iter().take_while(|block| held.contains(block)).count()
    }
}

struct Pending {
    dispatch: Dispatch,
    prompt: Vec<u64>,
    /// The node that has it, and since when.
    at: Option<(Slot, usize, u64)>,
}

struct Router {
    directory: Directory<CompactIndex>,
    requests: BTreeMap<u64, Pending>,
}

impl Router {
    /// Questions of two lives must not have the same numbers: with equal ones, an answer to the earlier life's question is
    /// taken for a whole one, and rows are missing for good (seed 1262).
    fn new(first: u64) -> Self {
        let directory = Directory::new(CompactIndex::new(100_000), TIMING, first);
        Self { directory, requests: BTreeMap::new() }
    }
}

pub(super) struct World {
    seed: u64,
    random: Random,
    now: u64,
    nodes: Vec<Node>,
    routers: Vec<Router>,
    network: Network<Sent>,
    next_request: u64,
    ended: u64,
    abandoned: u64,
}

fn models() -> Vec<ModelBeat> {
    vec![idle([0; 32], 8, 1e9)]
}

impl World {
    pub(super) fn new(seed: u64, nodes: usize) -> Self {
        let mut random = Random(seed);
        let network = Network::new(&mut random);
        let routers = (0..ROUTERS).map(|_| Router::new(random.next())).collect();
        Self {
            seed,
            random,
            now: 0,
            nodes: (0..nodes).map(|place| Node::new(place, 1)).collect(),
            routers,
            network,
            next_request: 0,
            ended: 0,
            abandoned: 0,
        }
    }

    /// Runs it to the end and checks everything. Returns the number of requests.
    pub(super) fn run(mut self) -> u64 {
        while self.now < FAULTS {
            self.faults();
            self.life();
            self.step();
        }
        self.network.heal();
        for node in &mut self.nodes {
            node.alive = true;
        }
        while self.now < FAULTS + PEACE {
            self.step();
        }
        self.check();
        self.next_request
    }

    fn faults(&mut self) {
        let random = &mut self.random;
        if random.happens(60) {
            let place = random.below(self.nodes.len());
            let node = &mut self.nodes[place];
            if node.alive && random.happens(500) {
                node.alive = false;
            } else {
                // A new process: what it kept on disk, it announces again.
                let kept: Vec<Row> =
                    node.announcer.rows().filter(|row| row.blocks[0].is_multiple_of(2)).cloned().collect();
                let mut next = Node::new(place, node.lives + 1);
                next.ever = std::mem::take(&mut node.ever);
                for row in kept {
                    let _nobody_listens = next.announcer.stored(row);
                }
                *node = next;
            }
        }
        if random.happens(20) {
            let router = random.below(ROUTERS);
            let until = self.now + random.next() % 6_000;
            for node in 0..self.nodes.len() {
                if random.happens(500) {
                    self.network.cut(router, node, until);
                }
            }
        }
        if random.happens(10) {
            self.network.bus_away_until = self.now + random.next() % 6_000;
        }
        if random.happens(8) {
            let router = random.below(ROUTERS);
            // Its clients see the connection end; they are not the router's to answer.
            self.abandoned += self.routers[router].requests.len() as u64;
            self.routers[router] = Router::new(random.next());
        }
    }

    /// Nodes store and drop rows, clients send requests.
    fn life(&mut self) {
        for _ in 0..4 {
            let place = self.random.below(self.nodes.len());
            let new = row(self.random.next() % FAMILIES, 1 + self.random.next() % LONGEST);
            let node = &mut self.nodes[place];
            if !node.alive {
                continue;
            }
            let changes = if self.random.happens(600) {
                node.ever.extend(&new.blocks);
                Some(node.announcer.stored(new))
            } else {
                node.announcer.removed(&new.key)
            };
            if let Some(changes) = changes {
                self.publish(place, &Message::Changes(changes));
            }
        }
        let router = self.random.below(ROUTERS);
        let prompt = prompt(self.random.next() % FAMILIES, 1 + self.random.next() % LONGEST);
        let id = self.next_request;
        self.next_request += 1;
        self.routers[router].requests.insert(id, Pending { dispatch: Dispatch::new(), prompt, at: None });
    }

    fn publish(&mut self, node: usize, message: &Message) {
        if self.now < self.network.bus_away_until {
            return;
        }
        for router in 0..ROUTERS {
            self.send(router, node, true, message);
        }
    }

    fn send(&mut self, router: usize, node: usize, up: bool, message: &Message) {
        let sent = Sent { router, node, up, message: message.clone() };
        self.network.send(&mut self.random, self.now, (router, node), &sent);
    }

    fn step(&mut self) {
        self.now += STEP;
        if self.now.is_multiple_of(1_000) {
            for place in 0..self.nodes.len() {
                if self.nodes[place].alive {
                    let beat = self.nodes[place].announcer.beat(State::Up, models());
                    self.publish(place, &Message::Beat(beat));
                }
            }
        }
        while let Some(sent) = self.network.receive(self.now) {
            if sent.up { self.router_gets(sent) } else { self.node_gets(sent) }
        }
        for router in 0..ROUTERS {
            let now = self.seconds();
            for action in self.routers[router].directory.tick(now) {
                match action {
                    Action::Ask { node, question, .. } => {
                        let place = self.nodes.iter().position(|one| one.name == node).unwrap();
                        self.send(router, place, false, &Message::Ask(question));
                    }
                    Action::Gone { slot, .. } => self.lose(router, slot),
                }
            }
            self.dispatch(router);
        }
    }

    fn seconds(&self) -> f64 {
        self.now as f64 / 1_000.0
    }

    fn router_gets(&mut self, sent: Sent) {
        let now = self.seconds();
        let router = &mut self.routers[sent.router];
        match sent.message {
            Message::Beat(beat) => router.directory.beat(beat, now),
            Message::Changes(changes) => router.directory.changes(&changes),
            Message::Answer(answer) => router.directory.answered(&answer, now),
            Message::Reply { id, prompt, reused } => {
                let Some(pending) = router.requests.get_mut(&id) else { return };
                // A node that the router gave up on may still answer: that reply is not sent to the client.
                let Some((slot, node, _)) = pending.at.filter(|(_, node, _)| *node == sent.node) else { return };
                assert_eq!(prompt, pending.prompt, "seed {}: a reply to another prompt", self.seed);
                assert!(reused <= prompt.len() && node < self.nodes.len());
                assert_eq!(pending.dispatch.attempted(slot, Attempt::Done), Step::Done);
                router.requests.remove(&id);
                self.ended += 1;
            }
            Message::Ask(_) | Message::Request { .. } => {}
        }
    }

    fn node_gets(&mut self, sent: Sent) {
        let node = &mut self.nodes[sent.node];
        if !node.alive {
            return;
        }
        let answer = match sent.message {
            Message::Ask(question) => Message::Answer(Box::new(node.announcer.answer(&question, State::Up, models()))),
            Message::Request { id, prompt } => {
                // Whatever the router believes: the node looks into its own cache.
                let reused = node.truth(&prompt);
                Message::Reply { id, prompt, reused }
            }
            _ => return,
        };
        self.send(sent.router, sent.node, true, &answer);
    }

    /// A node is gone: its requests go elsewhere.
    fn lose(&mut self, router: usize, slot: Slot) {
        for pending in self.routers[router].requests.values_mut() {
            if pending.at.is_some_and(|(at, _, _)| at == slot) {
                pending.at = None;
                pending.dispatch.attempted(slot, Attempt::Lost);
            }
        }
    }

    fn dispatch(&mut self, router: usize) {
        let ids: Vec<u64> = self.routers[router].requests.keys().copied().collect();
        for id in ids {
            let Some(mut pending) = self.routers[router].requests.remove(&id) else { continue };
            if let Some((slot, _, since)) = pending.at
                && self.now - since > PATIENCE
            {
                pending.at = None;
                pending.dispatch.attempted(slot, Attempt::Unreachable);
            }
            if pending.at.is_none() && pending.dispatch.ended().is_none() {
                self.choose(router, id, &mut pending);
            }
            if pending.dispatch.ended().is_some() {
                self.ended += 1;
            } else {
                self.routers[router].requests.insert(id, pending);
            }
        }
    }

    fn choose(&mut self, router: usize, id: u64, pending: &mut Pending) {
        let directory = &mut self.routers[router].directory;
        let (mut found, mut expected): (Vec<Match>, Vec<Expected>) = (Vec::new(), Vec::new());
        directory.index().find(&Prompt(&pending.prompt), 64, &mut found);
        directory.starts().find(&pending.prompt, 256, self.now as f64 / 1_000.0, &mut expected);
        let members: Vec<(Slot, Member)> = directory
            .nodes()
            .filter(|known| pending.dispatch.may_try(known.slot))
            .filter_map(|known| {
                let model = known.beat.models.first()?;
                Some((known.slot, Member { state: known.beat.state, rates: model.rates, load: model.load }))
            })
            .collect();
        let candidates: Vec<Candidate<'_>> = members
            .iter()
            .map(|(node, member)| {
                let held = found.iter().find(|one| one.node == *node);
                let held = held.map(|one| Held { tokens: one.tokens(256, true), tier: one.tier });
                Candidate { node: *node, member, held, live: 0 }
            })
            .collect();
        let tokens = u32::try_from(pending.prompt.len()).unwrap() * 256;
        let ask = Ask { tokens, reply_tokens: 10 };
        let Ok(decision) = choose(&ask, &candidates, 0, &expected, 7, members.iter().map(|(_, member)| member)) else {
            // It waits for a node while nobody is known: a router that has just started.
            if directory.nodes().count() > 0 {
                pending.dispatch.exhausted();
            }
            return;
        };
        let name = directory.at(decision.node).unwrap().beat.node.clone();
        let place = self.nodes.iter().position(|one| one.name == name).unwrap();
        if let Some(hint) = found.iter().find(|one| one.node == decision.node) {
            let known = pending.prompt.iter().take(hint.blocks as usize);
            let invented: Vec<&u64> = known.filter(|block| !self.nodes[place].ever.contains(block)).collect();
            assert!(invented.is_empty(), "seed {}: {name} never announced {invented:?}", self.seed);
        }
        pending.at = Some((decision.node, place, self.now));
        let message = Message::Request { id, prompt: pending.prompt.clone() };
        self.send(router, place, false, &message);
    }

    /// After a time of peace: everybody knows everything, and no request is left.
    fn check(&self) {
        let seed = self.seed;
        for (number, router) in self.routers.iter().enumerate() {
            let known: BTreeMap<&str, Slot> =
                router.directory.nodes().map(|known| (known.beat.node.as_str(), known.slot)).collect();
            assert_eq!(known.len(), self.nodes.len(), "seed {seed}: router {number} knows all nodes");
            let rows: usize = self.nodes.iter().map(|node| node.announcer.rows().count()).sum();
            assert_eq!(router.directory.index().size().rows, rows, "seed {seed}: router {number} knows all rows");
            for family in 0..FAMILIES {
                let asked = prompt(family, LONGEST);
                let mut found = Vec::new();
                router.directory.index().find(&Prompt(&asked), 1_000, &mut found);
                for node in &self.nodes {
                    let hinted = found.iter().find(|one| one.node == known[node.name.as_str()]);
                    let hinted = hinted.map_or(0, |one| one.blocks as usize);
                    assert_eq!(hinted, node.truth(&asked), "seed {seed}: {} and router {number}", node.name);
                }
            }
            assert_eq!(router.requests.len(), 0, "seed {seed}: requests without an end");
        }
        assert_eq!(self.ended + self.abandoned, self.next_request, "seed {seed}: each request ends once");
    }
}
