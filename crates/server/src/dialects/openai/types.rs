//! What comes over the wire in OpenAI's dialect, field by field; `answers.rs` has what goes out.
//!
//! Requests are read leniently: fields that are not listed are answered with a warning, `null` is absent. Nothing here
//! decides anything; `convert.rs` does.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize as DeserializeDerive;
use serde::de::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::prompt::Prompts;
use crate::dialects::poncho_options::PonchoOptions;
use crate::forms::{AnyObject, form, may_be_absent};
pub(crate) use crate::forms::{Either, TextOrList, Texts};
use crate::http::body::Object;

/// Adds the fields that completions and responses share to a request, and a way to read them alike; `$limit` is what the
/// request calls the most tokens of a reply.
macro_rules! completion_request {
    (
        $(#[$doc:meta])+
        $name:ident($(#[$limit_doc:meta])* $limit:ident) { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }
    ) => {
        completion_request! {
            @sampled #[derive(Debug, DeserializeDerive, JsonSchema)] $(#[$doc])+ $name {
                #[schemars(required)]
                model: Option<String>,
                $($(#[$field_doc])* $field: $type,)+
                $(#[$limit_doc])*
                $limit: Option<u32>,
                stream: Option<bool>,
                /// Who asks; answered with a warning.
                user: Option<String>,
                /// true asks for the poncho object; an object also says how the prompt is read, and implies true.
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
            #[schemars(extend("propertyNames" = {"pattern": "^[0-9]+$"}))]
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
    /// Limits and sampling, as any dialect asks for them. It has no schema of its own; its fields have attributes of one.
    #[derive(Default, JsonSchema)]
    Shared {
        max_tokens: Option<u32>,
    }
}

completion_request! {
    /// `POST /v1/chat/completions`.
    #[schemars(rename = "ChatRequest")]
    ChatRequestBody(max_tokens) {
        #[schemars(length(min = 1))]
        messages: Vec<Object<Message>>,
        max_completion_tokens: Option<u32>,
        logprobs: Option<bool>,
        #[schemars(range(max = 20))]
        top_logprobs: Option<u8>,
        tools: Option<Vec<Object<ToolDefinition>>>,
        #[schemars(with = "Option<ToolChoice>")]
        tool_choice: Option<Value>,
        parallel_tool_calls: Option<bool>,
        response_format: Option<Object<ResponseFormat>>,
        reasoning_effort: Option<String>,
        modalities: Option<Vec<String>>,
        chat_template_kwargs: Option<BTreeMap<String, Value>>,
        #[schemars(range(min = 1, max = 8))]
        n: Option<u32>,
        stream_options: Option<Object<StreamOptions>>,
    }
}

completion_request! {
    /// `POST /v1/completions`.
    #[schemars(rename = "CompletionRequest")]
    CompletionRequestBody(max_tokens) {
        /// A text, texts, tokens or lists of tokens.
        prompt: Prompts,
        echo: Option<bool>,
        suffix: Option<String>,
        best_of: Option<u32>,
        #[schemars(range(max = 5))]
        logprobs: Option<u8>,
        #[schemars(range(min = 1, max = 8))]
        n: Option<u32>,
        stream_options: Option<Object<StreamOptions>>,
    }
}

form! {
    /// A word, or an object that names a function or some of them.
    ToolChoice, json_schema!({"anyOf": [
        {"type": "string", "enum": ["auto", "none", "required"]},
        {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
            },
            "required": ["function"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["allowed_tools"]},
                "allowed_tools": {
                    "type": "object",
                    "properties": {
                        "mode": {"type": "string", "enum": ["auto", "required"]},
                        "tools": {"type": "array", "items": {
                            "type": "object",
                            "properties": {
                                "type": {"type": "string"},
                                "function": {
                                    "type": "object",
                                    "properties": {"name": {"type": "string"}},
                                    "required": ["name"],
                                },
                            },
                            "required": ["function"],
                        }},
                    },
                    "required": ["mode", "tools"],
                },
            },
            "required": ["type", "allowed_tools"],
        },
    ]})
}

/// `POST /apply-template`: a chat request. Its `model` may be left out, and its number of replies does not matter.
pub(crate) enum ConversationBody {}

impl JsonSchema for ConversationBody {
    fn schema_name() -> Cow<'static, str> {
        "ConversationRequest".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = ChatRequestBody::json_schema(generator);
        may_be_absent::<String>(&mut schema, "model", generator);
        may_be_absent::<u32>(&mut schema, "n", generator);
        schema
    }
}

/// `stream_options`.
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
}

/// A message as it comes.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "ChatMessage")]
pub(crate) struct Message {
    #[schemars(extend("enum" = ["system", "developer", "user", "assistant", "tool"]))]
    pub(crate) role: String,
    pub(crate) content: Option<Content>,
    pub(crate) name: Option<String>,
    pub(crate) tool_calls: Option<Vec<Object<ToolCallBody>>>,
    pub(crate) tool_call_id: Option<String>,
    pub(crate) reasoning_content: Option<String>,
}

/// A tool call that the assistant made earlier.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "ToolCall")]
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
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// A JSON text; some clients send the object itself.
    pub(crate) arguments: Option<Value>,
}

/// A tool that may be called.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "FunctionTool")]
pub(crate) struct ToolDefinition {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["function"]))]
    pub(crate) kind: String,
    // Absent for a tool of another type, which is refused by its name.
    #[schemars(required)]
    pub(crate) function: Option<Object<FunctionDefinition>>,
}

/// The function of a tool.
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct FunctionDefinition {
    #[schemars(length(min = 1))]
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    // Stays text, so that its order stays what it was.
    #[schemars(with = "Option<AnyObject>")]
    pub(crate) parameters: Option<Box<RawValue>>,
    #[expect(dead_code, reason = "arguments follow the schema whatever this says; a wrong type is refused")]
    pub(crate) strict: Option<bool>,
}

/// `response_format`.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(extend("anyOf" = [
    {"properties": {"type": {"enum": ["text", "json_object"]}}},
    {
        "properties": {
            "json_schema": {"type": "object", "properties": {"schema": {"type": "object"}}, "required": ["schema"]},
        },
        "required": ["json_schema"],
    },
]))]
pub(crate) struct ResponseFormat {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["text", "json_object", "json_schema"]))]
    pub(crate) kind: String,
    pub(crate) json_schema: Option<Object<SchemaFormat>>,
}

/// `response_format.json_schema`; the schema stays text for the same reason.
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct SchemaFormat {
    #[expect(dead_code, reason = "a label that the API requires; a wrong type is refused")]
    pub(crate) name: Option<String>,
    #[expect(dead_code, reason = "replies follow the schema whatever this says; a wrong type is refused")]
    pub(crate) strict: Option<bool>,
    pub(crate) schema: Option<Box<RawValue>>,
}

/// The content of a message.
#[derive(Debug, JsonSchema)]
#[schemars(untagged, inline)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<Object<Part>>),
}

/// A part of a content.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "ContentPart")]
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
