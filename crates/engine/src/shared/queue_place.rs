//! A place in a model's queue, taken before anything is done for a request.
//!
//! Made by `Model::reserve`, used up by `Model::submit_at`. A request with a place is not refused for the length of the queue later,
//! so a full queue refuses before a prompt is rendered and tokenized. Every place must be given back exactly once: by
//! being dropped, or by the end of the request that took it over.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::calls::open_request::OpenRequest;
use crate::calls::request::RequestId;
use crate::calls::stream::{EventSender, Stream};
use crate::error::EngineError;
use crate::shared::Shared;

/// A place that no request has yet. Dropping it gives it back.
pub struct QueuePlace {
    shared: Arc<Shared>,
    /// Whether it is still this value's to give back.
    is_open: bool,
}

impl fmt::Debug for QueuePlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("QueuePlace").field("model", &self.shared.config.id).finish_non_exhaustive()
    }
}

impl QueuePlace {
    /// Takes a place if there is one.
    pub(crate) fn take(shared: &Arc<Shared>) -> Result<Self, EngineError> {
        // As many as there are sequences run; the others wait.
        let running = shared.config.context.n_seq_max as usize;
        let limit = shared.config.queue_limit;
        let next = |depth: usize| (depth < running.saturating_add(limit)).then(|| depth + 1);
        match shared.status.depth.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => Ok(Self { shared: Arc::clone(shared), is_open: true }),
            Err(depth) => Err(EngineError::Overloaded { queued: depth.saturating_sub(running), limit }),
        }
    }

    /// Whether it is a place of this model.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// The request takes the place over; it is given back when the request ends.
    pub(crate) fn open(mut self, id: RequestId, request: OpenRequest) -> (EventSender, Stream) {
        let ends = self.shared.streams.open(id, request);
        self.is_open = false;
        ends
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if self.is_open {
            self.shared.status.depth.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
