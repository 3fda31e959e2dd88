//! What goes over the wire in Anthropic's dialect, field by field.
//!
//! Requests are read leniently: fields that are not listed (citations, betas) are answered with a warning, `null` is
//! absent. Blocks are read into one wide struct instead of a tagged enum, so that an error still names the field inside
//! of a block.
//! Answers are written exactly. Nothing here decides anything; `convert.rs` and `conversation.rs` do.

use std::borrow::Cow;

use poncho_api::{Completion, Started};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde::{Deserialize as DeserializeDerive, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::dialects::diagnosis::Diagnostics;
use crate::dialects::openai::types::{Either, TextOrList, Texts};
use crate::dialects::poncho_options::PonchoOptions;
use crate::dialects::shared::PonchoReport;
use crate::forms::{AnyObject, left_out, may_be_absent, or_null};
use crate::http::body::Object;
use crate::http::sse::Frame;

/// `POST /v1/messages` and `POST /v1/messages/count_tokens`.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "MessagesRequest")]
pub(crate) struct MessagesBody {
    #[schemars(required)]
    pub(crate) model: Option<String>,
    #[schemars(length(min = 1))]
    pub(crate) messages: Vec<Object<Message>>,
    pub(crate) system: Option<Content>,
    #[schemars(required)]
    pub(crate) max_tokens: Option<u32>,
    #[schemars(with = "Option<Vec<String>>", inner(regex(pattern = r"\S")))]
    pub(crate) stop_sequences: Option<StopSequences>,
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) stream: Option<bool>,
    pub(crate) tools: Option<Vec<Object<ToolBody>>>,
    pub(crate) tool_choice: Option<Object<ToolChoiceBody>>,
    pub(crate) thinking: Option<Object<ThinkingBody>>,
    pub(crate) output_config: Option<Object<OutputConfig>>,
    /// The older name of `output_config.format`.
    pub(crate) output_format: Option<Object<OutputFormat>>,
    /// Answered with a warning.
    pub(crate) metadata: Option<Object<Metadata>>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) seed: Option<i64>,
    pub(crate) session_id: Option<String>,
    pub(crate) exact: Option<bool>,
    pub(crate) ignore_eos: Option<bool>,
    /// true asks for the poncho object; an object also says how the prompt is read, and implies true.
    pub(crate) poncho: Option<PonchoOptions>,
    /// Asks what changed since an earlier request.
    pub(crate) diagnostics: Option<Object<DiagnosticsBody>>,
}

/// `POST /v1/messages/count_tokens`: the same, but that `max_tokens` may be left out.
pub(crate) enum CountedBody {}

impl JsonSchema for CountedBody {
    fn schema_name() -> Cow<'static, str> {
        "CountRequest".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = MessagesBody::json_schema(generator);
        may_be_absent::<u32>(&mut schema, "max_tokens", generator);
        schema
    }
}

/// `diagnostics` of a request.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "DiagnosticsRequest")]
pub(crate) struct DiagnosticsBody {
    /// The id of an earlier reply; absent on the first turn.
    pub(crate) previous_message_id: Option<String>,
}

/// Who asks.
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct Metadata {
    pub(crate) user_id: Option<String>,
}

/// Texts that end the reply: a list, never a single text.
#[derive(Debug)]
pub(crate) struct StopSequences(pub(crate) Texts);

impl<'de> Deserialize<'de> for StopSequences {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(|texts| Self(Texts(texts)))
    }
}

/// A message as it comes.
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct Message {
    #[schemars(extend("enum" = ["user", "assistant", "system"]))]
    pub(crate) role: String,
    pub(crate) content: Content,
}

/// The content of a message, of a tool's result or of the system prompt.
#[derive(Debug, JsonSchema)]
#[schemars(untagged, inline)]
pub(crate) enum Content {
    Text(String),
    Blocks(Vec<Object<Block>>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match TextOrList::<Object<Block>>::read(deserializer)? {
            Either::Text(text) => Self::Text(text),
            Either::List(blocks) => Self::Blocks(blocks),
        })
    }
}

