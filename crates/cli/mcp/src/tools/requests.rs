//! The tool `requests`: the last requests, how much of each prompt was cached, and why not more.
//!
//! Asks `/api/requests`, and `/api/requests/{id}/why` for requests of models that are loaded: a cause must never load a
//! model or keep the others from being listed.

use std::collections::HashSet;

use poncho_client::Client;
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reading::{models, report};
use super::schema::{reads, typed};
use crate::error::ToolError;

pub(super) const NAME: &str = "requests";

/// Requests of an answer if nobody says.
const USUAL: usize = 10;
/// The most requests of an answer.
const MOST: usize = 50;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// How many of the last requests to list, from 1 to 50; 10 if it is left out.
    limit: Option<usize>,
}

/// The last requests of this key, the newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Requests {
    requests: Vec<Request>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Request {
    /// For the tool `explain`.
    id: u64,
    model: String,
    /// The same for requests of one conversation.
    conversation: String,
    /// The first words of the conversation, for requests of your own key.
    title: Option<String>,
    /// queued, prefilling, generating or ended.
    stage: String,
    /// How it ended.
    outcome: Option<String>,
    prompt_tokens: Option<u64>,
    /// Prompt tokens that came from the cache.
    cached_tokens: Option<u64>,
    /// Prompt tokens that had to be computed.
    new_tokens: Option<u64>,
    generated_tokens: Option<u64>,
    /// How the cache was hit.
    hit: Option<String>,
    /// The tier that the cached tokens came from.
    source: Option<String>,
    /// Milliseconds in the queue.
    queue_ms: Option<f64>,
    /// Milliseconds of restoring cached tokens.
    restore_ms: Option<f64>,
    /// Milliseconds of computing new prompt tokens.
    prefill_ms: Option<f64>,
    /// Milliseconds of generating the reply.
    decode_ms: Option<f64>,
    total_ms: Option<f64>,
    /// Why not more was cached; null if the prompt is not kept or its model is not loaded.
    why: Option<Why>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Why {
    /// The cause in one word.
    cause: String,
    reason: String,
    /// What to change.
    fix: Option<String>,
    /// Tokens that were stored and had to be computed again.
    lost: u64,
}

/// `/api/requests`, the oldest first.
#[derive(Deserialize)]
struct Report {
    requests: Vec<Request>,
}

pub(super) fn tool() -> Tool {
    let description = "Lists the last requests to the Poncho server, the newest first: how many tokens of each prompt \
        were cached and how many had to be computed, how long that took, and why not more was cached.";
    typed::<Arguments, Requests>(NAME, description, reads("Last requests"))
}

pub(super) async fn call(client: &Client, asked: Arguments) -> Result<Requests, ToolError> {
    let limit = asked.limit.unwrap_or(USUAL);
    if !(1..=MOST).contains(&limit) {
        let reason = format!("limit is {limit} and must be from 1 to {MOST}");
        return Err(ToolError::Arguments { reason });
    }
    let Report { requests } = report(client, "/api/requests").await?;
    let mut requests: Vec<Request> = requests.into_iter().rev().take(limit).collect();
    let loaded = models(client).await?.into_iter().filter(|model| model.meta.loaded);
    let loaded: HashSet<String> = loaded.map(|model| model.id).collect();
    let explained = |request: &&mut Request| {
        request.stage == "ended" && request.new_tokens.is_some_and(|new| new > 0) && loaded.contains(&request.model)
    };
    for request in requests.iter_mut().filter(explained) {
        // A prompt that was dropped has no cause.
        request.why = report(client, &format!("/api/requests/{}/why", request.id)).await.ok();
    }
    Ok(Requests { requests })
}
