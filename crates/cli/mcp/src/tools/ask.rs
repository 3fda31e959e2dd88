//! The tool `ask`: one prompt to a model of the server.
//!
//! The reply is streamed from the server, so that its progress reaches a client that asks for it, and a call that is
//! cancelled ends the request there. The length of the reply is bounded.

use poncho_client::{Client, Events};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::reading::models;
use super::schema::typed;
use crate::error::ToolError;

pub(super) const NAME: &str = "ask";

const PATH: &str = "/v1/chat/completions";
/// Tokens of a reply if nobody says.
const USUAL_TOKENS: u32 = 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// The message of the user.
    prompt: String,
    /// Instructions for the model.
    system: Option<String>,
    /// Name of the model; the loaded one if it is left out.
    model: Option<String>,
    /// The most tokens of the reply; 1024 if it is left out.
    max_tokens: Option<u32>,
    /// From 0 (the same reply each time) to 2.
    temperature: Option<f32>,
}

/// The reply of the model.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Reply {
    model: String,
    text: String,
    /// What the model thought before its reply.
    reasoning: Option<String>,
    /// stop, or length if the reply was cut.
    finish_reason: Option<String>,
    prompt_tokens: u64,
    /// Prompt tokens that came from the cache.
    cached_tokens: u64,
    generated_tokens: u64,
}

/// A chunk of the stream; every field may be missing.
#[derive(Deserialize)]
struct Chunk {
    error: Option<Refusal>,
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    poncho: Option<Facts>,
}

#[derive(Deserialize)]
struct Refusal {
    message: String,
}

#[derive(Deserialize)]
struct Choice {
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<Cached>,
}

#[derive(Deserialize)]
struct Cached {
    cached_tokens: u64,
}

#[derive(Deserialize)]
struct Facts {
    progress: Option<Progress>,
}

/// A heartbeat of the server.
#[derive(Deserialize)]
struct Progress {
    stage: String,
    prompt_tokens: Option<u32>,
    processed_tokens: Option<u32>,
}

pub(super) fn tool() -> Tool {
    let description = "Sends one prompt to a model of the Poncho server and returns its reply, with the tokens that were \
        cached and generated.";
    let annotations = ToolAnnotations::with_title("Ask a local model").read_only(true).open_world(false);
    typed::<Arguments, Reply>(NAME, description, annotations)
}

pub(super) async fn call(
    client: &Client,
    asked: Arguments,
    context: &RequestContext<RoleServer>,
) -> Result<Reply, ToolError> {
    let cancelled = context.ct.cancelled();
    tokio::select! {
        reply = reply(client, asked, context) => reply,
        // Dropping the stream ends the request at the server.
        () = cancelled => Err(ToolError::Cancelled),
    }
}

async fn reply(client: &Client, asked: Arguments, context: &RequestContext<RoleServer>) -> Result<Reply, ToolError> {
    let model = match asked.model {
        Some(model) => model,
        None => usual_model(client).await?,
    };
    let system = asked.system.map(|system| json!({"role": "system", "content": system}));
    let messages: Vec<_> = system.into_iter().chain([json!({"role": "user", "content": asked.prompt})]).collect();
    let mut body = json!({
        "model": model, "messages": messages, "max_tokens": asked.max_tokens.unwrap_or(USUAL_TOKENS),
        "stream": true, "stream_options": {"include_usage": true},
    });
    if let (Some(temperature), Some(fields)) = (asked.temperature, body.as_object_mut()) {
        fields.insert("temperature".to_owned(), temperature.into());
    }
    let mut events = client.stream(PATH, &body).await?;
    let reports = Reports { context, token: context.meta.get_progress_token() };
    let reply = Reply { model, ..Reply::default() };
    collected(&mut events, reply, &reports).await
}

/// The loaded model, or the first of the list.
async fn usual_model(client: &Client) -> Result<String, ToolError> {
    let listed = models(client).await?;
    let usual = listed.iter().find(|model| model.meta.loaded).or(listed.first());
    usual.map(|model| model.id.clone()).ok_or(ToolError::NoModel)
}

async fn collected(events: &mut Events, mut reply: Reply, reports: &Reports<'_>) -> Result<Reply, ToolError> {
    while let Some(event) = events.next().await? {
        if event == "[DONE]" {
            return Ok(reply);
        }
        let chunk: Chunk = serde_json::from_str(&event)
            .map_err(|error| ToolError::Unreadable { path: PATH.to_owned(), reason: error.to_string() })?;
        if let Some(Refusal { message }) = chunk.error {
            return Err(ToolError::Refused(anyhow::Error::msg(message)));
        }
        for Choice { delta, finish_reason } in chunk.choices {
            reply.text.push_str(delta.content.as_deref().unwrap_or_default());
            if let Some(more) = delta.reasoning_content.filter(|more| !more.is_empty()) {
                reply.reasoning.get_or_insert_default().push_str(&more);
            }
            reply.finish_reason = finish_reason.or(reply.finish_reason);
        }
        if let Some(usage) = chunk.usage {
            reply.prompt_tokens = usage.prompt_tokens;
            reply.cached_tokens = usage.prompt_tokens_details.map_or(0, |details| details.cached_tokens);
            reply.generated_tokens = usage.completion_tokens;
        }
        if let Some(progress) = chunk.poncho.and_then(|facts| facts.progress) {
            reports.send(&progress).await;
        }
    }
    Err(ToolError::BrokeOff)
}

/// The way of progress to a client that asked for it.
struct Reports<'c> {
    context: &'c RequestContext<RoleServer>,
    token: Option<ProgressToken>,
}

impl Reports<'_> {
    async fn send(&self, progress: &Progress) {
        let Some(token) = self.token.clone() else { return };
        let mut note = ProgressNotificationParam::new(token, progress.processed_tokens.unwrap_or(0).into())
            .with_message(progress.stage.clone());
        if let Some(total) = progress.prompt_tokens {
            note = note.with_total(total.into());
        }
        // A client that does not listen gets its reply all the same.
        let _ = self.context.peer.notify_progress(note).await;
    }
}