/// A block of any type; which fields matter depends on the type.
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct Block {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Of a text.
    pub(crate) text: Option<String>,
    /// Of thinking.
    pub(crate) thinking: Option<String>,
    pub(crate) signature: Option<String>,
    /// Of a tool's use.
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    // Stays text, so that its order stays what it was.
    pub(crate) input: Option<Box<RawValue>>,
    /// Of a tool's result.
    pub(crate) tool_use_id: Option<String>,
    pub(crate) is_error: Option<bool>,
    /// Of a tool's result, or of a search result.
    pub(crate) content: Option<Content>,
    /// Of a document (an object) or of a search result (a text).
    pub(crate) source: Option<Value>,
    pub(crate) title: Option<String>,
    pub(crate) context: Option<String>,
    /// Of thinking that its model hides.
    #[expect(dead_code, reason = "the whole block is answered with a warning; a wrong type is refused")]
    pub(crate) data: Option<String>,
    /// The prompt up to here is worth keeping.
    #[schemars(with = "Option<Value>")]
    pub(crate) cache_control: Option<IgnoredAny>,
}

/// A tool that may be called.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "AnthropicTool")]
pub(crate) struct ToolBody {
    /// `custom` or nothing; everything else is a tool of Anthropic's.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["custom", null]))]
    pub(crate) kind: Option<String>,
    #[schemars(required, length(min = 1))]
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    #[schemars(with = "AnyObject")]
    pub(crate) input_schema: Option<Box<RawValue>>,
}

/// `tool_choice`.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "AnthropicToolChoice")]
pub(crate) struct ToolChoiceBody {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["auto", "any", "tool", "none"]))]
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

/// `thinking`.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "Thinking")]
pub(crate) struct ThinkingBody {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["enabled", "disabled", "adaptive"]))]
    pub(crate) kind: String,
    pub(crate) budget_tokens: Option<u32>,
    #[schemars(extend("enum" = ["summarized", "omitted", null]))]
    pub(crate) display: Option<String>,
}

/// `output_config`.
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct OutputConfig {
    #[schemars(extend("enum" = ["low", "medium", "high", "xhigh", "max", null]))]
    pub(crate) effort: Option<String>,
    pub(crate) format: Option<Object<OutputFormat>>,
}

/// The form that a reply must have; the schema stays text, so that its order stays what it was.
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct OutputFormat {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["json_schema"]))]
    pub(crate) kind: String,
    #[schemars(with = "AnyObject")]
    pub(crate) schema: Option<Box<RawValue>>,
}

/// What a request cost. The three input figures add up to the tokens of the prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicUsage")]
pub(crate) struct Usage {
    /// Computed and not stored.
    pub(crate) input_tokens: usize,
    /// Computed and stored.
    pub(crate) cache_creation_input_tokens: usize,
    /// Already there.
    pub(crate) cache_read_input_tokens: usize,
    pub(crate) output_tokens: usize,
}

impl From<Started> for Usage {
    /// The forecast at the start: whatever was not found will be stored.
    fn from(started: Started) -> Self {
        let read = started.cached_tokens.min(started.prompt);
        Self {
            input_tokens: 0,
            cache_creation_input_tokens: started.prompt - read,
            cache_read_input_tokens: read,
            output_tokens: 0,
        }
    }
}

impl From<&Completion> for Usage {
    /// A row at the end holds the state of all that was computed, so the prompt's part of it counts as stored. Without
    /// a row nothing was.
    fn from(completion: &Completion) -> Self {
        let read = completion.cached_tokens.min(completion.prompt_tokens);
        let computed = completion.prompt_tokens - read;
        let stored = if completion.finish_key.is_some() { completion.new_tokens.min(computed) } else { 0 };
        Self {
            input_tokens: computed - stored,
            cache_creation_input_tokens: stored,
            cache_read_input_tokens: read,
            output_tokens: completion.completion_tokens,
        }
    }
}

/// The answer of `count_tokens`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}

/// A message as it goes out, whole or as a stream's frame.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageAnswer", transform = left_out)]
pub(crate) struct MessageOut<'a> {
    pub(crate) id: &'a str,
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["message"]))]
    pub(crate) kind: &'static str,
    #[schemars(extend("enum" = ["assistant"]))]
    pub(crate) role: &'static str,
    pub(crate) model: &'a str,
    pub(crate) content: Vec<BlockOut>,
    #[schemars(extend("enum" = ["end_turn", "max_tokens", "stop_sequence", "tool_use", null]))]
    pub(crate) stop_reason: Option<&'static str>,
    pub(crate) stop_sequence: Option<&'a str>,
    pub(crate) usage: Usage,
    /// What changed since an earlier request, where it was asked for; `null` if nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "or_null::<Diagnostics>")]
    pub(crate) diagnostics: Option<Option<Diagnostics>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) poncho: Option<PonchoReport>,
}

