//! The calls of the protocol, each with what it asks and what it answers.
//!
//! Read by host and client, so that the two cannot differ. A change of any type in here, or in a type of the API that
//! travels, needs another `VERSION`: both ends refuse another version than their own.

use std::path::PathBuf;

use poncho_api::{
    AdapterId, AdapterInfo, CacheReport, Capabilities, CopyCheck, EngineError, EvictionSum, Explained, Footprint,
    Generate, HygieneRule, Input, Key, LoadEvent, LoadModel, ModelFile, ModelFiles, ModelReport, OwnerId, PastLookup,
    PinOutcome, Rendered, ReplyEvent, RequestReport, RowBatch, RowPage, RowTokens, SessionInfo, SpecialText,
    StatusReport, Tier, TokenizeMode, Verified,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub(crate) const VERSION: u32 = 6;
/// The header that carries it.
pub(crate) const VERSION_HEADER: &str = "poncho-protocol";
/// The service that all paths begin with.
pub(crate) const SERVICE: &str = "poncho.node";

/// A call: its name on the wire, its question and its answer.
pub(crate) trait Method {
    const PATH: &'static str;
    type Ask: Serialize + DeserializeOwned + Send + Sync + 'static;
    type Answer: Serialize + DeserializeOwned + Send + Sync + 'static;
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $path:literal: $ask:ty => $answer:ty;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;
        impl Method for $name {
            const PATH: &'static str = concat!("/poncho.node/", $path);
            type Ask = $ask;
            type Answer = $answer;
        }
    )*};
}

/// A result as the API has it.
type Fallible<T> = Result<T, EngineError>;

methods! {
    /// Everything that is read without waiting.
    Look "look": () => Snapshot;
    /// The same, sent again whenever it changed.
    Watch "watch": () => Snapshot;
    /// Ends the process, with the states of its models saved.
    Stop "stop": () => ();
    Load "load": LoadModel => LoadEvent;
    Unload "unload": String => Fallible<()>;
    FootprintOf "footprint_of": LoadModel => Footprint;
    ModelFileOf "model_file": (PathBuf, usize) => ModelFile;
    CacheRows "cache_rows": (Option<OwnerId>, usize, usize) => RowPage;
    /// All rows with their tokens, and then what changes.
    FollowRows "follow_rows": () => RowBatch;
    EvictBytes "evict_bytes": (Option<OwnerId>, u64, Vec<Tier>) => u64;
    RemoveRow "remove_row": (Option<OwnerId>, Key) => bool;
    PinRow "pin_row": (Option<OwnerId>, Key) => PinOutcome;
    UnpinRow "unpin_row": (Option<OwnerId>, Key) => bool;
    VerifyRow "verify_row": (Option<OwnerId>, Key) => Option<Vec<CopyCheck>>;
    RowTokensOf "row_tokens": (Option<OwnerId>, Key) => Option<RowTokens>;
    Evictions "evictions": () => Vec<EvictionSum>;
    ClearCache "clear_cache": () => u64;
    CollectGarbage "collect_garbage": () => u64;
    LookAtFile "look_at_file": String => bool;
    Files "files": String => ModelFiles;
    FootprintNow "footprint": String => Footprint;
    GenerateReplies "generate": (String, Vec<Generate>) => Accepted;
    /// The events of a reply by its ticket.
    Claim "claim": u64 => ReplyEvent;
    Render "render": (String, Generate) => Fallible<Rendered>;
    Explain "explain": (String, Generate, Option<PastLookup>) => Fallible<Explained>;
    Tokenize "tokenize": (String, String, TokenizeMode) => Fallible<Vec<u32>>;
    Detokenize "detokenize": (String, Vec<u32>, SpecialText) => Fallible<String>;
    TokenBytes "token_bytes": (String, Vec<u32>) => Fallible<Vec<Vec<u8>>>;
    EmbeddingInputs "embedding_inputs": (String, Vec<Input>, bool) => Fallible<Vec<Vec<u32>>>;
    EmbeddingBytes "embedding_bytes": (String, usize) => u64;
    Embed "embed": (String, Vec<Vec<u32>>, bool) => Fallible<Vec<Vec<f32>>>;
    CapabilitiesOf "capabilities": (String, Option<String>) => Capabilities;
    ChatTemplate "chat_template": String => Option<String>;
    EndSession "end_session": (String, String) => Fallible<bool>;
    Verify "verify": (String, Vec<u32>, Vec<u32>) => Fallible<Verified>;
    Draft "draft": (String, Vec<u32>, usize) => Fallible<Vec<u32>>;
    LoadAdapter "load_adapter": (String, PathBuf, f32) => Fallible<AdapterId>;
    UnloadAdapter "unload_adapter": (String, AdapterId) => Fallible<()>;
    SetAdapterScale "set_adapter_scale": (String, AdapterId, f32) => Fallible<()>;
    Evict "evict": String => Fallible<usize>;
}

/// The first answer of `generate`, and what follows it on the same stream.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Accepted {
    /// Nothing was started.
    Refused(EngineError),
    /// More than one reply was started. Each is claimed by its ticket, on a stream of its own.
    Tickets(Vec<u64>),
    /// One reply was started; its events follow.
    One,
    /// An event of the one reply.
    Event(ReplyEvent),
}

/// What a node knows without waiting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) models: Vec<ModelSnapshot>,
    pub(crate) cache: CacheReport,
    pub(crate) hygiene: Vec<HygieneRule>,
}

/// A loaded model in a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ModelSnapshot {
    pub(crate) report: ModelReport,
    pub(crate) now: ModelNow,
}

/// What changes while a model is loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelNow {
    pub(crate) status: StatusReport,
    pub(crate) requests: Vec<RequestReport>,
    pub(crate) sessions: Vec<SessionInfo>,
    pub(crate) adapters: Vec<AdapterInfo>,
    pub(crate) is_file_changed: bool,
}

impl PartialEq for ModelSnapshot {
    /// A report never changes while its model is loaded; after another load the worker counts from zero.
    fn eq(&self, other: &Self) -> bool {
        (&self.report.id, self.report.fingerprint, &self.now)
            == (&other.report.id, other.report.fingerprint, &other.now)
    }
}
