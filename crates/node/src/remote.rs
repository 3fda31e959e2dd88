//! A node in another process, as the server sees it.
//!
//! What is read without waiting comes from the last snapshot that the other end sent; everything else is a call. It must
//! never block: a node that does not answer costs its own callers their answer and nobody else anything.

mod calls;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use poncho_api::{
    AdapterId, AdapterInfo, CacheReport, Capabilities, CopyCheck, EngineError, EvictionSum, Explained, Footprint,
    Generate, HygieneRule, Input, Key, LoadEvent, LoadModel, Loading, ModelFile, ModelFiles, ModelReport, Node,
    NodeModel, OwnerId, PastLookup, PinOutcome, Rendered, ReplyEvent, ReplyStream, RequestReport, RowPage, RowStream,
    RowTokens, SessionInfo, SpecialText, StatusReport, Tier, TokenizeMode, Verified,
};
use tokio::sync::watch;

use self::calls::Calls;
pub(crate) use self::calls::{Mark, Note, Noted};
use crate::link::{Link, LinkError, Place};
use crate::methods::{self, Accepted, ModelNow, ModelSnapshot, Snapshot};

/// How often the other end is asked to look at a file; it looks no more often itself.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a model that does not answer can do.
pub(crate) const NO_CAPABILITIES: Capabilities =
    Capabilities { embedding: false, tools: false, thinking: false, insert: false };

/// See the module. A clone is the same node.
#[derive(Clone)]
pub(crate) struct RemoteNode {
    link: Link,
    seen: Arc<Seen>,
}

/// What the node last said of itself.
#[derive(Default)]
struct Seen {
    models: RwLock<BTreeMap<String, Arc<RemoteModel>>>,
    cache: RwLock<CacheReport>,
    hygiene: RwLock<Vec<HygieneRule>>,
    /// Whether the connection ended.
    is_closed: watch::Sender<bool>,
    /// Calls that are under way.
    calls: Arc<Calls>,
    /// Whether the process is known to have ended by itself, not by somebody who killed it.
    has_crashed: AtomicBool,
}

impl RemoteNode {
    /// Connects to a node, which may take a moment to listen.
    pub(crate) async fn connect(place: &Place, within: Duration) -> Result<Self, LinkError> {
        let link = Link::connect(place, within).await?;
        let seen = Arc::new(Seen::default());
        let node = Self { link, seen };
        node.look().await?;
        let watching = node.clone();
        tokio::spawn(async move {
            watching.watch().await;
            watching.seen.is_closed.send_replace(true);
        });
        Ok(node)
    }

    /// Ends the process on the other end, with the states of its models saved. It answers before it saves.
    pub(crate) async fn stop(&self) -> Result<(), EngineError> {
        Ok(self.link.call::<methods::Stop>(()).await?)
    }

    /// Waits until the process on the other end is gone.
    pub(crate) async fn closed(&self) {
        // The sender lives as long as this handle.
        let _ = self.seen.is_closed.subscribe().wait_for(|is_closed| *is_closed).await;
    }

    /// Nobody uses this connection from now on.
    pub(crate) fn give_up(&self) {
        self.seen.is_closed.send_replace(true);
    }

