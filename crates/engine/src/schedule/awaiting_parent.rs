//! Requests that wait for their parent row, outside of the queue.
//!
//! The row may be about to be saved, by this model or by another one on the same cache; it may also be gone. Such a request
//! is set aside before admission, for a bounded time, and later requests overtake it. The worker's queue owns the list and
//! passes in the time and a way to look for a row; nothing here reads a clock or the cache.

use std::time::{Duration, Instant};

use poncho_cache::Key;

use crate::calls::request::RequestId;

/// How often a worker without other work looks for the rows.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A request that waits for its parent row.
#[derive(Debug)]
pub(crate) struct AwaitingParent<W> {
    pub(crate) id: RequestId,
    pub(crate) waiting: W,
    parent: Key,
    deadline: Instant,
}

/// All such requests of a model, in the order of their arrival.
#[derive(Debug)]
pub(crate) struct ParentWaits<W> {
    requests: Vec<AwaitingParent<W>>,
}

impl<W> Default for ParentWaits<W> {
    fn default() -> Self {
        Self { requests: Vec::new() }
    }
}

impl<W> ParentWaits<W> {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Sets a request aside until its parent row exists or the deadline has passed.
    pub(crate) fn push(&mut self, id: RequestId, waiting: W, parent: Key, deadline: Instant) {
        self.requests.push(AwaitingParent { id, waiting, parent, deadline });
    }

    /// Removes the requests that have waited long enough, and those with a parent row that exists now.
    pub(crate) fn take_due(&mut self, now: Instant, exists: impl Fn(&Key) -> bool) -> Vec<AwaitingParent<W>> {
        self.requests.extract_if(.., |request| request.deadline <= now || exists(&request.parent)).collect()
    }

    /// Removes the requests that match.
    pub(crate) fn take_if(&mut self, matches: impl Fn(&W) -> bool) -> Vec<AwaitingParent<W>> {
        self.requests.extract_if(.., |request| matches(&request.waiting)).collect()
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_leaves_when_its_row_exists_or_its_time_is_over() {
        let start = Instant::now();
        let (early, late) = (start + Duration::from_secs(1), start + Duration::from_secs(9));
        let mut waits = ParentWaits::default();
        let keys = [1, 2, 3].map(|byte| Key::from_bytes([byte; 32]));
        for (number, (key, deadline)) in [(keys[0], late), (keys[1], early), (keys[2], late)].into_iter().enumerate() {
            waits.push(RequestId(number as u64), number, key, deadline);
        }
        assert!(waits.take_due(start, |_| false).is_empty());
        let due = waits.take_due(early, |key| *key == keys[2]);
        assert_eq!(due.iter().map(|request| request.waiting).collect::<Vec<_>>(), [1, 2], "in the order of arrival");
        assert_eq!(waits.take_if(|number| *number == 0).len(), 1);
        assert!(waits.is_empty());
    }
}
