//! Requests whose parent row is not there yet: they wait for it, bounded, and nobody waits with them.
//!
//! Part of the worker. The row may be about to be saved, by this model or by another one on the same cache; it may also
//! be gone for ever. So such a request is set aside before admission, and those that came later go first meanwhile.

use std::time::{Duration, Instant};

use poncho_cache::Key;

use crate::calls::request::{Mode, RequestId};
use crate::worker::{Waiting, Worker};

/// How often a worker that has nothing else to do looks for the rows.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A request that waits for its parent row.
pub(crate) struct Orphan {
    pub(crate) id: RequestId,
    pub(crate) waiting: Waiting,
    parent: Key,
    until: Instant,
}

impl Worker {
    /// Sets a request aside if its parent row may still come; otherwise gives it back.
    pub(crate) fn set_aside(&mut self, id: RequestId, waiting: Waiting) -> Option<Waiting> {
        let patience = self.policy.session_resume_wait();
        let parent = waiting.request.parent_key.filter(|_| waiting.request.mode != Mode::Continue);
        match parent.filter(|parent| !patience.is_zero() && !self.shared.cache.contains(parent)) {
            Some(parent) => {
                // From now, not from its submission: a worker that was busy has not looked yet.
                let until = Instant::now() + patience;
                self.orphans.push(Orphan { id, waiting, parent, until });
                None
            }
            None => Some(waiting),
        }
    }

    /// Requests whose parent row is there now, or that have waited long enough, go their way.
    pub(crate) fn look_for_parents(&mut self) {
        if self.orphans.is_empty() {
            return;
        }
        let now = Instant::now();
        let cache = &self.shared.cache;
        let is_over = |orphan: &mut Orphan| orphan.until <= now || cache.contains(&orphan.parent);
        let over: Vec<Orphan> = self.orphans.extract_if(.., is_over).collect();
        for orphan in over {
            self.enter(orphan.id, orphan.waiting);
        }
    }
}
