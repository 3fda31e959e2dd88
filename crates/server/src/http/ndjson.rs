//! A reply as lines of JSON, as Ollama streams it.
//!
//! The dialect says what its lines look like (`Lines`); order, errors and cancelling are here. The head of the response
//! waits a moment for the first event, so that an early error still has a status; a later one becomes the last line.
//! A quiet stream gets lines without text, which clients read as progress. The response owns the reply, so a client that
//! goes away drops it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};

use crate::error::{ApiError, Family};
use crate::http::heartbeat::Heartbeat;
use crate::http::reply::{Reply, ReplyEvent};
use poncho_api::{Delta, Finished};
use tokio::time::Instant;

/// How a dialect writes the lines of its streams.
pub(crate) trait Lines: Send + 'static {
    /// More of the reply; what is not ready to be told yet gives no line.
    fn delta(&mut self, delta: Delta) -> Vec<String>;
    /// What a quiet stream gets from time to time.
    fn waiting(&mut self, heartbeat: Heartbeat) -> String;
    /// The reply ended.
    fn done(&mut self, finished: Finished) -> Vec<String>;
}

struct Writer<L> {
    reply: Reply,
    lines: L,
    /// Written and not yet sent.
    queue: VecDeque<String>,
    open: bool,
    heartbeat: Heartbeat,
    /// The longest time without a line.
    keep_alive: Duration,
    /// When the stream was last heard of.
    sent: Instant,
}

/// Streams a reply.
pub(crate) async fn respond<L: Lines>(reply: Reply, lines: L, keep_alive: Duration) -> Result<Response, ApiError> {
    let (queue, heartbeat) = (VecDeque::new(), Heartbeat::default());
    let mut writer = Writer { reply, lines, queue, open: true, heartbeat, keep_alive, sent: Instant::now() };
    let deadline = writer.sent + keep_alive;
    while let Ok(event) = tokio::time::timeout_at(deadline, writer.reply.next()).await {
        let says_nothing = matches!(event, Some(ReplyEvent::Started(_) | ReplyEvent::Progress(_)));
        if let Some(ReplyEvent::Failed(error)) = event {
            return Err(error);
        }
        writer.write(event);
        if !says_nothing {
            break;
        }
    }
    let mut response = Body::from_stream(writer.into_lines()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    // Proxies that collect a response before they pass it on would turn a stream into a wait.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

impl<L: Lines> Writer<L> {
    fn into_lines(self) -> impl Stream<Item = Result<String, Infallible>> {
        stream::unfold(self, |mut writer| async move {
            loop {
                if let Some(mut line) = writer.queue.pop_front() {
                    line.push('\n');
                    writer.sent = Instant::now();
                    return Some((Ok(line), writer));
                }
                if !writer.open {
                    return None;
                }
                match tokio::time::timeout_at(writer.sent + writer.keep_alive, writer.reply.next()).await {
                    Ok(event) => writer.write(event),
                    Err(_) => {
                        let line = writer.lines.waiting(writer.heartbeat);
                        writer.queue.push_back(line);
                    }
                }
            }
        })
    }

    fn write(&mut self, event: Option<ReplyEvent>) {
        if let Some(event) = &event {
            self.heartbeat.note(event);
        }
        match event {
            Some(ReplyEvent::Started(_) | ReplyEvent::Progress(_)) => {}
            Some(ReplyEvent::Delta(delta)) => self.queue.extend(self.lines.delta(delta)),
            Some(ReplyEvent::Done(finished)) => {
                self.open = false;
                self.queue.extend(self.lines.done(*finished));
            }
            Some(ReplyEvent::Failed(error)) => {
                self.open = false;
                self.queue.push_back(error.body(Family::Ollama).to_string());
            }
            None => self.open = false,
        }
    }
}
