//! The facts about a finished request.
//!
//! Made by the engine's worker, read by the server, the command line and Rust programs. Plain owned data.

use std::fmt;
use std::time::Duration;

use poncho_kinds::{HitKind, HitTier, Key};
use serde::{Deserialize, Serialize};

use crate::drafts::DraftReport;

/// Why a request came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FinishReason {
    /// The model ended its reply, a stop sequence matched, or the grammar allowed nothing more.
    Stop,
    /// The token limit or the end of the context.
    Length,
    /// The caller cancelled or went away.
    Cancelled,
}

impl FinishReason {
    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The facts about a finished request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The reply's text, without thinking, tool calls and the matched stop sequence.
    pub reply: String,
    /// Every token that was drawn.
    pub generated: Vec<u32>,
    /// Prompt and reply as they stand in the sequence.
    pub context_tokens: Vec<u32>,
    /// How many of `context_tokens` have their state computed; a later prompt may be cut here.
    pub committed_tokens: usize,
    /// The row that was saved at the end; absent if the save was suppressed.
    pub finish_key: Option<Key>,
    /// How the prompt was found; a tiny overlap is `cold`.
    pub hit: HitKind,
    /// Where it was found; absent if nothing was.
    #[serde(default)]
    pub hit_tier: Option<HitTier>,
    /// Prompt tokens from the cache.
    pub cached_tokens: usize,
    /// Prompt tokens that were computed. Fewer than the rest of the prompt if the request was cut short.
    pub new_tokens: usize,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The stop sequence that ended it.
    pub stop_sequence: Option<String>,
    /// From its submission until it got a sequence.
    pub queue_time: Duration,
    /// From there until what is known of its prompt was found and put back.
    pub restore_time: Duration,
    /// From its submission to the first logits: waiting and restoring are part of it.
    pub prefill_time: Duration,
    /// From the first logits to the end.
    pub generation_time: Duration,
    /// Tokens of the prompt, cached or not.
    pub prompt_tokens: usize,
    /// Tokens of the reply.
    pub completion_tokens: usize,
    /// What drafts did for it.
    pub drafts: DraftReport,
    /// One entry for each generated token, if the request asked for it.
    pub logprobs: Vec<TokenLogprob>,
}

/// The log probability of a drawn token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The drawn token.
    pub token: TokenProbability,
    /// The most likely tokens, best first.
    pub top: Vec<TokenProbability>,
}

/// A token, its bytes and its natural log probability before any sampler touched it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenProbability {
    /// The token.
    pub id: u32,
    /// Its bytes, which need not be valid UTF-8 alone.
    pub bytes: Vec<u8>,
    /// Minus infinity for a token that cannot be drawn.
    pub logprob: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finish_reasons_have_the_words_of_the_design() {
        let words =
            [FinishReason::Stop, FinishReason::Length, FinishReason::Cancelled].map(|reason| reason.to_string());
        assert_eq!(words, ["stop", "length", "cancelled"]);
    }
}
