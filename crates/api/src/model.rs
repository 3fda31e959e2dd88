//! What a loaded model is and does: facts, limits, status, sessions, adapters.
//!
//! Made by the engine, read by servers and monitors. Plain owned data; a report never changes.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use poncho_kinds::{HitKind, Key, OwnerId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::drafts::DraftObstacle;
use crate::request::Mode;
use crate::signature::SigningKey;

/// Which memory a model keeps for a sequence; it decides what a row must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryKind {
    /// Plain attention: may be cut at any token.
    Attention,
    /// Some layers see only the last `size` tokens: resumable at saved boundaries only.
    Window {
        /// Tokens a windowed layer can see.
        size: u32,
    },
    /// One running state: resumable at saved boundaries only.
    Recurrent,
    /// Attention layers beside recurrent ones: resumable at saved boundaries only.
    Hybrid,
    /// No memory between calls (embedding encoders): nothing to save.
    None,
}

impl MemoryKind {
    /// Whether a sequence may be shortened to any length and stay right.
    #[must_use]
    pub fn can_cut(self) -> bool {
        matches!(self, Self::Attention)
    }

    /// Whether a row needs attention segments.
    #[must_use]
    pub fn has_segments(self) -> bool {
        matches!(self, Self::Attention | Self::Window { .. } | Self::Hybrid)
    }

    /// Whether a row needs the partial state (window or recurrent part).
    #[must_use]
    pub fn has_partial(self) -> bool {
        matches!(self, Self::Window { .. } | Self::Recurrent | Self::Hybrid)
    }
}

/// Special tokens of a vocabulary, where the model has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialTokens {
    /// Start of a text.
    pub bos: Option<u32>,
    /// End of a text.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Newline.
    pub nl: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// The marks around a gap that the model can fill, where it has all three.
    pub fill: Option<FillTokens>,
}

/// The marks of a prompt that lacks its middle: `prefix`, the text before, `suffix`, the text after, `middle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillTokens {
    /// Before the text that comes before the gap.
    pub prefix: u32,
    /// Before the text that comes after the gap.
    pub suffix: u32,
    /// After both: from here on the model fills the gap.
    pub middle: u32,
}

/// Facts about a loaded model that never change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Entries in the vocabulary; the length of a logits row.
    pub n_vocab: u32,
    /// Context length the model was trained with.
    pub n_ctx_train: u32,
    /// Number of layers.
    pub n_layers: u32,
    /// Width of a hidden state.
    pub n_embd: u32,
    /// Width of an embedding that comes out; differs from `n_embd` where the model projects it.
    pub n_embd_out: u32,
    /// Architecture name from the file, such as `llama`.
    pub architecture: String,
    /// The library's one-line description.
    pub description: String,
    /// Bytes of all tensors.
    pub size_bytes: u64,
    /// Number of parameters.
    pub n_params: u64,
    /// Memory kind.
    pub memory: MemoryKind,
    /// Special tokens.
    pub special: SpecialTokens,
    /// Whether texts start with the BOS token.
    pub add_bos: bool,
    /// Whether texts end with the EOS token.
    pub add_eos: bool,
    /// Whether the model has an encoder that must run before the decoder.
    pub has_encoder: bool,
    /// Whether the model has a decoder; without one it only embeds.
    pub has_decoder: bool,
    /// Whether only the vocabulary was loaded: tokenizing works, contexts do not.
    pub vocab_only: bool,
    /// Token count at which the model switches its RoPE factors, if it does (section 3 of the design: the side of
    /// the switch belongs to the context hash).
    pub rope_switch_at: Option<u32>,
}

/// How a text becomes tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeMode {
    /// Add BOS / EOS as the model wants them.
    pub add_special: bool,
    /// Recognise the text of special tokens. Never set it for user text.
    pub parse_special: bool,
}

/// What to do with the text of control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpecialText {
    /// Their text appears.
    Render,
    /// They yield nothing.
    Hide,
}

/// What the loaded model can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLimits {
    /// Positions that one request may use, prompt and reply together.
    pub context: usize,
    /// Number of tokens in the vocabulary.
    pub vocab: u32,
    /// Requests that can run at the same time.
    pub sequences: usize,
    /// Whether the model was loaded so that `exact` can be kept.
    pub exact: bool,
    /// Requests that may wait for a sequence.
    pub queue: usize,
}

impl ModelLimits {
    /// The longest prompt for a mode: a reply needs room for a token.
    #[must_use]
    pub const fn longest_prompt(&self, mode: Mode) -> usize {
        match mode {
            Mode::PrefillOnly => self.context,
            Mode::Complete | Mode::Continue => self.context.saturating_sub(1),
        }
    }
}

/// What a model is doing at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Phase {
    /// Being loaded, or restarted after its worker ended.
    #[default]
    Starting,
    /// No request.
    Idle,
    /// Reading prompts, and nothing else.
    Prefilling,
    /// At least one request is generating.
    Generating,
    /// Unloaded.
    Stopped,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Idle, Self::Prefilling, Self::Generating, Self::Stopped];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Prefilling => "prefilling",
            Self::Generating => "generating",
            Self::Stopped => "stopped",
        }
    }
}

/// The last cache decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastHit {
    /// How the prompt was found.
    pub kind: HitKind,
    /// Prompt tokens from the cache.
    pub cached_tokens: u64,
    /// Tokens of the prompt.
    pub prompt: u64,
}

/// How fast a model runs on this machine, as it measured itself. `None` before the first measurement.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Speeds {
    /// Prompt tokens computed in a second.
    pub prefill: Option<f64>,
    /// Seconds of a decode call with one stream.
    pub decode_step: Option<f64>,
    /// Seconds that each further stream adds to it.
    pub decode_stream: Option<f64>,
    /// Bytes of state for each token, by the file of the model.
    pub bytes_per_token: Option<u64>,
    /// Bytes restored from memory in a second.
    pub ram: Option<f64>,
    /// Bytes restored from disk in a second.
    pub disk: Option<f64>,
}

