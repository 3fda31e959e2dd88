//! One measured chat completion: the body that is sent, and the figures of the answer.
//!
//! Used by the comparison and the matrix; replays send the same body. Every server gets the same bytes and ignores the
//! fields that it does not know. Tokens are counted by the usage that the server reports.

use std::time::Duration;

use anyhow::Context;
use poncho_client::Client;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::measure::prompts::sample;
use crate::measure::stream::{Streamed, stream};

/// The limit for one request: enough for a long prompt on a slow machine.
const PATIENCE: Duration = Duration::from_secs(900);

/// A request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Call {
    pub(crate) messages: Vec<Box<RawValue>>,
    pub(crate) tools: Vec<Box<RawValue>>,
    /// Tokens to generate.
    pub(crate) reply: usize,
}

/// A chat completion as it is sent.
#[derive(Serialize)]
pub(crate) struct Body<'a> {
    pub(crate) model: &'a str,
    pub(crate) messages: &'a [Box<RawValue>],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) tools: &'a [Box<RawValue>],
    pub(crate) max_tokens: usize,
    /// Makes every reply as long as `max_tokens`.
    pub(crate) ignore_eos: bool,
    /// Asks a Poncho for facts about its cache; other servers ignore it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) poncho: bool,
    #[serde(flatten)]
    pub(crate) always: Always,
}

/// The fields of every measured request: the most likely tokens, streamed, with their counts at the end.
#[derive(Debug, Serialize)]
pub(crate) struct Always {
    temperature: f32,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl Default for Always {
    fn default() -> Self {
        Self { temperature: 0.0, stream: true, stream_options: StreamOptions { include_usage: true } }
    }
}

/// The figures of an answer. Times count from the request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) first_token: Duration,
    pub(crate) ended: Duration,
    /// When the pieces of the reply arrived.
    pub(crate) pieces: Vec<Duration>,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Those that came from a cache; `None` if the server does not report them.
    pub(crate) cached: Option<usize>,
    /// Tokens of the reply.
    pub(crate) completion: usize,
}

impl Answer {
    fn of(streamed: Streamed) -> anyhow::Result<Self> {
        Ok(Self {
            prompt: streamed.count("prompt_tokens")?,
            completion: streamed.count("completion_tokens")?,
            cached: streamed.cached(),
            first_token: streamed.first_token,
            ended: streamed.ended,
            pieces: streamed.pieces,
        })
    }

    /// Prompt tokens that were computed, if the server reports them.
    pub(crate) fn prefilled(&self) -> Option<usize> {
        self.cached.map(|cached| self.prompt.saturating_sub(cached))
    }
}

/// A message of a role.
pub(crate) fn message(role: &str, content: &str) -> anyhow::Result<Box<RawValue>> {
    Ok(to_raw_value(&json!({"role": role, "content": content}))?)
}

impl Call {
    /// A system prompt and a question.
    pub(crate) fn new(system: &str, question: &str, reply: usize) -> anyhow::Result<Self> {
        let messages = vec![message("system", system)?, message("user", question)?];
        Ok(Self { messages, tools: Vec::new(), reply })
    }

    /// Sends the request and reads its answer.
    pub(crate) async fn send(&self, client: &Client, model: &str) -> anyhow::Result<Answer> {
        let body = Body {
            model,
            messages: &self.messages,
            tools: &self.tools,
            max_tokens: self.reply,
            // With tools a grammar may allow nothing but the end.
            ignore_eos: self.tools.is_empty(),
            poncho: false,
            always: Always::default(),
        };
        let answer = tokio::time::timeout(PATIENCE, stream(client, &body)).await;
        let answer = answer.with_context(|| format!("no answer within {} s", PATIENCE.as_secs()))??;
        Answer::of(answer)
    }
}

/// The first model that a server lists.
pub(crate) async fn first_model(client: &Client) -> anyhow::Result<String> {
    let models = client.get("/v1/models").await?.context("the server has no /v1/models")?;
    let first = models.pointer("/data/0/id").and_then(Value::as_str);
    Ok(first.context("the server has no model loaded")?.to_owned())
}

/// The tokens of a word in our prompts, as the server counts them; one if it cannot count.
pub(crate) async fn tokens_per_word(client: &Client, model: &str) -> anyhow::Result<f64> {
    let text = sample(512);
    let words = text.split(' ').count();
    let body = json!({"model": model, "content": text, "add_special": false, "parse_special": false});
    let Some(answer) = client.post_if_known("/tokenize", &body).await? else { return Ok(1.0) };
    let tokens = answer.get("tokens").and_then(Value::as_array).map_or(words, Vec::len);
    Ok(tokens as f64 / words as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(usage: Value) -> Streamed {
        Streamed { usage, ..Streamed::default() }
    }

    #[test]
    fn figures_come_from_the_usage() {
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}});
        let answer = Answer::of(streamed(usage)).unwrap();
        assert_eq!((answer.prompt, answer.completion, answer.cached, answer.prefilled()), (9, 2, Some(4), Some(5)));
        let timings = Some(json!({"cache_n": 7}));
        let other = Streamed { timings, ..streamed(json!({"prompt_tokens": 9, "completion_tokens": 2})) };
        assert_eq!(Answer::of(other).unwrap().prefilled(), Some(2), "as llama-server reports it");
    }

    #[test]
    fn a_server_that_does_not_count_cannot_be_measured() {
        assert!(
            Answer::of(streamed(json!({"prompt_tokens": 9}))).unwrap_err().to_string().contains("completion_tokens")
        );
        let silent = Answer::of(streamed(json!({"prompt_tokens": 9, "completion_tokens": 1}))).unwrap();
        assert_eq!(silent.prefilled(), None, "a missing figure is not zero");
    }
}
