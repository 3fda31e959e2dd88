//! All errors of an engine: `EngineError`, and `RequestError` for a request that is wrong in itself.
//!
//! Returned by each call of the public interface and sent as the last event of a stream. Variants carry the facts
//! and their sentence ends with what to try; a `reason` taken over from the backend ends with it too. Plain owned data, so
//! that an error can be sent to many callers or to another process. It must never carry a cache fault: those make a request slower, never failed.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a call or a request of the engine failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum EngineError {
    /// The model's files could not be loaded.
    #[error("the model {path} was not loaded: {reason}", path = path.display())]
    Load {
        /// The file that was asked for.
        path: PathBuf,
        /// What the loader said, with what to try.
        reason: String,
    },
    /// A setting of the model is refused before anything is loaded.
    #[error("the setting {setting} is wrong: {reason}; correct it and load the model again")]
    Config {
        /// The setting's name.
        setting: String,
        /// What is wrong with it, with the numbers.
        reason: String,
    },
    /// No model of that name is loaded.
    #[error("the model {model} is not loaded; load it first or list the loaded models")]
    UnknownModel {
        /// The name that was asked for.
        model: String,
    },
    /// The request is wrong in itself; sending it again cannot help.
    #[error(transparent)]
    BadRequest(RequestError),
    /// The prompt cannot fit, whatever else runs.
    #[error(
        "the prompt has {tokens} tokens, and the context has room for {limit}; shorten the prompt or load the model with a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt, with those that its session already holds.
        tokens: usize,
        /// The most that a prompt may have.
        limit: usize,
    },
    /// The prompt cannot fit, which its size alone says.
    #[error(
        "the prompt has at least {least} tokens, and the context has room for {limit}; shorten the prompt or load the model with a larger context"
    )]
    PromptTooLarge {
        /// Tokens of the prompt at least.
        least: usize,
        /// The most that a prompt may have.
        limit: usize,
    },
    /// A text cannot be tokenized, whatever the settings.
    #[error(
        "the text has a run of {chars} characters without a break, and this model supports at most {limit}; insert a space or a line break"
    )]
    RunTooLong {
        /// Characters of the run.
        chars: usize,
        /// The most that are possible.
        limit: usize,
    },
    /// The queue is full.
    #[error("{queued} requests are already waiting, and the queue limit is {limit}; try again later")]
    Overloaded {
        /// Requests that wait.
        queued: usize,
        /// Length of the queue.
        limit: usize,
    },
    /// All nodes of a cluster are full.
    #[error("all nodes are full; try again in {seconds} s, or add a node")]
    NodesFull {
        /// When a place will probably be free.
        seconds: u64,
    },
    /// The session has a request in flight.
    #[error("the session {session} is busy with another request; wait for its end or cancel it")]
    StickyBusy {
        /// The caller's name of the session.
        session: String,
    },
    /// `continue` names a session that holds no sequence.
    #[error("the session {session} holds no state to continue; send the whole prompt instead")]
    NoSession {
        /// The caller's name of the session.
        session: String,
    },
    /// The context has no cells left for the batch, and nothing idle is left to evict.
    #[error(
        "the context has no room for {needed} more tokens ({free} are free); end a session, send fewer requests at once or enlarge the context"
    )]
    NoRoom {
        /// Cells that the batch needs.
        needed: usize,
        /// Cells that are free.
        free: usize,
    },
    /// The decode call failed; the touched sequences were rolled back.
    #[error("the model could not decode the batch (code {code}); send the request again")]
    Decode {
        /// What the decode call returned.
        code: i32,
    },
    /// Any other call into the backend failed.
    #[error("{call} failed: {reason}")]
    Backend {
        /// The call.
        call: String,
        /// What it said, with what to try.
        reason: String,
    },
    /// The grammar or the schema does not parse.
    #[error("{reason}")]
    GrammarInvalid {
        /// What the grammar parser said, with what to try.
        reason: String,
    },
    /// Following the grammar costs more than one request may; nobody else waits for it.
    #[error("{reason}")]
    GrammarTooCostly {
        /// What the grammar said, with what to try.
        reason: String,
    },
    /// The chat template could not be rendered.
    #[error("{reason}")]
    Template {
        /// What the renderer said, with what to try.
        reason: String,
    },
    /// An adapter's file could not be loaded.
    #[error("the adapter {path} was not loaded: {reason}", path = path.display())]
    AdapterLoad {
        /// The file that was asked for.
        path: PathBuf,
        /// What the loader said, with what to try.
        reason: String,
    },
    /// The handle names no attached adapter.
    #[error("no adapter {adapter} is attached; list the attached adapters")]
    UnknownAdapter {
        /// The handle that was given.
        adapter: u64,
    },
    /// The model or the build cannot do this.
    #[error("{what} is not supported by this model; leave it out or use another model")]
    Unsupported {
        /// What was asked for.
        what: String,
    },
    /// The worker ended while the request was in its hands.
    #[error("the worker of {model} ended: {reason}; it is being restarted, send the request again")]
    WorkerDied {
        /// The model.
        model: String,
        /// The panic's message or the fatal error.
        reason: String,
    },
    /// One tick exceeded its bound; the worker was given up.
    #[error(
        "{model} made no progress for {} ms; it is being restarted, send the request again, with a smaller batch if it repeats",
        waited.as_millis()
    )]
    Watchdog {
        /// The model.
        model: String,
        /// How long the tick had run.
        waited: Duration,
    },
    /// The model's file was changed after the model was loaded.
    #[error("the file of {model} was changed while the model was loaded; load the model again")]
    FileChanged {
        /// The model.
        model: String,
    },
    /// The process that computes ended, or cannot be reached.
    #[error("the engine's process was lost: {reason}; send the request again")]
    NodeLost {
        /// What is known of it.
        reason: String,
    },
    /// The request was in flight each time that the process that computes ended.
    #[error("the request ended the engine's process twice and is not tried again; change the prompt, and report this")]
    Poison,
    /// The model ended the process that computes again and again.
    #[error(
        "the model {model} ended the engine's process again and again and is set aside for {seconds} s; use another model, or unload it and load it again"
    )]
    SetAside {
        /// The model.
        model: String,
        /// How long it still rests.
        seconds: u64,
    },
    /// A part of a call is wrong, by the name that the caller gave it.
    #[error("{field}: {reason}")]
    Input {
        /// The part: `messages`, `tools`, `prompt`, ...
        field: String,
        /// What is wrong with it, with what to try.
        reason: String,
    },
    /// The request was cancelled by the engine, or its caller left.
    #[error("the request was cancelled; send it again")]
    Cancelled,
    /// A bug.
    #[error("the engine failed while it {doing}; send the request again and report this")]
    Internal {
        /// What it was doing.
        doing: String,
    },
    /// The model is being unloaded.
    #[error("{model} is shutting down; load it again or use another model")]
    ShuttingDown {
        /// The model.
        model: String,
    },
}