/// A copy of all facts.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StatusReport {
    /// What the model does.
    pub phase: Phase,
    /// Requests that wait for a sequence.
    pub pending: usize,
    /// Requests that were submitted and have not ended, running or waiting.
    pub queue_depth: usize,
    /// Requests that run.
    pub active: usize,
    /// Sessions that hold a sequence.
    pub sessions: usize,
    /// The last cache decision.
    pub last_hit: Option<LastHit>,
    /// Decode calls so far.
    pub ticks: u64,
    /// Prompt tokens computed so far.
    pub prefilled_tokens: u64,
    /// Tokens drawn so far.
    pub generated_tokens: u64,
    /// Nanoseconds spent in decode calls.
    pub decode_nanos: u64,
    /// Nanoseconds that the worker spent between decode calls while it had requests.
    pub overhead_nanos: u64,
    /// Times that the worker was started.
    pub starts: u64,
    /// Requests that ended so far, well or not.
    pub ended: u64,
    /// How fast it is.
    pub speeds: Speeds,
    /// What drafts did so far.
    pub drafts: DraftStatus,
}

/// What drafts did so far, and why there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DraftStatus {
    /// Draft tokens that were computed.
    pub drafted: u64,
    /// Of these, the ones that became part of a reply.
    pub accepted: u64,
    /// Steps of requests that drew tokens: one for each request in a decode call.
    pub steps: u64,
    /// Microseconds that all replies together are shorter for drafts, by measured times of calls; negative if they are longer.
    pub saved_micros: i64,
    /// Tokens of stored conversations that drafts are found in.
    pub index_tokens: u64,
    /// Bytes that this index takes.
    pub index_bytes: u64,
    /// Why there are none; `None` where they are on.
    pub off: Option<DraftObstacle>,
}

/// What happens to a request at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RequestStage {
    /// It waits for a sequence, or for the worker to take it.
    Queued,
    /// Its stored rows are being read.
    Restoring,
    /// Its prompt is being computed.
    Prefilling,
    /// Its reply is being generated.
    Generating,
}

impl RequestStage {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Queued, Self::Restoring, Self::Prefilling, Self::Generating];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Restoring => "restoring",
            Self::Prefilling => "prefilling",
            Self::Generating => "generating",
        }
    }
}

/// How far a request is, as of the last decode call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestProgress {
    /// What happens to it.
    pub stage: RequestStage,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens with a state that was there already.
    pub cached_tokens: usize,
    /// Prompt tokens that need no more work: cached or computed.
    pub processed_tokens: usize,
    /// Tokens of its reply so far.
    pub generated_tokens: usize,
    /// Speed of its stage: prompt tokens computed or tokens generated. `None` before the first decode call of the stage.
    pub tokens_per_second: Option<f64>,
}

/// A request that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestReport {
    /// The tenant that sent it.
    pub tenant: Option<OwnerId>,
    /// Its session.
    pub session: Option<String>,
    /// The caller's number for it.
    pub label: Option<u64>,
    /// Time since it was submitted.
    pub age: Duration,
    /// How far it is.
    pub progress: RequestProgress,
}

/// A session that holds a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// The caller's name for it.
    pub name: String,
    /// Tokens that its sequence holds.
    pub tokens: usize,
    /// The row of those tokens, whether or not it is saved.
    pub key: Key,
}

/// The answer of `verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Leading draft tokens that the model would have drawn itself.
    pub accepted: usize,
    /// The model's own next token after those.
    pub next: u32,
}

/// The name of a loaded adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AdapterId(pub u64);

/// What is known of a loaded adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdapterInfo {
    /// Its name.
    pub id: AdapterId,
    /// Its file.
    pub path: PathBuf,
    /// Hash of its file.
    pub sha256: [u8; 32],
    /// Its strength.
    pub scale: f32,
}

/// Bytes of memory, by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Footprint {
    /// The model's files.
    pub weights: u64,
    /// The cells of the context.
    pub cells: u64,
}

impl Footprint {
    /// All of it.
    #[must_use]
    pub fn total(self) -> u64 {
        self.weights.saturating_add(self.cells)
    }
}

/// What never changes while a model is loaded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelReport {
    /// The name under which it was loaded.
    pub id: String,
    /// Facts about the model.
    pub info: ModelInfo,
    /// What one request may use.
    pub limits: ModelLimits,
    /// Its file; the first part of a split one.
    pub path: PathBuf,
    /// Hash of its files.
    pub fingerprint: [u8; 32],
    /// Hash of the context settings that its states depend on.
    pub context_hash: [u8; 32],
    /// The quantisation that its file states, if it is a known one.
    pub quantisation: Option<String>,
    /// The license that its file names.
    pub license: Option<String>,
    /// Signs thinking blocks.
    pub signing_key: Option<SigningKey>,
}

/// What the file of a model says of itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelFile {
    /// Its metadata; a file that cannot be read has none.
    pub metadata: Map<String, Value>,
    /// Its chat template.
    pub chat_template: Option<String>,
}

/// The files of a loaded model, as they are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelFiles {
    /// Their size; 0 if they are gone.
    pub bytes: u64,
    /// When the youngest of them was changed.
    pub modified: Option<SystemTime>,
}

/// What a model can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Its file says how to pool, so it was made to embed.
    pub embedding: bool,
    /// Its template knows tools.
    pub tools: bool,
    /// Its template knows thinking.
    pub thinking: bool,
    /// It can fill a gap.
    pub insert: bool,
}
