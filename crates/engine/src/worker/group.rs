//! Groups: which requests may share a decode call.
//!
//! Used by the ticker. A decode call has one set of adapters, and rows of exact requests share it only where that cannot change
//! a bit of their results.

use std::sync::Arc;

use crate::backend::SeqId;
use crate::sequence::slots::Slots;
use crate::sequence::task::Task;
use crate::shared::adapters::AdapterSet;

/// Requests that may share a decode call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// All requests that are not exact.
    Shared,
    /// Decode rows of exact requests.
    ExactDecodes,
    /// One exact request.
    Alone(SeqId),
}

/// The lane of a request.
fn lane(task: &Task, shares_decodes: bool) -> Lane {
    if !task.request.exact {
        Lane::Shared
    } else if shares_decodes && !task.is_prefilling() {
        Lane::ExactDecodes
    } else {
        Lane::Alone(task.seq())
    }
}

/// Requests that share a decode call: the same adapters and the same lane.
pub(crate) struct Group {
    pub(crate) adapters: Arc<AdapterSet>,
    lane: Lane,
}

impl Group {
    /// The group of a request.
    pub(crate) fn of(task: &Task, slots: &Slots) -> Self {
        Self { adapters: Arc::clone(&task.adapters), lane: lane(task, slots.shares_decodes()) }
    }

    /// Whether a request belongs to the group.
    pub(crate) fn contains(&self, task: &Task, slots: &Slots) -> bool {
        Arc::ptr_eq(&task.adapters, &self.adapters) && lane(task, slots.shares_decodes()) == self.lane
    }

    /// Whether two requests are of one group.
    pub(crate) fn is_shared(one: &Task, two: &Task, slots: &Slots) -> bool {
        let lane = |task| lane(task, slots.shares_decodes());
        Arc::ptr_eq(&one.adapters, &two.adapters) && lane(one) == lane(two)
    }
}
