//! A router's side: follows all nodes and chooses one for each request.
//!
//! Knows only what was sealed with the cluster key. A router that has just started reads the registry, asks the nodes it
//! was given by hand, and serves with what it knows meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use poncho_kinds::Key;
use tokio::sync::watch as signal;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::awaited::Awaited;
use super::corrections::{BeatNumber, Corrections, RequestId, Underway};
use super::{Bus, BusError, Heard, Topic, frames};
use crate::blocks::{BLOCK_TOKENS, BlockHasher};
use crate::hints::{
    Action, Answer, Beat, Changes, Directory, Drain, Known, ModelBeat, Question, Timing, decode, encode,
};
use crate::index::{CompactIndex, Match, PrefixIndex, Slot};
use crate::member::{Member, Rates, fill_unmeasured};
use crate::route::{Ask, Candidate, Cost, Dispatch, Held, PromptEnd, Refusal, StartId, choose, retry_after};
use crate::seal::{ClusterKey, Opener, Sealer};

/// Between two looks at who is silent or behind.
const TICK: Duration = Duration::from_millis(200);
/// Entries of the index: about a gigabyte.
const MOST_ENTRIES: usize = 16_000_000;
/// Nodes up to which all are weighed for each request.
const FEW_NODES: usize = 256;
/// How much later than a router a node may learn of rows.
const HEARD: Duration = Duration::from_millis(50);
/// Shorter prompts are not worth a note of who computes them.
const LEAST_START: u32 = 512;

/// A prompt as the router sees it.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// The name of the model.
    pub model: &'a str,
    /// What the row must be interchangeable with: the model's namespace, with the tenant if it is isolated.
    pub namespace: &'a [u8; 32],
    /// The tokens.
    pub tokens: &'a [u32],
    /// Tokens that the reply will probably have.
    pub reply_tokens: u32,
}

/// The node that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// Its name.
    pub node: String,
    /// Where requests reach it.
    pub address: String,
    /// Its place.
    pub slot: Slot,
    /// What the request costs there.
    pub cost: Cost,
    /// What it costs on all nodes that were weighed, by name, the cheapest first.
    pub considered: Vec<(String, Cost)>,
    /// The note that it computes the prefix.
    pub start: Option<StartId>,
    /// The prefix that it pulls, if another node computes that at the moment.
    pub awaited: Option<Awaited>,
    /// Where the prompt ends; `None` if it has less than a block.
    pub end: Option<PromptEnd>,
    /// The note that it was sent.
    request: Option<RequestId>,
}

/// See the module. Ends when it is dropped.
pub struct Lookout {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

impl std::fmt::Debug for Lookout {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Lookout")
    }
}

struct Shared {
    directory: Mutex<Directory<CompactIndex>>,
    sealer: Sealer,
    opener: Opener,
    hasher: BlockHasher,
    began: Instant,
    /// What was sent and done since the last beats of nodes.
    sent: Mutex<Corrections>,
    /// Whether the registry was read.
    is_settled: signal::Sender<bool>,
    /// Changes with each announcement, and when a node stops computing a prefix.
    news: signal::Sender<()>,
}

impl Shared {
    fn directory(&self) -> std::sync::MutexGuard<'_, Directory<CompactIndex>> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Takes a message in, if it was sealed with the key for that node.
    fn hear(&self, heard: &Heard) {
        let purpose = format!("{}/{}", heard.topic.as_str(), heard.node);
        let Ok(plain) = self.opener.open(&purpose, &heard.sealed) else {
            tracing::debug!(node = heard.node, "a message without the cluster key was dropped");
            return;
        };
        match heard.topic {
            Topic::Beat => {
                if let Ok(beat) = decode::<Beat>(&plain)
                    && beat.node == heard.node
                {
                    self.directory().beat(beat, self.now());
                }
            }
            Topic::Rows => {
                if let Ok(changes) = decode::<Changes>(&plain)
                    && changes.node == heard.node
                {
                    self.directory().changes(&changes);
                    self.news.send_replace(());
                }
            }
        }
    }

    fn last_beat(&self, node: Slot) -> Option<BeatNumber> {
        self.directory().at(node).map(|known| known.beat.number())
    }

