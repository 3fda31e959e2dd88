//! How far a reply is, as a quiet stream reports it to its client.
//!
//! Kept by `sse.rs` and `ndjson.rs` while they wait for the engine; the dialects write it as `poncho.progress` into an
//! event that their clients count as life. It must never delay an event of the reply.

use poncho_api::{Progress, RequestStage, Started};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::http::reply::ReplyEvent;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Progress")]
pub(crate) struct Heartbeat {
    #[serde(serialize_with = "word")]
    #[schemars(with = "String", extend("enum" = RequestStage::ALL.map(RequestStage::as_str)))]
    stage: RequestStage,
    #[serde(flatten)]
    prompt: Option<PromptRead>,
}

/// How much of the prompt is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct PromptRead {
    prompt_tokens: usize,
    /// Prompt tokens from the cache.
    cached_tokens: usize,
    /// Prompt tokens that need no more work.
    processed_tokens: usize,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { stage: RequestStage::Queued, prompt: None }
    }
}

impl Heartbeat {
    /// Takes note of an event of the reply.
    pub(crate) fn note(&mut self, event: &ReplyEvent) {
        let (stage, prompt) = match event {
            ReplyEvent::Started(Started { prompt, cached_tokens }) => {
                (RequestStage::Prefilling, Some((*prompt, *cached_tokens, *cached_tokens)))
            }
            ReplyEvent::Progress(Progress { prompt, cached_tokens, processed_tokens }) => {
                (RequestStage::Prefilling, Some((*prompt, *cached_tokens, *processed_tokens)))
            }
            ReplyEvent::Delta(_) => {
                let read = self.prompt.map(|read| (read.prompt_tokens, read.cached_tokens, read.prompt_tokens));
                (RequestStage::Generating, read)
            }
            ReplyEvent::Done(_) | ReplyEvent::Failed(_) => return,
        };
        let prompt = prompt.map(|(prompt_tokens, cached_tokens, processed_tokens)| PromptRead {
            prompt_tokens,
            cached_tokens,
            processed_tokens,
        });
        *self = Self { stage, prompt };
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn word<S: Serializer>(stage: &RequestStage, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(stage.as_str())
}

#[cfg(test)]
mod tests {
    use poncho_api::Delta;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_heartbeat_reports_what_was_read_so_far() {
        let mut beat = Heartbeat::default();
        assert_eq!(json!(beat), json!({"stage": "queued"}));
        beat.note(&ReplyEvent::Started(Started { prompt: 10, cached_tokens: 4 }));
        let read = |stage: &str, processed: usize| json!({"stage": stage, "prompt_tokens": 10, "cached_tokens": 4, "processed_tokens": processed});
        assert_eq!(json!(beat), read("prefilling", 4));
        beat.note(&ReplyEvent::Progress(Progress { prompt: 10, cached_tokens: 4, processed_tokens: 7 }));
        assert_eq!(json!(beat), read("prefilling", 7));
        beat.note(&ReplyEvent::Delta(Delta::default()));
        assert_eq!(json!(beat), read("generating", 10));
    }
}
