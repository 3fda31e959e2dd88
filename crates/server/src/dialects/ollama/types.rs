//! What goes over the wire in Ollama's dialect, field by field.
//!
//! Requests are read leniently: fields that are not listed are answered with a warning, `null` is absent. Answers are
//! written exactly.
//! Nothing here decides anything; `convert.rs` and the endpoints do.

use std::fmt;

use schemars::{JsonSchema, Schema, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Deserialize as DeserializeDerive, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::config::KeepAlive;
use crate::dialects::openai::types::{Texts, ToolDefinition};
use crate::dialects::poncho_options::PonchoOptions;
use crate::dialects::shared::PonchoReport;
use crate::forms::{AnyObject, form, left_out};
use crate::http::body::Object;
use crate::http::token_list::TokenList;
use crate::models::options::{Integer, Options};

/// Adds the fields that generate and chat share to a request, and a way to read them alike.
macro_rules! reply_request {
    ($(#[$doc:meta])+ $name:ident { $($field:ident: $type:ty,)+ }) => {
        #[derive(Debug, DeserializeDerive, JsonSchema)]
        $(#[$doc])+
        pub(crate) struct $name {
            #[schemars(required)]
            pub(crate) model: Option<String>,
            $(pub(crate) $field: $type,)+
            stream: Option<bool>,
            #[schemars(with = "Option<Format>")]
            format: Option<Box<RawValue>>,
            #[schemars(transform = shares)]
            options: Option<Object<Options>>,
            keep_alive: Option<KeepAlive>,
            think: Option<Think>,
            logprobs: Option<bool>,
            #[schemars(range(max = 20))]
            top_logprobs: Option<u8>,
            session_id: Option<String>,
            /// true asks for the poncho object; an object also says how the prompt is read, and implies true.
            poncho: Option<PonchoOptions>,
        }

        impl $name {
            /// The fields that generate and chat share.
            pub(crate) fn shared(&self) -> Shared<'_> {
                Shared {
                    stream: self.stream.unwrap_or(true),
                    format: self.format.as_deref(),
                    options: self.options.as_deref(),
                    keep_alive: self.keep_alive,
                    think: self.think,
                    logprobs: self.logprobs.unwrap_or(false),
                    top_logprobs: self.top_logprobs.unwrap_or(0),
                    session_id: self.session_id.as_deref(),
                    poncho: self.poncho.clone().unwrap_or_default(),
                }
            }
        }
    };
}

/// The fields that generate and chat share, borrowed from either.
pub(crate) struct Shared<'r> {
    pub(crate) stream: bool,
    pub(crate) format: Option<&'r RawValue>,
    pub(crate) options: Option<&'r Options>,
    pub(crate) keep_alive: Option<KeepAlive>,
    pub(crate) think: Option<Think>,
    pub(crate) logprobs: bool,
    pub(crate) top_logprobs: u8,
    pub(crate) session_id: Option<&'r str>,
    pub(crate) poncho: PonchoOptions,
}

reply_request! {
    /// `POST /api/generate`.
    #[schemars(rename = "GenerateRequest")]
    GenerateBody {
        prompt: Option<String>,
        suffix: Option<String>,
        images: Option<Vec<String>>,
        system: Option<String>,
        template: Option<String>,
        context: Option<TokenList>,
        raw: Option<bool>,
    }
}

reply_request! {
    /// `POST /api/chat`.
    #[schemars(rename = "OllamaChatRequest")]
    ChatBody {
        messages: Option<Vec<Object<MessageBody>>>,
        tools: Option<Vec<Object<ToolDefinition>>>,
    }
}

/// A message as it comes.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "OllamaMessage")]
pub(crate) struct MessageBody {
    pub(crate) role: String,
    pub(crate) content: Option<String>,
    pub(crate) thinking: Option<String>,
    pub(crate) images: Option<Vec<String>>,
    pub(crate) tool_calls: Option<Vec<Object<CallBody>>>,
    /// The tool that a tool's message comes from.
    pub(crate) tool_name: Option<String>,
    pub(crate) tool_call_id: Option<String>,
}

/// A tool call that the assistant made earlier.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "OllamaToolCall")]
pub(crate) struct CallBody {
    pub(crate) id: Option<String>,
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "calls are functions; the name is known, and a wrong type is refused")]
    pub(crate) kind: Option<String>,
    pub(crate) function: Object<CalledBody>,
}

