//! Replies as server-sent events: several replies merged into one stream of JSON texts, with names where a dialect has them.
//!
//! A dialect says what its events look like (`Events`); order, errors, keep-alive and cancelling are the same for all.
//! The response owns the replies, so a client that goes away drops them, and that cancels them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt};

use crate::error::ApiError;
use crate::http::reply::{Reply, ReplyEvent};
use poncho_api::{Delta, Finished, Started};

/// An error that comes this early becomes the status of the response; a later one becomes an event, because by then the
/// client should see that its request was taken.
const STATUS_WAIT: Duration = Duration::from_millis(250);

/// One event: its data, and its name in dialects with named events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) event: Option<&'static str>,
    pub(crate) data: String,
}

impl Frame {
    /// An event with a name.
    pub(crate) fn named(event: &'static str, data: String) -> Self {
        Self { event: Some(event), data }
    }
}

impl From<String> for Frame {
    fn from(data: String) -> Self {
        Self { event: None, data }
    }
}

impl From<Frame> for Event {
    fn from(frame: Frame) -> Self {
        // The name first: that is the order in which everybody writes them.
        let event = match frame.event {
            Some(name) => Self::default().event(name),
            None => Self::default(),
        };
        event.data(frame.data)
    }
}

/// How a dialect writes the events of its streams.
pub(crate) trait Events: Send + 'static {
    /// The stream begins: the requests were taken.
    fn start(&mut self) -> Vec<Frame> {
        Vec::new()
    }
    /// What a quiet stream gets from time to time; `None` for a comment.
    fn keep_alive() -> Option<Frame> {
        None
    }
    /// The reply with this number is being worked on.
    fn started(&mut self, _index: usize, _started: Started) -> Vec<Frame> {
        Vec::new()
    }
    /// More of the reply with this number.
    fn delta(&mut self, index: usize, delta: Delta) -> Vec<Frame>;
    /// The reply with this number ended.
    fn done(&mut self, index: usize, finished: Box<Finished>) -> Vec<Frame>;
    /// All replies ended.
    fn end(&mut self) -> Vec<Frame>;
    /// Something failed; nothing follows.
    fn failed(&mut self, error: &ApiError) -> Vec<Frame>;
}

type Merged = SelectAll<BoxStream<'static, (usize, ReplyEvent)>>;

struct Writer<E> {
    replies: Merged,
    events: E,
    /// Written and not yet sent.
    queue: VecDeque<Frame>,
    open: bool,
}

/// Streams some replies; the first becomes number 0.
pub(crate) async fn respond<E: Events>(
    replies: Vec<Reply>,
    events: E,
    keep_alive: Duration,
) -> Result<Response, ApiError> {
    let replies: Merged = stream::select_all(replies.into_iter().enumerate().map(numbered));
    let mut writer = Writer { replies, events, queue: VecDeque::new(), open: true };
    writer.queue.extend(writer.events.start());
    let deadline = tokio::time::Instant::now() + STATUS_WAIT;
    while let Ok(event) = tokio::time::timeout_at(deadline, writer.replies.next()).await {
        let only_started = matches!(event, Some((_, ReplyEvent::Started(_))));
        if let Some((_, ReplyEvent::Failed(error))) = event {
            return Err(error);
        }
        writer.write(event);
        if !only_started {
            break;
        }
    }
    let quiet = E::keep_alive().map_or_else(|| Event::default().comment("waiting"), Event::from);
    let keep_alive = KeepAlive::new().interval(keep_alive).event(quiet);
    let mut response = Sse::new(writer.into_events()).keep_alive(keep_alive).into_response();
    // Proxies that collect a response before they pass it on would turn a stream into a wait.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

fn numbered((index, reply): (usize, Reply)) -> BoxStream<'static, (usize, ReplyEvent)> {
    stream::unfold(reply, move |mut reply| async move { Some(((index, reply.next().await?), reply)) }).boxed()
}

impl<E: Events> Writer<E> {
    fn into_events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut writer| async move {
            loop {
                if let Some(frame) = writer.queue.pop_front() {
                    return Some((Ok(frame.into()), writer));
                }
                if !writer.open {
                    return None;
                }
                let event = writer.replies.next().await;
                writer.write(event);
            }
        })
    }

    fn write(&mut self, event: Option<(usize, ReplyEvent)>) {
        let frames = match event {
            Some((index, ReplyEvent::Started(started))) => self.events.started(index, started),
            Some((index, ReplyEvent::Delta(delta))) => self.events.delta(index, delta),
            Some((index, ReplyEvent::Done(finished))) => self.events.done(index, finished),
            Some((_, ReplyEvent::Failed(error))) => {
                self.open = false;
                self.replies.clear();
                self.events.failed(&error)
            }
            None => {
                self.open = false;
                self.events.end()
            }
        };
        self.queue.extend(frames);
    }
}
