//! The tool `explain`: why a prompt has to be read again, and what to change.
//!
//! Asks `/api/cache/explain`, or `/api/requests/{id}/why` for a request that was made. Nothing is computed for a model that
//! is loaded; another one is loaded for its tokens.

use poncho_client::Client;
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::reading;
use super::schema::{reads, typed};
use crate::error::ToolError;

pub(super) const NAME: &str = "explain";

/// An object of a dialect, as its clients send it.
type Object = Map<String, Value>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// The id of an earlier request, from the tool `requests`.
    id: Option<u64>,
    /// Messages of a chat in OpenAI's form: objects with `role` and `content`.
    messages: Option<Vec<Object>>,
    /// Tools that belong to the messages, in OpenAI's form; they are a part of the prompt.
    tools: Option<Vec<Object>>,
    /// A prompt that is read as it is, without the template of a chat.
    text: Option<String>,
    /// The whole body of a request to /v1/chat/completions, /v1/messages, /v1/responses or /api/chat.
    body: Option<Object>,
    /// Name of the model; the loaded one if it is left out.
    model: Option<String>,
}

/// How much of a prompt is cached, and where it leaves the cached one.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct Explanation {
    model: String,
    /// Tokens of the prompt.
    tokens: u64,
    /// Tokens at the start of the prompt that are cached and need not be computed.
    usable: u64,
    /// Tokens that are stored and have to be computed again because the prompt differs before them.
    lost: u64,
    /// For an earlier request: the tokens that were cached when it came.
    found: Option<u64>,
    /// The cause in one word, such as never_seen, changing_id, timestamp or nothing_missed.
    cause: String,
    /// The cause in a sentence.
    reason: String,
    /// What to change so that the prompt is cached.
    fix: Option<String>,
    /// The first token that differs.
    offset: Option<u64>,
    /// The message that it is in.
    message: Option<Place>,
    /// The text around the difference in the cached prompt.
    cached: Option<Around>,
    /// The text around the difference in this prompt.
    asked: Option<Around>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Place {
    /// Counted from 1.
    number: u64,
    role: String,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Around {
    before: String,
    after: String,
}

pub(super) fn tool() -> Tool {
    let description = "Explains why a prompt has to be read again: how many of its tokens are cached, where it first \
        differs from the most similar cached prompt, the cause, and what to change. Give one of id, messages, text or \
        body.";
    typed::<Arguments, Explanation>(NAME, description, reads("Why a prompt is read again"))
}

pub(super) async fn call(client: &Client, asked: Arguments) -> Result<Explanation, ToolError> {
    let Arguments { id, messages, tools, text, body, model } = asked;
    let wrong = |reason: &str| Err(ToolError::Arguments { reason: reason.to_owned() });
    if tools.is_some() && messages.is_none() {
        return wrong("tools belong to messages; send both");
    }
    let mut document = match (id, messages, text, body) {
        (Some(_), None, None, None) if model.is_some() => return wrong("the request of the id has its own model"),
        (Some(id), None, None, None) => return explain_request(client, id).await,
        (None, Some(messages), None, None) => match tools {
            Some(tools) => json!({"messages": messages, "tools": tools}),
            None => json!({"messages": messages}),
        },
        (None, None, Some(text), None) => json!({"prompt": text}),
        (None, None, None, Some(body)) => Value::Object(body),
        _ => return wrong("give one of id, messages, text or body"),
    };
    if let (Some(model), Some(fields)) = (model, document.as_object_mut()) {
        fields.insert("model".to_owned(), model.into());
    }
    reading::posted(client, "/api/cache/explain", &document).await
}

async fn explain_request(client: &Client, id: u64) -> Result<Explanation, ToolError> {
    match reading::model_report(client, &format!("/api/requests/{id}/why")).await {
        Err(ToolError::NoPath { .. }) => {
            let reason = format!("request {id} is not known, or its prompt was dropped; list them with `requests`");
            Err(ToolError::Arguments { reason })
        }
        explained => explained,
    }
}
