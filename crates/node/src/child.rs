//! A node in a child process that is kept running.
//!
//! Made by `poncho serve`. The process is started again when it ends, its models are loaded again, and replies that were
//! under way continue. While it is down, reads answer from what it last said and calls wait. A child never outlives this
//! process: its standard input ends with it.

mod model;
mod process;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use poncho_api::{
    AdapterId, CacheReport, EngineError, Footprint, Generate, HygieneRule, LoadEvent, LoadModel, Loading, ModelFile,
    ModelReport, Node, NodeModel, OwnerId, PressureReport, RowPage, Tier,
};
use tokio::sync::watch;

use self::model::ChildModel;
use crate::remote::{RemoteModel, RemoteNode};

/// Prompts that ended a process are remembered, that many of them.
const MOST_POISON: usize = 256;

/// How the process is started, and where its crashes are written down.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The variable that names the socket it has to serve.
    pub socket_variable: &'static str,
    /// How long it may take to serve the socket.
    pub start_within: Duration,
    /// How long a call waits for a process that is being started again, its models included.
    pub call_wait: Duration,
    /// Where crashes are written down.
    pub crashes: PathBuf,
}

/// The process did not come to serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct StartError {
    /// What it wrote before it ended, or how it ended.
    pub reason: String,
}

/// See the module.
#[derive(Clone)]
pub struct ChildNode(Arc<Supervised>);

/// What the process is doing.
#[derive(Clone)]
enum State {
    /// It is being started, or its models are being loaded again.
    Starting,
    /// It serves.
    Up(RemoteNode),
    /// It was stopped on purpose, or cannot be started.
    Ended(String),
}

/// The child as its models and replies see it.
pub(crate) struct Supervised {
    launch: Launch,
    state: watch::Sender<State>,
    models: RwLock<BTreeMap<String, Arc<ChildModel>>>,
    /// Models to load again, by name.
    wanted: Mutex<BTreeMap<String, Wanted>>,
    /// The last cache report, for the time without a process.
    cache: RwLock<Option<CacheReport>>,
    hygiene: RwLock<Vec<HygieneRule>>,
    /// Held by a reply that comes back after a crash, until it has made progress.
    pub(crate) probation: Arc<tokio::sync::Mutex<()>>,
    poison: Mutex<Poison>,
    /// The process that runs now; 0 while there is none.
    process_id: AtomicU32,
}

