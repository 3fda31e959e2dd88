//! The events of a stream, as the worker sends them.
//!
//! Read by `chat/` and by Rust programs. Plain owned data. A stream ends with exactly one `Done` or `Error`; text is always
//! valid UTF-8 and never holds a part of a matched stop sequence.

pub use poncho_api::{Completion, FinishReason, TokenLogprob, TokenProbability};

use crate::error::EngineError;

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The request got its sequence and what is known of its prompt was found; sent once, before any token.
    Started {
        /// Tokens of the prompt.
        prompt: usize,
        /// Prompt tokens from the cache, which need not be computed.
        cached_tokens: usize,
    },
    /// A part of the prompt was computed, and some of it is left.
    Progress {
        /// Tokens of the prompt.
        prompt: usize,
        /// Prompt tokens from the cache.
        cached_tokens: usize,
        /// Prompt tokens that are cached or computed.
        processed_tokens: usize,
    },
    /// More of the reply.
    Text(String),
    /// A token was drawn; sent for every token, also for those that yield no text yet.
    Token {
        /// The token.
        id: u32,
        /// Its log probability, if the request asked for it.
        logprob: Option<TokenLogprob>,
        /// Random numbers that were used up for the reply so far.
        draws: u64,
    },
    /// More of a thinking block.
    ThinkingDelta(String),
    /// The thinking block ended.
    ThinkingEnd {
        /// HMAC-SHA-256 over the block's bytes, if a signing key is set.
        signature: Option<[u8; 32]>,
    },
    /// More of a tool call, as the model writes it.
    ToolCallDelta(String),
    /// The tool call ended.
    ToolCallEnd {
        /// Everything that the model wrote for it, byte for byte.
        bytes: Vec<u8>,
    },
    /// The last event of a request that was served or cancelled.
    Done(Box<Completion>),
    /// The last event of a request that failed.
    Error(EngineError),
}

impl StreamEvent {
    /// Whether nothing follows.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Error(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_done_and_error_end_a_stream() {
        assert!(StreamEvent::Error(EngineError::Decode { code: -3 }).is_last());
        assert!(!StreamEvent::Text("done".into()).is_last());
        assert!(!StreamEvent::ToolCallEnd { bytes: vec![] }.is_last());
        assert!(!StreamEvent::ThinkingEnd { signature: None }.is_last());
    }

    #[test]
    fn an_event_stays_small_enough_to_move_through_a_channel() {
        assert!(size_of::<StreamEvent>() <= 128, "{} bytes", size_of::<StreamEvent>());
    }
}
