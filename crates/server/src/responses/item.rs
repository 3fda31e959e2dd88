//! What conversations are made of: messages, calls, their outputs, and thinking, as stored and as sent.
//!
//! Made by `input` from what a client sends and by `compose` from what a model says; read by `messages`, which renders
//! them for the template. An item always has an id.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::responses::token::TokenOut;

/// Marks opaque thinking text as ours, so that another server's is not read as text.
const OPAQUE_PREFIX: &str = "poncho1.";

/// How far an item has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    User,
    Assistant,
    System,
    Developer,
}

/// See the module.
#[derive(Debug, Clone, Serialize)]
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
    Reasoning {
        id: String,
        summary: Vec<ThinkingPart>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<ThinkingPart>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
        status: Status,
    },
}

/// A part of a message.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
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
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum CallOutput {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A stretch of thinking.
#[derive(Debug, Clone, Serialize)]
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
