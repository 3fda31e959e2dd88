//! What an engine offers: a node with its models and its cache, and one loaded model.
//!
//! The server speaks to nothing else. Implemented by the engine in this process. A call that waits is async, and
//! dropping its future gives the work up; what is read without waiting is what the node last knew. Errors are values: no
//! call may panic.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use futures_core::Stream;
use poncho_kinds::{Key, OwnerId, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::rows::{CopyCheck, EvictionSum, PinOutcome, RowTokens};
use crate::cache::{CacheReport, Explained, PastLookup, RowBatch, RowPage};
use crate::chat::HygieneRule;
use crate::error::EngineError;
use crate::load::config::ModelConfig;
use crate::model::{
    AdapterId, AdapterInfo, Capabilities, Footprint, ModelFile, ModelFiles, ModelReport, RequestReport, SessionInfo,
    SpecialText, StatusReport, TokenizeMode, Verified,
};
use crate::reply::ReplyEvent;
use crate::turn::{Generate, Input, Rendered};

/// The events of one reply. Dropping it cancels the request.
pub type ReplyStream = Pin<Box<dyn Stream<Item = ReplyEvent> + Send>>;

/// The rows of a cache as they come and go. It ends with the process that has the cache.
pub type RowStream = Pin<Box<dyn Stream<Item = RowBatch> + Send>>;

/// The events of a load.
pub type Loading = Pin<Box<dyn Stream<Item = LoadEvent> + Send>>;

/// A model to load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadModel {
    /// How it is loaded; its id is the name that it gets.
    pub config: ModelConfig,
    /// Adapters that are attached at full strength; one that cannot be fails the load.
    pub adapters: Vec<PathBuf>,
}

/// What happens while a model is loaded. The last event is `Loaded` or `Failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum LoadEvent {
    /// Bytes of the file that were read, of how many.
    Progress {
        /// Those that were read.
        read: u64,
        /// All of them.
        total: u64,
    },
    /// It is loaded.
    Loaded,
    /// It is not.
    Failed(EngineError),
}

/// Whether a process that computes is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    /// It serves.
    Up,
    /// It is being started, or was not tried yet.
    Starting,
    /// It is not there; it is tried again.
    Down,
}

/// A process that computes for this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerReport {
    /// Its address, or what it is.
    pub name: String,
    /// Whether it is there.
    pub state: PeerState,
    /// Why it is not there.
    pub reason: Option<String>,
    /// The models that it has loaded.
    pub models: Vec<String>,
}

/// Models and a cache, wherever they are.
#[async_trait]
pub trait Node: Send + Sync {
    /// All loaded models, by name.
    fn models(&self) -> Vec<Arc<dyn NodeModel>>;

    /// The loaded model of that name.
    fn model(&self, id: &str) -> Option<Arc<dyn NodeModel>>;

    /// Waits for models that are expected to appear, for a bounded time. Returns whether there may be others than before;
    /// at once, if none are expected.
    async fn await_models(&self) -> bool {
        false
    }

    /// Whether a model of that name is loaded.
    fn has_model(&self, id: &str) -> bool {
        self.model(id).is_some()
    }

    /// The rules that make prompts equal, those that are on.
    fn hygiene(&self) -> Vec<HygieneRule>;

    /// Loads a model. Dropping the stream does not end a load.
    fn load(&self, model: LoadModel) -> Loading;

    /// Saves what a model holds, ends its requests and forgets it.
    async fn unload(&self, id: &str) -> Result<(), EngineError>;

    /// How much memory a model with its adapters would take, by its files and settings.
    async fn footprint(&self, model: &LoadModel) -> Footprint;

    /// What a model file says of itself, loaded or not. Arrays longer than `longest_array` are left out.
    async fn model_file(&self, path: &Path, longest_array: usize) -> ModelFile;

    /// The cache at this moment.
    fn cache(&self) -> CacheReport;

    /// Some rows by key, of all owners or of one.
    async fn cache_rows(&self, owner: Option<OwnerId>, offset: usize, limit: usize) -> RowPage;

    /// All rows with their tokens, and from then on what changes. A node of several machines has no such stream: it ends
    /// at once.
    fn follow_rows(&self) -> RowStream;

    /// Frees at least that many bytes, oldest rows first; of an owner, only what is its own alone. Returns the bytes that
    /// were freed.
    async fn evict_bytes(&self, owner: Option<OwnerId>, bytes: u64, tiers: &[Tier]) -> u64;

    /// Drops one row that is not in use and that no other row builds on; of an owner, only what is its own alone. Returns
    /// whether it was dropped.
    async fn remove_row(&self, owner: Option<OwnerId>, key: Key) -> bool;

    /// Pins a row, so that it stays while others are evicted; of an owner, only a row of its own.
    async fn pin_row(&self, owner: Option<OwnerId>, key: Key) -> PinOutcome;

    /// Removes a pin; of an owner, its own pin, and else all pins of the row. Returns whether there was one.
    async fn unpin_row(&self, owner: Option<OwnerId>, key: Key) -> bool;

    /// Compares the copies of a row with their checksums; of an owner, only of a row of its own. A damaged copy leaves the
    /// cache. `None` if the row is unknown.
    async fn verify_row(&self, owner: Option<OwnerId>, key: Key) -> Option<Vec<CopyCheck>>;

