//! The nodes and models of a fleet, as its models and replies see them.
//!
//! Shared by all parts of `fleet.rs`; only `peer.rs` says which nodes are there. It must never block.

mod routing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use poncho_api::{EngineError, Generate, ModelReport, NodeModel, PeerReport, PeerState};
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::routing::Routed;
use super::choice::conversation;
use super::route::Router;
use super::settings::FleetSettings;
use crate::lasting::{AdapterChange, Keeper, LastingModel, Poison, Trial, Up, Verdict};
use crate::link::NodeAddress;
use crate::remote::{RemoteModel, RemoteNode};
use crate::tls::Credentials;

/// Nodes that a request may lose without any progress in between.
const MOST_LOSSES: u32 = 5;
/// How long a request for a model that nobody has waits for the first nodes of a cluster: they announce themselves every
/// second.
const GATHERED_WITHIN: Duration = Duration::from_secs(15);

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
    /// It left the cluster at this time. If it comes back, it gets another number.
    Left(Instant),
}

/// A node of the fleet by its number, which never changes.
struct Place {
    peer: Peer,
    state: State,
    /// Whether it is there because a cluster announced it.
    is_announced: bool,
}

/// See the module.
pub(super) struct Kept {
    settings: FleetSettings,
    places: Mutex<Vec<Place>>,
    router: Option<Arc<Router>>,
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
        let place = |address: &NodeAddress| Place {
            peer: Peer { address: address.clone(), credentials: settings.credentials.clone() },
            state: State::Unknown,
            is_announced: false,
        };
        let places = Mutex::new(settings.nodes.iter().map(place).collect());
        let router = settings.cluster.clone().map(|lookout| Arc::new(Router::new(lookout)));
        Self { settings, places, router, models: Mutex::default(), changes: watch::Sender::new(0) }
    }

    pub(super) fn peers(&self) -> Vec<Peer> {
        lock(&self.places).iter().map(|place| place.peer.clone()).collect()
    }

    /// A node that is part of the fleet.
    pub(super) fn peer(&self, number: usize) -> Option<Peer> {
        let places = lock(&self.places);
        places.get(number).filter(|place| !matches!(place.state, State::Left(_))).map(|place| place.peer.clone())
    }

    /// The nodes that a cluster announces, with whether they take requests. Returns the numbers of those that are new;
    /// each needs a task. Those that nobody announces and that do not answer leave.
    pub(super) fn adopt(&self, announced: &[(NodeAddress, bool)]) -> Vec<usize> {
        let mut new = Vec::new();
        let mut places = lock(&self.places);
        for place in places.iter_mut().filter(|place| place.is_announced && matches!(place.state, State::Down(_))) {
            if !announced.iter().any(|(address, takes)| *takes && *address == place.peer.address) {
                place.state = State::Left(Instant::now());
            }
        }
        for (address, _) in announced.iter().filter(|(_, takes_requests)| *takes_requests) {
            let is_it = |place: &Place| place.peer.address == *address && !matches!(place.state, State::Left(_));
            if places.iter().any(is_it) {
                continue;
            }
            if self.settings.credentials.is_none() && !address.is_this_machine() {
                tracing::debug!(node = %address, "a node on another machine needs certificates (--node-cert)");
                continue;
            }
            let peer = Peer { address: address.clone(), credentials: self.settings.credentials.clone() };
            new.push(places.len());
            places.push(Place { peer, state: State::Unknown, is_announced: true });
        }
        new
    }

    pub(super) fn is_up(&self, number: usize, node: RemoteNode) {
        self.set(number, State::Up(node));
    }

    pub(super) fn is_down(&self, number: usize, reason: String) {
        self.set(number, State::Down(reason));
    }

    fn set(&self, number: usize, to: State) {
        if let Some(place) = lock(&self.places).get_mut(number) {
            place.state = to;
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// Waits until each node was tried once.
    pub(super) async fn settled(&self) {
        let mut changes = self.changes.subscribe();
        while lock(&self.places).iter().any(|place| matches!(place.state, State::Unknown)) {
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    /// Waits until a cluster has a model and its nodes were tried, for a bounded time. Returns whether it waited with
    /// success; a fleet without a cluster has nothing to wait for.
    pub(super) async fn gathered(this: &Arc<Self>) -> bool {
        if this.router.is_none() {
            return false;
        }
        let is_tried = || !lock(&this.places).iter().any(|place| matches!(place.state, State::Unknown));
        let mut changes = this.changes.subscribe();
        if is_tried() && !Self::models(this).is_empty() {
            return false;
        }
        let known = async {
            while !is_tried() || Self::models(this).is_empty() {
                // The sender lives as long as `this`.
                let _ = changes.changed().await;
            }
        };
        tokio::time::timeout(GATHERED_WITHIN, known).await.is_ok()
    }

    pub(super) fn absent(&self) -> Vec<(NodeAddress, String)> {
        let places = lock(&self.places);
        let absent = places.iter().filter_map(|place| match &place.state {
            State::Down(reason) => Some((place.peer.address.clone(), reason.clone())),
            State::Unknown | State::Up(_) | State::Left(_) => None,
        });
        absent.collect()
    }

    /// All nodes, whether they are there or not.
    pub(super) fn reports(&self) -> Vec<PeerReport> {
        let report = |place: &Place| {
            let (state, reason, models) = match &place.state {
                State::Unknown => (PeerState::Starting, None, Vec::new()),
                State::Up(node) => {
                    let models = node.remote_models().iter().map(|model| model.report().id.clone()).collect();
                    (PeerState::Up, None, models)
                }
                State::Down(reason) => (PeerState::Down, Some(reason.clone()), Vec::new()),
                State::Left(_) => return None,
            };
            Some(PeerReport { name: place.peer.address.to_string(), state, reason, models })
        };
        lock(&self.places).iter().filter_map(report).collect()
    }

    /// The nodes that are there, with their numbers.
    fn numbered(&self) -> Vec<(usize, RemoteNode)> {
        let places = lock(&self.places);
        let up = places.iter().enumerate().filter_map(|(number, place)| match &place.state {
            State::Up(node) => Some((number, node.clone())),
            State::Unknown | State::Down(_) | State::Left(_) => None,
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
        let places = lock(&this.places);
        for known in models.values_mut() {
            known.nodes.retain(|number| !this.is_given_up(places.get(*number)));
        }
        models.retain(|_, known| !known.nodes.is_empty());
        let has_left = |number: &usize| places.get(*number).is_none_or(|place| matches!(place.state, State::Left(_)));
        for (number, node) in nodes {
            for model in node.remote_models() {
                let report = model.report();
                // A node that left does not hide another model of the same name on one that is there.
                if models.get(&report.id).is_some_and(|known| known.nodes.iter().all(has_left)) {
                    models.remove(&report.id);
                }
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
    fn having(&self, model: &ModelReport) -> Vec<Having> {
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
        let places = lock(&self.places);
        had.iter().any(|number| {
            let place = places.get(*number);
            place.is_some_and(|place| !matches!(place.state, State::Up(_))) && !self.is_given_up(place)
        })
    }

    /// Whether a node is not waited for. One that left a cluster may be starting again, with another number.
    fn is_given_up(&self, place: Option<&Place>) -> bool {
        match place.map(|place| &place.state) {
            Some(State::Left(since)) => since.elapsed() >= self.settings.call_wait,
            Some(State::Unknown | State::Up(_) | State::Down(_)) => false,
            None => true,
        }
    }

    fn address(&self, number: usize) -> Option<NodeAddress> {
        lock(&self.places).get(number).map(|place| place.peer.address.clone())
    }
}

/// A node by its number, with a model that it has.
type Having = (usize, RemoteNode, Arc<RemoteModel>);

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
        mut asked: Option<(&Generate, &mut Trial)>,
    ) -> Result<Up, EngineError> {
        let fleet = self.fleet()?;
        let until = Instant::now() + fleet.settings.call_wait;
        let mut changes = fleet.changes.subscribe();
        loop {
            let having = fleet.having(model);
            let talk = asked.as_ref().map(|(generate, _)| conversation(generate));
            let mut chosen = None;
            if let (Some((generate, trial)), Some(talk)) = (&mut asked, talk.filter(|_| having.len() > 1)) {
                chosen = fleet.route(model, &having, talk, (generate, &mut trial.journey)).await?;
            }
            let (number, note) = match chosen {
                Some((number, note)) => (Some(number), Some(note)),
                None => {
                    fleet.check_full(model, asked.as_ref().map(|(_, trial)| &trial.journey))?;
                    (fleet.choose(&having, talk), None)
                }
            };
            if let Some((number, node, model)) = having.into_iter().find(|(found, ..)| Some(*found) == number) {
                if let (Some(router), Some(talk)) = (&fleet.router, talk) {
                    router.note(talk, number);
                    let address = fleet.address(number).filter(|_| note.is_none());
                    if let (Some((_, trial)), Some(address)) = (&mut asked, address) {
                        router.sent(&mut trial.journey, &address);
                    }
                }
                return Ok(Up { node, model, note });
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

    fn may_go_elsewhere(&self, trial: &mut Trial, error: &EngineError) -> bool {
        let is_routed = self.fleet().is_ok_and(|fleet| fleet.router.is_some());
        let is_full = matches!(error, EngineError::Overloaded { .. } | EngineError::ShuttingDown { .. });
        is_routed && is_full && trial.journey.refused()
    }

    fn models_now(&self, model: &ModelReport) -> Vec<Arc<RemoteModel>> {
        let having = self.fleet().map(|fleet| fleet.having(model)).unwrap_or_default();
        having.into_iter().map(|(_, _, model)| model).collect()
    }

    fn is_lost(&self, node: &RemoteNode) {
        // Its task connects again.
        node.give_up();
        let Ok(fleet) = self.fleet() else { return };
        for place in lock(&fleet.places).iter_mut() {
            if matches!(&place.state, State::Up(current) if current.is(node)) {
                place.state = State::Down("a call was lost".to_owned());
            }
        }
    }

    async fn admit(&self, _: &ModelReport) -> Trial {
        Trial::default()
    }

    async fn judge(&self, trial: &mut Trial, _: &RemoteNode, is_begun: bool) -> Result<Verdict, EngineError> {
        trial.losses += 1;
        if !trial.journey.lost(is_begun) {
            let reason = "two nodes were lost while they computed this request, which may be the reason";
            return Err(EngineError::NodeLost { reason: reason.to_owned() });
        }
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