impl EngineError {
    /// A part of a call that is wrong.
    pub fn input(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Input { field: field.into(), reason: reason.into() }
    }

    /// A bug, seen while something was done.
    pub fn internal(doing: impl Into<String>) -> Self {
        Self::Internal { doing: doing.into() }
    }

    /// The same error, naming the part of the call that cannot be tokenized.
    #[must_use]
    pub fn in_field(self, field: impl Into<String>) -> Self {
        match self {
            error @ Self::RunTooLong { .. } => Self::input(field, error.to_string()),
            other => other,
        }
    }
}

impl From<RequestError> for EngineError {
    /// A prompt that is too long has one spelling, wherever it is noticed.
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::PromptTooLong { tokens, limit } => Self::PromptTooLong { tokens, limit },
            other => Self::BadRequest(other),
        }
    }
}

/// The field of a request that an error speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Field {
    /// The prompt.
    Tokens,
    /// The most tokens to generate.
    MaxTokens,
    /// Sampling temperature.
    Temperature,
    /// Nucleus sampling.
    TopP,
    /// Minimum probability.
    MinP,
    /// Multiplicative penalty.
    RepetitionPenalty,
    /// Penalty by count.
    FrequencyPenalty,
    /// Penalty by presence.
    PresencePenalty,
    /// Bias by token.
    LogitBias,
    /// Stop sequences.
    Stop,
    /// Grammar or schema.
    Grammar,
    /// Number of alternatives.
    Logprobs,
    /// The session's name.
    SessionId,
    /// Cold-exact replies.
    Exact,
}

