//! What conversations are made of: messages, calls, their outputs, and thinking, as stored and as sent.
//!
//! Made by `input` from what a client sends and by `compose` from what a model says; read by `messages`, which renders
//! them for the template. An item always has an id.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Serialize;

use crate::request_id::random_id;
use crate::responses::token::TokenOut;
use crate::responses::tool_server::RemoteTool;

/// Marks opaque thinking text as ours, so that another server's is not read as text.
const OPAQUE_PREFIX: &str = "poncho1.";
/// Characters of a random id without its prefix.
const BATCH_LENGTH: usize = 30;

/// How far an item has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ItemStatus")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    /// Of a call that this server made.
    Failed,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    User,
    Assistant,
    System,
    Developer,
}

/// See the module.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item {
    Message {
        id: String,
        status: Status,
        role: Role,
        content: Vec<ContentPart>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        /// The group that the function was offered in.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "String")]
        namespace: Option<String>,
        /// JSON as text.
        arguments: String,
        status: Status,
    },
    FunctionCallOutput {
        id: String,
        call_id: String,
        output: CallOutput,
        status: Status,
    },
    CustomToolCall {
        id: String,
        call_id: String,
        name: String,
        input: String,
        status: Status,
    },
    CustomToolCallOutput {
        id: String,
        call_id: String,
        output: CallOutput,
        status: Status,
    },
    /// The tools of an MCP server.
    McpListTools {
        id: String,
        server_label: String,
        tools: Vec<RemoteTool>,
        error: Option<String>,
    },
    /// A call that this server made, with its result.
    McpCall {
        id: String,
        server_label: String,
        name: String,
        /// JSON as text.
        arguments: String,
        output: Option<String>,
        error: Option<String>,
        /// The request that was approved, if the client wanted to be asked.
        approval_request_id: Option<String>,
        status: Status,
    },
    /// A call that waits for the client's approval. It ends the response.
    McpApprovalRequest {
        id: String,
        server_label: String,
        name: String,
        /// JSON as text.
        arguments: String,
    },
    /// The client's answer to one.
    McpApprovalResponse {
        id: String,
        approval_request_id: String,
        approve: bool,
        reason: Option<String>,
    },
    Reasoning {
        id: String,
        summary: Vec<ThinkingPart>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<ThinkingPart>,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "String")]
        encrypted_content: Option<String>,
        status: Status,
    },
}

/// A part of a message.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessagePart")]
pub(crate) enum ContentPart {
    InputText {
        text: String,
    },
    OutputText {
        text: String,
        /// Always empty: local models cite nothing.
        annotations: [(); 0],
        logprobs: Vec<TokenOut>,
    },
    Refusal {
        refusal: String,
    },
}

impl ContentPart {
    pub(crate) fn output_text(text: String, logprobs: Vec<TokenOut>) -> Self {
        Self::OutputText { text, annotations: [], logprobs }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Self::InputText { text } | Self::OutputText { text, .. } => text,
            Self::Refusal { refusal } => refusal,
        }
    }
}

/// What a function gave back.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(crate) enum CallOutput {
    Text(String),
    Parts(Vec<ContentPart>),
}

impl CallOutput {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.iter().map(ContentPart::text).collect::<Vec<_>>().join("\n"),
        }
    }
}

/// A stretch of thinking.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ThinkingPart {
    SummaryText { text: String },
    ReasoningText { text: String },
}

impl ThinkingPart {
    fn text(&self) -> &str {
        match self {
            Self::SummaryText { text } | Self::ReasoningText { text } => text,
        }
    }
}

