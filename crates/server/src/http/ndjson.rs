//! A reply as lines of JSON, as Ollama streams it.
//!
//! The dialect says what its lines look like (`Lines`); order, errors and cancelling are here. The head of the response
//! waits for the first event, so that an error before any text still has a status; a later one becomes the last line.
//! There is no keep-alive: clients parse every line. The response owns the reply, so a client that goes away drops it.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};

use crate::error::{ApiError, Family};
use crate::http::reply::{Reply, ReplyEvent};
use poncho_api::{Delta, Finished};

/// How a dialect writes the lines of its streams.
pub(crate) trait Lines: Send + 'static {
    /// More of the reply; what is not ready to be told yet gives no line.
    fn delta(&mut self, delta: Delta) -> Vec<String>;
    /// The reply ended.
    fn done(&mut self, finished: Finished) -> Vec<String>;
}

struct Writer<L> {
    reply: Reply,
    lines: L,
    /// Written and not yet sent.
    queue: VecDeque<String>,
    open: bool,
}

/// Streams a reply.
pub(crate) async fn respond<L: Lines>(mut reply: Reply, lines: L) -> Result<Response, ApiError> {
    let mut first = reply.next().await;
    while matches!(first, Some(ReplyEvent::Started(_))) {
        first = reply.next().await;
    }
    let mut writer = Writer { reply, lines, queue: VecDeque::new(), open: true };
    match first {
        Some(ReplyEvent::Failed(error)) => return Err(error),
        event => writer.write(event),
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
                    return Some((Ok(line), writer));
                }
                if !writer.open {
                    return None;
                }
                let event = writer.reply.next().await;
                writer.write(event);
            }
        })
    }

    fn write(&mut self, event: Option<ReplyEvent>) {
        match event {
            Some(ReplyEvent::Started(_)) => {}
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
