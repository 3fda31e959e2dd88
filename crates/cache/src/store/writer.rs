//! The bounded queue of saves and the threads that write them. They also remove the files that make room, so that
//! a caller that saves never waits for a disk.
//!
//! `save.rs` puts jobs in, the threads take them in order and publish them. A row may build on one that stands
//! before it in the queue, so a job whose parent is still being written waits for it. A job always ends: a
//! panic of a writer is caught, counted as a failed save, and the thread goes on.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::compact::OldPlace;
use crate::index::Gone;
use crate::store::publish::{Draft, PublishError};
use crate::index::rows::{Payload, RowId};
use crate::store::store::Store;
use crate::io::sync::{Condvar, Mutex};
use crate::kinds::Tier;

/// One row to write.
pub(crate) struct Job {
    pub(crate) row: RowId,
    pub(crate) tier: Tier,
    pub(crate) draft: Draft,
    pub(crate) payload: Payload,
    /// What was set aside for it in the tier's quota.
    pub(crate) bytes: u64,
    /// Told when the job is over.
    pub(crate) done: Option<Arc<Done>>,
    /// If it replaces the file of a row whose chain becomes shorter: what is held until then.
    pub(crate) was: Option<OldPlace>,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobEnd {
    Published,
    Failed,
}

/// Where the caller of a synchronous save waits.
#[derive(Debug, Default)]
pub(crate) struct Done {
    end: Mutex<Option<JobEnd>>,
    changed: Condvar,
}

impl Done {
    fn tell(&self, end: JobEnd) {
        *self.end.lock() = Some(end);
        self.changed.notify_all();
    }

    /// Waits for the end, at most so long.
    pub(crate) fn wait(&self, limit: Duration) -> Option<JobEnd> {
        let start = Instant::now();
        let mut end = self.end.lock();
        while end.is_none() {
            let Some(left) = limit.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else { break };
            end = self.changed.wait_for(end, left);
        }
        *end
    }
}

/// What a thread does next.
enum Work {
    /// Removes files that made room for others.
    Remove(Vec<Gone>),
    /// Writes a row.
    Write(Box<Job>),
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Rows that a thread is working on.
    running: Vec<RowId>,
    /// Files that are to be removed, before anything is written.
    removals: VecDeque<Vec<Gone>>,
    /// Threads that remove files.
    removing: usize,
    /// Threads that have not ended.
    writers: usize,
    closed: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.running.is_empty() && self.removals.is_empty() && self.removing == 0
    }
}

/// The queue.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// A job came, or none will come any more: for the threads that wait for one.
    arrived: Condvar,
    /// A job is over: for those who wait for that.
    ended: Condvar,
    limit: usize,
}

impl Queue {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether a job may be added. One that somebody waits for always may. The store adds jobs under the index lock
    /// only, so the answer holds for as long as the asker has that lock.
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

    /// Adds files to remove. The store does so under the index lock, as those who wait for the removal look under it.
    pub(crate) fn push_removal(&self, gone: Vec<Gone>) {
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

    /// The same for at most so long. Says whether it came to that.
    pub(crate) fn wait_idle_for(&self, limit: Duration) -> bool {
        self.wait_for(limit, State::is_idle)
    }

    /// A thread starts that counts until the guard is dropped.
    pub(crate) fn enter(store: &Arc<Store>) -> Writing {
        store.queue.state.lock().writers += 1;
        Writing { store: Arc::clone(store) }
    }

    /// Waits until every thread has ended, at most so long. Says whether they have.
    pub(crate) fn wait_until_left(&self, limit: Duration) -> bool {
        self.wait_for(limit, |state| state.writers == 0)
    }

    fn wait_for(&self, limit: Duration, reached: impl Fn(&State) -> bool) -> bool {
        let started = Instant::now();
        let mut state = self.state.lock();
        while !reached(&state) {
            let Some(left) = limit.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) else { return false };
            state = self.ended.wait_for(state, left);
        }
        true
    }

    /// Files to remove that no thread has taken yet.
    fn next_removal(&self) -> Option<Vec<Gone>> {
        let mut state = self.state.lock();
        let gone = state.removals.pop_front()?;
        state.removing += 1;
        Some(gone)
    }

    fn removed(&self) {
        self.state.lock().removing -= 1;
        self.ended.notify_all();
    }

