//! What goes over the wire as an answer of OpenAI's dialect, field by field; `types.rs` has what comes in.
//!
//! Written exactly, by `chat.rs`, `completions.rs` and `models.rs`. Nothing here decides anything.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::Value;

use crate::dialects::shared::PonchoReport;
use crate::forms::left_out;
use crate::responses::token::TokenOut;

/// What a request cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
}

/// Where the prompt came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: usize,
}

/// The fields that every answer of an endpoint starts with.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Envelope {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) system_fingerprint: String,
}

/// A whole answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{C}", transform = left_out, transform = of_object::<C>, bound = "C: Choice + JsonSchema")]
pub(crate) struct WholeAnswer<'a, C> {
    #[serde(flatten)]
    pub(crate) envelope: &'a Envelope,
    pub(crate) choices: &'a [C],
    pub(crate) usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) poncho: Option<&'a PonchoReport>,
}

/// A choice of whole answers. It has the name of the answer, which holds its schema.
pub(crate) trait Choice {
    /// The `object` of the answer.
    const OBJECT: &'static str;
}

impl Choice for ChatChoice {
    const OBJECT: &'static str = "chat.completion";
}

impl Choice for TextChoice {
    const OBJECT: &'static str = "text_completion";
}

fn of_object<C: Choice>(schema: &mut Schema) {
    if let Some(object) = schema.pointer_mut("/properties/object").and_then(Value::as_object_mut) {
        object.insert("enum".to_owned(), [C::OBJECT].into_iter().collect());
    }
}

/// A piece of a stream.
#[derive(Debug, Serialize)]
pub(crate) struct Answer<'a, C> {
    #[serde(flatten)]
    pub(crate) envelope: &'a Envelope,
    pub(crate) choices: &'a [C],
    /// Absent, `null` or the numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) poncho: Option<&'a PonchoReport>,
}

/// A choice of a whole chat answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatCompletion", inline)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: AssistantMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    #[schemars(extend("enum" = ["stop", "length", "tool_calls"]))]
    pub(crate) finish_reason: &'static str,
}

/// The assistant's message.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = left_out)]
pub(crate) struct AssistantMessage {
    #[schemars(extend("enum" = ["assistant"]))]
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    #[schemars(with = "()")]
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallOut>,
}

/// A tool call, whole or in pieces.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AssistantToolCall", extend("required" = ["id", "type", "function"]))]
pub(crate) struct CallOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "usize")]
    pub(crate) index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("enum" = ["function"]))]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: FunctionOut,
}

/// What is called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AssistantFunctionCall", extend("required" = ["name", "arguments"]))]
pub(crate) struct FunctionOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}

/// A choice of a piece of a chat stream.
#[derive(Debug, Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: ChunkDelta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// What a piece adds.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallOut>,
}

/// Log probabilities of a chat reply.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<TokenOut>,
    pub(crate) refusal: Option<Vec<TokenOut>>,
}

/// A choice of a completion, whole or in pieces.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Completion", inline)]
pub(crate) struct TextChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<TextLogprobs>,
    #[schemars(with = "String", extend("enum" = ["stop", "length", "tool_calls"]))]
    pub(crate) finish_reason: Option<&'static str>,
}

/// Log probabilities of a completion.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct TextLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<f32>,
    pub(crate) top_logprobs: Vec<BTreeMap<String, f32>>,
    pub(crate) text_offset: Vec<usize>,
}

/// A model in a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Model", transform = left_out)]
pub(crate) struct ModelOut {
    pub(crate) id: String,
    #[schemars(extend("enum" = ["model"]))]
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
    /// Tokens that one request may use, where clients of OpenRouter and LM Studio look for it.
    pub(crate) context_length: usize,
    /// The same for clients of LM Studio.
    pub(crate) max_context_length: usize,
    /// The same for clients of vLLM.
    pub(crate) max_model_len: usize,
    /// The same for clients of Anthropic's API.
    pub(crate) max_input_tokens: usize,
    /// What clients of Anthropic's API show.
    pub(crate) display_name: String,
    /// The same as `object`, for clients of Anthropic's API.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["model"]))]
    pub(crate) kind: &'static str,
    /// What it can do, in Ollama's words; absent for a model that is not loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capabilities: Option<Vec<&'static str>>,
    /// For clients of OpenRouter, and only for a loaded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) supported_parameters: Option<Vec<&'static str>>,
    pub(crate) meta: ModelMeta,
}

/// What else is known of a model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = left_out)]
pub(crate) struct ModelMeta {
    /// The full name of the model; differs for an alias.
    pub(crate) model: String,
    /// Whether it is in memory; else the next request loads it.
    pub(crate) loaded: bool,
    pub(crate) architecture: String,
    pub(crate) n_ctx: usize,
    pub(crate) n_ctx_train: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) n_vocab: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) n_embd: Option<u32>,
    pub(crate) n_params: u64,
    pub(crate) size: u64,
}
