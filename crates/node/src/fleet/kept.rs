//! The nodes and models of a fleet, as its models and replies see them.
//!
//! Shared by all parts of `fleet.rs`; only `peer.rs` says which nodes are there. It must never block.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use poncho_api::{EngineError, Generate, ModelReport, NodeModel};
use tokio::sync::watch;
use tokio::time::Instant;

use super::FleetSettings;
use super::choice::{Candidate, choose, conversation};
use crate::lasting::{AdapterChange, Keeper, LastingModel, Poison, Trial, Verdict};
use crate::link::NodeAddress;
use crate::remote::{RemoteModel, RemoteNode};
use crate::tls::Credentials;

/// Nodes that a request may lose without any progress in between.
const MOST_LOSSES: u32 = 5;

/// A node, whether it is there or not.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) address: NodeAddress,
    pub(super) credentials: Option<Arc<Credentials>>,
}

enum State {
    /// Nobody has tried yet.
    Unknown,
    Up(RemoteNode),
    Down(String),
}

/// See the module.
pub(super) struct Kept {
    settings: FleetSettings,
    peers: Vec<Peer>,
    states: Mutex<Vec<State>>,
    models: Mutex<BTreeMap<String, Known>>,
    /// Rises when a node comes or goes.
    changes: watch::Sender<u64>,
}

