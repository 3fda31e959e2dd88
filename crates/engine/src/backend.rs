//! The line between the engine and the library that computes: traits and plain data, no llama.cpp type.
//!
//! Called by the registry (load), the worker (context), and the callers' side (tokens, templates, grammars).
//! Two implementations exist: `llama/` (the only folder with `unsafe`) and `stub.rs` (deterministic, no file).
//! Nothing here may block on anything but the computation itself, and no call may panic or abort the process on
//! bad input: every refusal is a value.

use std::any::Any;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub mod chat;
#[cfg(any(test, feature = "testing"))]
pub mod double;
pub mod error;
pub(crate) mod grammar;
pub mod host_buffer;
#[cfg(feature = "llama")]
pub mod llama;
pub mod options;
#[cfg(any(test, feature = "testing"))]
pub mod stub;

pub use poncho_api::{FillTokens, MemoryKind, ModelInfo, SpecialText, SpecialTokens, TokenizeMode};

pub use chat::{ChatOutput, ChatPrompt, ChatRequest, ReasoningFormat, ToolChoice};
pub use error::{AdapterError, ChatError, ContextError, GrammarError, LoadError, StateError, TokenizeError};
pub use host_buffer::HostBuffer;
pub use options::{
    ContextOptions, FlashAttention, KvLayout, KvType, ModelOptions, Numa, Pooling, RopeScaling, SplitMode,
};

/// A token id of a model's vocabulary.
pub type Token = u32;

/// A sequence of a context: a slot number below [`ContextInfo::n_seq_max`].
pub type SeqId = u32;

/// The devices that compute for a model beside the processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputingDevices {
    /// Their names, for people.
    pub names: String,
    /// What each of them computes, for a hash: another placement may compute other bits.
    pub placement: String,
}

/// Loads models. One value per process is enough; implementations start their library at the first load.
pub trait Backend: Send + Sync {
    /// A short name for logs and for `info`, such as `llama.cpp`.
    fn name(&self) -> &'static str;

    /// Identity of the build that computes: the library's version, how it was compiled, and what of this machine its kernels
    /// use. Two builds that say the same compute the same bits from the same calls; states that must be exact to the bit are
    /// kept apart by it.
    fn build(&self) -> String;

    /// Loads a model on the calling thread. The error carries what the library said during this very load.
    ///
    /// # Errors
    /// [`LoadError`] for a missing, truncated or malformed file, a wrong option, or a refusal of the library.
    fn load_model(&self, options: &ModelOptions) -> Result<Arc<dyn Model>, LoadError>;

    /// What computes for a model with these options beside the processor; `None` if nothing does. Whether such a device
    /// keeps the bits of exact replies is tested when the model is loaded.
    fn computing_devices(&self, _options: &ModelOptions) -> Option<ComputingDevices> {
        None
    }

    /// Whether replies are drafted unless a setting says so: another row in a step must be cheap.
    fn drafts_by_itself(&self) -> bool {
        true
    }

    /// Memory for state bytes: page-locked where a GPU is present, plain and aligned otherwise.
    fn host_buffer(&self, len: usize) -> HostBuffer;
}

/// A loaded model: read-only, shared, used from any thread.
pub trait Model: Send + Sync {
    /// Facts about the model.
    fn info(&self) -> &ModelInfo;

    /// A metadata value of the file as text, such as `general.name`.
    fn metadata(&self, key: &str) -> Option<String>;

    /// The chat template in the file, or the named variant of it.
    fn chat_template(&self, variant: Option<&str>) -> Option<String>;

    /// Appends the tokens of `text` to `out`.
    ///
    /// # Errors
    /// [`TokenizeError`] if the text is too long for the library or the vocabulary cannot be used.
    fn tokenize(&self, text: &str, mode: TokenizeMode, out: &mut Vec<Token>) -> Result<(), TokenizeError>;

    /// A number of tokens that `text` has at least, found without tokenizing it; 0 where nothing is certain.
    fn least_tokens(&self, _text: &str) -> usize {
        0
    }

    /// Appends the bytes of one token to `out`; control tokens yield text only with `SpecialText::Render`.
    /// An id outside the vocabulary appends nothing.
    fn token_bytes(&self, token: Token, special: SpecialText, out: &mut Vec<u8>);

    /// Whether the token ends a generation (EOS, EOT and their like).
    fn is_eog(&self, token: Token) -> bool;

    /// Whether the token is a control token.
    fn is_control(&self, token: Token) -> bool;

