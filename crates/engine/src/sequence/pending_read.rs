//! A request that waits for stored rows: what was chosen for it, and until when.
//!
//! Plain data of `reading.rs`. Such a request has a sequence and computes nothing.

use std::time::Instant;

use crate::sequence::task::Task;
use crate::state::chosen::Chosen;
use crate::state::segment_reader::{PartId, Reading};

/// See the module.
pub(crate) struct PendingRead {
    pub(crate) task: Task,
    pub(crate) chosen: Chosen,
    pub(crate) missing: Vec<PartId>,
    pub(crate) bytes: u64,
    /// `None` while other requests are read for.
    pub(crate) reading: Option<Reading>,
    pub(crate) limits: ReadLimits,
}

/// The attempts and the time that a request has left, over all plans that it tries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadLimits {
    pub(crate) attempts: usize,
    /// Set when the first read starts.
    pub(crate) until: Option<Instant>,
}

impl PendingRead {
    /// Whether its read has ended or its time is over.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let is_late = self.limits.until.is_some_and(|until| until <= now);
        self.reading.as_ref().is_some_and(|reading| is_late || reading.is_over())
    }
}
