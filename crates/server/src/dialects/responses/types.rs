//! What comes over the wire to `POST /v1/responses`, field by field.
//!
//! Read leniently: fields that are not listed are answered with a warning, `null` is absent. Nothing here decides anything; `input`,
//! `tools` and `turn` do.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, json_schema};
use serde::de::{Deserialize, Deserializer};
use serde::{Deserialize as DeserializeDerive, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::dialects::openai::types::{Content, Either, Part, Shared, TextOrList, Texts, completion_request};
use crate::dialects::poncho_options::PonchoOptions;
use crate::forms::{AnyObject, form};
use crate::http::body::Object;
use crate::responses::tool_server::RemoteTool;

completion_request! {
    /// `POST /v1/responses`.
    #[schemars(rename = "ResponseRequest")]
    ResponseRequestBody(#[schemars(range(min = 1))] max_output_tokens) {
        input: Option<Input>,
        instructions: Option<String>,
        previous_response_id: Option<String>,
        /// Refused: use previous_response_id.
        conversation: Option<Value>,
        /// Refused: prompts are not stored here.
        prompt: Option<Value>,
        tools: Option<Vec<Object<ToolBody>>>,
        #[schemars(with = "Option<ResponseToolChoice>")]
        tool_choice: Option<Value>,
        parallel_tool_calls: Option<bool>,
        max_tool_calls: Option<u32>,
        text: Option<Object<TextConfig>>,
        reasoning: Option<Object<ReasoningConfig>>,
        #[schemars(range(max = 20))]
        top_logprobs: Option<u8>,
        include: Option<Vec<String>>,
        store: Option<bool>,
        #[schemars(transform = of_metadata)]
        metadata: Option<BTreeMap<String, String>>,
        #[schemars(extend("enum" = ["auto", "disabled", null]))]
        truncation: Option<String>,
        /// Streams carry no padding.
        stream_options: Option<Object<ResponseStreamOptions>>,
        #[schemars(extend("enum" = [false, null]))]
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

form! {
    /// A word, or an object with a type.
    ResponseToolChoice, json_schema!({"anyOf": [
        {"type": "string", "enum": ["auto", "none", "required"]},
        {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]},
    ]})
}

form! {
    /// An error as text; some clients send an object.
    TextOrObject, json_schema!({"type": ["string", "object"]})
}

form! {
    /// Names, or an object with them.
    ListOrObject, json_schema!({"type": ["array", "object"]})
}

/// The limits that `turn.rs` checks.
fn of_metadata(schema: &mut Schema) {
    schema.insert("maxProperties".to_owned(), 16.into());
    schema.insert("additionalProperties".to_owned(), json!({"type": "string", "maxLength": 512}));
}

/// `stream_options`.
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct ResponseStreamOptions {
    pub(crate) include_obfuscation: Option<bool>,
}

/// A text, or items.
#[derive(Debug, JsonSchema)]
#[schemars(untagged, inline)]
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
#[derive(Debug, DeserializeDerive, JsonSchema)]
pub(crate) struct InputItem {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = [
        "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
        "mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response", "reasoning", "item_reference", null,
    ]))]
    pub(crate) kind: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) status: Option<String>,
    #[schemars(extend("enum" = ["user", "assistant", "system", "developer", null]))]
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
    #[schemars(with = "Option<TextOrObject>")]
    pub(crate) error: Option<Value>,
    pub(crate) approval_request_id: Option<String>,
    pub(crate) approve: Option<bool>,
    pub(crate) reason: Option<String>,
}

/// A tool; functions have their fields beside the type. Schemas stay text, so that their order stays what it was.
#[derive(Debug, Clone, DeserializeDerive, Serialize, JsonSchema)]
#[schemars(rename = "ResponseTool")]
pub(crate) struct ToolBody {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    #[schemars(with = "Option<AnyObject>")]
    pub(crate) parameters: Option<Box<RawValue>>,
    pub(crate) strict: Option<bool>,
    /// The form of a custom tool's input.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AnyObject>")]
    pub(crate) format: Option<Value>,
    /// The functions of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tools: Option<Vec<Object<ToolBody>>>,
    /// Of an MCP server.
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
    #[schemars(with = "Option<ListOrObject>")]
    pub(crate) allowed_tools: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TextOrObject>")]
    pub(crate) require_approval: Option<Value>,
}

/// `text`.
#[derive(Debug, Clone, Default, DeserializeDerive, Serialize, JsonSchema)]
pub(crate) struct TextConfig {
    pub(crate) format: Option<Object<TextFormat>>,
    #[schemars(extend("enum" = ["low", "medium", "high", null]))]
    pub(crate) verbosity: Option<String>,
}

/// `text.format`.
#[derive(Debug, Clone, DeserializeDerive, Serialize, JsonSchema)]
#[schemars(extend("anyOf" = [
    {"properties": {"type": {"enum": ["text", "json_object"]}}},
    {
        "properties": {"name": {"type": "string", "minLength": 1}, "schema": {"type": "object"}},
        "required": ["name", "schema"],
    },
]))]
pub(crate) struct TextFormat {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["text", "json_object", "json_schema"]))]
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
#[derive(Debug, Clone, Default, DeserializeDerive, Serialize, JsonSchema)]
pub(crate) struct ReasoningConfig {
    pub(crate) effort: Option<String>,
    #[schemars(extend("enum" = ["auto", "concise", "detailed", "none", null]))]
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