    /// Whether it is the same process.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.seen, &other.seen)
    }

    /// Marks a call of a model that begins.
    pub(crate) fn mark(&self, model: &str) -> Mark {
        Mark::new(Arc::clone(&self.seen.calls), model)
    }

    /// The models that may have ended the process.
    pub(crate) fn suspects(&self) -> Vec<String> {
        self.seen.calls.suspects()
    }

    /// Notes that the process ended by itself.
    pub(crate) fn note_crash(&self) {
        self.seen.has_crashed.store(true, Ordering::Relaxed);
    }

    /// Whether the process is known to have ended by itself.
    pub(crate) fn has_crashed(&self) -> bool {
        self.seen.has_crashed.load(Ordering::Relaxed)
    }

    /// Asks for a snapshot now.
    async fn look(&self) -> Result<(), LinkError> {
        let snapshot = self.link.call::<methods::Look>(()).await?;
        self.take(snapshot);
        Ok(())
    }

    /// Takes snapshots until the connection ends.
    async fn watch(&self) {
        let Ok(mut snapshots) = self.link.stream::<methods::Watch>(()).await else { return };
        while let Some(Ok(snapshot)) = snapshots.next().await {
            self.take(snapshot);
        }
    }

    fn take(&self, snapshot: Snapshot) {
        let Snapshot { models, cache, hygiene } = snapshot;
        let mut known = self.seen.models.write().unwrap_or_else(PoisonError::into_inner);
        let models = models.into_iter().map(|model| {
            let id = model.report.id.clone();
            // A handle that somebody has goes on learning.
            let same = known.get(&id).filter(|known| known.report.fingerprint == model.report.fingerprint);
            let kept = match same {
                Some(same) => {
                    same.learn(model.now);
                    Arc::clone(same)
                }
                None => Arc::new(RemoteModel::new(model, self.link.clone())),
            };
            (id, kept)
        });
        let models = models.collect();
        *known = models;
        drop(known);
        *self.seen.cache.write().unwrap_or_else(PoisonError::into_inner) = cache;
        *self.seen.hygiene.write().unwrap_or_else(PoisonError::into_inner) = hygiene;
    }

    /// The loaded model of that name.
    pub(crate) fn remote_model(&self, id: &str) -> Option<Arc<RemoteModel>> {
        self.seen.models.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// All loaded models.
    pub(crate) fn remote_models(&self) -> Vec<Arc<RemoteModel>> {
        self.seen.models.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

#[async_trait]
impl Node for RemoteNode {
    fn models(&self) -> Vec<Arc<dyn NodeModel>> {
        self.remote_models().into_iter().map(|model| model as Arc<dyn NodeModel>).collect()
    }

    fn model(&self, id: &str) -> Option<Arc<dyn NodeModel>> {
        self.remote_model(id).map(|model| model as Arc<dyn NodeModel>)
    }

    fn hygiene(&self) -> Vec<HygieneRule> {
        self.seen.hygiene.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn load(&self, model: LoadModel) -> Loading {
        let node = self.clone();
        let events = async move {
            let events = match node.link.stream::<methods::Load>(model).await {
                Ok(events) => events,
                Err(error) => return stream::iter([LoadEvent::Failed(error.into())]).boxed(),
            };
            let seen = events.then(move |event| {
                let node = node.clone();
                async move {
                    match event {
                        // The model is known here before anybody learns that it is loaded.
                        Ok(LoadEvent::Loaded) => match node.look().await {
                            Ok(()) => LoadEvent::Loaded,
                            Err(error) => LoadEvent::Failed(error.into()),
                        },
                        Ok(event) => event,
                        Err(error) => LoadEvent::Failed(error.into()),
                    }
                }
            });
            seen.boxed()
        };
        Box::pin(stream::once(events).flatten())
    }

    async fn unload(&self, id: &str) -> Result<(), EngineError> {
        let unloaded = self.link.call::<methods::Unload>(id.to_owned()).await?;
        self.look().await?;
        unloaded
    }

    async fn footprint(&self, model: &LoadModel) -> Footprint {
        self.link.call::<methods::FootprintOf>(model.clone()).await.unwrap_or_default()
    }

    async fn model_file(&self, path: &Path, longest_array: usize) -> ModelFile {
        self.link.call::<methods::ModelFileOf>((path.to_owned(), longest_array)).await.unwrap_or_default()
    }

    fn cache(&self) -> CacheReport {
        self.seen.cache.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn cache_rows(&self, owner: Option<OwnerId>, offset: usize, limit: usize) -> RowPage {
        let page = self.link.call::<methods::CacheRows>((owner, offset, limit)).await;
        page.unwrap_or_else(|_| RowPage { total: 0, rows: Vec::new() })
    }

    fn follow_rows(&self) -> RowStream {
        let link = self.link.clone();
        let batches = async move {
            match link.stream::<methods::FollowRows>(()).await {
                Ok(batches) => batches
                    .take_while(|batch| std::future::ready(batch.is_ok()))
                    .filter_map(|batch| std::future::ready(batch.ok()))
                    .boxed(),
                Err(_) => stream::empty().boxed(),
            }
        };
        Box::pin(stream::once(batches).flatten())
    }

    async fn evict_bytes(&self, owner: Option<OwnerId>, bytes: u64, tiers: &[Tier]) -> u64 {
        self.link.call::<methods::EvictBytes>((owner, bytes, tiers.to_vec())).await.unwrap_or(0)
    }

    async fn remove_row(&self, owner: Option<OwnerId>, key: Key) -> bool {
        self.link.call::<methods::RemoveRow>((owner, key)).await.unwrap_or(false)
    }

    async fn pin_row(&self, owner: Option<OwnerId>, key: Key) -> PinOutcome {
        self.link.call::<methods::PinRow>((owner, key)).await.unwrap_or(PinOutcome::NoRow)
    }

    async fn unpin_row(&self, owner: Option<OwnerId>, key: Key) -> bool {
        self.link.call::<methods::UnpinRow>((owner, key)).await.unwrap_or(false)
    }

    async fn verify_row(&self, owner: Option<OwnerId>, key: Key) -> Option<Vec<CopyCheck>> {
        self.link.call::<methods::VerifyRow>((owner, key)).await.ok().flatten()
    }

    async fn row_tokens(&self, owner: Option<OwnerId>, key: Key) -> Option<RowTokens> {
        self.link.call::<methods::RowTokensOf>((owner, key)).await.ok().flatten()
    }

    async fn evictions(&self) -> Vec<EvictionSum> {
        self.link.call::<methods::Evictions>(()).await.unwrap_or_default()
    }

    async fn clear_cache(&self) -> u64 {
        self.link.call::<methods::ClearCache>(()).await.unwrap_or(0)
    }

    async fn collect_garbage(&self) -> u64 {
        self.link.call::<methods::CollectGarbage>(()).await.unwrap_or(0)
    }
}

/// A model of a node in another process.
pub(crate) struct RemoteModel {
    link: Link,
    report: ModelReport,
    last: RwLock<ModelNow>,
    /// When the other end last looked at the file for this one.
    looked: Mutex<Option<Instant>>,
}

impl RemoteModel {
    fn new(model: ModelSnapshot, link: Link) -> Self {
        let ModelSnapshot { report, now } = model;
        Self { link, report, last: RwLock::new(now), looked: Mutex::default() }
    }

    fn learn(&self, now: ModelNow) {
        *self.last.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    fn last<T>(&self, read: impl FnOnce(&ModelNow) -> T) -> T {
        read(&self.last.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Something was changed here: the caller must see it in what it reads next.
    async fn look(&self) {
        let snapshot = self.link.call::<methods::Look>(()).await;
        let own =
            snapshot.into_iter().flat_map(|snapshot| snapshot.models).find(|model| model.report.id == self.report.id);
        if let Some(own) = own {
            self.learn(own.now);
        }
    }

    fn id(&self) -> String {
        self.report.id.clone()
    }
}

/// The events of a reply; a connection that ends is its last one.
fn events(reply: impl futures_core::Stream<Item = Result<ReplyEvent, LinkError>> + Send + 'static) -> ReplyStream {
    let ended = |is_over: &mut bool, event: Result<ReplyEvent, LinkError>| {
        let event = event.unwrap_or_else(|error| ReplyEvent::Failed(error.into()));
        let shown = (!*is_over).then(|| event.clone());
        *is_over |= matches!(event, ReplyEvent::Done(_) | ReplyEvent::Cancelled(_) | ReplyEvent::Failed(_));
        std::future::ready(shown)
    };
    // A stream that just stops is a connection that was lost, too.
    let lost = stream::iter([Err(LinkError::Lost("the reply stopped in the middle".to_owned()))]);
    Box::pin(reply.chain(lost).scan(false, ended))
}

#[async_trait]
impl NodeModel for RemoteModel {
    fn report(&self) -> &ModelReport {
        &self.report
    }

    fn status(&self) -> StatusReport {
        self.last(|last| last.status)
    }

    fn requests(&self) -> Vec<RequestReport> {
        self.last(|last| last.requests.clone())
    }

    fn sessions(&self) -> Vec<SessionInfo> {
        self.last(|last| last.sessions.clone())
    }

    fn adapters(&self) -> Vec<AdapterInfo> {
        self.last(|last| last.adapters.clone())
    }

    fn is_file_changed(&self) -> bool {
        self.last(|last| last.is_file_changed)
    }

    async fn look_at_file(&self) -> bool {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner).replace(Instant::now());
        // Each request asks, and a call takes longer than the answer is worth.
        if looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return self.is_file_changed();
        }
        let changed = self.link.call::<methods::LookAtFile>(self.id()).await.unwrap_or(false);
        self.last.write().unwrap_or_else(PoisonError::into_inner).is_file_changed = changed;
        changed
    }

    async fn files(&self) -> ModelFiles {
        self.link.call::<methods::Files>(self.id()).await.unwrap_or_default()
    }

    async fn footprint(&self) -> Footprint {
        self.link.call::<methods::FootprintNow>(self.id()).await.unwrap_or_default()
    }

    async fn generate(&self, prompts: Vec<Generate>) -> Result<Vec<ReplyStream>, EngineError> {
        let mut answers = self.link.stream::<methods::GenerateReplies>((self.id(), prompts)).await?;
        let first = answers.next().await;
        let first = first.unwrap_or_else(|| Err(LinkError::Lost("the node did not answer".to_owned())));
        match first? {
            Accepted::Refused(error) => Err(error),
            Accepted::One => {
                let replies = answers.map(|answer| match answer? {
                    Accepted::Event(event) => Ok(event),
                    other => Err(LinkError::Refused(format!("the answer {other:?} came in a reply"))),
                });
                Ok(vec![events(replies)])
            }
            Accepted::Tickets(tickets) => {
                let mut replies = Vec::new();
                for ticket in tickets {
                    replies.push(events(self.link.stream::<methods::Claim>(ticket).await?));
                }
                Ok(replies)
            }
            Accepted::Event(_) => Err(EngineError::internal("received a reply before it was accepted")),
        }
    }

    async fn render(&self, prompt: Generate) -> Result<Rendered, EngineError> {
        self.link.call::<methods::Render>((self.id(), prompt)).await?
    }

    async fn explain(&self, prompt: Generate, past: Option<PastLookup>) -> Result<Explained, EngineError> {
        self.link.call::<methods::Explain>((self.id(), prompt, past)).await?
    }

    async fn tokenize(&self, text: String, mode: TokenizeMode) -> Result<Vec<u32>, EngineError> {
        self.link.call::<methods::Tokenize>((self.id(), text, mode)).await?
    }

    async fn detokenize(&self, tokens: Vec<u32>, special: SpecialText) -> Result<String, EngineError> {
        self.link.call::<methods::Detokenize>((self.id(), tokens, special)).await?
    }

    async fn token_bytes(&self, tokens: Vec<u32>) -> Result<Vec<Vec<u8>>, EngineError> {
        self.link.call::<methods::TokenBytes>((self.id(), tokens)).await?
    }

    async fn embedding_inputs(&self, inputs: Vec<Input>, truncates: bool) -> Result<Vec<Vec<u32>>, EngineError> {
        self.link.call::<methods::EmbeddingInputs>((self.id(), inputs, truncates)).await?
    }

    async fn embedding_bytes(&self, longest: usize) -> u64 {
        self.link.call::<methods::EmbeddingBytes>((self.id(), longest)).await.unwrap_or(0)
    }

    async fn embed(&self, inputs: Vec<Vec<u32>>, normalises: bool) -> Result<Vec<Vec<f32>>, EngineError> {
        self.link.call::<methods::Embed>((self.id(), inputs, normalises)).await?
    }

    async fn capabilities(&self, template: Option<String>) -> Capabilities {
        self.link.call::<methods::CapabilitiesOf>((self.id(), template)).await.unwrap_or(NO_CAPABILITIES)
    }

    async fn chat_template(&self) -> Option<String> {
        self.link.call::<methods::ChatTemplate>(self.id()).await.ok().flatten()
    }

    async fn end_session(&self, name: &str) -> Result<bool, EngineError> {
        let answer = self.link.call::<methods::EndSession>((self.id(), name.to_owned())).await?;
        self.look().await;
        answer
    }

    async fn verify(&self, prefix: Vec<u32>, draft: Vec<u32>) -> Result<Verified, EngineError> {
        self.link.call::<methods::Verify>((self.id(), prefix, draft)).await?
    }

    async fn draft(&self, prefix: Vec<u32>, count: usize) -> Result<Vec<u32>, EngineError> {
        self.link.call::<methods::Draft>((self.id(), prefix, count)).await?
    }

    async fn load_adapter(&self, path: &Path, scale: f32) -> Result<AdapterId, EngineError> {
        let answer = self.link.call::<methods::LoadAdapter>((self.id(), path.to_owned(), scale)).await?;
        self.look().await;
        answer
    }

    async fn unload_adapter(&self, id: AdapterId) -> Result<(), EngineError> {
        let answer = self.link.call::<methods::UnloadAdapter>((self.id(), id)).await?;
        self.look().await;
        answer
    }

    async fn set_adapter_scale(&self, id: AdapterId, scale: f32) -> Result<(), EngineError> {
        let answer = self.link.call::<methods::SetAdapterScale>((self.id(), id, scale)).await?;
        self.look().await;
        answer
    }

    async fn evict(&self) -> Result<usize, EngineError> {
        let answer = self.link.call::<methods::Evict>(self.id()).await?;
        self.look().await;
        answer
    }
}