    /// The tokens of a row; of an owner, only of a row of its own.
    async fn row_tokens(&self, owner: Option<OwnerId>, key: Key) -> Option<RowTokens>;

    /// Evictions of the last 30 days by hour, tier and cause, the oldest first.
    async fn evictions(&self) -> Vec<EvictionSum>;

    /// The processes that compute for this node, if they are others than the caller's.
    fn peers(&self) -> Vec<PeerReport> {
        Vec::new()
    }

    /// Drops every row that is not in use. Returns the bytes that were freed.
    async fn clear_cache(&self) -> u64;

    /// Removes cache files that can never be used again. Usable rows stay. Returns the bytes that were freed.
    async fn collect_garbage(&self) -> u64;
}

/// One loaded model.
#[async_trait]
pub trait NodeModel: Send + Sync {
    /// What never changes while it is loaded.
    fn report(&self) -> &ModelReport;

    /// What it is doing.
    fn status(&self) -> StatusReport;

    /// Requests that have not ended, oldest first, as far as its worker has reported them. Does not wait for the worker.
    fn requests(&self) -> Vec<RequestReport>;

    /// Sessions that hold a sequence and are idle. Does not wait for the worker.
    fn sessions(&self) -> Vec<SessionInfo>;

    /// The attached adapters. Does not wait for the worker.
    fn adapters(&self) -> Vec<AdapterInfo>;

    /// Whether its file was changed since it was loaded, as far as anybody looked. It takes no requests then.
    fn is_file_changed(&self) -> bool;

    /// Looks at its file, unless somebody did a moment ago. Says whether it was changed since it was loaded.
    async fn look_at_file(&self) -> bool;

    /// Its files on disk.
    async fn files(&self) -> ModelFiles;

    /// How much memory it takes, by its files and settings.
    async fn footprint(&self) -> Footprint;

    /// Starts the replies to some prompts, those to the first prompt first. A full queue refuses before anything is done.
    async fn generate(&self, prompts: Vec<Generate>) -> Result<Vec<ReplyStream>, EngineError>;

    /// A prompt as the model would read it. It may be longer than the context, up to a few times.
    async fn render(&self, prompt: Generate) -> Result<Rendered, EngineError>;

    /// Why a prompt is found in the cache or not. With several tenants, only the caller's own rows count. With `past`, why
    /// it was found or not when it was computed: rows that were saved since do not count.
    async fn explain(&self, prompt: Generate, past: Option<PastLookup>) -> Result<Explained, EngineError>;

    /// The tokens of a text, which may be longer than the context, up to a few times.
    async fn tokenize(&self, text: String, mode: TokenizeMode) -> Result<Vec<u32>, EngineError>;

    /// The text of some tokens; bytes that are not UTF-8 become U+FFFD.
    async fn detokenize(&self, tokens: Vec<u32>, special: SpecialText) -> Result<String, EngineError>;

    /// The exact bytes of each token.
    async fn token_bytes(&self, tokens: Vec<u32>) -> Result<Vec<Vec<u8>>, EngineError>;

    /// The tokens of inputs that are to be embedded; one that is too long is cut if `truncates`, and else refused. An
    /// error that belongs to one input names it `[0]`, `[1]`, ...
    async fn embedding_inputs(&self, inputs: Vec<Input>, truncates: bool) -> Result<Vec<Vec<u32>>, EngineError>;

    /// Bytes of the context in which inputs of up to `longest` tokens are embedded.
    async fn embedding_bytes(&self, longest: usize) -> u64;

    /// One vector for each input; of length 1 if `normalises`.
    async fn embed(&self, inputs: Vec<Vec<u32>>, normalises: bool) -> Result<Vec<Vec<f32>>, EngineError>;

    /// What it can do, with its own template or another one.
    async fn capabilities(&self, template: Option<String>) -> Capabilities;

    /// Its chat template.
    async fn chat_template(&self) -> Option<String>;

    /// Forgets a session and frees its sequence. Says whether it was known.
    async fn end_session(&self, name: &str) -> Result<bool, EngineError>;

    /// How many of the draft tokens it would have drawn itself after the prefix, greedily.
    async fn verify(&self, prefix: Vec<u32>, draft: Vec<u32>) -> Result<Verified, EngineError>;

    /// Its own next tokens after the prefix, greedily.
    async fn draft(&self, prefix: Vec<u32>, count: usize) -> Result<Vec<u32>, EngineError>;

    /// Loads a LoRA adapter and attaches it for requests that come after; at full strength, `scale` is 1.
    async fn load_adapter(&self, path: &Path, scale: f32) -> Result<AdapterId, EngineError>;

    /// Detaches an adapter; one that is not attached is fine.
    async fn unload_adapter(&self, id: AdapterId) -> Result<(), EngineError>;

    /// Changes an adapter's strength for requests that come after.
    async fn set_adapter_scale(&self, id: AdapterId, scale: f32) -> Result<(), EngineError>;

    /// Saves every idle session and frees its sequence. Returns how many there were.
    async fn evict(&self) -> Result<usize, EngineError>;
}
