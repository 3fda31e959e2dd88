//! The engine as the api offers it, in this process: conversations, commands and reports over models and cache.
//!
//! Made by the program that serves (`Host::new`); the server holds it as `Arc<dyn Node>`. It renders, replays and parses
//! through `chat/`, and hands tokens to the workers. Work that blocks runs off the async threads, so its calls need a
//! tokio runtime.

mod capabilities;
mod engine;
mod explain;
mod follow;
mod hosted;
mod reports;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures_core::Stream;
use poncho_api::{
    CacheReport, ChatSettings, CopyCheck, EvictionSum, Footprint, HygieneRule, Key, LoadEvent, LoadModel, Loading,
    ModelFile, Node, NodeModel, OwnerId, PinOutcome, RowPage, RowStream, RowTokens, Tier,
};
use poncho_cache::{Cache, RowInfo};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::chat::kept::KeptTurns;
use crate::chat::model::Conversations;
use crate::chat::preparing::blocking;
use crate::error::EngineError;
use crate::files::footprint::footprint;
use crate::model::Model;

pub use engine::Engine;
use hosted::Hosted;

/// See the module.
pub struct Host {
    engine: Arc<Engine>,
    conversations: Arc<Conversations>,
}

impl Host {
    /// Offers the models of an engine. Reads the turns that an earlier host kept, if the settings name a file.
    #[must_use]
    pub fn new(engine: Arc<Engine>, settings: ChatSettings) -> Self {
        let replay = KeptTurns::open(settings.replay_file.as_deref(), settings.replay);
        Self { engine, conversations: Arc::new(Conversations::new(replay, settings.hygiene)) }
    }

    fn hosted(&self, model: Model) -> Arc<dyn NodeModel> {
        Arc::new(Hosted::new(model, Arc::clone(&self.conversations)))
    }

    /// Runs work on the cache; a lost thread gives `lost`.
    async fn on_cache<T: Send + 'static>(
        &self,
        doing: &'static str,
        lost: T,
        work: impl FnOnce(&Cache) -> T + Send + 'static,
    ) -> T {
        let engine = Arc::clone(&self.engine);
        blocking(doing, move || Ok(work(engine.cache()))).await.unwrap_or(lost)
    }
}

#[async_trait]
impl Node for Host {
    fn models(&self) -> Vec<Arc<dyn NodeModel>> {
        self.engine.models().into_iter().map(|model| self.hosted(model)).collect()
    }

    fn model(&self, id: &str) -> Option<Arc<dyn NodeModel>> {
        self.engine.get(id).ok().map(|model| self.hosted(model))
    }

    fn has_model(&self, id: &str) -> bool {
        self.engine.get(id).is_ok()
    }

    fn hygiene(&self) -> Vec<HygieneRule> {
        self.conversations.hygiene.clone()
    }

    fn load(&self, model: LoadModel) -> Loading {
        let (events, receiver) = unbounded_channel();
        let (engine, span) = (Arc::clone(&self.engine), tracing::Span::current());
        tokio::task::spawn_blocking(move || {
            let mut progress = |read, total| drop(events.send(LoadEvent::Progress { read, total }));
            let loaded = span.in_scope(|| engine.load_model(model, &mut progress));
            let last = loaded.map_or_else(LoadEvent::Failed, |_| LoadEvent::Loaded);
            let _ = events.send(last);
        });
        Box::pin(Events(receiver))
    }

    async fn unload(&self, id: &str) -> Result<(), EngineError> {
        let (engine, id) = (Arc::clone(&self.engine), id.to_owned());
        blocking("unloaded a model", move || engine.unload(&id)).await
    }

    async fn footprint(&self, model: &LoadModel) -> Footprint {
        let model = model.clone();
        let look = move || {
            let size = |path: &std::path::PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
            let adapters: u64 = model.adapters.iter().map(size).sum();
            let own = footprint(&model.config);
            Ok(Footprint { weights: own.weights.saturating_add(adapters), ..own })
        };
        blocking("looked at a model", look).await.unwrap_or_default()
    }

    async fn model_file(&self, path: &Path, longest_array: usize) -> ModelFile {
        let path = path.to_owned();
        blocking("read a model file", move || Ok(reports::model_file(&path, longest_array))).await.unwrap_or_default()
    }

    fn cache(&self) -> CacheReport {
        reports::cache(self.engine.cache())
    }

    async fn cache_rows(&self, owner: Option<OwnerId>, offset: usize, limit: usize) -> RowPage {
        let lost = RowPage { total: 0, rows: Vec::new() };
        self.on_cache("listed the rows", lost, move |cache| reports::rows(cache, owner, offset, limit)).await
    }

    fn follow_rows(&self) -> RowStream {
        follow::rows(&self.engine)
    }

    async fn evict_bytes(&self, owner: Option<OwnerId>, bytes: u64, tiers: &[Tier]) -> u64 {
        let tiers = tiers.to_vec();
        self.on_cache("evicted rows", 0, move |cache| match owner {
            Some(owner) => cache.evict_bytes_of(owner, bytes, &tiers),
            None => cache.evict_bytes(bytes, &tiers),
        })
        .await
    }

    async fn remove_row(&self, owner: Option<OwnerId>, key: Key) -> bool {
        self.on_cache("removed a row", false, move |cache| {
            let is_free = |row: RowInfo| owner.is_none_or(|owner| row.owners == [owner]);
            cache.row(&key).is_some_and(is_free) && cache.evict_row(&key)
        })
        .await
    }

    async fn pin_row(&self, owner: Option<OwnerId>, key: Key) -> PinOutcome {
        let pin = move |cache: &Cache| reports::pinned(cache.pin_row(&key, owner));
        self.on_cache("pinned a row", PinOutcome::NoRow, pin).await
    }

    async fn unpin_row(&self, owner: Option<OwnerId>, key: Key) -> bool {
        self.on_cache("unpinned a row", false, move |cache| cache.unpin_row(&key, owner)).await
    }

    async fn verify_row(&self, owner: Option<OwnerId>, key: Key) -> Option<Vec<CopyCheck>> {
        let verify = move |cache: &Cache| cache.verify_row(&key, owner).map(reports::checked);
        self.on_cache("checked a row", None, verify).await
    }

    async fn row_tokens(&self, owner: Option<OwnerId>, key: Key) -> Option<RowTokens> {
        self.on_cache("read the tokens of a row", None, move |cache| reports::tokens(cache, owner, &key)).await
    }

    async fn evictions(&self) -> Vec<EvictionSum> {
        self.on_cache("read the evictions", Vec::new(), reports::evictions).await
    }

    async fn clear_cache(&self) -> u64 {
        self.on_cache("cleared the cache", 0, |cache| cache.clear()).await
    }

    async fn collect_garbage(&self) -> u64 {
        self.on_cache("removed damaged files", 0, |cache| cache.gc()).await
    }
}

/// The events of a channel as a stream.
struct Events<T>(UnboundedReceiver<T>);

impl<T> Stream for Events<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}
