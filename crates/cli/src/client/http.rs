//! A small HTTP client for a server on this machine or near it: JSON calls, and a chat completion that streams.
//!
//! Used by the benchmarks and by every command that talks to a server. One connection a call, so that a server that was
//! ended and started again needs no special care.
//! Plain HTTP only.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::Value;
use tokio::net::TcpStream;

/// Where a server is and how it is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// Host and port.
    authority: String,
    /// What stands before every path.
    prefix: String,
    key: Option<String>,
}

/// An answer that says no.
#[derive(Debug, thiserror::Error)]
#[error("{path} answered {status}: {message}")]
pub(crate) struct Refusal {
    pub(crate) path: String,
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

/// What a streamed chat completion came to.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    /// From sending the request to the first piece of the reply.
    pub(crate) first_token: Duration,
    /// When each piece of the reply came, the first one too; all since the request was sent.
    pub(crate) pieces: Vec<Duration>,
    /// When the stream was over.
    pub(crate) ended: Duration,
    /// The chunk with the numbers, and what else the last chunks say.
    pub(crate) usage: Value,
    pub(crate) poncho: Option<Value>,
    pub(crate) timings: Option<Value>,
}

impl Client {
    /// A client for the server at this address.
    pub(crate) fn new(url: &str, key: Option<String>) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("`{url}` is no URL; write http://127.0.0.1:8080"))?;
        ensure!(uri.scheme_str() == Some("http"), "`{url}` does not start with http://, and nothing else is spoken");
        let authority = uri.authority().with_context(|| format!("`{url}` names no host"))?;
        let port = authority.port_u16().unwrap_or(80);
        // A base URL as other clients want it is fine too.
        let prefix = uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Ok(Self { authority: format!("{}:{port}", authority.host()), prefix, key })
    }

    /// Fetches a JSON document; `None` if the server knows no such path.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        self.call(Method::GET, path, Vec::new()).await
    }

    /// Posts a JSON document; `None` if the server knows no such path.
    pub(crate) async fn post(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Option<Value>> {
        self.call(Method::POST, path, serde_json::to_vec(body)?).await
    }

    /// Fetches a plain text.
    pub(crate) async fn get_text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.send(Method::GET, path, Vec::new()).await?;
        self.text(path, response).await
    }

    /// Posts a JSON document and wants a good answer: an unknown path or name fails with what the server says.
    pub(crate) async fn demand(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Value> {
        let response = self.send(Method::POST, path, serde_json::to_vec(body)?).await?;
        let text = self.text(path, response).await?;
        serde_json::from_str(&text).with_context(|| format!("the answer of {path} is no JSON"))
    }

    /// Host and port, for messages.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    async fn call(&self, method: Method, path: &str, body: Vec<u8>) -> anyhow::Result<Option<Value>> {
        let response = self.send(method, path, body).await?;
        if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return Ok(None);
        }
        let text = self.text(path, response).await?;
        Ok(Some(serde_json::from_str(&text).with_context(|| format!("the answer of {path} is no JSON"))?))
    }

    /// Sends a chat completion that streams, and reads it to its end.
    pub(crate) async fn stream(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Streamed> {
        let body = serde_json::to_vec(body)?;
        let sent = Instant::now();
        let mut response = self.send(Method::POST, path, body).await?;
        if response.status() != StatusCode::OK {
            self.text(path, response).await?;
            bail!("{path} answered without a stream");
        }
        let mut events = Events::default();
        let mut reader = StreamReader::default();
        while let Some(frame) = response.frame().await {
            let frame = frame.with_context(|| format!("the stream of {path} broke off"))?;
            let now = sent.elapsed();
            for event in frame.data_ref().map(|data| events.push(data)).unwrap_or_default() {
                reader.read(&event, now)?;
            }
        }
        reader.end(sent.elapsed())
    }

    /// Sends a request and returns the answer, good or bad, before its body is read.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> anyhow::Result<Response<Incoming>> {
        let unreachable = || format!("cannot reach the server at {}; is it running?", self.authority);
        let stream = TcpStream::connect(&self.authority).await.with_context(unreachable)?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.with_context(unreachable)?;
        // It ends with the response; what went wrong shows there.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header("host", &self.authority)
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        sender.send_request(request).await.with_context(|| format!("the server did not answer {path}"))
    }

    /// The body of a good answer; the message of any other.
    pub(crate) async fn text(&self, path: &str, response: Response<Incoming>) -> anyhow::Result<String> {
        let status = response.status();
        let bytes = response.into_body().collect().await.with_context(|| format!("the answer of {path} broke off"))?;
        let text = String::from_utf8_lossy(&bytes.to_bytes()).into_owned();
        if status.is_success() {
            return Ok(text);
        }
        let document: Option<Value> = serde_json::from_str(&text).ok();
        let message = document.as_ref().and_then(|body| body.pointer("/error/message").or_else(|| body.get("error")));
        let message = message.and_then(Value::as_str).unwrap_or(&text).to_owned();
        Err(Refusal { path: path.to_owned(), status, message }.into())
    }
}

/// Splits the bytes of a stream into the data of its events.
#[derive(Default)]
pub(crate) struct Events {
    rest: Vec<u8>,
}

impl Events {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut found = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                found.push(data.trim_start().to_owned());
            }
        }
        found
    }
}

/// Picks out of the events what a replay wants to know.
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
        let mut chunk: Value = serde_json::from_str(event).context("an event of the stream is no JSON")?;
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
        ensure!(self.done, "the stream ended early; see what the server logged");
        Ok(Streamed {
            first_token: self.first_token.context("the stream ended without a reply")?,
            pieces: self.pieces,
            ended,
            usage: self.usage.context("the server does not report usage in a stream, and nothing can be counted")?,
            poncho: self.poncho,
            timings: self.timings,
        })
    }
}

/// Whether a choice holds a piece of the reply or its end. A role alone may be sent before anything was computed.
fn says_something(choice: &Value) -> bool {
    choice.get("finish_reason").is_some_and(Value::is_string) || has_piece(choice)
}

/// Whether a choice holds a piece of the reply.
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
    fn a_url_is_a_host_a_port_and_a_prefix() {
        for (url, authority, prefix) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", ""),
            ("http://localhost/", "localhost:80", ""),
            ("http://localhost:1/v1/", "localhost:1", ""),
            ("http://[::1]:9/poncho", "[::1]:9", "/poncho"),
        ] {
            let client = Client::new(url, None).unwrap();
            assert_eq!((client.authority.as_str(), client.prefix.as_str()), (authority, prefix), "{url}");
        }
        for wrong in ["", "localhost:8080", "https://localhost", "http://", "/v1"] {
            assert!(Client::new(wrong, None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_are_found_wherever_the_bytes_are_cut() {
        let stream = ": waiting\n\ndata: {\"a\":\"\u{e9}\"}\n\ndata:[DONE]\r\n\r\n".as_bytes();
        for cut in 0..stream.len() {
            let mut events = Events::default();
            let mut found = events.push(&stream[..cut]);
            found.extend(events.push(&stream[cut..]));
            assert_eq!(found, ["{\"a\":\"\u{e9}\"}", "[DONE]"], "cut at {cut}");
        }
    }

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