impl Field {
    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::MaxTokens => "max_tokens",
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::RepetitionPenalty => "repetition_penalty",
            Self::FrequencyPenalty => "frequency_penalty",
            Self::PresencePenalty => "presence_penalty",
            Self::LogitBias => "logit_bias",
            Self::Stop => "stop",
            Self::Grammar => "grammar",
            Self::Logprobs => "logprobs",
            Self::SessionId => "session_id",
            Self::Exact => "exact",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A range of numbers in words; the largest and smallest floating-point numbers do not count as limits.
#[must_use]
pub fn range_text(low: f32, high: f32) -> String {
    match (low, high) {
        (f32::MIN, f32::MAX) => "a number".to_owned(),
        (f32::MIN_POSITIVE, f32::MAX) => "above 0".to_owned(),
        (low, f32::MAX) => format!("at least {low}"),
        (f32::MIN, high) => format!("at most {high}"),
        (low, high) => format!("from {low} to {high}"),
    }
}

/// What is wrong with a request in itself, whatever the state of the engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum RequestError {
    /// A number is outside its range, or not a number.
    #[error("{field} is {value} and must be {}; correct it or leave it out", range_text(*low, *high))]
    OutOfRange {
        /// The field.
        field: Field,
        /// What it holds.
        value: f32,
        /// The smallest value that is taken.
        low: f32,
        /// The largest value that is taken.
        high: f32,
    },
    /// Something that may not be empty is.
    #[error("{field} contains an empty entry; fill it or leave it out")]
    Empty {
        /// The field.
        field: Field,
    },
    /// A list is too long.
    #[error("{field} has {count} and may have {limit}; send fewer")]
    TooMany {
        /// The field.
        field: Field,
        /// What it holds.
        count: usize,
        /// The most that it may hold.
        limit: usize,
    },
    /// A text is too long.
    #[error("{field} contains a text of {bytes} bytes, and at most {limit} are allowed; shorten it")]
    TooLong {
        /// The field.
        field: Field,
        /// Length of the text.
        bytes: usize,
        /// The longest that is taken.
        limit: usize,
    },
    /// A text holds a zero byte, which the grammar parser would take for its end.
    #[error("{field} contains a zero byte; remove it")]
    ZeroByte {
        /// The field.
        field: Field,
    },
    /// A token that the vocabulary does not have.
    #[error(
        "{field} contains the token {token} at position {position}, but the vocabulary has {vocab} tokens; tokenize with this model"
    )]
    UnknownToken {
        /// The field.
        field: Field,
        /// Its place in the field.
        position: usize,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// The prompt cannot fit.
    #[error(
        "the prompt has {tokens} tokens, and the context has room for {limit}; shorten it or load a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// The most that a prompt may have.
        limit: usize,
    },
    /// `max_tokens` is 0.
    #[error("max_tokens is 0 and nothing would be generated; use prefill_only to read a prompt without a reply")]
    NothingToGenerate,
    /// `continue` without a session.
    #[error("continue needs a session_id; name the session or send the whole prompt")]
    SessionMissing,
    /// The model was not loaded for cold-exact replies.
    #[error("exact is on and the model was not loaded for it; load it with exact on or leave exact out")]
    ExactUnavailable,
    /// `continue` goes on from what was generated, which a cold server would have read.
    #[error("exact is on and continue cannot be exact; send the whole prompt or leave exact out")]
    ExactContinue,
    /// Only a reply to a whole prompt can be resumed.
    #[error("the reply cannot be resumed, because the request reads only or continues a session; send it again")]
    ResumeMode,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everyday use 17: the largest number that exists is not a limit that a person wants to read.
    #[test]
    fn ranges_are_words() {
        assert_eq!(range_text(0.0, f32::MAX), "at least 0");
        assert_eq!(range_text(f32::MIN_POSITIVE, f32::MAX), "above 0");
        assert_eq!(range_text(-2.0, 2.0), "from -2 to 2");
        let error = RequestError::OutOfRange { field: Field::Temperature, value: -1.0, low: 0.0, high: f32::MAX };
        assert_eq!(error.to_string(), "temperature is -1 and must be at least 0; correct it or leave it out");
    }

    #[test]
    fn messages_carry_the_numbers_and_the_next_step() {
        let cases = [
            (EngineError::Overloaded { queued: 64, limit: 64 }, ["64", "later"]),
            (EngineError::NodesFull { seconds: 7 }, ["7 s", "add a node"]),
            (EngineError::NoRoom { needed: 512, free: 17 }, ["17", "enlarge"]),
            (EngineError::Load { path: "/models/a.gguf".into(), reason: "cut short".into() }, ["a.gguf", "cut short"]),
            (EngineError::Watchdog { model: "m".into(), waited: Duration::from_secs(3) }, ["3000 ms", "again"]),
            (EngineError::FileChanged { model: "m".into() }, ["changed", "load the model again"]),
            (RequestError::NothingToGenerate.into(), ["max_tokens", "prefill_only"]),
        ];
        for (error, words) in cases {
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_has_one_spelling() {
        let error = EngineError::from(RequestError::PromptTooLong { tokens: 9, limit: 8 });
        assert_eq!(error, EngineError::PromptTooLong { tokens: 9, limit: 8 });
        let error = EngineError::from(RequestError::Empty { field: Field::Stop });
        assert_eq!(error, EngineError::BadRequest(RequestError::Empty { field: Field::Stop }));
        assert!(error.to_string().starts_with("stop "), "the field is named as the caller knows it");
    }
}