    fn sent(&self) -> std::sync::MutexGuard<'_, Corrections> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, address: &str, question: Question) -> Result<Answer, BusError> {
        let failed = |reason: String| BusError::Ask { address: address.to_owned(), reason };
        let plain = encode(&question).map_err(|error| failed(error.to_string()))?;
        let sealed = frames::ask(address, &self.sealer.seal("ask", &plain)).await?;
        let opened = self.opener.open(&format!("answer/{}", question.nonce), &sealed);
        decode(&opened.map_err(|error| failed(error.to_string()))?).map_err(|error| failed(error.to_string()))
    }
}

impl Lookout {
    /// Follows the cluster of a key. `seeds` are addresses of nodes' question sockets that are asked even without a bus.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub fn start(key: &ClusterKey, bus: Option<Arc<dyn Bus>>, seeds: Vec<String>) -> Result<Self, BusError> {
        let mut first = [0; 8];
        getrandom::fill(&mut first).map_err(|_| crate::seal::KeyError::NoRandom)?;
        let index = CompactIndex::new(MOST_ENTRIES);
        let shared = Arc::new(Shared {
            directory: Mutex::new(Directory::new(index, Timing::default(), u64::from_le_bytes(first) >> 1)),
            sealer: Sealer::new(key)?,
            opener: Opener::new(key.clone()),
            hasher: key.hasher(),
            began: Instant::now(),
            sent: Mutex::default(),
            is_settled: signal::Sender::new(bus.is_none()),
            news: signal::Sender::new(()),
        });
        let mut tasks = JoinSet::new();
        if let Some(bus) = bus {
            tasks.spawn(listen(Arc::clone(&shared), bus));
        }
        tasks.spawn(watch(Arc::clone(&shared), seeds));
        Ok(Self { shared, _tasks: tasks })
    }

    /// The nodes that live, with their models, in the order of their names.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Beat, bool)> {
        self.shared.directory().nodes().map(|known| (known.beat.clone(), known.is_current())).collect()
    }

    /// The place of the node that serves requests at an address.
    #[must_use]
    pub fn slot_at(&self, address: &str) -> Option<Slot> {
        let directory = self.shared.directory();
        directory.nodes().find(|known| known.beat.address == address).map(|known| known.slot)
    }

    /// Waits until the registry was read, or could not be.
    pub async fn settled(&self) {
        // The sender lives as long as `self`.
        let _ = self.shared.is_settled.subscribe().wait_for(|is_settled| *is_settled).await;
    }

    /// Asks a node to take no more requests.
    ///
    /// # Errors
    ///
    /// It is not known, or it does not answer.
    pub async fn drain(&self, node: &str) -> Result<(), BusError> {
        let known = self.shared.directory().node(node).map(|known| (known.beat.hints.clone(), known.beat.incarnation));
        let (address, incarnation) = known.ok_or_else(|| BusError::NoNode { node: node.to_owned() })?;
        let failed = |reason: String| BusError::Ask { address: address.clone(), reason };
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(|_| crate::seal::KeyError::NoRandom)?;
        let drain = Drain { node: node.to_owned(), incarnation, nonce: u64::from_le_bytes(nonce) };
        let plain = encode(&drain).map_err(|error| failed(error.to_string()))?;
        let sealed = frames::ask(&address, &self.shared.sealer.seal("drain", &plain)).await?;
        let opened = self.shared.opener.open(&format!("drained/{}", drain.nonce), &sealed);
        opened.map(drop).map_err(|error| failed(error.to_string()))
    }

    /// The nodes that serve one of these rows, with the address at which others pull it: for each node the first row in
    /// this order.
    #[must_use]
    pub fn holders(&self, keys: &[Key]) -> Vec<(String, Key)> {
        let directory = self.shared.directory();
        let held = |known: &Known| {
            let address = known.beat.rows.clone()?;
            let key = keys.iter().find(|key| directory.index().holds(known.slot, key))?;
            Some((address, *key))
        };
        directory.nodes().filter_map(held).collect()
    }

    /// Rows that are known.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shared.directory().index().size().rows
    }

    /// Chooses the node for a prompt among those that `dispatch` has not tried. Notes that it computes the prompt, if it
    /// does; without `notes` nothing is changed, which is what an explanation wants.
    ///
    /// # Errors
    ///
    /// No node has the model and takes requests.
    pub fn choose(&self, prompt: &Prompt<'_>, dispatch: &Dispatch, notes: bool) -> Result<Chosen, Refusal> {
        self.choose_among(prompt, dispatch, notes, |_, _| true)
    }

    /// The same, among nodes and models that the caller can use.
    ///
    /// # Errors
    ///
    /// As [`Lookout::choose`].
    pub fn choose_among(
        &self,
        prompt: &Prompt<'_>,
        dispatch: &Dispatch,
        notes: bool,
        is_usable: impl Fn(&Beat, &ModelBeat) -> bool,
    ) -> Result<Chosen, Refusal> {
        let hashes = self.shared.hasher.prefix(prompt.namespace, prompt.tokens);
        let now = self.shared.now();
        let mut directory = self.shared.directory();
        let mut sent = self.shared.sent();
        let member = |model: &ModelBeat, known: &Known| {
            let load = sent.corrected(known.slot, known.beat.number(), now - known.heard, model);
            Member { state: known.beat.state, rates: model.rates, load }
        };
        let mut members: Vec<(Slot, Member, bool)> = directory
            .nodes()
            .filter(|known| dispatch.may_try(known.slot))
            .filter_map(|known| {
                let model = known.beat.models.iter().find(|model| model.name == prompt.model)?;
                let usable = is_usable(&known.beat, model);
                usable.then(|| (known.slot, member(model, known), model.can_cut))
            })
            .collect();
        let mut rates: Vec<&mut Rates> = members.iter_mut().map(|(_, member, _)| &mut member.rates).collect();
        fill_unmeasured(&mut rates);
        let mut found: Vec<Match> = Vec::new();
        directory.index().find(&hashes, FEW_NODES, &mut found);
        let mut expected = Vec::new();
        let block_tokens = u32::try_from(BLOCK_TOKENS).unwrap_or(u32::MAX);
        directory.starts().find(hashes.blocks(), block_tokens, now, &mut expected);
        let tokens = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
        let lately = directory.live().find(hashes.blocks(), block_tokens, tokens, now);
        let candidates: Vec<Candidate<'_>> = members
            .iter()
            .map(|(node, member, can_cut)| {
                let held = found.iter().find(|one| one.node == *node);
                let held = held.map(|one| Held { tokens: one.tokens(block_tokens, *can_cut), tier: one.tier });
                let live = lately.iter().find(|(lately, _)| lately == node).map_or(0, |(_, tokens)| *tokens);
                Candidate { node: *node, member, held: held.filter(|held| held.tokens > 0), live }
            })
            .collect();
        let ask = Ask { tokens, reply_tokens: prompt.reply_tokens };
        let tie = hashes.blocks().first().copied().unwrap_or_default();
        let all = || members.iter().map(|(_, member, _)| member);
        let decision = choose(&ask, &candidates, 0, &expected, tie, all())?;
        let computed = tokens.saturating_sub(decision.cost.from_cache);
        let awaited = Awaited::of(&decision.cost, &found, &expected, hashes.blocks());
        let cold = hashes.blocks().get((decision.cost.from_cache / block_tokens) as usize..).unwrap_or_default();
        let start = (notes && computed >= LEAST_START && !cold.is_empty())
            .then(|| directory.starts().begin(decision.node, cold, now, now + decision.cost.first_token()));
        let name_of = |slot| directory.at(slot).map(|known| known.beat.node.clone());
        let considered = decision.considered.iter().filter_map(|one| Some((name_of(one.node)?, one.cost))).collect();
        let Some(known) = directory.at(decision.node) else { return Err(retry_after(all(), 0)) };
        let (node, address) = (known.beat.node.clone(), known.beat.address.clone());
        let after = Some(known.beat.number()).filter(|_| awaited.is_none());
        let underway = Underway { node: decision.node, after, tokens: f64::from(computed), prompt: f64::from(tokens) };
        let request = notes.then(|| sent.begin(underway));
        tracing::debug!(node, tokens, cost = ?decision.cost, "a node was chosen");
        let end = hashes.blocks().last().map(|block| PromptEnd { block: *block, tokens });
        let (slot, cost) = (decision.node, decision.cost);
        Ok(Chosen { node, address, slot, cost, considered, start, awaited, end, request })
    }

    /// When a place for a request of a model will probably be free.
    #[must_use]
    pub fn retry_after(&self, model: &str) -> Refusal {
        let directory = self.shared.directory();
        let members: Vec<Member> = directory
            .nodes()
            .filter_map(|known| {
                let model = known.beat.models.iter().find(|found| found.name == model)?;
                Some(Member { state: known.beat.state, rates: model.rates, load: model.load })
            })
            .collect();
        retry_after(members.iter(), 0)
    }

    /// Waits until the chosen node can pull its prefix, or until nobody computes that prefix. The wait is at most twice the
    /// expected time. A request that is sent earlier makes the node compute the prefix itself.
    pub async fn ready(&self, chosen: &Chosen) {
        let Some(awaited) = &chosen.awaited else { return };
        self.wait_for(awaited, chosen).await;
        if let Some((request, beat)) = chosen.request.zip(self.shared.last_beat(chosen.slot)) {
            self.shared.sent().sent(request, beat);
        }
    }

    async fn wait_for(&self, awaited: &Awaited, chosen: &Chosen) {
        let (until, mut news) = (Instant::now() + awaited.longest(), self.shared.news.subscribe());
        while awaited.is_computed(self.shared.directory().starts(), self.shared.now()) {
            if tokio::time::timeout_at(until, news.changed()).await.is_err() {
                return tracing::debug!(node = chosen.node, "a prefix that another node computes is not there yet");
            }
        }
        // The node learns of the rows from the same bus.
        tokio::time::sleep(HEARD).await;
    }

    /// The node has computed the prompt: the next turn of the conversation finds it there.
    pub fn computed(&self, chosen: &Chosen) {
        if let Some(end) = chosen.end {
            self.shared.directory().live().note(chosen.slot, end, self.shared.now());
        }
        if let Some((request, beat)) = chosen.request.zip(self.shared.last_beat(chosen.slot)) {
            self.shared.sent().computed(request, beat);
        }
    }

    /// A request that was chosen has ended, or its node announced it.
    pub fn ended(&self, chosen: &Chosen) {
        if let Some(request) = chosen.request {
            let beat = self.shared.last_beat(chosen.slot);
            self.shared.sent().ended(request, beat);
        }
        if let Some(start) = chosen.start {
            self.shared.directory().starts().end(start);
            self.shared.news.send_replace(());
        }
    }
}