/// A model to load again.
#[derive(Clone)]
struct Wanted {
    model: LoadModel,
    /// Adapters that were attached while it ran, by the names that callers know.
    adapters: Vec<(AdapterId, PathBuf, f32)>,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds it can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChildNode {
    /// Starts the process and waits until it serves.
    ///
    /// # Errors
    /// It cannot be started, or ends before it serves.
    pub async fn start(launch: Launch) -> Result<Self, StartError> {
        let supervised = Arc::new(Supervised {
            launch,
            state: watch::Sender::new(State::Starting),
            models: RwLock::default(),
            wanted: Mutex::default(),
            cache: RwLock::default(),
            hygiene: RwLock::default(),
            probation: Arc::default(),
            poison: Mutex::default(),
            process_id: AtomicU32::new(0),
        });
        tokio::spawn(process::supervise(Arc::clone(&supervised)));
        let mut state = supervised.state.subscribe();
        let started = state.wait_for(|state| !matches!(state, State::Starting)).await;
        match started.map(|state| state.clone()) {
            Ok(State::Ended(reason)) => Err(StartError { reason }),
            Ok(State::Up(_) | State::Starting) | Err(_) => Ok(Self(supervised)),
        }
    }

    /// The process that runs now.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        Some(self.0.process_id.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }

    /// Ends the process with the states of its models saved. Waits for `limit` and kills it then. Says whether it ended
    /// by itself.
    pub async fn stop(&self, limit: Duration) -> bool {
        process::stop(&self.0, limit).await
    }
}

impl Supervised {
    /// The node, once there is one.
    async fn up(&self) -> Result<RemoteNode, EngineError> {
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
    pub(crate) async fn up_model(&self, id: &str) -> Result<(RemoteNode, Arc<RemoteModel>), EngineError> {
        let node = self.up().await?;
        let model = node.remote_model(id).ok_or_else(|| EngineError::UnknownModel { model: id.to_owned() })?;
        Ok((node, model))
    }

    /// A call to this node was lost: nobody else calls it, also before its end is noticed.
    pub(crate) fn is_lost(&self, node: &RemoteNode) {
        self.state.send_if_modified(|state| {
            let is_current = matches!(state, State::Up(current) if current.is(node));
            if is_current {
                *state = State::Starting;
            }
            is_current
        });
    }

    /// The node, if it serves at this moment.
    fn now(&self) -> Option<RemoteNode> {
        match &*self.state.borrow() {
            State::Up(node) => Some(node.clone()),
            State::Starting | State::Ended(_) => None,
        }
    }

    /// Remembers a request that ended a process twice.
    pub(crate) fn set_aside(&self, generate: &Generate) {
        lock(&self.poison).add(generate);
    }

    fn is_set_aside(&self, generate: &Generate) -> bool {
        lock(&self.poison).has(generate)
    }

    fn keep_model(self: &Arc<Self>, report: ModelReport) {
        let id = report.id.clone();
        let model = Arc::new(ChildModel::new(Arc::clone(self), report));
        self.models.write().unwrap_or_else(PoisonError::into_inner).insert(id, model);
    }

    fn forget_model(&self, id: &str) {
        lock(&self.wanted).remove(id);
        self.models.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

#[async_trait]
impl Node for ChildNode {
    fn models(&self) -> Vec<Arc<dyn NodeModel>> {
        let models = self.0.models.read().unwrap_or_else(PoisonError::into_inner);
        models.values().map(|model| Arc::clone(model) as Arc<dyn NodeModel>).collect()
    }

    fn model(&self, id: &str) -> Option<Arc<dyn NodeModel>> {
        let models = self.0.models.read().unwrap_or_else(PoisonError::into_inner);
        models.get(id).map(|model| Arc::clone(model) as Arc<dyn NodeModel>)
    }

    fn hygiene(&self) -> Vec<HygieneRule> {
        if let Some(node) = self.0.now() {
            let hygiene = node.hygiene();
            self.0.hygiene.write().unwrap_or_else(PoisonError::into_inner).clone_from(&hygiene);
            return hygiene;
        }
        self.0.hygiene.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn load(&self, model: LoadModel) -> Loading {
        let supervised = Arc::clone(&self.0);
        let events = async move {
            let node = match supervised.up().await {
                Ok(node) => node,
                Err(error) => return stream::iter([LoadEvent::Failed(error)]).boxed(),
            };
            let events = node.load(model.clone());
            let kept = events.map(move |event| {
                if event == LoadEvent::Loaded
                    && let Some(loaded) = node.remote_model(&model.config.id)
                {
                    let wanted = Wanted { model: model.clone(), adapters: Vec::new() };
                    lock(&supervised.wanted).insert(model.config.id.clone(), wanted);
                    supervised.keep_model(loaded.report().clone());
                }
                event
            });
            kept.boxed()
        };
        Box::pin(stream::once(events).flatten())
    }

    async fn unload(&self, id: &str) -> Result<(), EngineError> {
        let unloaded = self.0.up().await?.unload(id).await;
        self.0.forget_model(id);
        unloaded
    }

    async fn footprint(&self, model: &LoadModel) -> Footprint {
        match self.0.up().await {
            Ok(node) => node.footprint(model).await,
            Err(_) => Footprint::default(),
        }
    }

    async fn model_file(&self, path: &Path, longest_array: usize) -> ModelFile {
        match self.0.up().await {
            Ok(node) => node.model_file(path, longest_array).await,
            Err(_) => ModelFile::default(),
        }
    }

    fn cache(&self) -> CacheReport {
        if let Some(node) = self.0.now() {
            let report = node.cache();
            *self.0.cache.write().unwrap_or_else(PoisonError::into_inner) = Some(report.clone());
            return report;
        }
        let last = self.0.cache.read().unwrap_or_else(PoisonError::into_inner).clone();
        last.unwrap_or_else(|| CacheReport {
            counters: Vec::new(),
            tiers: Vec::new(),
            rows: 0,
            pinned_rows: 0,
            write_queue: 0,
            index_bytes: 0,
            pressure: PressureReport::default(),
        })
    }

    async fn cache_rows(&self, owner: Option<OwnerId>, offset: usize, limit: usize) -> RowPage {
        match self.0.up().await {
            Ok(node) => node.cache_rows(owner, offset, limit).await,
            Err(_) => RowPage { total: 0, rows: Vec::new() },
        }
    }

    async fn evict_bytes(&self, owner: Option<OwnerId>, bytes: u64, tiers: &[Tier]) -> u64 {
        match self.0.up().await {
            Ok(node) => node.evict_bytes(owner, bytes, tiers).await,
            Err(_) => 0,
        }
    }

    async fn clear_cache(&self) -> u64 {
        match self.0.up().await {
            Ok(node) => node.clear_cache().await,
            Err(_) => 0,
        }
    }

    async fn collect_garbage(&self) -> u64 {
        match self.0.up().await {
            Ok(node) => node.collect_garbage().await,
            Err(_) => 0,
        }
    }
}