/// A model that some node has or had.
struct Known {
    handle: Arc<dyn NodeModel>,
    /// Nodes that have it; of those that are gone, what they had.
    nodes: BTreeSet<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds it can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether replies of one can continue on the other.
fn is_same(one: &ModelReport, two: &ModelReport) -> bool {
    (one.fingerprint, one.context_hash) == (two.fingerprint, two.context_hash)
}

impl Kept {
    pub(super) fn new(settings: FleetSettings) -> Self {
        let peer = |address: &NodeAddress| Peer { address: address.clone(), credentials: settings.credentials.clone() };
        let peers: Vec<Peer> = settings.nodes.iter().map(peer).collect();
        let states = peers.iter().map(|_| State::Unknown).collect();
        let (models, changes) = (Mutex::default(), watch::Sender::new(0));
        Self { settings, peers, states: Mutex::new(states), models, changes }
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    pub(super) fn peer(&self, number: usize) -> Option<Peer> {
        self.peers.get(number).cloned()
    }

    pub(super) fn is_up(&self, number: usize, node: RemoteNode) {
        self.set(number, State::Up(node));
    }

    pub(super) fn is_down(&self, number: usize, reason: String) {
        self.set(number, State::Down(reason));
    }

    fn set(&self, number: usize, to: State) {
        if let Some(state) = lock(&self.states).get_mut(number) {
            *state = to;
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// Waits until each node was tried once.
    pub(super) async fn settled(&self) {
        let mut changes = self.changes.subscribe();
        while lock(&self.states).iter().any(|state| matches!(state, State::Unknown)) {
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    pub(super) fn absent(&self) -> Vec<(NodeAddress, String)> {
        let states = lock(&self.states);
        let absent = self.peers.iter().zip(states.iter()).filter_map(|(peer, state)| match state {
            State::Down(reason) => Some((peer.address.clone(), reason.clone())),
            State::Unknown | State::Up(_) => None,
        });
        absent.collect()
    }

    /// The nodes that are there, with their numbers.
    fn numbered(&self) -> Vec<(usize, RemoteNode)> {
        let states = lock(&self.states);
        let up = states.iter().enumerate().filter_map(|(number, state)| match state {
            State::Up(node) => Some((number, node.clone())),
            State::Unknown | State::Down(_) => None,
        });
        up.collect()
    }

    pub(super) fn nodes(&self) -> Vec<RemoteNode> {
        self.numbered().into_iter().map(|(_, node)| node).collect()
    }

    /// All models of nodes that are there, and of those that are expected back.
    pub(super) fn models(this: &Arc<Self>) -> Vec<Arc<dyn NodeModel>> {
        let mut models = lock(&this.models);
        Self::refresh(this, &mut models);
        models.values().map(|known| Arc::clone(&known.handle)).collect()
    }

    pub(super) fn model(this: &Arc<Self>, id: &str) -> Option<Arc<dyn NodeModel>> {
        let mut models = lock(&this.models);
        Self::refresh(this, &mut models);
        models.get(id).map(|known| Arc::clone(&known.handle))
    }

    /// Follows what the nodes say of themselves.
    fn refresh(this: &Arc<Self>, models: &mut BTreeMap<String, Known>) {
        let nodes = this.numbered();
        for (number, node) in &nodes {
            let having = |known: &Known| {
                let report = known.handle.report();
                node.remote_model(&report.id).is_some_and(|model| is_same(model.report(), report))
            };
            for known in models.values_mut() {
                if having(known) {
                    known.nodes.insert(*number)
                } else {
                    known.nodes.remove(number)
                };
            }
        }
        models.retain(|_, known| !known.nodes.is_empty());
        for (number, node) in nodes {
            for model in node.remote_models() {
                let report = model.report();
                // Another model of the same name on a second node is hidden by the first.
                models.entry(report.id.clone()).or_insert_with(|| {
                    let keeper: Arc<dyn Keeper> = Arc::new(Member::new(this));
                    let handle = Arc::new(LastingModel::new(keeper, report.clone()));
                    Known { handle, nodes: BTreeSet::from([number]) }
                });
            }
        }
    }

    /// The nodes that have a model now.
    fn having(&self, model: &ModelReport) -> Vec<(usize, RemoteNode, Arc<RemoteModel>)> {
        let nodes = self.numbered().into_iter();
        let having = nodes.filter_map(|(number, node)| {
            let found = node.remote_model(&model.id).filter(|found| is_same(found.report(), model))?;
            Some((number, node, found))
        });
        having.collect()
    }

    /// Whether a node that is gone had the model, and may come back with it.
    fn is_expected(&self, model: &ModelReport) -> bool {
        let had = lock(&self.models).get(&model.id).map(|known| known.nodes.clone()).unwrap_or_default();
        let states = lock(&self.states);
        had.iter().any(|number| !matches!(states.get(*number), Some(State::Up(_)) | None))
    }
}

/// A fleet as its models see it. They do not keep it. Each node detects itself which request ended its engine.
struct Member {
    fleet: Weak<Kept>,
    poison: Poison,
}

impl Member {
    fn new(fleet: &Arc<Kept>) -> Self {
        Self { fleet: Arc::downgrade(fleet), poison: Poison::default() }
    }

    fn fleet(&self) -> Result<Arc<Kept>, EngineError> {
        self.fleet.upgrade().ok_or_else(|| EngineError::NodeLost { reason: "the server is shutting down".to_owned() })
    }
}

#[async_trait]
impl Keeper for Member {
    async fn up_model(
        &self,
        model: &ModelReport,
        prompt: Option<&Generate>,
    ) -> Result<(RemoteNode, Arc<RemoteModel>), EngineError> {
        let fleet = self.fleet()?;
        let until = Instant::now() + fleet.settings.call_wait;
        let mut changes = fleet.changes.subscribe();
        loop {
            let having = fleet.having(model);
            let load = |model: &RemoteModel| {
                let status = model.status();
                status.active + status.pending
            };
            let candidates: Vec<Candidate> =
                having.iter().map(|(number, _, model)| Candidate { number: *number, load: load(model) }).collect();
            // With one node there is nothing to choose.
            let talk = prompt.filter(|_| candidates.len() > 1).map(conversation);
            let chosen = choose(&candidates, talk);
            if let Some((_, node, model)) = having.into_iter().find(|(number, ..)| Some(*number) == chosen) {
                return Ok((node, model));
            }
            if !fleet.is_expected(model) {
                return Err(EngineError::UnknownModel { model: model.id.clone() });
            }
            if tokio::time::timeout_at(until, changes.changed()).await.is_err() {
                let reason = format!("no node with {} answers", model.id);
                return Err(EngineError::NodeLost { reason });
            }
        }
    }

    fn models_now(&self, model: &ModelReport) -> Vec<Arc<RemoteModel>> {
        let having = self.fleet().map(|fleet| fleet.having(model)).unwrap_or_default();
        having.into_iter().map(|(_, _, model)| model).collect()
    }

    fn is_lost(&self, node: &RemoteNode) {
        // Its task connects again.
        node.give_up();
        let Ok(fleet) = self.fleet() else { return };
        for state in lock(&fleet.states).iter_mut() {
            if matches!(state, State::Up(current) if current.is(node)) {
                *state = State::Down("a call was lost".to_owned());
            }
        }
    }

    async fn admit(&self, _: &ModelReport) -> Trial {
        Trial::default()
    }

    async fn judge(&self, trial: &mut Trial, _: &RemoteNode) -> Result<Verdict, EngineError> {
        trial.losses += 1;
        if trial.losses > MOST_LOSSES {
            let reason = format!("{MOST_LOSSES} nodes were lost one after the other");
            return Err(EngineError::NodeLost { reason });
        }
        Ok(Verdict::Again)
    }

    fn poison(&self) -> &Poison {
        &self.poison
    }

    fn check_adapters(&self, _: &ModelReport) -> Result<(), EngineError> {
        Err(EngineError::Unsupported { what: "changing the adapters of a model on another node".to_owned() })
    }

    fn keep_adapter(&self, _: &str, _: AdapterChange) {}
}