    /// Creates a context. `abort`, when set to `true` by anyone, makes a running decode stop soon with
    /// [`DecodeOutcome::Aborted`]; the caller clears it again.
    ///
    /// # Errors
    /// [`ContextError`] for options that do not fit together or a refusal of the library (memory, KV types).
    fn new_context(&self, options: &ContextOptions, abort: Arc<AtomicBool>) -> Result<Box<dyn Context>, ContextError>;

    /// Loads a LoRA adapter file for this model.
    ///
    /// # Errors
    /// [`AdapterError`] for a missing or malformed file, or one made for another model.
    fn load_adapter(&self, path: &Path) -> Result<Arc<dyn Adapter>, AdapterError>;

    /// Compiles a grammar for this vocabulary.
    ///
    /// # Errors
    /// [`GrammarError`] for a text that is not a usable grammar.
    fn new_grammar(&self, options: &GrammarOptions) -> Result<Box<dyn Grammar>, GrammarError>;

    /// Turns a JSON schema into a GBNF grammar text.
    ///
    /// # Errors
    /// [`GrammarError`] for a text that is not JSON or a schema that cannot be expressed.
    fn json_schema_to_grammar(&self, schema: &str) -> Result<String, GrammarError>;

    /// Renders messages and tools with the model's chat template.
    ///
    /// # Errors
    /// [`ChatError`] if the request is malformed or the template refuses it.
    fn apply_chat_template(&self, request: &ChatRequest) -> Result<ChatPrompt, ChatError>;
}

/// A loaded LoRA adapter. The context that uses it keeps it alive.
pub trait Adapter: Any + Send + Sync {}

/// An adapter at a strength.
#[derive(Clone)]
pub struct AdapterUse {
    /// The adapter.
    pub adapter: Arc<dyn Adapter>,
    /// Its strength; 1.0 is as trained.
    pub scale: f32,
}

/// One row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRow {
    /// The token to read.
    pub token: Token,
    /// Its position in the sequence; must be the sequence's next one.
    pub pos: u32,
    /// The sequence it belongs to.
    pub seq: SeqId,
    /// Whether logits (or an embedding) of this row are wanted.
    pub want_logits: bool,
}

/// The rows of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// In the order in which [`Context::logits`] counts them.
    pub rows: Vec<BatchRow>,
}

/// What a decode call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeOutcome {
    /// All rows were read.
    Done,
    /// No room for these rows; nothing was changed. Fewer rows, or fewer tokens in other sequences, may fit.
    NoRoom,
    /// The abort flag was set; micro-batches already done stay in memory, so the touched sequences must be rolled back.
    Aborted,
    /// The batch is wrong (unknown token, sequence or position, too many rows); nothing was changed.
    Invalid,
    /// The library failed with this code (-2, -3, ...); the touched sequences must be rolled back.
    Fatal(i32),
}

/// Facts about a context that never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextInfo {
    /// Tokens one sequence may hold.
    pub n_ctx: u32,
    /// Cells shared by all sequences with unified KV; `n_ctx * n_seq_max` with split KV.
    pub n_cells: u32,
    /// Sequences the worker may use: ids `0..n_seq_max`. A scratch sequence of the backend is not among them.
    pub n_seq_max: u32,
    /// Rows a batch may have.
    pub n_batch: u32,
    /// Rows computed at once.
    pub n_ubatch: u32,
    /// Threads that compute few rows, as resolved.
    pub n_threads: u32,
    /// Threads that compute many rows, as resolved.
    pub n_threads_batch: u32,
    /// Unified or split.
    pub kv: KvLayout,
    /// Memory kind, with the window as this context has it.
    pub memory: MemoryKind,
    /// Whether flash attention is in use, as resolved; `None` where there is no attention.
    pub flash_attention: Option<bool>,
    /// Bytes of attention state per token; 0 where there is none.
    pub segment_bytes_per_token: u64,
    /// Whether the cells may lie in the memory of a device, which copies them by itself faster than through ours.
    pub on_device: bool,
    /// Canonical description of the state's shape (types, row sizes, V layout, format version), for the context
    /// hash: two contexts with equal bytes here can exchange states.
    pub state_layout: Vec<u8>,
}

/// Which part of a sequence's state is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatePart {
    /// Everything the library keeps for the sequence.
    Whole,
    /// Only what is not plain attention: the window, the recurrent state.
    Partial,
}

