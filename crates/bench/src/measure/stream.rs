//! A chat completion that streams: sent, read to its end, and timed.
//!
//! Used by every measurement. A stream that ends early, fails, or reports no usage is an error: a wrong figure is worse
//! than none.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use poncho_client::Client;
use serde::Serialize;
use serde_json::Value;

const PATH: &str = "/v1/chat/completions";

/// A streamed chat completion that was read to its end. All times count from the request.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    /// When the first piece of the reply arrived.
    pub(crate) first_token: Duration,
    /// When each piece of the reply arrived, including the first.
    pub(crate) pieces: Vec<Duration>,
    /// When the stream ended.
    pub(crate) ended: Duration,
    /// The token counts that the server reports.
    pub(crate) usage: Value,
    /// Facts about the cache, from a Poncho.
    pub(crate) poncho: Option<Value>,
    /// Facts about the prompt, from a llama-server.
    pub(crate) timings: Option<Value>,
}

impl Streamed {
    /// A count of the usage.
    pub(crate) fn count(&self, name: &str) -> anyhow::Result<usize> {
        let count = self.usage.get(name).and_then(as_count);
        count.with_context(|| format!("the usage has no {name}, so tokens cannot be counted"))
    }

    /// Prompt tokens that came from a cache; `None` if the server does not report them.
    pub(crate) fn cached(&self) -> Option<usize> {
        let cached = self.usage.pointer("/prompt_tokens_details/cached_tokens").and_then(as_count);
        cached.or_else(|| self.timings.as_ref()?.get("cache_n").and_then(as_count))
    }
}

fn as_count(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|count| usize::try_from(count).ok())
}

/// Sends a chat completion and reads it to its end.
pub(crate) async fn stream(client: &Client, body: &(impl Serialize + Sync)) -> anyhow::Result<Streamed> {
    let sent = Instant::now();
    let mut events = client.stream(PATH, body).await?;
    let mut reader = StreamReader::default();
    while let Some(event) = events.next().await? {
        reader.read(&event, sent.elapsed())?;
    }
    reader.end(sent.elapsed())
}

/// Collects what a measurement needs from the events.
#[derive(Default)]
struct StreamReader {
    first_token: Option<Duration>,
    pieces: Vec<Duration>,
    usage: Option<Value>,
    poncho: Option<Value>,
    timings: Option<Value>,
    done: bool,
}

impl StreamReader {
    fn read(&mut self, event: &str, now: Duration) -> anyhow::Result<()> {
        if event == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let mut chunk: Value = serde_json::from_str(event).context("an event of the stream is not JSON")?;
        if let Some(error) = chunk.get("error") {
            bail!("the request failed: {}", error.get("message").and_then(Value::as_str).unwrap_or(event));
        }
        if chunk.pointer("/choices/0").is_some_and(says_something) {
            self.first_token.get_or_insert(now);
        }
        if chunk.pointer("/choices/0").is_some_and(has_piece) {
            self.pieces.push(now);
        }
        for (name, place) in [("usage", &mut self.usage), ("poncho", &mut self.poncho), ("timings", &mut self.timings)]
        {
            if let Some(value) = chunk.get_mut(name).map(Value::take).filter(Value::is_object) {
                *place = Some(value);
            }
        }
        Ok(())
    }

    fn end(self, ended: Duration) -> anyhow::Result<Streamed> {
        ensure!(self.done, "the stream ended early; see the log of the server");
        Ok(Streamed {
            first_token: self.first_token.context("the stream ended without a reply")?,
            pieces: self.pieces,
            ended,
            usage: self.usage.context("the server does not report usage in a stream, so tokens cannot be counted")?,
            poncho: self.poncho,
            timings: self.timings,
        })
    }
}

/// Whether a choice contains a piece of the reply or its end. A role alone may be sent before anything is computed.
fn says_something(choice: &Value) -> bool {
    choice.get("finish_reason").is_some_and(Value::is_string) || has_piece(choice)
}

/// Whether a choice contains a piece of the reply.
fn has_piece(choice: &Value) -> bool {
    let delta = choice.get("delta");
    let field = |name: &str| delta.and_then(|delta| delta.get(name));
    let text = |name: &str| field(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    text("content")
        || text("reasoning_content")
        || field("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_piece_of_the_reply_stops_the_clock() {
        let mut reader = StreamReader::default();
        let at = Duration::from_millis;
        reader
            .read(r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#, at(1))
            .unwrap();
        reader.read(r#"{"choices":[{"delta":{"content":"x"}}],"usage":null}"#, at(2)).unwrap();
        reader.read(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#, at(3)).unwrap();
        reader.read(r#"{"choices":[],"usage":{"prompt_tokens":7},"poncho":{"hit":"cold"}}"#, at(4)).unwrap();
        reader.read("[DONE]", at(5)).unwrap();
        let streamed = reader.end(at(6)).unwrap();
        assert_eq!((streamed.first_token, streamed.ended), (at(2), at(6)));
        assert_eq!(streamed.pieces, [at(2)], "neither the role nor the end is a piece");
        assert_eq!(streamed.usage["prompt_tokens"], 7);
        assert_eq!(streamed.poncho.unwrap()["hit"], "cold");
    }

    #[test]
    fn a_stream_that_fails_says_why() {
        let failed = StreamReader::default().read(r#"{"error":{"message":"no room"}}"#, Duration::ZERO).unwrap_err();
        assert!(failed.to_string().contains("no room"));
        assert!(StreamReader::default().end(Duration::ZERO).unwrap_err().to_string().contains("early"));
        let mut silent = StreamReader { done: true, first_token: Some(Duration::ZERO), ..StreamReader::default() };
        silent.read(r#"{"choices":[]}"#, Duration::ZERO).unwrap();
        assert!(silent.end(Duration::ZERO).unwrap_err().to_string().contains("usage"));
    }
}
