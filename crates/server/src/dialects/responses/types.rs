//! What comes over the wire to `POST /v1/responses`, field by field.
//!
//! Read leniently: fields that are not listed are answered with a warning, `null` is absent. Nothing here decides anything; `input`,
//! `tools` and `turn` do.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer};
use serde::{Deserialize as DeserializeDerive, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::dialects::openai::types::{Content, Either, Part, Shared, TextOrList, Texts, completion_request};
use crate::dialects::poncho_options::PonchoOptions;
use crate::http::body::Object;
use crate::responses::tool_server::RemoteTool;

completion_request! {
    /// `POST /v1/responses`.
    ResponseRequestBody(max_output_tokens) {
        input: Option<Input>,
        instructions: Option<String>,
        previous_response_id: Option<String>,
        conversation: Option<Value>,
        prompt: Option<Value>,
        tools: Option<Vec<Object<ToolBody>>>,
        tool_choice: Option<Value>,
        parallel_tool_calls: Option<bool>,
        max_tool_calls: Option<u32>,
        text: Option<Object<TextConfig>>,
        reasoning: Option<Object<ReasoningConfig>>,
        top_logprobs: Option<u8>,
        include: Option<Vec<String>>,
        store: Option<bool>,
        metadata: Option<BTreeMap<String, String>>,
        truncation: Option<String>,
        /// Streams carry no padding.
        stream_options: Option<Object<ResponseStreamOptions>>,
        background: Option<bool>,
        /// There is one tier.
        service_tier: Option<String>,
        prompt_cache_key: Option<String>,
        prompt_cache_retention: Option<String>,
        safety_identifier: Option<String>,
        chat_template_kwargs: Option<BTreeMap<String, Value>>,
    }
}

impl ResponseRequestBody {
    /// Whether the answer shall hold this beside its usual fields.
    pub(crate) fn includes(&self, what: &str) -> bool {
        self.include.iter().flatten().any(|included| included == what)
    }
}

/// `stream_options`.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct ResponseStreamOptions {
    pub(crate) include_obfuscation: Option<bool>,
}

/// `input`.
#[derive(Debug)]
pub(crate) enum Input {
    Text(String),
    Items(Vec<Object<InputItem>>),
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(TextOrList::<Object<InputItem>>::default())? {
            Either::Text(text) => Self::Text(text),
            Either::List(items) => Self::Items(items),
        })
    }
}

/// An item of the input, of any kind: one flat struct, so that an error names the field inside the item.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct InputItem {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) status: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) content: Option<Content>,
    pub(crate) call_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) arguments: Option<String>,
    /// Of a call of a custom tool.
    pub(crate) input: Option<String>,
    pub(crate) output: Option<Content>,
    pub(crate) summary: Option<Vec<Object<Part>>>,
    pub(crate) encrypted_content: Option<String>,
    /// Of items of MCP servers.
    pub(crate) server_label: Option<String>,
    pub(crate) tools: Option<Vec<Object<RemoteTool>>>,
    pub(crate) error: Option<Value>,
    pub(crate) approval_request_id: Option<String>,
    pub(crate) approve: Option<bool>,
    pub(crate) reason: Option<String>,
}

/// A tool; functions have their fields beside the type. Schemas stay text, so that their order stays what it was.
#[derive(Debug, Clone, DeserializeDerive, Serialize)]
pub(crate) struct ToolBody {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) parameters: Option<Box<RawValue>>,
    pub(crate) strict: Option<bool>,
    /// The form of a custom tool's input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<Value>,
    /// The functions of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tools: Option<Vec<Object<ToolBody>>>,
    /// From here on of an MCP server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connector_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) headers: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing)]
    pub(crate) authorization: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allowed_tools: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) require_approval: Option<Value>,
}

/// `text`.
#[derive(Debug, Clone, Default, DeserializeDerive, Serialize)]
pub(crate) struct TextConfig {
    pub(crate) format: Option<Object<TextFormat>>,
    pub(crate) verbosity: Option<String>,
}

/// `text.format`.
#[derive(Debug, Clone, DeserializeDerive, Serialize)]
pub(crate) struct TextFormat {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) schema: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) strict: Option<bool>,
}

/// `reasoning`.
#[derive(Debug, Clone, Default, DeserializeDerive, Serialize)]
pub(crate) struct ReasoningConfig {
    pub(crate) effort: Option<String>,
    pub(crate) summary: Option<String>,
    /// What `summary` was called before.
    #[serde(skip_serializing)]
    pub(crate) generate_summary: Option<String>,
}

impl ReasoningConfig {
    /// The summary that is wanted.
    pub(crate) fn summary(&self) -> Option<&str> {
        self.summary.as_deref().or(self.generate_summary.as_deref())
    }
}