/// What was called. The arguments stay text, so that their order stays what it was.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "OllamaCalledFunction")]
pub(crate) struct CalledBody {
    pub(crate) name: String,
    #[expect(dead_code, reason = "replies carry it; the place in the list says the same")]
    pub(crate) index: Option<u32>,
    pub(crate) arguments: Option<Box<RawValue>>,
}

form! {
    /// The form that a reply must have: any, any JSON, or JSON of a schema.
    Format, json_schema!({"anyOf": [{"type": "string", "enum": ["", "json"]}, {"type": "object"}]})
}

form! {
    /// See [`Think`].
    ThinkForm, json_schema!({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": LEVELS}]})
}

/// Shares are from 0 to 1.
fn shares(options: &mut Schema) {
    for name in ["top_p", "min_p"] {
        if let Some(option) = options.pointer_mut(&format!("/properties/{name}")).and_then(Value::as_object_mut) {
            option.extend([("minimum".to_owned(), 0.into()), ("maximum".to_owned(), 1.into())]);
        }
    }
}

/// How much a model may think.
const LEVELS: [&str; 4] = ["low", "medium", "high", "max"];

/// Whether and how much a model may think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(with = "ThinkForm", inline)]
pub(crate) enum Think {
    Off,
    On,
    /// With this effort.
    Level(&'static str),
}

struct ThinkVisitor;

impl Visitor<'_> for ThinkVisitor {
    type Value = Think;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("true, false, \"low\", \"medium\", \"high\" or \"max\"")
    }

    fn visit_bool<E: de::Error>(self, on: bool) -> Result<Think, E> {
        Ok(if on { Think::On } else { Think::Off })
    }

    fn visit_str<E: de::Error>(self, level: &str) -> Result<Think, E> {
        let known = LEVELS.into_iter().find(|known| *known == level);
        known.map(Think::Level).ok_or_else(|| E::invalid_value(de::Unexpected::Str(level), &self))
    }
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ThinkVisitor)
    }
}

/// `POST /api/embed`.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "EmbedRequest")]
pub(crate) struct EmbedBody {
    #[schemars(required)]
    pub(crate) model: Option<String>,
    pub(crate) input: Option<Texts>,
    pub(crate) truncate: Option<bool>,
    pub(crate) dimensions: Option<Integer>,
    /// Answered with a warning.
    pub(crate) options: Option<Object<Options>>,
    pub(crate) keep_alive: Option<KeepAlive>,
}

/// `POST /api/embeddings`, which older clients use.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "OldEmbeddingsRequest")]
pub(crate) struct EmbeddingsBody {
    #[schemars(required)]
    pub(crate) model: Option<String>,
    pub(crate) prompt: Option<String>,
    /// Answered with a warning.
    pub(crate) options: Option<Object<Options>>,
    pub(crate) keep_alive: Option<KeepAlive>,
}

/// `POST /api/show`.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "ShowRequest")]
pub(crate) struct ShowBody {
    pub(crate) model: Option<String>,
    /// What older clients call it.
    pub(crate) name: Option<String>,
    pub(crate) verbose: Option<bool>,
}

/// A whole answer of generate or chat, or a line of their streams. What it says has the name of its schema.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{S}", transform = left_out)]
pub(crate) struct Line<'a, S = Said> {
    pub(crate) model: &'a str,
    pub(crate) created_at: String,
    #[serde(flatten)]
    pub(crate) said: S,
    pub(crate) done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) done_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<Vec<u32>>,
    #[serde(flatten)]
    pub(crate) timings: Option<Timings>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) logprobs: Vec<LogprobOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) poncho: Option<PonchoReport>,
}

