//! Replies as server-sent events: several replies merged into one stream of JSON texts, with names where a dialect has them.
//!
//! A dialect says what its events look like (`Events`); order, errors, keep-alive and cancelling are the same for all.
//! The response owns the replies, so a client that goes away drops them, and that cancels them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt};

use crate::error::ApiError;
use crate::http::heartbeat::Heartbeat;
use crate::http::reply::{Reply, ReplyEvent};
use poncho_api::{Delta, Finished, Started};
use tokio::time::Instant;

/// An error that comes this early becomes the status of the response; a later one becomes an event, because by then the
/// client should see that its request was taken.
pub(crate) const STATUS_WAIT: Duration = Duration::from_millis(250);

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
    /// What a quiet stream gets from time to time: an event that the dialect's clients count as life. Comments are
    /// dropped by the event parsers of most clients, and a long prompt would exceed their idle limits.
    fn waiting(&mut self, heartbeat: Heartbeat) -> Vec<Frame>;
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
    /// How far the reply is that moved last.
    heartbeat: Heartbeat,
    /// The longest time without an event.
    keep_alive: Duration,
    /// When the stream was last heard of.
    sent: Instant,
}

/// Streams some replies; the first becomes number 0.
pub(crate) async fn respond<E: Events>(
    replies: Vec<Reply>,
    events: E,
    keep_alive: Duration,
) -> Result<Response, ApiError> {
    let replies: Merged = stream::select_all(replies.into_iter().enumerate().map(numbered));
    let mut writer = Writer {
        replies,
        events,
        queue: VecDeque::new(),
        open: true,
        heartbeat: Heartbeat::default(),
        keep_alive,
        sent: Instant::now(),
    };
    writer.queue.extend(writer.events.start());
    let deadline = Instant::now() + STATUS_WAIT;
    while let Ok(event) = tokio::time::timeout_at(deadline, writer.replies.next()).await {
        let only_started = matches!(event, Some((_, ReplyEvent::Started(_) | ReplyEvent::Progress(_))));
        if let Some((_, ReplyEvent::Failed(error))) = event {
            return Err(error);
        }
        writer.write(event);
        if !only_started {
            break;
        }
    }
    Ok(response(writer.into_events()))
}

/// The response with these events.
pub(crate) fn response(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let mut response = Sse::new(events).into_response();
    // Proxies that collect a response before they pass it on would turn a stream into a wait.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn numbered((index, reply): (usize, Reply)) -> BoxStream<'static, (usize, ReplyEvent)> {
    stream::unfold(reply, move |mut reply| async move { Some(((index, reply.next().await?), reply)) }).boxed()
}

impl<E: Events> Writer<E> {
    fn into_events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut writer| async move {
            loop {
                if let Some(frame) = writer.queue.pop_front() {
                    writer.sent = Instant::now();
                    return Some((Ok(frame.into()), writer));
                }
                if !writer.open {
                    return None;
                }
                match tokio::time::timeout_at(writer.sent + writer.keep_alive, writer.replies.next()).await {
                    Ok(event) => writer.write(event),
                    Err(_) => {
                        let frames = writer.events.waiting(writer.heartbeat);
                        writer.queue.extend(frames);
                    }
                }
            }
        })
    }

    fn write(&mut self, event: Option<(usize, ReplyEvent)>) {
        if let Some((_, event)) = &event {
            self.heartbeat.note(event);
        }
        let frames = match event {
            Some((index, ReplyEvent::Started(started))) => self.events.started(index, started),
            Some((_, ReplyEvent::Progress(_))) => Vec::new(),
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

#[cfg(test)]
mod tests {

    use http_body_util::BodyExt as _;
    use poncho_api::{EngineError, Progress};
    use serde_json::json;

    use super::*;
    use crate::http::app::Life;
    use crate::telemetry::timing::{ReplyTimes, Sinks};

    /// Writes every heartbeat as it is.
    struct Beats;

    impl Events for Beats {
        fn waiting(&mut self, heartbeat: Heartbeat) -> Vec<Frame> {
            vec![json!(heartbeat).to_string().into()]
        }
        fn delta(&mut self, _index: usize, _delta: Delta) -> Vec<Frame> {
            vec!["delta".to_owned().into()]
        }
        fn done(&mut self, _index: usize, _finished: Box<Finished>) -> Vec<Frame> {
            Vec::new()
        }
        fn end(&mut self) -> Vec<Frame> {
            Vec::new()
        }
        fn failed(&mut self, _error: &ApiError) -> Vec<Frame> {
            vec!["failed".to_owned().into()]
        }
    }

    /// A prompt of 30 seconds: the engine reports every second, then says something.
    fn long_prompt() -> Reply {
        let events = stream::unfold(0, |second| async move {
            let event = match second {
                0 => poncho_api::ReplyEvent::Started(Started { prompt: 3000, cached_tokens: 0 }),
                1..30 => poncho_api::ReplyEvent::Progress(Progress {
                    prompt: 3000,
                    cached_tokens: 0,
                    processed_tokens: second * 100,
                }),
                30 => poncho_api::ReplyEvent::Delta(Delta { content: "x".into(), ..Delta::default() }),
                _ => poncho_api::ReplyEvent::Failed(EngineError::Cancelled),
            };
            if (1..=30).contains(&second) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Some((event, second + 1))
        });
        let now = Instant::now();
        let times = ReplyTimes::begin(Sinks::default(), "stub", now, now);
        Reply::new(events.boxed(), times, None, Life::default().cut_signal())
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_prompt_is_never_silent_for_longer_than_the_pause() {
        let pause = Duration::from_millis(1900);
        let mut body = respond(vec![long_prompt()], Beats, pause).await.unwrap().into_body();
        let (mut heard, mut texts) = (Instant::now(), Vec::new());
        while let Some(frame) = body.frame().await {
            assert!(heard.elapsed() <= pause + Duration::from_millis(300), "silent for {:?}", heard.elapsed());
            heard = Instant::now();
            texts.push(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap());
        }
        let beats: Vec<&String> = texts.iter().filter(|text| text.contains("prefilling")).collect();
        assert_eq!((beats.len(), texts.len()), (15, 17), "{texts:?}");
        assert!(beats[0].contains("\"processed_tokens\":100") && beats[14].contains("\"processed_tokens\":2800"));
        assert!(texts[15].contains("delta") && texts[16].contains("failed"), "{texts:?}");
    }
}