    fn next(&self) -> Option<Work> {
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

    fn finished(&self, row: RowId) {
        let mut state = self.state.lock();
        // One entry only: the row may have left meanwhile, and its number may be that of another running job.
        if let Some(position) = state.running.iter().position(|running| *running == row) {
            state.running.swap_remove(position);
        }
        drop(state);
        self.ended.notify_all();
    }

    /// Waits while another thread works on `row`. It was taken from the queue before its children were, so it
    /// runs or is over; no cycle is possible.
    fn wait_while_running(&self, row: RowId) {
        let mut state = self.state.lock();
        while state.running.contains(&row) {
            state = self.ended.wait(state);
        }
    }
}

/// Counts a thread that writes for as long as it runs.
pub(crate) struct Writing {
    store: Arc<Store>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let queue = &self.store.queue;
        queue.state.lock().writers -= 1;
        queue.ended.notify_all();
    }
}

impl Writing {
    /// The life of a writer thread. What is known of hits is in the files when the last one ends.
    pub(crate) fn run(self) {
        self.store.write_jobs();
        if catch_unwind(AssertUnwindSafe(|| self.store.write_touches())).is_err() {
            tracing::error!("a cache writer panicked at its end; some hit counts are not written");
        }
    }
}

impl Store {
    fn write_jobs(&self) {
        while let Some(work) = self.queue.next() {
            let mut job = match work {
                Work::Remove(gone) => {
                    self.remove_queued(&gone);
                    continue;
                }
                Work::Write(job) => job,
            };
            let end = catch_unwind(AssertUnwindSafe(|| self.write_job(&job))).unwrap_or_else(|_| {
                self.counters.save_failures.increment();
                tracing::error!(key = %job.draft.key, "a cache writer panicked; the row is not saved");
                JobEnd::Failed
            });
            if let Some(was) = job.was.take() {
                self.end_compaction(&job, was, end);
            }
            self.end_job(&job, end);
        }
    }

    fn write_job(&self, job: &Job) -> JobEnd {
        let parent = self.index.lock().row(job.row).and_then(|row| row.parent);
        if let Some(parent) = parent {
            self.queue.wait_while_running(parent);
        }
        let Some(tier) = self.file_tier(job.tier) else { return JobEnd::Failed };
        self.wait_for_removals(job.tier);
        let started = Instant::now();
        match self.publish(tier, job.row, &job.draft, &job.payload) {
            Ok(file_bytes) => {
                tier.worked();
                self.counters.saved(job.draft.reason);
                self.counters.save_nanos.add_nanos(started.elapsed());
                self.counters.save_bytes.add(file_bytes);
                tracing::debug!(
                    key = %job.draft.key, tier = job.tier.as_str(), reason = job.draft.reason.as_str(),
                    start = job.draft.start, tokens = job.draft.start as usize + job.draft.tokens.len(),
                    bytes = file_bytes, ms = started.elapsed().as_millis(), "row published"
                );
                JobEnd::Published
            }
            Err(error) => {
                self.counters.save_failures.increment();
                tracing::debug!(key = %job.draft.key, %error, "row not published");
                if let PublishError::Io { action, source } = &error {
                    self.tier_failed(job.tier, action, source);
                }
                JobEnd::Failed
            }
        }
    }

    /// Files that made room for a row go before it comes, so that a folder never holds more than its quota.
    fn wait_for_removals(&self, tier: Tier) {
        let mut index = self.index.lock();
        while index.reservations.is_removing(tier) {
            // Nobody else may be there to do it.
            index = match self.queue.next_removal() {
                Some(gone) => {
                    drop(index);
                    self.remove_queued(&gone);
                    self.index.lock()
                }
                None => self.changed.wait(index),
            };
        }
    }

    fn remove_queued(&self, gone: &[Gone]) {
        if catch_unwind(AssertUnwindSafe(|| self.remove_files(gone))).is_err() {
            tracing::error!(files = gone.len(), "a cache writer panicked while it removed files");
        }
        self.queue.removed();
    }

    pub(crate) fn tier_failed(&self, tier: Tier, action: &'static str, error: &io::Error) {
        let now = self.config.clock.now();
        if self.file_tier(tier).is_some_and(|tier| tier.failed(action, error, now)) {
            self.counters.tier_switched_off(tier);
        }
    }

    /// Gives everything back that the job held, then tells whoever waits.
    fn end_job(&self, job: &Job, end: JobEnd) {
        let gone = self.index.lock().end_pending(job.row, job.bytes);
        // Whatever happens to the files, the job ends and the thread lives on.
        let removed = catch_unwind(AssertUnwindSafe(|| self.remove_files(&gone)));
        self.changed.notify_all();
        self.queue.finished(job.row);
        if let Some(done) = &job.done {
            done.tell(end);
        }
        let touched = catch_unwind(AssertUnwindSafe(|| {
            if self.queue.depth() == 0 {
                self.write_touches();
            }
        }));
        if removed.and(touched).is_err() {
            tracing::error!(key = %job.draft.key, "a cache writer panicked after its work");
        }
    }
}
