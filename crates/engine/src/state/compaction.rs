//! Joins the segments of long chains and drops surplus partial states, on a thread of its own.
//!
//! The worker reports each row that it saved. If the chain of the row has become long, the thread reads the segments, joins
//! their bytes and hands them to the cache, which replaces the row in one step: a chain of many small segments is slower to
//! read than one segment. A boundary that is dropped (`thinning.rs`) leaves its tokens to the row that builds on it. Nothing
//! waits for this thread, and what cannot be done now is left for the next save. It must never touch the context.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use poncho_cache::{Cache, Compaction, Key, PartKind, PayloadPart, PinnedRow, RowInfo};

use crate::backend::{MemoryKind, SegmentJoiner};
use crate::state::buffer_pool::free_memory;
use crate::state::thinning::thin;

/// Rows that may wait to be looked at; more are left for their next save.
const QUEUE: usize = 64;
/// How long the end of a model waits for the thread. One that hangs on a disk is left alone: what it does can end at any moment
/// without harm.
const END_WAIT: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Compactor {
    work: Joining,
    /// Started when there is something to do for the first time.
    thread: Option<Thread>,
}

struct Thread {
    keys: SyncSender<Key>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    handle: JoinHandle<()>,
}

/// The limits of one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChainBounds {
    /// Links of a chain before they are joined; 0 for any number.
    pub(crate) links: usize,
    /// Partial states; 0 for any number.
    pub(crate) partials: usize,
}

impl Compactor {
    /// A compactor for the segments that `joiner` joins. ChainBounds on partial states are for models that have them.
    pub(crate) fn new(
        cache: Arc<Cache>,
        memory: MemoryKind,
        joiner: Option<Arc<dyn SegmentJoiner>>,
        bounds: ChainBounds,
    ) -> Self {
        let partials = if memory.has_partial() { bounds.partials } else { 0 };
        let work = Joining { cache, joiner, bounds: ChainBounds { partials, ..bounds }, stopping: Arc::default() };
        Self { work, thread: None }
    }

    /// A row was saved.
    pub(crate) fn saved(&mut self, key: Key) {
        if self.work.bounds.partials == 0 && self.work.long_chain(&key).is_none() {
            return;
        }
        if self.thread.is_none() {
            let (keys, receiver) = sync_channel(QUEUE);
            let (ending, ended) = sync_channel::<()>(0);
            let work = self.work.clone();
            let thread = std::thread::Builder::new().name("poncho-compactor".to_owned());
            let run = move || {
                // Dropped last, also by a panic.
                let _ending = ending;
                let work = work;
                work.run(&receiver);
            };
            match thread.spawn(run) {
                Ok(handle) => self.thread = Some(Thread { keys, ended, handle }),
                Err(error) => tracing::warn!(%error, "no thread for joining rows; their chains stay as they are"),
            }
        }
        if let Some(Thread { keys, .. }) = &self.thread {
            // A full queue loses nothing: the next save of the conversation reports it again.
            let _ = keys.try_send(key);
        }
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        let Some(Thread { keys, ended, handle }) = self.thread.take() else { return };
        drop(keys);
        if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(END_WAIT) {
            self.work.stopping.store(true, Ordering::Relaxed);
            tracing::warn!("joining stored rows takes too long; the thread is left alone");
            return;
        }
        let _ = handle.join();
    }
}

#[derive(Clone)]
struct Joining {
    cache: Arc<Cache>,
    /// `None` for a model without attention segments: its rows hang on nothing.
    joiner: Option<Arc<dyn SegmentJoiner>>,
    bounds: ChainBounds,
    /// Set when nobody waits for the rest.
    stopping: Arc<AtomicBool>,
}

impl Joining {
    fn run(&self, keys: &Receiver<Key>) {
        while let Ok(key) = keys.recv() {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            // A row that is still being written cannot be replaced.
            self.cache.flush();
            if self.bounds.partials > 0 {
                self.thin(&key);
            }
            if let Some(start) = self.long_chain(&key) {
                self.compact(&key, start, &[]);
            }
        }
    }

    fn long_chain(&self, key: &Key) -> Option<u32> {
        let limit = self.bounds.links;
        self.joiner.as_ref().filter(|_| limit > 0).and_then(|_| self.cache.long_chain(key, limit))
    }

    /// Gives up boundaries of a conversation that has too many of them.
    fn thin(&self, key: &Key) {
        let (Some(row), Some(tokens)) = (self.cache.row(key), self.cache.tokens_of(key)) else { return };
        let boundaries = || self.cache.boundaries(&row.meta.namespace, &tokens);
        let partials: Vec<RowInfo> =
            boundaries().into_iter().filter(|row| row.parts.contains(&PartKind::Partial)).collect();
        let counts: Vec<usize> = partials.iter().map(|row| row.meta.token_count as usize).collect();
        let excess = thin(&counts, self.bounds.partials);
        for row in partials.iter().filter(|row| excess.contains(&(row.meta.token_count as usize))) {
            let Some(row) = self.cache.row(&row.key) else { continue };
            match row.children {
                0 => drop(self.cache.remove(&row.key)),
                // What two conversations share stays; it is the one's boundary as much as the other's.
                1 => {
                    if let Some(child) = boundaries().into_iter().find(|child| child.meta.parent == Some(row.key)) {
                        self.compact(&child.key, row.meta.start, &[row.key]);
                        self.cache.flush();
                    }
                }
                _ => {}
            }
        }
    }

    fn compact(&self, key: &Key, start: u32, give_up: &[Key]) {
        let started = Instant::now();
        let Some((parts, links)) = self.join(key, start) else { return };
        let bytes: usize = parts.iter().map(|part| part.bytes.len()).sum();
        let outcome = self.cache.compact(Compaction { key: *key, start, parts, give_up });
        let ms = started.elapsed().as_millis();
        tracing::debug!(%key, start, links, bytes, ?outcome, ms, "rows of a chain joined");
    }

    /// The parts of the row with the tokens from `start` on, and how many links they were taken from.
    fn join(&self, key: &Key, start: u32) -> Option<(Vec<PayloadPart>, usize)> {
        let chain = self.cache.chain_of(key)?;
        let links: Vec<&PinnedRow> =
            chain.rows().iter().filter(|link| !link.range().is_empty() && link.range().start >= start).collect();
        let bytes: Vec<Bytes> = links.iter().map(|link| load(link, PartKind::Attention)).collect::<Option<_>>()?;
        let segments: Vec<&[u8]> = bytes.iter().map(AsRef::as_ref).collect();
        let (joiner, range) = (self.joiner.as_ref()?, start..chain.reach());
        let mut joined = vec![0; joiner.joined_len(&range)];
        joiner
            .join(&segments, range, &mut joined)
            .inspect_err(|error| tracing::warn!(%key, %error, "stored segments do not fit together"))
            .ok()?;
        let mut parts = vec![PayloadPart { kind: PartKind::Attention, bytes: joined.into() }];
        let row = chain.boundary()?;
        for kind in [PartKind::Partial, PartKind::Logits] {
            if row.length(kind).is_some() {
                parts.push(PayloadPart { kind, bytes: load(row, kind)? });
            }
        }
        Some((parts, links.len()))
    }
}

fn load(row: &PinnedRow, kind: PartKind) -> Option<Bytes> {
    row.load(kind, free_memory()).inspect_err(|error| tracing::debug!(%error, "a row is not joined to others")).ok()
}
