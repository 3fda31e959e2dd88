//! What comes over the wire to `POST /v1/responses`, field by field.
//!
//! Read leniently: fields that are not listed are answered with a warning, `null` is absent. Nothing here decides anything; `input`,
//! `tools` and `turn` do.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer};
use serde::{Deserialize as DeserializeDerive, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::dialects::openai::types::{Content, Either, Part, Shared, TextOrList, Texts};
use crate::dialects::poncho_options::PonchoOptions;
use crate::http::body::Object;
use crate::responses::tool_server::RemoteTool;

/// `POST /v1/responses`.
#[derive(Debug, DeserializeDerive)]
pub(crate) struct ResponseRequestBody {
    pub(crate) model: Option<String>,
    pub(crate) input: Option<Input>,
    pub(crate) instructions: Option<String>,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) conversation: Option<Value>,
    pub(crate) prompt: Option<Value>,
    pub(crate) tools: Option<Vec<Object<ToolBody>>>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) max_tool_calls: Option<u32>,
    pub(crate) text: Option<Object<TextConfig>>,
    pub(crate) reasoning: Option<Object<ReasoningConfig>>,
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_logprobs: Option<u8>,
    pub(crate) include: Option<Vec<String>>,
    pub(crate) store: Option<bool>,
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    pub(crate) truncation: Option<String>,
    pub(crate) stream: Option<bool>,
    /// Streams carry no padding.
    pub(crate) stream_options: Option<Object<ResponseStreamOptions>>,
    pub(crate) background: Option<bool>,
    /// There is one tier.
    pub(crate) service_tier: Option<String>,
    pub(crate) prompt_cache_key: Option<String>,
    pub(crate) prompt_cache_retention: Option<String>,
    pub(crate) safety_identifier: Option<String>,
    pub(crate) user: Option<String>,
    // From here on Poncho's own, as in both kinds of completions.
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
    pub(crate) chat_template_kwargs: Option<BTreeMap<String, Value>>,
    pub(crate) poncho: Option<PonchoOptions>,
}

impl ResponseRequestBody {
    /// The fields that completions have too.
    pub(crate) fn shared(&self) -> Shared<'_> {
        Shared {
            max_tokens: self.max_output_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.as_ref(),
            seed: self.seed,
            stop: self.stop.as_ref(),
            session_id: self.session_id.as_deref(),
            exact: self.exact.unwrap_or(false),
            ignore_eos: self.ignore_eos.unwrap_or(false),
        }
    }

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