/// Everything needed to put a sequence back.
#[derive(Clone, Copy, Debug)]
pub struct Restore<'a> {
    /// The sequence to fill; what it held is dropped.
    pub seq: SeqId,
    /// Tokens the sequence holds afterwards. Below the end of the last segment it is a cut (attention only).
    pub n_tokens: u32,
    /// Segments as [`Context::pack_range`] wrote them, in order, covering `0..n_tokens` without gaps.
    pub segments: &'a [&'a [u8]],
    /// The partial state saved at exactly `n_tokens`, for the kinds that have one.
    pub partial: Option<&'a [u8]>,
}

/// A stored segment: the attention state of a token range, as one link of a chain.
#[derive(Clone, Copy, Debug)]
pub struct StoredSegment<'a> {
    /// As [`Context::pack_range`] wrote it.
    pub bytes: &'a [u8],
    /// How far it counts: what it holds from this position on belongs to another conversation.
    pub end: u32,
}

/// A llama context: sequences, their memory, and the computation. Owned by one worker thread.
///
/// Logits and embeddings borrow from the context and are valid until the next call that takes `&mut self`.
pub trait Context: Send {
    /// Facts about the context.
    fn info(&self) -> &ContextInfo;

    /// Reads the rows of a batch.
    fn decode(&mut self, batch: &Batch) -> DecodeOutcome;

    /// Logits of row `row` of the last decoded batch; `None` if it asked for none or the decode failed.
    fn logits(&self, row: usize) -> Option<&[f32]>;

    /// Embedding of row `row` of the last decoded batch (contexts with embeddings and no pooling).
    fn row_embedding(&self, row: usize) -> Option<&[f32]>;

    /// Pooled embedding of a sequence after the last decoded batch (contexts with embeddings and pooling).
    fn sequence_embedding(&self, seq: SeqId) -> Option<&[f32]>;

    /// Removes the positions of `range` from a sequence; `false` if this memory kind cannot. An end of
    /// `u32::MAX` means to the end. On a sliding window a `true` only says that cells were dropped: check
    /// [`Context::pos_min`] against the window before going on.
    fn remove(&mut self, seq: SeqId, range: Range<u32>) -> bool;

    /// Makes `to` an exact copy of `from`, dropping what `to` held. `false` if the ids are wrong or equal.
    fn copy(&mut self, from: SeqId, to: SeqId) -> bool;

    /// The smallest position the sequence holds in every layer; `None` if it is empty.
    fn pos_min(&self, seq: SeqId) -> Option<u32>;

    /// The largest position the sequence holds; `None` if it is empty.
    fn pos_max(&self, seq: SeqId) -> Option<u32>;

    /// Drops every sequence.
    fn clear(&mut self);

    /// Attaches exactly these adapters for the decodes that follow; an empty list detaches all.
    ///
    /// # Errors
    /// [`AdapterError`] if an adapter belongs to another model or the library refuses.
    fn set_adapters(&mut self, adapters: &[AdapterUse]) -> Result<(), AdapterError>;

    /// Bytes that [`Context::state_read`] will write.
    ///
    /// # Errors
    /// [`StateError`] for an unknown sequence.
    fn state_size(&mut self, seq: SeqId, part: StatePart) -> Result<usize, StateError>;

    /// Packs a part of a sequence's state; returns the bytes written.
    ///
    /// # Errors
    /// [`StateError`] for an unknown sequence or a buffer that is too small.
    fn state_read(&mut self, seq: SeqId, part: StatePart, out: &mut [u8]) -> Result<usize, StateError>;

    /// Puts back what [`Context::state_read`] packed; the bytes are checked first and may come from a damaged file.
    /// For [`StatePart::Partial`] on a live sequence, remove the positions past the boundary afterwards: together
    /// they roll the sequence back. On an error the sequence is empty, or unchanged if the bytes were refused.
    ///
    /// # Errors
    /// [`StateError`] for bytes that are not such a state, or that do not fit.
    fn state_write(&mut self, seq: SeqId, part: StatePart, bytes: &[u8]) -> Result<(), StateError>;

    /// Size of the buffer that [`Context::pack_range`] needs for this range. It may be larger than what is
    /// written in the end.
    ///
    /// # Errors
    /// [`StateError`] for an unknown sequence, a range it does not hold, or a kind without segments.
    fn pack_size(&mut self, seq: SeqId, range: Range<u32>) -> Result<usize, StateError>;

    /// Packs the attention state of the positions in `range` as one segment; returns the bytes written (a prefix
    /// of `out`). The sequence is not changed.
    ///
    /// # Errors
    /// As [`Context::pack_size`], and [`StateError::BufferTooSmall`].
    fn pack_range(&mut self, seq: SeqId, range: Range<u32>, out: &mut [u8]) -> Result<usize, StateError>;

