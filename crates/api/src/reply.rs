//! A reply as it grows: content, thinking, tool calls, log probabilities, and the facts at its end.
//!
//! Made by the engine, written by the dialects of the server. The pieces of a reply add up to its output, and what was
//! sent is never taken back.

use serde::{Deserialize, Serialize};

use crate::chat::Normalised;
use crate::completion::{Completion, TokenLogprob};
use crate::error::EngineError;

/// A tool call in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatToolCall {
    /// Its id, if the model wrote one.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// JSON text of the arguments; may be incomplete while parsing partial output.
    pub arguments: String,
}

/// A parsed answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatOutput {
    /// The text for the reader.
    pub content: String,
    /// The thinking text.
    pub reasoning: String,
    /// Tool calls in order.
    pub tool_calls: Vec<ChatToolCall>,
}

/// What is new since the last piece.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// Tokens that were drawn since the last event, also those that yield no text yet.
    pub tokens: Vec<u32>,
    /// Random numbers that were used up for the reply so far, if tokens were drawn.
    pub draws: u64,
    /// More of the text for the reader.
    pub content: String,
    /// More of the thinking.
    pub reasoning: String,
    /// More of the tool calls.
    pub calls: Vec<CallDelta>,
    /// Log probabilities of the tokens behind what is new.
    pub logprobs: Vec<TokenLogprob>,
}

impl Delta {
    /// Whether a reader learns nothing from it but that tokens were drawn.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Adds what came after it.
    pub fn append(&mut self, next: Self) {
        self.tokens.extend(next.tokens);
        self.draws = self.draws.max(next.draws);
        self.content.push_str(&next.content);
        self.reasoning.push_str(&next.reasoning);
        self.calls.extend(next.calls);
        self.logprobs.extend(next.logprobs);
    }

    /// Whether it has nothing for a reader.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_silent() && self.logprobs.is_empty()
    }
}

/// More of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallDelta {
    /// Its place among the calls of the reply.
    pub index: usize,
    /// Its id and the tool's name, once, when it begins.
    pub start: Option<(String, String)>,
    /// More of the JSON text of its arguments.
    pub arguments: String,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finish {
    /// The model ended it, or a stop sequence did.
    Stop,
    /// The token limit or the end of the context.
    Length,
    /// The model calls tools.
    ToolCalls,
}

/// A reply that came to its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// What the pieces before have not told.
    pub rest: Delta,
    /// All of it; every call has an id.
    pub output: ChatOutput,
    /// Why it ended.
    pub finish: Finish,
    /// What the engine measured.
    pub completion: Completion,
    /// Generated tokens that were thinking, without its marks.
    pub reasoning_tokens: usize,
    /// What was done to the prompt before it was rendered.
    pub normalised: Vec<Normalised>,
    /// One for each generated token but those that only end the reply.
    pub logprobs: Vec<TokenLogprob>,
}

/// What was found of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Prompt tokens from the cache, which need not be computed.
    pub cached_tokens: usize,
}

/// How far a prompt is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Prompt tokens from the cache.
    pub cached_tokens: usize,
    /// Prompt tokens that need no more work: cached or computed.
    pub processed_tokens: usize,
}

/// One event of a reply. The last one is `Done`, `Cancelled` or `Failed`, and there is exactly
/// one of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ReplyEvent {
    /// The request is being worked on; comes first, or not at all.
    Started(Started),
    /// More of the prompt was computed, and some is left. Only for replies in pieces.
    Progress(Progress),
    /// Tokens were drawn.
    Delta(Delta),
    /// It ended.
    Done(Box<Finished>),
    /// The engine gave it up, such as for a model that is unloaded.
    Cancelled(Box<Completion>),
    /// It failed.
    Failed(EngineError),
}