/// Where the text stands in an answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Said {
    Chat(ChatSaid),
    Generate(GenerateSaid),
}

/// In one of chat.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatAnswer")]
pub(crate) struct ChatSaid {
    pub(crate) message: MessageOut,
}

/// In one of generate.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GenerateAnswer")]
pub(crate) struct GenerateSaid {
    pub(crate) response: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) thinking: String,
}

/// The assistant's message.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaAnswerMessage")]
pub(crate) struct MessageOut {
    #[schemars(extend("enum" = ["assistant"]))]
    pub(crate) role: &'static str,
    pub(crate) content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallOut>,
}

/// A tool call.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaAnswerToolCall")]
pub(crate) struct CallOut {
    pub(crate) id: String,
    pub(crate) function: CalledOut,
}

/// What is called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaAnswerFunctionCall")]
pub(crate) struct CalledOut {
    pub(crate) index: usize,
    pub(crate) name: String,
    #[schemars(with = "AnyObject")]
    pub(crate) arguments: Box<RawValue>,
}

/// What a reply cost; times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Timings {
    pub(crate) total_duration: u64,
    pub(crate) load_duration: u64,
    pub(crate) prompt_eval_count: usize,
    pub(crate) prompt_eval_duration: u64,
    pub(crate) eval_count: usize,
    pub(crate) eval_duration: u64,
}

/// A drawn token with its log probability.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaLogprob")]
pub(crate) struct LogprobOut {
    #[serde(flatten)]
    pub(crate) token: TokenOut,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) top_logprobs: Vec<TokenOut>,
}

/// A token that was or could have been drawn.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaToken")]
pub(crate) struct TokenOut {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

/// The answer of `/api/embed`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EmbedAnswer<'a> {
    pub(crate) model: &'a str,
    pub(crate) embeddings: Vec<Vec<f32>>,
    pub(crate) total_duration: u64,
    pub(crate) load_duration: u64,
    pub(crate) prompt_eval_count: usize,
}

/// What a model is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelDetails")]
pub(crate) struct Details {
    pub(crate) parent_model: &'static str,
    pub(crate) format: &'static str,
    pub(crate) family: String,
    pub(crate) families: Vec<String>,
    pub(crate) parameter_size: String,
    pub(crate) quantization_level: String,
}

/// A model that can be asked for.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ListedModel")]
pub(crate) struct ListedOut {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) modified_at: String,
    pub(crate) size: u64,
    pub(crate) digest: String,
    pub(crate) details: Details,
}

/// The answer of `/api/tags` and `/api/ps`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{T}s")]
pub(crate) struct ModelsOut<T> {
    pub(crate) models: Vec<T>,
}

/// A model that is loaded.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LoadedModel", transform = left_out)]
pub(crate) struct LoadedOut {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) size: u64,
    pub(crate) digest: String,
    pub(crate) details: Details,
    pub(crate) expires_at: String,
    pub(crate) size_vram: u64,
    pub(crate) context_length: usize,
    /// Not in Ollama's API.
    #[schemars(extend("enum" = ["loading", "loaded", "unloading"]))]
    pub(crate) state: &'static str,
    /// Requests that use it or wait for it. Not in Ollama's API.
    pub(crate) requests: usize,
    /// How far a load is. Not in Ollama's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<ProgressOut>,
}

/// How far a load is; both 0 while nothing of the file has to be read.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LoadProgress")]
pub(crate) struct ProgressOut {
    pub(crate) completed: u64,
    pub(crate) total: u64,
}

/// All about a model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = left_out)]
pub(crate) struct ShowAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) license: Option<String>,
    pub(crate) modelfile: String,
    pub(crate) parameters: String,
    pub(crate) template: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system: Option<String>,
    pub(crate) details: Details,
    pub(crate) model_info: Map<String, Value>,
    pub(crate) capabilities: Vec<&'static str>,
    pub(crate) modified_at: String,
}