    /// Starts putting a sequence back: drops what `seq` holds, takes the partial state saved at exactly `n_tokens`
    /// (for the kinds that have one), and expects segments that cover `0..n_tokens`.
    ///
    /// # Errors
    /// [`StateError`] for an unknown sequence, a length that cannot fit, or a partial state that is missing or wrong.
    fn restore_begin(&mut self, seq: SeqId, n_tokens: u32, partial: Option<&[u8]>) -> Result<(), StateError>;

    /// Adds the next segments. Their bytes are copied before the call returns. With [`KvLayout::Split`] all segments of a
    /// chain come in one call.
    ///
    /// # Errors
    /// [`StateError`] for bytes that are not the next segments of this chain; the restore is then over and the
    /// sequence empty.
    fn restore_segments(&mut self, segments: &[StoredSegment<'_>]) -> Result<(), StateError>;

    /// Ends the restore: checks that `0..n_tokens` is covered and that the sequence ends there.
    ///
    /// # Errors
    /// [`StateError`] if anything is missing or wrong; the sequence is then empty.
    fn restore_finish(&mut self) -> Result<(), StateError>;

    /// Puts a sequence back from parts that are all at hand.
    ///
    /// # Errors
    /// As the three calls it is made of.
    fn restore(&mut self, restore: Restore<'_>) -> Result<(), StateError> {
        self.restore_begin(restore.seq, restore.n_tokens, restore.partial)?;
        let segments: Vec<StoredSegment<'_>> =
            restore.segments.iter().map(|bytes| StoredSegment { bytes, end: u32::MAX }).collect();
        if !segments.is_empty() {
            self.restore_segments(&segments)?;
        }
        self.restore_finish()
    }

    /// Joins what [`Context::pack_range`] packs; `None` for a kind without segments.
    fn joiner(&self) -> Option<Arc<dyn SegmentJoiner>>;

    /// Waits until the computation of the last decode is over. Reading logits does the same.
    fn synchronize(&mut self);
}

/// Joins segments into one. It belongs to no context and may be used from any thread.
pub trait SegmentJoiner: Send + Sync {
    /// Bytes of the segment of these positions.
    fn joined_len(&self, range: &Range<u32>) -> usize;

    /// Writes the segment of the positions `range` to `out`, which has [`SegmentJoiner::joined_len`] bytes, out of segments that
    /// follow each other and cover it. Each counts as far as the next one starts.
    ///
    /// # Errors
    /// [`StateError`] for bytes that are not such segments.
    fn join(&self, segments: &[&[u8]], range: Range<u32>, out: &mut [u8]) -> Result<(), StateError>;
}

/// When a lazy grammar starts to constrain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarTrigger {
    /// This token was sampled.
    Token(Token),
    /// The output so far matches this regular expression from its start; the constraint starts at the first group.
    Pattern(String),
}

/// What a grammar is built from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrammarOptions {
    /// GBNF text.
    pub text: String,
    /// Start rule; `root` when empty.
    pub root: String,
    /// Constrain only after a trigger fired; needs at least one trigger.
    pub lazy: bool,
    /// The triggers of a lazy grammar.
    pub triggers: Vec<GrammarTrigger>,
}

/// A token with its logit, as samplers see it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Candidate {
    /// The token.
    pub token: Token,
    /// Its logit, after bias and penalties.
    pub logit: f32,
    /// Probability; scratch space of the sampler, no meaning across calls.
    pub p: f32,
}

/// A grammar in progress. It belongs to one request.
pub trait Grammar: Send {
    /// Sets the logit of every candidate that the grammar forbids now to negative infinity. Any subset of the
    /// vocabulary, in any order, may be given.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`] once an accepted token left the grammar without a way to go on.
    fn constrain(&mut self, candidates: &mut [Candidate]) -> Result<(), GrammarError>;

    /// Moves on past a token.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`] if the grammar does not allow the token; the grammar stays unusable.
    fn accept(&mut self, token: Token) -> Result<(), GrammarError>;

    /// Starts again.
    fn reset(&mut self);

    /// An independent copy in the same state; `None` if the library cannot.
    fn duplicate(&self) -> Option<Box<dyn Grammar>>;
}

/// Parses what a model wrote back into a message. It belongs to one [`ChatPrompt`].
pub trait ChatParser: Send + Sync {
    /// Parses the text generated so far; `partial` while more may come.
    ///
    /// # Errors
    /// [`ChatError`] if the finished text does not have the form the template promises.
    fn parse(&self, generated: &str, partial: bool) -> Result<ChatOutput, ChatError>;
}
