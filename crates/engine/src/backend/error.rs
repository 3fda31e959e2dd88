//! What the backend can refuse, one enum per question the engine asks.
//!
//! Returned by every implementation of the traits in `mod.rs`; the engine turns them into its own errors.
//! A variant carries the facts and says what to try next; no variant is made from a bare string.

use std::path::PathBuf;

use thiserror::Error;

/// Why a model was not loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file is missing or unreadable.
    #[error("cannot read the model file {path}: {source}; check the path and its permissions")]
    Unreadable {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path names something that is not a regular file.
    #[error("{path} is not a file; give the path of a GGUF file")]
    NotAFile {
        /// The path as given.
        path: PathBuf,
    },
    /// The file does not start like a GGUF.
    #[error("{path} is not a GGUF file ({reason}); download the model again or convert it to GGUF")]
    NotGguf {
        /// The path as given.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is a GGUF that cannot be trusted.
    #[error("{path} is damaged: {reason}; download the model again")]
    Malformed {
        /// The path as given.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is shorter than its header promises.
    #[error(
        "{path} is truncated: it has {actual} bytes and its header promises at least {expected}; download it again"
    )]
    Truncated {
        /// The path as given.
        path: PathBuf,
        /// Bytes the header promises.
        expected: u64,
        /// Bytes the file has.
        actual: u64,
    },
    /// An option has a value that cannot work.
    #[error("model option {option} = {value} cannot be used: {reason}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// The value as given.
        value: String,
        /// Why, and what works.
        reason: &'static str,
    },
    /// The library refused; its own words are kept.
    #[error("llama.cpp could not load {path}: {reason}; see the log for details")]
    Refused {
        /// The path as given.
        path: PathBuf,
        /// The lines the library logged during this load.
        reason: String,
    },
}

/// Why a context was not created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ContextError {
    /// Only the vocabulary is loaded.
    #[error("the model was loaded as vocabulary only and cannot compute; load it without vocab_only")]
    VocabOnly,
    /// An option has a value that cannot work.
    #[error("context option {option} = {value} cannot be used: {reason}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// The value as given.
        value: String,
        /// Why, and what works.
        reason: &'static str,
    },
    /// The model has no position behind its table; llama.cpp asserts on one.
    #[error(
        "a context of {n_ctx} tokens is too long: the model has a table of {rows} positions; set n_ctx to {rows} or less"
    )]
    PositionTable {
        /// Tokens of the context.
        n_ctx: u32,
        /// Rows of the table.
        rows: u64,
    },
    /// The library refused; its own words are kept.
    #[error("llama.cpp could not create the context: {reason}; try a smaller n_ctx or n_seq_max")]
    Refused {
        /// The lines the library logged during this call.
        reason: String,
    },
    /// The first decode, which learns the shape of the state, failed.
    #[error("the first decode on the new context failed with code {code}: {reason}; the model may not suit this build")]
    FirstDecode {
        /// llama.cpp's code.
        code: i32,
        /// The lines the library logged during this call.
        reason: String,
    },
}

/// Why a state was not packed or not put back. The caller falls back to a colder path.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// No such sequence.
    #[error("sequence {seq} does not exist; this context has {n_seq_max}")]
    UnknownSequence {
        /// The sequence asked for.
        seq: u32,
        /// Sequences there are.
        n_seq_max: u32,
    },
    /// The sequence does not hold the whole range.
    #[error("positions {start}..{end} were asked of sequence {seq}, which holds {held_start}..{held_end}")]
    RangeNotHeld {
        /// The sequence.
        seq: u32,
        /// First position asked for.
        start: u32,
        /// End of the positions asked for.
        end: u32,
        /// First position held.
        held_start: u32,
        /// End of the positions held.
        held_end: u32,
    },
    /// This memory kind has no such part, or its layout is not understood.
    #[error("this model's memory has no {part} to save or restore")]
    Unsupported {
        /// `attention segments` or `partial state`.
        part: &'static str,
    },
    /// The buffer cannot take the bytes.
    #[error("the state needs a buffer of {needed} bytes and got {given}")]
    BufferTooSmall {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// The bytes are not what they claim to be.
    #[error("the stored state cannot be used: {reason} (expected {expected}, got {got})")]
    Malformed {
        /// What was checked.
        reason: &'static str,
        /// The value that would have been right.
        expected: u64,
        /// The value found.
        got: u64,
    },
    /// The chain of segments has a gap or ends early.
    #[error("the segments do not follow each other: the next must start at {expected}, got {got}")]
    Gap {
        /// Position the next segment must start at, or the length that must be covered.
        expected: u32,
        /// Position found.
        got: u32,
    },
    /// A kind that resumes at saved boundaries only was asked for another length.
    #[error("this model resumes at saved boundaries only; {n_tokens} tokens lie inside a segment that ends at {end}")]
    CannotCut {
        /// Length asked for.
        n_tokens: u32,
        /// Saved boundary.
        end: u32,
    },
    /// The partial state is missing though the kind needs one.
    #[error("this model needs its partial state at the boundary and none was given")]
    PartialMissing,
    /// There is not enough free room for the state now.
    #[error("no room for {n_tokens} tokens; release a sequence and try again")]
    NoRoom {
        /// Tokens to restore.
        n_tokens: u32,
    },
    /// A restore call came out of order.
    #[error("restore calls came out of order; begin, then segments, then finish")]
    OutOfOrder,
    /// The library refused the state.
    #[error("llama.cpp refused to {what} the state of sequence {seq}: {reason}")]
    Refused {
        /// `pack` or `restore`.
        what: &'static str,
        /// The sequence.
        seq: u32,
        /// The lines the library logged during this call.
        reason: String,
    },
}