/// A block as it goes out.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AnswerBlock")]
pub(crate) enum BlockOut {
    Thinking {
        thinking: String,
        signature: String,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[schemars(with = "AnyObject")]
        input: Box<RawValue>,
    },
}

/// An event of a stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum EventOut<'a> {
    MessageStart {
        message: MessageOut<'a>,
    },
    Ping {
        #[serde(skip_serializing_if = "Option::is_none")]
        poncho: Option<PonchoReport>,
    },
    ContentBlockStart {
        index: usize,
        content_block: BlockOut,
    },
    ContentBlockDelta {
        index: usize,
        delta: DeltaOut,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        delta: StopOut<'a>,
        usage: Usage,
        #[serde(skip_serializing_if = "Option::is_none")]
        poncho: Option<PonchoReport>,
    },
    MessageStop,
}

/// More of a block.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum DeltaOut {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// Why a message ended.
#[derive(Debug, Serialize)]
pub(crate) struct StopOut<'a> {
    pub(crate) stop_reason: &'static str,
    pub(crate) stop_sequence: Option<&'a str>,
}

impl From<EventOut<'_>> for Frame {
    fn from(event: EventOut<'_>) -> Self {
        let name = match event {
            EventOut::MessageStart { .. } => "message_start",
            EventOut::Ping { .. } => "ping",
            EventOut::ContentBlockStart { .. } => "content_block_start",
            EventOut::ContentBlockDelta { .. } => "content_block_delta",
            EventOut::ContentBlockStop { .. } => "content_block_stop",
            EventOut::MessageDelta { .. } => "message_delta",
            EventOut::MessageStop => "message_stop",
        };
        Self { event: Some(name), data: serde_json::to_string(&event).unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use poncho_api::FinishReason;

    use super::*;

    #[test]
    fn the_input_figures_add_up_to_the_prompt() {
        let completion = |prompt_tokens, read, created, is_stored: bool| Completion {
            reply: String::new(),
            generated: vec![1; 4],
            context_tokens: Vec::new(),
            committed_tokens: 0,
            finish_key: is_stored.then_some(poncho_api::Key::from_bytes([7; 32])),
            hit: poncho_api::HitKind::Cold,
            hit_tier: None,
            cached_tokens: read,
            new_tokens: created,
            finish_reason: FinishReason::Stop,
            stop_sequence: None,
            queue_time: Duration::ZERO,
            restore_time: Duration::ZERO,
            prefill_time: Duration::ZERO,
            generation_time: Duration::ZERO,
            prompt_tokens,
            completion_tokens: 4,
            drafts: poncho_api::DraftReport::default(),
            logprobs: Vec::new(),
        };
        // Prompt, read, created (with the reply), stored; then input, creation, read.
        let cases = [
            ((10, 0, 13, true), (0, 10, 0)),
            ((10, 6, 7, true), (0, 4, 6)),
            ((10, 10, 3, true), (0, 0, 10)),
            ((10, 0, 13, false), (10, 0, 0)),
            ((10, 6, 7, false), (4, 0, 6)),
            // A session may hold more than the prompt; a request that was cut short computed less.
            ((10, 12, 3, true), (0, 0, 10)),
            ((10, 2, 3, true), (5, 3, 2)),
        ];
        for ((prompt, read, created, is_stored), (input, creation, cached)) in cases {
            let usage = Usage::from(&completion(prompt, read, created, is_stored));
            let figures = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens);
            assert_eq!(figures, (input, creation, cached), "{prompt} {read} {created}");
            assert_eq!(input + creation + cached, prompt);
            assert_eq!(usage.output_tokens, 4);
        }
        let forecast = Usage::from(Started { prompt: 9, cached_tokens: 5 });
        assert_eq!((forecast.cache_creation_input_tokens, forecast.cache_read_input_tokens), (4, 5));
    }
}