impl Item {
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Message { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::FunctionCallOutput { id, .. }
            | Self::CustomToolCall { id, .. }
            | Self::CustomToolCallOutput { id, .. }
            | Self::McpListTools { id, .. }
            | Self::McpCall { id, .. }
            | Self::McpApprovalRequest { id, .. }
            | Self::McpApprovalResponse { id, .. }
            | Self::Reasoning { id, .. } => id,
        }
    }

    /// What was thought, if this is thinking: the opaque text where it is ours, else what can be read.
    pub(crate) fn thinking(&self) -> Option<String> {
        let Self::Reasoning { summary, content, encrypted_content, .. } = self else { return None };
        let opaque = encrypted_content.as_deref().and_then(read_opaque);
        let shown = if content.is_empty() { summary } else { content };
        Some(opaque.unwrap_or_else(|| shown.iter().map(ThinkingPart::text).collect::<Vec<_>>().join("\n\n")))
    }
}

/// The calls of one reply of the model. Their ids start with it, because clients send items back without saying which
/// of them were one message, and a message that is rendered otherwise is not found in the cache.
#[derive(Debug, Clone)]
pub(crate) struct CallBatch(String);

impl CallBatch {
    pub(crate) fn new() -> Self {
        Self(random_id(""))
    }

    /// The id of a call's item, and in it the id that the model's side knows the call by.
    pub(crate) fn item_id(&self, prefix: &str, call_id: &str) -> String {
        format!("{prefix}{}_{call_id}", self.0)
    }
}

/// The batch of a call's item and the id of the call itself; `None` if the id is not one of a batch.
pub(crate) fn batch_of(item_id: &str) -> Option<(&str, &str)> {
    let (_, rest) = item_id.split_once('_')?;
    let (batch, call_id) = rest.split_once('_')?;
    let is_ours = batch.len() == BATCH_LENGTH && batch.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_ours && !call_id.is_empty()).then_some((batch, call_id))
}

/// The id of the call that an approval request asks about: of the same batch, if it has one.
pub(crate) fn approved_id(request_id: &str) -> String {
    match batch_of(request_id) {
        Some((batch, call_id)) => format!("mcp_{batch}_{call_id}"),
        None => random_id("mcp_"),
    }
}

/// Thinking text in a form that clients carry without looking into it.
pub(crate) fn opaque(text: &str) -> String {
    format!("{OPAQUE_PREFIX}{}", STANDARD.encode(text))
}

fn read_opaque(opaque: &str) -> Option<String> {
    let bytes = STANDARD.decode(opaque.strip_prefix(OPAQUE_PREFIX)?).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasoning(summary: &[&str], content: &[&str], encrypted_content: Option<String>) -> Item {
        let text = |text: &&str| (*text).to_owned();
        Item::Reasoning {
            id: "rs_1".to_owned(),
            summary: summary.iter().map(|part| ThinkingPart::SummaryText { text: text(part) }).collect(),
            content: content.iter().map(|part| ThinkingPart::ReasoningText { text: text(part) }).collect(),
            encrypted_content,
            status: Status::Completed,
        }
    }

    #[test]
    fn the_calls_of_one_reply_are_known_by_their_ids() {
        let (one, other) = (CallBatch::new(), CallBatch::new());
        let id = one.item_id("mcp_", "call_7");
        let (batch, call_id) = batch_of(&id).unwrap();
        assert_eq!((batch, call_id), (one.0.as_str(), "call_7"));
        assert_ne!(batch, other.0);
        for foreign in [random_id("fc_"), random_id("mcp_"), "mcp_1_2".into(), String::new(), "x".into()] {
            assert_eq!(batch_of(&foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_most_faithful_form_of_thinking_is_used() {
        let said = |item: Item| item.thinking().unwrap();
        assert_eq!(said(reasoning(&["s"], &["c"], Some(opaque("hm é")))), "hm é");
        assert_eq!(said(reasoning(&["s"], &["c"], None)), "c");
        assert_eq!(said(reasoning(&["s", "t"], &[], None)), "s\n\nt");
        for foreign in ["gAAAAABo", "poncho1.***", "poncho1./w=="] {
            assert_eq!(said(reasoning(&["s"], &[], Some(foreign.to_owned()))), "s", "{foreign}");
        }
    }
}
