//! Requests as the engine takes them: the api's data, and the engine's names for those in flight.
//!
//! A request is checked once by `Request::validate` before it is queued, so that nothing behind the queue has to doubt a
//! number.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

pub use poncho_api::{
    Grammar, GrammarSource, MAX_SESSION_BYTES, MAX_STOP_BYTES, MAX_STOPS, MAX_TOP_LOGPROBS, Mode, ModelLimits, Request,
    Sampling, Thinking, Trigger,
};

/// The engine's name for a request; never used twice in the life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// A name that was never used.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
