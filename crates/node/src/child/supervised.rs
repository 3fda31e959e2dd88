//! The child as its models and replies see it: what it is doing, what it has to load again, and which model or request
//! ended it.
//!
//! Shared by all parts of `child.rs`; only `process.rs` starts and ends processes. It must never block.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use poncho_api::{AdapterId, CacheReport, EngineError, Generate, HygieneRule, LoadModel, ModelReport, NodeModel};
use tokio::sync::{Notify, OwnedMutexGuard, watch};
use tokio::time::Instant;

use super::aside::Aside;
use super::launch::Launch;
use crate::lasting::{AdapterChange, Keeper, Poison, Trial, Up, Verdict};
use crate::remote::{RemoteModel, RemoteNode};

/// Processes that may be killed from outside while a request is alone in them, before it is to blame: it may need more
/// memory than there is.
const MOST_LOSSES: u32 = 9;
/// How long a request waits for its trial; then it goes on without one.
const PROBATION_WAIT: Duration = Duration::from_secs(60);

/// What the process is doing.
#[derive(Clone)]
pub(super) enum State {
    /// It is being started, or its models are being loaded again.
    Starting,
    /// It serves.
    Up(RemoteNode),
    /// It could not be started for some time; it is tried again, and calls are refused meanwhile.
    Failing(String),
    /// It was stopped on purpose, or could never be started.
    Ended(String),
}

/// The child as its models and replies see it.
pub(super) struct Supervised {
    pub(super) launch: Launch,
    pub(super) state: watch::Sender<State>,
    pub(super) models: RwLock<BTreeMap<String, Arc<dyn NodeModel>>>,
    /// Models to load again, by name.
    pub(super) wanted: Mutex<BTreeMap<String, Wanted>>,
    /// The last cache report, for the time without a process.
    pub(super) cache: RwLock<Option<CacheReport>>,
    pub(super) hygiene: RwLock<Vec<HygieneRule>>,
    /// Held by a reply that comes back after a crash, until it has made progress.
    pub(super) probation: Arc<tokio::sync::Mutex<()>>,
    poison: Poison,
    pub(super) aside: Aside,
    /// The process that runs now.
    pub(super) process_id: watch::Sender<Option<u32>>,
    /// Told once when the time of a process that is being stopped is over.
    pub(super) overdue: Notify,
}

/// A model to load again.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) model: LoadModel,
    /// Adapters that were attached while it ran, by the names that callers know.
    pub(super) adapters: Vec<(AdapterId, PathBuf, f32)>,
}

/// Locks it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds it can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Supervised {
    /// No process yet.
    pub(super) fn new(launch: Launch) -> Self {
        Self {
            aside: Aside::new(launch.crash_limit),
            launch,
            state: watch::Sender::new(State::Starting),
            models: RwLock::default(),
            wanted: Mutex::default(),
            cache: RwLock::default(),
            hygiene: RwLock::default(),
            probation: Arc::default(),
            poison: Poison::default(),
            process_id: watch::Sender::new(None),
            overdue: Notify::new(),
        }
    }

    /// The node, once there is one.
    pub(super) async fn up(&self) -> Result<RemoteNode, EngineError> {
        let mut state = self.state.subscribe();
        let ready = state.wait_for(|state| !matches!(state, State::Starting));
        let ready = tokio::time::timeout(self.launch.call_wait, ready).await;
        let state = ready.ok().and_then(Result::ok).map(|state| state.clone());
        match state {
            Some(State::Up(node)) => Ok(node),
            Some(State::Ended(reason) | State::Failing(reason)) => Err(EngineError::NodeLost { reason }),
            Some(State::Starting) | None => {
                Err(EngineError::NodeLost { reason: "the engine takes too long to start again".to_owned() })
            }
        }
    }

    /// The node, if it serves at this moment.
    pub(super) fn now(&self) -> Option<RemoteNode> {
        match &*self.state.borrow() {
            State::Up(node) => Some(node.clone()),
            State::Starting | State::Failing(_) | State::Ended(_) => None,
        }
    }

    /// Waits to be the one request on trial. One with a client that does not read must not keep the place.
    async fn probation(&self) -> Option<Arc<OwnedMutexGuard<()>>> {
        let place = Arc::clone(&self.probation).lock_owned();
        tokio::time::timeout(PROBATION_WAIT, place).await.ok().map(Arc::new)
    }

    pub(super) fn forget_model(&self, id: &str) {
        self.aside.forget(id);
        lock(&self.wanted).remove(id);
        self.models.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

#[async_trait]
impl Keeper for Supervised {
    async fn up_model(&self, model: &ModelReport, _: Option<(&Generate, &mut Trial)>) -> Result<Up, EngineError> {
        let id = &model.id;
        let rests = || {
            let rest = self.aside.rest(id, Instant::now())?;
            Some(EngineError::SetAside { model: id.clone(), seconds: rest.as_secs() })
        };
        rests().map_or(Ok(()), Err)?;
        let node = self.up().await?;
        let unknown = || rests().unwrap_or_else(|| EngineError::UnknownModel { model: id.clone() });
        let model = node.remote_model(id).ok_or_else(unknown)?;
        Ok(Up { node, model, note: None })
    }

    fn may_go_elsewhere(&self, _: &mut Trial, _: &EngineError) -> bool {
        false
    }

    fn models_now(&self, model: &ModelReport) -> Vec<Arc<RemoteModel>> {
        self.now().and_then(|node| node.remote_model(&model.id)).into_iter().collect()
    }

    fn is_lost(&self, node: &RemoteNode) {
        self.state.send_if_modified(|state| {
            let is_current = matches!(state, State::Up(current) if current.is(node));
            if is_current {
                *state = State::Starting;
            }
            is_current
        });
    }

    /// While replies come back one at a time, new requests stand in line with them; so do those of a model that ended a
    /// process a while ago, if there are others.
    async fn admit(&self, model: &ModelReport) -> Trial {
        let has_others = lock(&self.wanted).len() > 1;
        let is_suspect = has_others && self.aside.is_suspect(&model.id, Instant::now());
        if !is_suspect && self.probation.try_lock().is_ok() {
            return Trial::default();
        }
        Trial { alone: self.probation().await, ..Trial::default() }
    }

    async fn judge(&self, trial: &mut Trial, lost: &RemoteNode, _: bool) -> Result<Verdict, EngineError> {
        trial.losses += 1;
        // From now on alone, so that one that ends the process is known.
        if trial.alone.is_none() {
            trial.alone = self.probation().await;
        }
        // The next process starts when it is known how the last one ended.
        self.up().await?;
        trial.crashes += u32::from(lost.has_crashed());
        let is_to_blame = trial.crashes > 1 || trial.losses > MOST_LOSSES;
        Ok(if is_to_blame { Verdict::Blamed } else { Verdict::Again })
    }

    fn poison(&self) -> &Poison {
        &self.poison
    }

    fn check_adapters(&self, _: &ModelReport) -> Result<(), EngineError> {
        Ok(())
    }

    fn keep_adapter(&self, model: &str, change: AdapterChange) {
        let mut wanted = lock(&self.wanted);
        let Some(Wanted { adapters, .. }) = wanted.get_mut(model) else { return };
        match change {
            AdapterChange::Attached(id, path, scale) => adapters.push((id, path, scale)),
            AdapterChange::Scaled(id, scale) => {
                adapters.iter_mut().filter(|(known, ..)| *known == id).for_each(|(_, _, kept)| *kept = scale);
            }
            AdapterChange::Detached(id) => adapters.retain(|(known, ..)| *known != id),
        }
    }
}
