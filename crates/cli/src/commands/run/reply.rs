//! One reply: its request, its pieces as they arrive, and the facts at its end.
//!
//! Used by `once.rs` and `chat.rs`. Dropping a reply closes its connection, which cancels it at the server. The text is
//! unchanged; code that shows it on a terminal must make it harmless.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use poncho_client::{Client, Events};
use serde::{Deserialize, Serialize};

use super::conversation::Message;
use super::parameters::Parameters;

const PATH: &str = "/v1/chat/completions";

/// The request.
#[derive(Debug, Serialize)]
pub(crate) struct Question<'a> {
    model: &'a str,
    messages: Vec<Message>,
    stream: bool,
    stream_options: StreamOptions,
    /// Asks for the facts about the cache.
    poncho: bool,
    #[serde(flatten)]
    parameters: &'a Parameters,
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl<'a> Question<'a> {
    pub(crate) fn new(parameters: &'a Parameters, model: &'a str, messages: Vec<Message>) -> Self {
        Self {
            model,
            messages,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            poncho: true,
            parameters,
        }
    }
}

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The model's thinking before the answer.
    Thought(String),
    /// The answer.
    Text(String),
}

/// Facts about a reply.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Facts {
    /// How the cache was hit; `None` if the server does not report it.
    pub(crate) hit: Option<String>,
    /// Prompt tokens from the cache.
    pub(crate) cached_tokens: u64,
    /// Prompt tokens that were computed.
    pub(crate) new_tokens: u64,
    pub(crate) reply_tokens: u64,
    /// From the request to the first piece.
    pub(crate) first_token_ms: f64,
    /// From the request to the last piece.
    pub(crate) total_ms: f64,
    /// `None` for a reply of fewer than two tokens.
    pub(crate) tokens_per_second: Option<f64>,
    /// Why the reply ended.
    pub(crate) finish_reason: Option<String>,
}

/// A reply that is being written.
pub(crate) struct Reply {
    events: Events,
    waiting: VecDeque<Piece>,
    seen: Seen,
}

/// The connection ended before the reply did.
const BROKEN: &str = "the reply broke off; see the log of the server";

/// The events so far.
#[derive(Default)]
struct Seen {
    asked: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
    usage: Option<Usage>,
    hit: Option<String>,
    finish_reason: Option<String>,
    is_done: bool,
}

impl Reply {
    /// Sends the request and returns when the server accepts it.
    pub(crate) async fn ask(client: &Client, question: &Question<'_>) -> anyhow::Result<Self> {
        let seen = Seen { asked: Some(Instant::now()), ..Seen::default() };
        let events = client.stream(PATH, question).await?;
        Ok(Self { events, waiting: VecDeque::new(), seen })
    }

    /// The next piece; `None` at the end. Cancel safe.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.waiting.pop_front() {
                return Ok(Some(piece));
            }
            let Some(event) = self.events.next().await.context(BROKEN)? else {
                if self.seen.is_done {
                    return Ok(None);
                }
                bail!(BROKEN);
            };
            self.waiting.extend(self.seen.read(&event, Instant::now())?);
        }
    }

    /// The facts. Complete only at the end.
    pub(crate) fn facts(&self) -> Facts {
        self.seen.facts()
    }
}

/// A chunk of the stream; every field may be missing.
#[derive(Deserialize)]
struct Chunk {
    error: Option<ChunkError>,
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    poncho: Option<CacheFacts>,
}

