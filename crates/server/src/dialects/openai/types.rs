//! What goes over the wire in OpenAI's dialect, field by field.
//!
//! Requests are read leniently: fields that are not listed are answered with a warning, `null` is absent. Answers are
//! written exactly.
//! Nothing here decides anything; `convert.rs` does.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer};
use serde::{Deserialize as DeserializeDerive, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::prompt::Prompts;
use crate::dialects::poncho_options::PonchoOptions;
use crate::dialects::shared::PonchoReport;
use crate::http::body::Object;
pub(crate) use crate::responses::token::TokenOut;
pub(crate) use crate::texts::{Either, TextOrList, Texts};

/// Adds the fields that completions and responses share to a request, and a way to read them alike; `$limit` is what the
/// request calls the most tokens of a reply.
macro_rules! completion_request {
    ($(#[$doc:meta])+ $name:ident($limit:ident) { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        completion_request! {
            @sampled $(#[$doc])+ #[derive(Debug, DeserializeDerive)] $name {
                model: Option<String>,
                $($(#[$field_doc])* $field: $type,)+
                $limit: Option<u32>,
                stream: Option<bool>,
                /// Who asks; answered with a warning.
                user: Option<String>,
                /// Asks for the `poncho` object, and says how the prompt is read.
                poncho: Option<PonchoOptions>,
            }
        }

        impl $name {
            /// The fields that completions and responses share.
            pub(crate) fn shared(&self) -> Shared {
                Shared {
                    max_tokens: self.$limit,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    repetition_penalty: self.repetition_penalty,
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    logit_bias: self.logit_bias.clone(),
                    seed: self.seed,
                    stop: self.stop.clone(),
                    session_id: self.session_id.clone(),
                    exact: self.exact,
                    ignore_eos: self.ignore_eos,
                }
            }
        }
    };
    (@sampled $(#[$attribute:meta])+ $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        $(#[$attribute])+
        pub(crate) struct $name {
            $($(#[$field_doc])* pub(crate) $field: $type,)+
            pub(crate) temperature: Option<f32>,
            pub(crate) top_p: Option<f32>,
            pub(crate) top_k: Option<u32>,
            pub(crate) min_p: Option<f32>,
            pub(crate) repetition_penalty: Option<f32>,
            pub(crate) presence_penalty: Option<f32>,
            pub(crate) frequency_penalty: Option<f32>,
            pub(crate) logit_bias: Option<BTreeMap<String, f32>>,
            pub(crate) seed: Option<i64>,
            pub(crate) stop: Option<Texts>,
            pub(crate) session_id: Option<String>,
            pub(crate) exact: Option<bool>,
            pub(crate) ignore_eos: Option<bool>,
        }
    };
}
pub(crate) use completion_request;

completion_request! {
    @sampled
    /// Limits and sampling, as any dialect asks for them.
    #[derive(Default)]
    Shared {
        max_tokens: Option<u32>,
    }
}

completion_request! {
    /// `POST /v1/chat/completions`.
    ChatRequestBody(max_tokens) {
        messages: Vec<Object<Message>>,
        max_completion_tokens: Option<u32>,
        logprobs: Option<bool>,
        top_logprobs: Option<u8>,
        tools: Option<Vec<Object<ToolDefinition>>>,
        tool_choice: Option<Value>,
        parallel_tool_calls: Option<bool>,
        response_format: Option<Object<ResponseFormat>>,
        reasoning_effort: Option<String>,
        modalities: Option<Vec<String>>,
        chat_template_kwargs: Option<BTreeMap<String, Value>>,
        n: Option<u32>,
        stream_options: Option<Object<StreamOptions>>,
    }
}

completion_request! {
    /// `POST /v1/completions`.
    CompletionRequestBody(max_tokens) {
        /// A text, texts, tokens or lists of tokens.
        prompt: Prompts,
        echo: Option<bool>,
        suffix: Option<String>,
        best_of: Option<u32>,
        logprobs: Option<u8>,
        n: Option<u32>,
        stream_options: Option<Object<StreamOptions>>,
    }
}

/// `stream_options`.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
}

/// A message as it comes.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) content: Option<Content>,
    pub(crate) name: Option<String>,
    pub(crate) tool_calls: Option<Vec<Object<ToolCallBody>>>,
    pub(crate) tool_call_id: Option<String>,
    pub(crate) reasoning_content: Option<String>,
}

/// A tool call that the assistant made earlier.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct ToolCallBody {
    pub(crate) id: String,
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "calls are functions; the name is known, and a wrong type is refused")]
    pub(crate) kind: Option<String>,
    #[expect(dead_code, reason = "clients send pieces of a stream back; the place in the list says the same")]
    pub(crate) index: Option<u32>,
    pub(crate) function: Object<CalledFunction>,
}

/// What was called.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// A JSON text; some clients send the object itself.
    pub(crate) arguments: Option<Value>,
}

/// A tool that may be called.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct ToolDefinition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Absent for a tool of another type.
    pub(crate) function: Option<Object<FunctionDefinition>>,
}

/// The function of a tool. Its parameters stay text, so that their order stays what it was.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct FunctionDefinition {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) parameters: Option<Box<RawValue>>,
    #[expect(dead_code, reason = "arguments follow the schema whatever this says; a wrong type is refused")]
    pub(crate) strict: Option<bool>,
}

/// `response_format`.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct ResponseFormat {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) json_schema: Option<Object<SchemaFormat>>,
}

/// `response_format.json_schema`; the schema stays text for the same reason.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct SchemaFormat {
    #[expect(dead_code, reason = "a label that the API requires; a wrong type is refused")]
    pub(crate) name: Option<String>,
    #[expect(dead_code, reason = "replies follow the schema whatever this says; a wrong type is refused")]
    pub(crate) strict: Option<bool>,
    pub(crate) schema: Option<Box<RawValue>>,
}

/// The content of a message.
#[derive(Debug)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<Object<Part>>),
}

/// A part of a content.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct Part {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
    pub(crate) refusal: Option<String>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match TextOrList::<Object<Part>>::read(deserializer)? {
            Either::Text(text) => Self::Text(text),
            Either::List(parts) => Self::Parts(parts),
        })
    }
}

/// What a request cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
}

/// Where the prompt came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: usize,
}

/// The fields that every answer of an endpoint starts with.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Envelope {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) system_fingerprint: String,
}

/// A whole answer, or a piece of a stream.
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
#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: AssistantMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: &'static str,
}

/// The assistant's message.
#[derive(Debug, Serialize)]
pub(crate) struct AssistantMessage {
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallOut>,
}

/// A tool call, whole or in pieces.
#[derive(Debug, Serialize)]
pub(crate) struct CallOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: FunctionOut,
}

/// What is called.
#[derive(Debug, Serialize)]
pub(crate) struct FunctionOut {
    #[serde(skip_serializing_if = "Option::is_none")]
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
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<TokenOut>,
    pub(crate) refusal: Option<Vec<TokenOut>>,
}

/// A choice of a completion, whole or in pieces.
#[derive(Debug, Serialize)]
pub(crate) struct TextChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<TextLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// Log probabilities of a completion.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TextLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<f32>,
    pub(crate) top_logprobs: Vec<BTreeMap<String, f32>>,
    pub(crate) text_offset: Vec<usize>,
}

/// A model in a list.
#[derive(Debug, Serialize)]
pub(crate) struct ModelOut {
    pub(crate) id: String,
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
#[derive(Debug, Serialize)]
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
