//! The two ends of a request: the worker's sender and the caller's stream.
//!
//! A stream ends with exactly one `Done` or `Error`. A caller that drops its stream is gone, and its request is
//! cancelled; a worker that drops its sender without a last word died, and the stream says so. Nothing here blocks the
//! worker: what a slow reader has not read yet waits, bounded by the length of the reply.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use poncho_api::{RequestProgress, RequestReport};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::calls::event::{Completion, StreamEvent};
use crate::calls::open_request::OpenRequest;
use crate::calls::request::RequestId;
use crate::error::EngineError;

/// The worker's end.
#[derive(Debug, Clone)]
pub(crate) struct EventSender {
    /// `None` if nobody ever listens.
    events: Option<UnboundedSender<StreamEvent>>,
    cancelled: Arc<AtomicBool>,
}

impl EventSender {
    /// For work that nobody asked for. It is cancelled by nobody but the worker.
    pub(crate) fn detached() -> Self {
        Self { events: None, cancelled: Arc::default() }
    }

    /// Whether this is such work.
    pub(crate) fn is_detached(&self) -> bool {
        self.events.is_none()
    }

    /// Sends an event. A reader that is gone cancels its request.
    pub(crate) fn send(&self, event: StreamEvent) {
        if self.events.as_ref().is_some_and(|events| events.send(event).is_err()) {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.events.as_ref().is_some_and(UnboundedSender::is_closed)
    }
}

/// The streams of all unfinished requests of a model, so that the last event can be sent even if the worker cannot; and how
/// far those requests are.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: Mutex<HashMap<RequestId, Open>>,
}

#[derive(Debug)]
struct Open {
    sender: EventSender,
    request: OpenRequest,
}

impl Streams {
    /// Opens a stream for a request.
    pub(crate) fn open(self: &Arc<Self>, id: RequestId, request: OpenRequest) -> (EventSender, Stream) {
        let (sender, receiver) = unbounded_channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let sender = EventSender { events: Some(sender), cancelled: Arc::clone(&cancelled) };
        self.lock().insert(id, Open { sender: sender.clone(), request });
        (sender, Stream { id, events: receiver, cancelled, ended: false })
    }

    /// Marks a request as cancelled. False if it has ended.
    pub(crate) fn cancel(&self, id: RequestId) -> bool {
        let open = self.lock();
        let Some(open) = open.get(&id) else { return false };
        open.sender.cancelled.store(true, Ordering::Relaxed);
        true
    }

    /// Closes a stream: the caller that gets the sender sends the last event. `None` if another one already has it.
    pub(crate) fn close(&self, id: RequestId) -> Option<EventSender> {
        self.lock().remove(&id).map(|open| open.sender)
    }

    /// Closes every stream. The requests count as cancelled: nobody waits for what a worker may still do for them.
    pub(crate) fn close_all(&self) -> Vec<EventSender> {
        let open = std::mem::take(&mut *self.lock());
        let senders = open.into_values().map(|open| open.sender);
        senders.inspect(|sender| sender.cancelled.store(true, Ordering::Relaxed)).collect()
    }

    /// Notes how far some requests are. Those that have ended are skipped.
    pub(crate) fn note(&self, progress: impl Iterator<Item = (RequestId, RequestProgress)>) {
        let mut open = self.lock();
        for (id, progress) in progress {
            if let Some(open) = open.get_mut(&id) {
                open.request.progress = progress;
            }
        }
    }

