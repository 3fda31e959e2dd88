//! A node in a child process that is kept running.
//!
//! Made by `poncho serve`. The process is started again when it ends, its models are loaded again, and replies that were
//! under way continue. While it is down, reads answer from what it last said and calls wait. A child never outlives this
//! process: its standard input ends with it.

mod aside;
mod crash;
mod launch;
mod process;
mod supervised;

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use poncho_api::{
    CacheReport, CopyCheck, EngineError, EvictionSum, Footprint, HygieneRule, Key, LoadEvent, LoadModel, Loading,
    ModelFile, Node, NodeModel, OwnerId, PeerReport, PeerState, PinOutcome, RowPage, RowStream, RowTokens, Tier,
};
use tokio::time::Instant;

pub use self::launch::Launch;
use self::supervised::{State, Supervised, Wanted, lock};
use crate::lasting::{Keeper, LastingModel};

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

impl ChildNode {
    /// Starts the process and waits until it serves.
    ///
    /// # Errors
    /// It cannot be started, or ends before it serves.
    pub async fn start(launch: Launch) -> Result<Self, StartError> {
        let supervised = Arc::new(Supervised::new(launch));
        tokio::spawn(process::supervise(Arc::clone(&supervised)));
        let mut state = supervised.state.subscribe();
        let started = state.wait_for(|state| !matches!(state, State::Starting)).await;
        match started.map(|state| state.clone()) {
            Ok(State::Ended(reason) | State::Failing(reason)) => Err(StartError { reason }),
            Ok(State::Up(_) | State::Starting) | Err(_) => Ok(Self(supervised)),
        }
    }

    /// The process that runs now.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        *self.0.process_id.borrow()
    }

    /// Ends the process with the states of its models saved. Waits for `limit` and kills it then. Says whether it ended
    /// by itself.
    pub async fn stop(&self, limit: Duration) -> bool {
        process::stop(&self.0, limit).await
    }
}

#[async_trait]
impl Node for ChildNode {
    fn models(&self) -> Vec<Arc<dyn NodeModel>> {
        let models = self.0.models.read().unwrap_or_else(PoisonError::into_inner);
        models.values().cloned().collect()
    }

    fn model(&self, id: &str) -> Option<Arc<dyn NodeModel>> {
        let models = self.0.models.read().unwrap_or_else(PoisonError::into_inner);
        models.get(id).cloned()
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
            supervised.aside.forget(&model.config.id);
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
                    let keeper = Arc::clone(&supervised) as Arc<dyn Keeper>;
                    let child = LastingModel::new(keeper, loaded.report().clone());
                    let mut models = supervised.models.write().unwrap_or_else(PoisonError::into_inner);
                    models.insert(model.config.id.clone(), Arc::new(child));
                }
                event
            });
            kept.boxed()
        };
        Box::pin(stream::once(events).flatten())
    }

    async fn unload(&self, id: &str) -> Result<(), EngineError> {
        let node = self.0.up().await?;
        // One that is set aside is loaded nowhere.
        let is_loaded = self.0.aside.rest(id, Instant::now()).is_none() || node.remote_model(id).is_some();
        let unloaded = if is_loaded { node.unload(id).await } else { Ok(()) };
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
        last.unwrap_or_default()
    }

    async fn cache_rows(&self, owner: Option<OwnerId>, offset: usize, limit: usize) -> RowPage {
        match self.0.up().await {
            Ok(node) => node.cache_rows(owner, offset, limit).await,
            Err(_) => RowPage { total: 0, rows: Vec::new() },
        }
    }

    fn follow_rows(&self) -> RowStream {
        let supervised = Arc::clone(&self.0);
        let batches = async move {
            match supervised.up().await {
                Ok(node) => node.follow_rows(),
                Err(_) => stream::empty().boxed(),
            }
        };
        Box::pin(stream::once(batches).flatten())
    }

    async fn evict_bytes(&self, owner: Option<OwnerId>, bytes: u64, tiers: &[Tier]) -> u64 {
        match self.0.up().await {
            Ok(node) => node.evict_bytes(owner, bytes, tiers).await,
            Err(_) => 0,
        }
    }

    async fn remove_row(&self, owner: Option<OwnerId>, key: Key) -> bool {
        match self.0.up().await {
            Ok(node) => node.remove_row(owner, key).await,
            Err(_) => false,
        }
    }

    async fn pin_row(&self, owner: Option<OwnerId>, key: Key) -> PinOutcome {
        match self.0.up().await {
            Ok(node) => node.pin_row(owner, key).await,
            Err(_) => PinOutcome::NoRow,
        }
    }

    async fn unpin_row(&self, owner: Option<OwnerId>, key: Key) -> bool {
        match self.0.up().await {
            Ok(node) => node.unpin_row(owner, key).await,
            Err(_) => false,
        }
    }

    async fn verify_row(&self, owner: Option<OwnerId>, key: Key) -> Option<Vec<CopyCheck>> {
        self.0.up().await.ok()?.verify_row(owner, key).await
    }

    async fn row_tokens(&self, owner: Option<OwnerId>, key: Key) -> Option<RowTokens> {
        self.0.up().await.ok()?.row_tokens(owner, key).await
    }

    async fn evictions(&self) -> Vec<EvictionSum> {
        match self.0.up().await {
            Ok(node) => node.evictions().await,
            Err(_) => Vec::new(),
        }
    }

    fn peers(&self) -> Vec<PeerReport> {
        let (state, reason) = match &*self.0.state.borrow() {
            State::Up(_) => (PeerState::Up, None),
            State::Starting => (PeerState::Starting, None),
            State::Failing(reason) | State::Ended(reason) => (PeerState::Down, Some(reason.clone())),
        };
        let models = self.models().iter().map(|model| model.report().id.clone()).collect();
        vec![PeerReport { name: "engine process".to_owned(), state, reason, models }]
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