#[derive(Deserialize)]
struct ChunkError {
    message: String,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Copy, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct CacheFacts {
    hit: Option<String>,
}

impl Seen {
    fn read(&mut self, event: &str, now: Instant) -> anyhow::Result<Vec<Piece>> {
        if event == "[DONE]" {
            self.is_done = true;
            return Ok(Vec::new());
        }
        let chunk: Chunk =
            serde_json::from_str(event).context("the server sent an event that is not part of a reply")?;
        if let Some(error) = chunk.error {
            bail!("the request failed: {}", error.message);
        }
        self.usage = chunk.usage.or(self.usage);
        self.hit = chunk.poncho.and_then(|facts| facts.hit).or(self.hit.take());
        let mut pieces = Vec::new();
        for choice in chunk.choices {
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
            pieces.extend(choice.delta.reasoning_content.filter(|text| !text.is_empty()).map(Piece::Thought));
            pieces.extend(choice.delta.content.filter(|text| !text.is_empty()).map(Piece::Text));
        }
        if !pieces.is_empty() {
            self.first.get_or_insert(now);
            self.last = Some(now);
        }
        Ok(pieces)
    }

    fn facts(&self) -> Facts {
        let usage = self.usage.unwrap_or(Usage { prompt_tokens: 0, completion_tokens: 0, prompt_tokens_details: None });
        let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
        let between = |start: Option<Instant>, end: Option<Instant>| Some(end?.saturating_duration_since(start?));
        // The first token belongs to the prompt: the time after it is that of the others.
        let rate = between(self.first, self.last).and_then(|time| rate(usage.completion_tokens.checked_sub(1)?, time));
        Facts {
            hit: self.hit.clone(),
            cached_tokens: cached,
            new_tokens: usage.prompt_tokens.saturating_sub(cached),
            reply_tokens: usage.completion_tokens,
            first_token_ms: between(self.asked, self.first).map_or(0.0, milliseconds),
            total_ms: between(self.asked, self.last).map_or(0.0, milliseconds),
            tokens_per_second: rate.map(tenths),
            finish_reason: self.finish_reason.clone(),
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    tenths(time.as_secs_f64() * 1000.0)
}

/// Rounded to one decimal: further digits mean nothing.
fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// Tokens per second, if there are tokens and time.
fn rate(tokens: u64, time: Duration) -> Option<f64> {
    let per_second = tokens as f64 / time.as_secs_f64();
    Some(tenths(per_second)).filter(|rate| tokens > 0 && rate.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_facts_are_separated() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut seen = Seen { asked: Some(start), ..Seen::default() };
        let empty =
            seen.read(r#"{"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}"#, at(10)).unwrap();
        assert_eq!(empty, []);
        let thought = seen.read(r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#, at(100)).unwrap();
        assert_eq!(thought, [Piece::Thought("hm".to_owned())]);
        let text = seen.read(r#"{"choices":[{"delta":{"content":"yes"},"finish_reason":null}]}"#, at(300)).unwrap();
        assert_eq!(text, [Piece::Text("yes".to_owned())]);
        seen.read(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, at(350)).unwrap();
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}},"poncho":{"hit":"partial"}}"#;
        seen.read(usage, at(400)).unwrap();
        seen.read("[DONE]", at(500)).unwrap();
        assert!(seen.is_done);
        let facts = seen.facts();
        assert_eq!((facts.cached_tokens, facts.new_tokens, facts.reply_tokens), (8, 4, 3));
        assert_eq!((facts.hit.as_deref(), facts.finish_reason.as_deref()), (Some("partial"), Some("stop")));
        assert_eq!((facts.first_token_ms, facts.total_ms, facts.tokens_per_second), (100.0, 300.0, Some(10.0)));
    }

    #[test]
    fn a_reply_without_numbers_has_none() {
        let facts = Seen::default().facts();
        assert_eq!(facts, Facts::default());
        assert_eq!(rate(5, Duration::ZERO), None);
        assert_eq!(rate(0, Duration::from_secs(1)), None);
    }

    #[test]
    fn an_error_in_the_stream_is_reported() {
        let said = Seen::default().read(r#"{"error":{"message":"no room"}}"#, Instant::now()).unwrap_err();
        assert!(said.to_string().contains("no room"));
        assert!(Seen::default().read("junk", Instant::now()).is_err());
    }
}