async fn listen(shared: Arc<Shared>, bus: Arc<dyn Bus>) {
    for heard in bus.registered().await {
        shared.hear(&heard);
    }
    shared.is_settled.send_replace(true);
    loop {
        shared.hear(&bus.next().await);
    }
}

async fn watch(shared: Arc<Shared>, seeds: Vec<String>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut asked = JoinSet::new();
    let mut number = 0_u64;
    loop {
        ticks.tick().await;
        while asked.try_join_next().is_some() {}
        let actions = shared.directory().tick(shared.now());
        // Of nodes that are gone, too.
        shared.news.send_replace(());
        for action in actions {
            match action {
                Action::Ask { node, hints, question } => {
                    let shared = Arc::clone(&shared);
                    asked.spawn(async move {
                        match shared.ask(&hints, question).await {
                            Ok(answer) if answer.beat.node == node => {
                                shared.directory().answered(&answer, shared.now())
                            }
                            Ok(_) => tracing::warn!(node, hints, "another node answers at its address"),
                            Err(error) => tracing::debug!(node, %error, "a node was not asked"),
                        }
                    });
                }
                Action::Gone { node, .. } => tracing::warn!(node, "a node is gone"),
            }
        }
        number += 1;
        // Once in a second is enough for nodes that nobody announced.
        if number % 5 != 1 {
            continue;
        }
        for seed in &seeds {
            if shared.directory().nodes().any(|known| known.beat.hints == *seed) {
                continue;
            }
            let (shared, seed) = (Arc::clone(&shared), seed.clone());
            asked.spawn(async move {
                let question = Question { incarnation: None, since: 0, base: 0, nonce: number };
                if let Ok(answer) = shared.ask(&seed, question).await {
                    shared.directory().beat(answer.beat, shared.now());
                }
            });
        }
    }
}
