//! The threads that write rows. They also remove the files that make room, so that a caller that saves never waits for a
//! disk.
//!
//! Started by the handle. The threads take work from the queue in order; a job with a parent that is still being written
//! waits for it. A job always ends: a panic of a writer is caught, counted as a failed save, and the thread goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compact::end_compaction;
use super::job::{Job, JobEnd};
use super::publish::{PublishError, Publisher};
use super::queue::{Work, WriteQueue};
use super::removal::Remover;
use super::touch::{Touches, Urgency};
use crate::index::DroppedFile;
use crate::io::clock::Clock;
use crate::io::sync::thread::{self, JoinHandle};
use crate::kinds::Tier;

/// What a writer thread works with.
pub(crate) struct Writer {
    pub(crate) queue: Arc<WriteQueue>,
    pub(crate) publisher: Publisher,
    pub(crate) remover: Arc<Remover>,
    pub(crate) touches: Touches,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The writer threads. Dropping it writes what is queued, then ends them. A disk that does not answer is waited for up to
/// a limit, then left alone with its threads.
pub(crate) struct WriterPool {
    writer: Arc<Writer>,
    threads: Vec<JoinHandle<()>>,
    drain_limit: Duration,
}

impl WriterPool {
    /// Starts the threads; none if there are no file tiers.
    pub(crate) fn start(writer: Writer, threads: usize, drain_limit: Duration) -> Self {
        let threads = if writer.remover.tiers.all().is_empty() { 0 } else { threads };
        let writer = Arc::new(writer);
        let start = |_| {
            let present = Present::enter(&writer);
            thread::spawn(move || present.run())
        };
        let threads = (0..threads).map(start).collect();
        Self { writer, threads, drain_limit }
    }

    /// Waits until every queued save is written or given up, and hit counts are in the files.
    pub(crate) fn flush(&self) {
        self.writer.queue.wait_idle();
        self.writer.touches.write(Urgency::Now);
    }

    /// The queue that the threads work on.
    pub(crate) fn queue(&self) -> &WriteQueue {
        &self.writer.queue
    }
}

impl Drop for WriterPool {
    fn drop(&mut self) {
        let queue = &self.writer.queue;
        queue.close();
        if !queue.wait_until_left(self.drain_limit) {
            let (rows, seconds) = (queue.depth(), self.drain_limit.as_secs_f64());
            tracing::warn!(rows, seconds, "the cache folder does not answer; what is not written yet is given up");
            return;
        }
        for thread in self.threads.drain(..) {
            // A writer catches the panics of its jobs; there is nothing to do about one that still ended.
            let _ = thread.join();
        }
    }
}

/// Counts a thread that writes for as long as it runs.
struct Present {
    writer: Arc<Writer>,
}

impl Drop for Present {
    fn drop(&mut self) {
        self.writer.queue.writer_left();
    }
}

impl Present {
    fn enter(writer: &Arc<Writer>) -> Self {
        writer.queue.writer_entered();
        Self { writer: Arc::clone(writer) }
    }

    /// The life of a writer thread. All known hits are in the files when the last one ends.
    fn run(self) {
        self.writer.work();
        if catch_unwind(AssertUnwindSafe(|| self.writer.touches.write(Urgency::Now))).is_err() {
            tracing::error!("a cache writer panicked at its end; some hit counts are not written");
        }
    }
}

impl Writer {
    fn work(&self) {
        while let Some(work) = self.queue.next() {
            let job = match work {
                Work::Remove(files) => {
                    self.remove_queued(&files);
                    continue;
                }
                Work::Write(job) => job,
            };
            let end = catch_unwind(AssertUnwindSafe(|| self.write(&job))).unwrap_or_else(|_| {
                self.remover.counters.save_failures.increment();
                tracing::error!(key = %job.draft.key, "a cache writer panicked; the row is not saved");
                JobEnd::Failed
            });
            self.end(*job, end);
        }
    }

    fn write(&self, job: &Job) -> JobEnd {
        let parent = self.remover.index.lock().row(job.row).parent;
        if let Some(parent) = parent {
            self.queue.wait_while_running(parent);
        }
        let tier = self.remover.tiers.of(job.tier);
        self.wait_for_removals(job.tier);
        let counters = &self.remover.counters;
        let started = Instant::now();
        match self.publisher.publish(tier, job) {
            Ok(file_bytes) => {
                tier.worked();
                let meta = &job.draft.meta;
                counters.saved(meta.reason);
                counters.save_nanos.add_nanos(started.elapsed());
                counters.save_bytes.add(file_bytes);
                tracing::debug!(
                    key = %job.draft.key, tier = job.tier.as_str(), reason = meta.reason.as_str(),
                    start = meta.start, tokens = meta.token_count,
                    bytes = file_bytes, ms = started.elapsed().as_millis(), "row published"
                );
                JobEnd::Published
            }
            Err(error) => {
                counters.save_failures.increment();
                tracing::debug!(key = %job.draft.key, %error, "row not published");
                if let PublishError::Io { action, source } = &error
                    && tier.failed(action, source, self.clock.now())
                {
                    counters.tier_switched_off(job.tier);
                }
                JobEnd::Failed
            }
        }
    }

    /// Files that made room for a row go before it comes, so that a folder never holds more than its quota.
    fn wait_for_removals(&self, tier: Tier) {
        let shared = &self.remover.index;
        let mut index = shared.lock();
        while index.reservations.is_removing(tier) {
            // Nobody else may be there to do it.
            index = match self.queue.next_removal() {
                Some(files) => {
                    drop(index);
                    self.remove_queued(&files);
                    shared.lock()
                }
                None => shared.wait(index),
            };
        }
    }

    fn remove_queued(&self, files: &[DroppedFile]) {
        if catch_unwind(AssertUnwindSafe(|| self.remover.remove_files(files))).is_err() {
            tracing::error!(files = files.len(), "a cache writer panicked while it removed files");
        }
        self.queue.removed();
    }

    /// Gives everything back that the job held, then wakes the caller that waits for it.
    fn end(&self, mut job: Job, end: JobEnd) {
        // Whatever happens here, the job ends and the thread lives on.
        let compacted = job
            .old_base
            .take()
            .map_or(Ok(()), |old| catch_unwind(AssertUnwindSafe(|| end_compaction(&self.remover, &job, old, end))));
        let removed = catch_unwind(AssertUnwindSafe(|| {
            let dropped = self.remover.index.lock().end_pending(job.row, job.bytes);
            self.remover.remove_files(&dropped);
        }));
        self.remover.index.notify();
        self.queue.finished(job.row);
        if let Some(done) = &job.done {
            done.report(end);
        }
        let touched = catch_unwind(AssertUnwindSafe(|| {
            if self.queue.depth() == 0 {
                self.touches.write(Urgency::Idle);
            }
        }));
        if compacted.and(removed).and(touched).is_err() {
            tracing::error!(key = %job.draft.key, "a cache writer panicked after its work");
        }
    }
}
