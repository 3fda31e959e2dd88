//! The bounded queue of rows to write and of files to remove.
//!
//! Saves and compactions put work in, the writer threads take it in order. A row may build on one that is before it in
//! the queue. It must never do the work itself: nothing here touches a file.

use std::collections::VecDeque;
use std::time::Duration;

use super::job::Job;
use crate::index::DroppedFile;
use crate::index::rows::RowId;
use crate::io::sync::{Condvar, Mutex};

/// What a thread does next.
pub(super) enum Work {
    /// Removes files that made room for others.
    Remove(Vec<DroppedFile>),
    /// Writes a row.
    Write(Box<Job>),
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Rows that a thread is working on.
    running: Vec<RowId>,
    /// Files that are to be removed, before anything is written.
    removals: VecDeque<Vec<DroppedFile>>,
    /// Threads that remove files.
    removing: usize,
    /// Threads that have not ended.
    writers: usize,
    closed: bool,
}

impl Waiting {
    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.running.is_empty() && self.removals.is_empty() && self.removing == 0
    }
}

/// The queue.
#[derive(Default)]
pub(crate) struct WriteQueue {
    state: Mutex<Waiting>,
    /// A job came, or no more will come: for the threads that wait for one.
    arrived: Condvar,
    /// A job is over: for callers that wait for that.
    ended: Condvar,
    limit: usize,
}

impl WriteQueue {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether a job may be added. One that a caller waits for always may. The store adds jobs under the index lock
    /// only, so the answer is valid for as long as the caller has that lock.
    pub(crate) fn has_room(&self, awaited: bool) -> bool {
        let state = self.state.lock();
        !state.closed && (awaited || state.jobs.len() < self.limit)
    }

    /// Adds a job.
    pub(crate) fn push(&self, job: Job) {
        self.state.lock().jobs.push_back(job);
        self.arrived.notify_one();
    }

    /// Jobs that wait or run.
    pub(crate) fn depth(&self) -> usize {
        let state = self.state.lock();
        state.jobs.len() + state.running.len()
    }

    /// Adds files to remove. The store does so under the index lock, because a writer that waits for the removal looks under it.
    pub(crate) fn push_removal(&self, gone: Vec<DroppedFile>) {
        if !gone.is_empty() {
            self.state.lock().removals.push_back(gone);
            self.arrived.notify_one();
        }
    }

    /// No more jobs; the threads end when the queue is empty.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Waits until nothing waits or runs.
    pub(crate) fn wait_idle(&self) {
        let mut state = self.state.lock();
        while !state.is_idle() {
            state = self.ended.wait(state);
        }
    }

    /// The same, at most for `limit`. Returns whether nothing waits or runs.
    pub(crate) fn wait_idle_for(&self, limit: Duration) -> bool {
        self.wait_for(limit, Waiting::is_idle)
    }

    /// A writer thread starts; it counts until `writer_left`.
    pub(super) fn writer_entered(&self) {
        self.state.lock().writers += 1;
    }

    /// A writer thread has ended.
    pub(super) fn writer_left(&self) {
        self.state.lock().writers -= 1;
        self.ended.notify_all();
    }

    /// Waits until every thread has ended, at most for `limit`. Returns whether they have.
    pub(crate) fn wait_until_left(&self, limit: Duration) -> bool {
        self.wait_for(limit, |state| state.writers == 0)
    }

    fn wait_for(&self, limit: Duration, reached: impl Fn(&Waiting) -> bool) -> bool {
        self.ended.wait_until(self.state.lock(), limit, reached).1
    }

    /// Files to remove that no thread has taken yet.
    pub(super) fn next_removal(&self) -> Option<Vec<DroppedFile>> {
        let mut state = self.state.lock();
        let gone = state.removals.pop_front()?;
        state.removing += 1;
        Some(gone)
    }

    pub(super) fn removed(&self) {
        self.state.lock().removing -= 1;
        self.ended.notify_all();
    }

    pub(super) fn next(&self) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            if let Some(gone) = state.removals.pop_front() {
                state.removing += 1;
                return Some(Work::Remove(gone));
            }
            if let Some(job) = state.jobs.pop_front() {
                state.running.push(job.row);
                return Some(Work::Write(Box::new(job)));
            }
            if state.closed {
                return None;
            }
            state = self.arrived.wait(state);
        }
    }

    #[expect(clippy::expect_used, reason = "a caller that waits for the job would never return")]
    pub(super) fn finished(&self, row: RowId) {
        let mut state = self.state.lock();
        // One entry only: the row may have left meanwhile, and its number may be that of another running job.
        let position = state.running.iter().position(|running| *running == row);
        state.running.swap_remove(position.expect("invariant: a job that ends was running"));
        drop(state);
        self.ended.notify_all();
    }

    /// Waits while another thread works on `row`. It was taken from the queue before its children were, so it
    /// runs or is over; no cycle is possible.
    pub(super) fn wait_while_running(&self, row: RowId) {
        let mut state = self.state.lock();
        while state.running.contains(&row) {
            state = self.ended.wait(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_ends_without_having_run_is_loud() {
        let complaint = crate::testing::broken_invariant(|| WriteQueue::new(1).finished(RowId(3)));
        assert_eq!(complaint, "invariant: a job that ends was running");
    }
}
