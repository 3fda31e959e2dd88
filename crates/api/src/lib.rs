//! The line between what speaks to clients and what computes: plain data, and the traits that an engine offers.
//!
//! The server holds an `Arc<dyn Node>` and knows nothing of llama.cpp; `poncho-engine` implements the traits in this
//! process, and another crate may carry them to another one. So everything here is owned and has a serde form: no
//! closure, no channel, no borrowed pointer. A grammar is text, an adapter is a path or a digest.
//!
//! | File | What it holds |
//! | --- | --- |
//! | `node` | the traits: a node with its models and its cache, and one loaded model |
//! | `turn`, `request` | what is asked: a conversation or another prompt, and how the reply is generated |
//! | `reply`, `completion` | what comes back: events of a reply, and the facts at its end |
//! | `load` | how a model is loaded |
//! | `model`, `cache` | reports: a model, its status, its sessions; the cache, its rows, an explanation |
//! | `chat` | settings and rules of conversations |
//! | `error` | all errors |

mod cache;
mod chat;
mod completion;
mod drafts;
mod error;
mod ids;
mod load;
mod model;
mod node;
mod reply;
mod request;
mod signature;
mod tenant;
mod turn;

pub use cache::rows::{CopyCheck, EvictionSum, PinOutcome, RowTokens};
pub use cache::{
    Around, CacheReport, Cause, CauseWords, Counter, Divergence, Explained, ExplainedRow, MessagePlace, PastLookup,
    PressureReport, RemotePrefix, Resumption, RowBatch, RowChange, RowPage, RowReport, SharedTierReport, StoredRow,
    TierHealth, TierReport,
};
pub use chat::{ChatSettings, HygieneRule, Normalised, ReplayScope};
pub use completion::{Completion, FinishReason, TokenLogprob, TokenProbability};
pub use drafts::{DraftObstacle, DraftReport, DraftRule, Drafts};
pub use error::{EngineError, Field, RequestError, range_text};
pub use ids::random_id;
pub use load::config::{Exactness, FingerprintSource, ModelConfig, PrefillChunk, RestoreRule};
pub use load::markers::{MarkerSet, ThinkingMarkers, ToolMarkers};
pub use load::options::{
    BadOption, ContextOptions, FlashAttention, KvLayout, KvType, MAX_SEQUENCES, ModelOptions, Numa, Pooling,
    RopeScaling, SplitMode,
};
pub use load::prober::{ProbeWhen, Prober};
pub use load::reasoning::Reasoning;
pub use model::{
    AdapterId, AdapterInfo, Capabilities, DraftStatus, FillTokens, Footprint, LastHit, MemoryKind, ModelFile,
    ModelFiles, ModelInfo, ModelLimits, ModelReport, Phase, RequestProgress, RequestReport, RequestStage, SessionInfo,
    SpecialText, SpecialTokens, Speeds, StatusReport, TokenizeMode, Verified,
};
pub use node::{LoadEvent, LoadModel, Loading, Node, NodeModel, PeerReport, PeerState, ReplyStream, RowStream};
pub use poncho_kinds::{
    EvictionCause, FileStamp, Gates, HitKind, HitTier, Key, OwnerId, RemoteCounts, SaveReason, Tier, to_hex,
};
pub use reply::{CallDelta, ChatOutput, ChatToolCall, Delta, Finish, Finished, Progress, ReplyEvent, Started};
pub use request::{
    Grammar, GrammarSource, MAX_SESSION_BYTES, MAX_STOP_BYTES, MAX_STOPS, MAX_TOP_LOGPROBS, Mode, Request, Resume,
    Sampling, Thinking, Trigger,
};
pub use signature::SigningKey;
pub use tenant::{Privacy, Tenant};
pub use turn::{ANY_OBJECT, ChatTurn, Choice, Generate, Input, Prompt, PromptPart, Rendered, Tool, with_named_root};
