//! The child as its models and replies see it: what it is doing, what it has to load again, and who is set aside.
//!
//! Shared by all parts of `child.rs`; only `process.rs` starts and ends processes. It must never block.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use poncho_api::{AdapterId, CacheReport, EngineError, Generate, HygieneRule, LoadModel, NodeModel};
use tokio::sync::watch;

use super::launch::Launch;
use crate::remote::{RemoteModel, RemoteNode};

/// Prompts that ended a process are remembered, that many of them.
const MOST_POISON: usize = 256;
/// Processes that may be killed from outside while a request is alone in them, before it is to blame: it may need more
/// memory than there is.
const MOST_TRIES: u32 = 8;

/// What the process is doing.
#[derive(Clone)]
pub(super) enum State {
    /// It is being started, or its models are being loaded again.
    Starting,
    /// It serves.
    Up(RemoteNode),
    /// It was stopped on purpose, or cannot be started.
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
    poison: Mutex<Poison>,
    /// Whether somebody else ended the last process: a person, a service manager, or the kernel for want of memory.
    pub(super) was_killed: AtomicBool,
    /// The process that runs now; 0 while there is none.
    pub(super) process_id: AtomicU32,
}

/// A model to load again.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) model: LoadModel,
    /// Adapters that were attached while it ran, by the names that callers know.
    pub(super) adapters: Vec<(AdapterId, PathBuf, f32)>,
}

/// Hashes of requests that ended a process twice.
#[derive(Default)]
struct Poison {
    state: RandomState,
    order: VecDeque<u64>,
    known: HashSet<u64>,
}

impl Poison {
    fn hash(&self, generate: &Generate) -> u64 {
        let Generate { prompt, request, .. } = generate;
        // The same prompt with other settings may be as bad, and another reply to it as well.
        let text = serde_json::to_string(&(prompt, &request.tokens)).unwrap_or_default();
        self.state.hash_one(text)
    }

    fn add(&mut self, generate: &Generate) {
        let hash = self.hash(generate);
        if !self.known.insert(hash) {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > MOST_POISON
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn has(&self, generate: &Generate) -> bool {
        !self.known.is_empty() && self.known.contains(&self.hash(generate))
    }
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
            launch,
            state: watch::Sender::new(State::Starting),
            models: RwLock::default(),
            wanted: Mutex::default(),
            cache: RwLock::default(),
            hygiene: RwLock::default(),
            probation: Arc::default(),
            poison: Mutex::default(),
            was_killed: AtomicBool::new(false),
            process_id: AtomicU32::new(0),
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
            Some(State::Ended(reason)) => Err(EngineError::NodeLost { reason }),
            Some(State::Starting) | None => {
                Err(EngineError::NodeLost { reason: "the engine takes too long to start again".to_owned() })
            }
        }
    }

    /// A model, once there is a node that has it, and that node.
    pub(super) async fn up_model(&self, id: &str) -> Result<(RemoteNode, Arc<RemoteModel>), EngineError> {
        let node = self.up().await?;
        let model = node.remote_model(id).ok_or_else(|| EngineError::UnknownModel { model: id.to_owned() })?;
        Ok((node, model))
    }

    /// A call to this node was lost: nobody else calls it, also before its end is noticed.
    pub(super) fn is_lost(&self, node: &RemoteNode) {
        self.state.send_if_modified(|state| {
            let is_current = matches!(state, State::Up(current) if current.is(node));
            if is_current {
                *state = State::Starting;
            }
            is_current
        });
    }

    /// The node, if it serves at this moment.
    pub(super) fn now(&self) -> Option<RemoteNode> {
        match &*self.state.borrow() {
            State::Up(node) => Some(node.clone()),
            State::Starting | State::Ended(_) => None,
        }
    }

    /// Whether a request that was alone in a process is to blame for its end. Waits for the next process, which starts
    /// when it is known how the last one ended.
    pub(super) async fn is_to_blame(&self, tries: u32) -> Result<bool, EngineError> {
        self.up().await?;
        Ok(tries >= MOST_TRIES || !self.was_killed.load(Ordering::Relaxed))
    }

    /// Remembers a request that ended a process twice.
    pub(super) fn set_aside(&self, generate: &Generate) {
        lock(&self.poison).add(generate);
    }

    pub(super) fn is_set_aside(&self, generate: &Generate) -> bool {
        lock(&self.poison).has(generate)
    }

    pub(super) fn forget_model(&self, id: &str) {
        lock(&self.wanted).remove(id);
        self.models.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}