    /// All unfinished requests, oldest first.
    pub(crate) fn requests(&self) -> Vec<RequestReport> {
        let open = self.lock();
        let mut requests: Vec<_> = open.iter().map(|(id, open)| (*id, open.request.report())).collect();
        drop(open);
        requests.sort_unstable_by_key(|(id, _)| *id);
        requests.into_iter().map(|(_, request)| request).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RequestId, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The caller's end: the events of one request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Stream {
    id: RequestId,
    events: UnboundedReceiver<StreamEvent>,
    cancelled: Arc<AtomicBool>,
    ended: bool,
}

impl Stream {
    /// The request's name, for `Model::cancel`.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` after the last. Waits without a runtime.
    pub fn next_blocking(&mut self) -> Option<StreamEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.note(event))
    }

    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.note(event))
    }

    /// The next event; ready with `None` after the last.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(context));
        Poll::Ready(Some(self.note(event)))
    }

    /// The next event if one is there already.
    pub fn try_next(&mut self) -> Option<StreamEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.try_recv().ok()?;
        Some(self.note(Some(event)))
    }

    /// Reads to the end and returns the facts.
    ///
    /// # Errors
    /// The error that ended the request.
    pub fn wait(mut self) -> Result<Completion, EngineError> {
        loop {
            match self.next_blocking() {
                Some(StreamEvent::Done(completion)) => return Ok(*completion),
                Some(StreamEvent::Error(error)) => return Err(error),
                Some(_) => {}
                None => return Err(gone()),
            }
        }
    }

    fn note(&mut self, event: Option<StreamEvent>) -> StreamEvent {
        let event = event.unwrap_or_else(|| StreamEvent::Error(gone()));
        self.ended = event.is_last();
        event
    }
}

fn gone() -> EngineError {
    EngineError::WorkerDied { model: "the model".to_owned(), reason: "it was unloaded".to_owned() }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.ended {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }
}

impl Iterator for Stream {
    type Item = StreamEvent;

    fn next(&mut self) -> Option<StreamEvent> {
        self.next_blocking()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::calls::request::Request;

    fn request() -> OpenRequest {
        OpenRequest::new(&Request::new(vec![1, 2, 3]), Instant::now())
    }

    #[test]
    fn a_dropped_stream_is_a_cancelled_request() {
        let streams = Arc::new(Streams::default());
        let (sender, stream) = streams.open(RequestId(1), request());
        assert!(!sender.is_cancelled());
        drop(stream);
        assert!(sender.is_cancelled());
    }

    #[test]
    fn every_stream_has_exactly_one_last_event() {
        let streams = Arc::new(Streams::default());
        let (_sender, mut stream) = streams.open(RequestId(1), request());
        let error = EngineError::Decode { code: -3 };
        streams.close(RequestId(1)).unwrap().send(StreamEvent::Error(error.clone()));
        assert!(streams.close(RequestId(1)).is_none(), "only once");
        assert_eq!(stream.next_blocking(), Some(StreamEvent::Error(error)));
        assert_eq!(stream.next_blocking(), None);
    }

    #[test]
    fn a_dead_worker_leaves_no_stream_without_a_last_word() {
        let streams = Arc::new(Streams::default());
        let (sender, one) = streams.open(RequestId(1), request());
        let (_, two) = streams.open(RequestId(2), request());
        let error = EngineError::WorkerDied { model: "m".into(), reason: "panic".into() };
        streams.close_all().iter().for_each(|sender| sender.send(StreamEvent::Error(error.clone())));
        assert_eq!((one.wait(), two.wait()), (Err(error.clone()), Err(error)));
        assert!(sender.is_cancelled() && streams.close_all().is_empty());
    }

    #[test]
    fn requests_are_listed_in_their_order_until_they_end() {
        let streams = Arc::new(Streams::default());
        let _streams = [3, 1, 2].map(|number| streams.open(RequestId(number), request()));
        let progress = RequestProgress { processed_tokens: 2, ..request().progress };
        streams.note([(RequestId(2), progress), (RequestId(9), progress)].into_iter());
        let processed = || streams.requests().iter().map(|open| open.progress.processed_tokens).collect::<Vec<_>>();
        assert_eq!(processed(), [0, 2, 0]);
        assert!(streams.close(RequestId(1)).is_some());
        assert_eq!(processed(), [2, 0]);
        streams.close_all();
        assert!(processed().is_empty());
    }
}