/// Why an adapter cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The file is missing or unreadable.
    #[error("cannot read the adapter file {path}: {source}; check the path and its permissions")]
    Unreadable {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a usable GGUF.
    #[error("{path} is not a usable adapter file: {reason}; convert the adapter to GGUF again")]
    Malformed {
        /// The path as given.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The library refused; its own words are kept.
    #[error("llama.cpp could not load the adapter {path}: {reason}; check that it was made for this model")]
    Refused {
        /// The path as given.
        path: PathBuf,
        /// The lines the library logged during this call.
        reason: String,
    },
    /// The adapter belongs to another model.
    #[error("the adapter was loaded for another model; load it again for this one")]
    OtherModel,
    /// The context refused the set of adapters.
    #[error("llama.cpp refused to attach the adapters (code {code}); detach some and try again")]
    NotAttached {
        /// llama.cpp's code.
        code: i32,
    },
}

/// Why a text was not tokenized.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizeError {
    /// The text is longer than the library can take.
    #[error("a text of {bytes} bytes cannot be tokenized in one piece; at most {limit} bytes are possible")]
    TooLong {
        /// Bytes given.
        bytes: usize,
        /// Bytes possible.
        limit: usize,
    },
    /// One word is longer than the library can take, and cutting it would change its tokens.
    #[error(
        "a run of {chars} characters without a break cannot be tokenized, at most {limit} are possible; break it with a \
         space or a line end"
    )]
    RunTooLong {
        /// Characters of the run.
        chars: usize,
        /// Characters possible.
        limit: usize,
    },
    /// The library failed.
    #[error("llama.cpp could not tokenize the text: {reason}; check that the model file carries its vocabulary")]
    Refused {
        /// What it said.
        reason: String,
    },
}

/// Why a grammar cannot be used, or cannot go on.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarError {
    /// The text is not a usable grammar.
    #[error("the grammar cannot be used: {reason}; correct the GBNF text")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// The schema cannot be turned into a grammar.
    #[error("the JSON schema cannot be used: {reason}; simplify the schema")]
    BadSchema {
        /// What is wrong with it.
        reason: String,
    },
    /// No token of the vocabulary can follow.
    #[error("the grammar cannot go on: no token fits; relax the grammar or use a model with another vocabulary")]
    Stuck,
    /// The grammar stands for too many ways to go on.
    #[error(
        "the grammar allows too many ways to go on at once and was given up; use fewer alternatives, and none that begin alike"
    )]
    TooCostly,
}

/// Why messages were not rendered or an answer not parsed.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatError {
    /// The model has no usable chat template.
    #[error("the model's chat template cannot be used: {reason}; give a template of your own")]
    BadTemplate {
        /// What is wrong with it.
        reason: String,
    },
    /// A part of the request is not what it must be.
    #[error("{field} cannot be used: {reason}")]
    BadRequest {
        /// `messages`, `tools`, ...
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The template runs longer than a render may.
    #[error(
        "the chat template did not end within {} ms; use another template, or tell who runs the server",
        waited.as_millis()
    )]
    TooSlow {
        /// How long it was waited for.
        waited: std::time::Duration,
    },
    /// As many renders as may run at once are running.
    #[error("{running} chat templates of this model are being rendered already; try again later")]
    Busy {
        /// How many.
        running: usize,
    },
    /// The template refused these messages.
    #[error("the chat template refused the request: {reason}; check roles and their order")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// The answer does not have the promised form.
    #[error("the model's answer could not be parsed: {reason}; use the raw text")]
    Unparsable {
        /// What it said.
        reason: String,
    },
}
