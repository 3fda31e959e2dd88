//! Threads that read stored segments into memory, so that the worker never waits for a disk.
//!
//! The restorer names the parts of a plan that it needs; a few threads read them into buffers and wake the worker. Dropping
//! a [`Reading`] abandons it: what has not begun is not read, and a thread that is stuck in a read is left alone and
//! replaced, up to a bound. Such a thread keeps the lease on the rows until its read is over, because a file that is replaced
//! meanwhile would look damaged. A part must never be handed out before it was read to its end and checked, and nothing ever
//! waits for one of these threads to end.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use poncho_cache::{PartKind, RestorePlan};

use crate::backend::Backend;
use crate::state::buffer_pool::{BufferPool, PooledBuffer};
use crate::state::failure::Failure;

/// Threads that read at the same time, without those that are stuck.
const READERS: usize = 4;
/// Threads that read for one restore.
const LANES: usize = 2;
/// Threads that may be stuck in abandoned reads. With more, nothing is read until one returns.
const STUCK: usize = 8;
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);
/// Below this many bytes a second thread costs more than it saves.
const WORTH_A_THREAD: usize = 4 << 20;
/// Segments are read together up to this many bytes: what has arrived by the deadline counts piece by piece.
const LARGEST_PIECE: usize = 32 << 20;

/// A part of a row: the row's place in its plan, and which part.
pub(crate) type PartId = (usize, PartKind);

/// Bytes of segments that are read together, for a total of `total` bytes.
pub(crate) fn piece_length(total: usize) -> usize {
    (total / LANES).clamp(WORTH_A_THREAD, LARGEST_PIECE)
}

/// The source of the buffers.
#[derive(Clone)]
pub(crate) struct Buffers {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) pool: BufferPool,
}

/// Wakes the worker. Called by a reading thread.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The threads of a model. See the module.
#[derive(Default)]
pub(crate) struct Readers {
    pool: Arc<Pool>,
}

#[derive(Default)]
struct Pool {
    state: Mutex<PoolState>,
    arrived: Condvar,
}

#[derive(Default)]
struct PoolState {
    /// Each is here once for every thread that it may have.
    queue: VecDeque<Arc<Fetch>>,
    threads: usize,
    idle: usize,
    /// Threads that are in an abandoned read.
    stuck: usize,
    closed: bool,
}

/// Parts on their way into memory.
struct Fetch {
    plan: Arc<RestorePlan>,
    buffers: Buffers,
    /// Called when everything is there or something failed.
    wake: Option<Wake>,
    state: Mutex<FetchState>,
    changed: Condvar,
}

#[derive(Default)]
struct FetchState {
    todo: VecDeque<Vec<Item>>,
    done: Vec<Piece>,
    /// Pieces that are not read yet.
    left: usize,
    failed: Option<Failure>,
    /// Threads that work on it.
    running: usize,
    abandoned: bool,
    began: Option<Instant>,
    took: Duration,
}

impl FetchState {
    fn outcome(&self) -> Option<Result<(), Failure>> {
        match self.failed {
            Some(failure) => Some(Err(failure)),
            None => (self.left == 0).then_some(Ok(())),
        }
    }
}

#[derive(Debug)]
struct Item {
    part: PartId,
    range: Range<usize>,
    took: Duration,
}

struct Piece {
    items: Vec<Item>,
    buffer: PooledBuffer,
}

/// Parts that were read.
#[derive(Default)]
pub(crate) struct Parts {
    pieces: Vec<Piece>,
}

impl Parts {
    /// The bytes of a part and how long reading them took.
    pub(crate) fn get(&self, part: PartId) -> Option<(&[u8], Duration)> {
        self.pieces.iter().find_map(|piece| {
            let item = piece.items.iter().find(|item| item.part == part)?;
            Some((piece.buffer.as_ref().get(item.range.clone())?, item.took))
        })
    }
}

/// The result of a reading.
pub(crate) struct ReadResult {
    pub(crate) parts: Parts,
    /// `None` if it was abandoned before its end.
    pub(crate) outcome: Option<Result<(), Failure>>,
    /// From the first byte to the last.
    pub(crate) took: Duration,
}

/// Parts that are being read. Dropping it abandons them.
pub(crate) struct Reading {
    pool: Arc<Pool>,
    fetch: Arc<Fetch>,
    since: Instant,
}

impl Readers {
    /// Starts to read parts of a plan.
    pub(crate) fn read(
        &self,
        buffers: Buffers,
        plan: &Arc<RestorePlan>,
        parts: &[PartId],
        wake: Option<Wake>,
    ) -> Result<Reading, Failure> {
        let todo = pieces_of(plan, parts)?;
        let (left, lanes) = (todo.len(), todo.len().min(LANES));
        let state = Mutex::new(FetchState { todo, left, ..FetchState::default() });
        let fetch = Arc::new(Fetch { plan: Arc::clone(plan), buffers, wake, state, changed: Condvar::new() });
        let mut pool = self.pool.lock();
        for _ in 0..lanes {
            pool.queue.push_back(Arc::clone(&fetch));
            self.pool.arrived.notify_one();
            self.pool.start_thread(&mut pool);
        }
        drop(pool);
        Ok(Reading { pool: Arc::clone(&self.pool), fetch, since: Instant::now() })
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.pool.lock().closed = true;
        self.pool.arrived.notify_all();
    }
}

/// Parts in the order given, put together into pieces.
fn pieces_of(plan: &RestorePlan, parts: &[PartId]) -> Result<VecDeque<Vec<Item>>, Failure> {
    let length = |(row, kind): PartId| {
        let length = plan.rows().get(row).and_then(|row| row.length(kind));
        length.and_then(|length| usize::try_from(length).ok()).ok_or(Failure::Refused)
    };
    let lengths: Vec<usize> = parts.iter().map(|part| length(*part)).collect::<Result<_, _>>()?;
    let total = lengths.iter().fold(0_usize, |sum, length| sum.saturating_add(*length));
    let most = if total < WORTH_A_THREAD { usize::MAX } else { piece_length(total) };
    let mut pieces: VecDeque<Vec<Item>> = VecDeque::new();
    for (part, length) in parts.iter().zip(lengths) {
        let end = pieces.back().and_then(|piece| piece.last()).map_or(0, |item| item.range.end);
        let item =
            |start: usize| Item { part: *part, range: start..start.saturating_add(length), took: Duration::ZERO };
        match pieces.back_mut().filter(|_| end.saturating_add(length) <= most) {
            Some(piece) => piece.push(item(end)),
            None => pieces.push_back(vec![item(0)]),
        }
    }
    Ok(pieces)
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts another thread if there is work for one and not too many are there.
    fn start_thread(self: &Arc<Self>, state: &mut PoolState) {
        let working = state.threads.saturating_sub(state.stuck);
        if state.idle >= state.queue.len() || working >= READERS || state.threads >= READERS + STUCK {
            return;
        }
        let pool = Arc::clone(self);
        match std::thread::Builder::new().name("poncho-reader".to_owned()).spawn(move || pool.serve()) {
            Ok(_) => state.threads += 1,
            Err(error) => tracing::warn!(%error, "no thread for reading stored rows; they may be computed instead"),
        }
    }

    /// The life of a thread.
    fn serve(self: &Arc<Self>) {
        while let Some(fetch) = self.next() {
            if catch_unwind(AssertUnwindSafe(|| fetch.work())).is_err() {
                tracing::error!("reading a stored row panicked; the prompt is computed instead");
                fetch.fail(Failure::Refused);
            }
            self.ended(&fetch);
        }
    }

    fn next(&self) -> Option<Arc<Fetch>> {
        let mut state = self.lock();
        loop {
            // One that was stuck and came back may be one too many.
            if state.closed || state.threads.saturating_sub(state.stuck) > READERS {
                break;
            }
            if let Some(fetch) = state.queue.pop_front() {
                fetch.lock().running += 1;
                return Some(fetch);
            }
            state.idle += 1;
            let (guard, waited) = self.arrived.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        None
    }

    fn ended(self: &Arc<Self>, fetch: &Fetch) {
        let mut pool = self.lock();
        let mut state = fetch.lock();
        state.running -= 1;
        if state.abandoned {
            pool.stuck -= 1;
        }
    }
}

impl Fetch {
    fn lock(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads pieces until none is left.
    fn work(&self) {
        loop {
            let items = {
                let mut state = self.lock();
                state.began.get_or_insert_with(Instant::now);
                match state.todo.pop_front() {
                    Some(items) => items,
                    None => return,
                }
            };
            match self.read_piece(items) {
                Ok(Some(piece)) => self.put(piece),
                Ok(None) => return,
                Err(failure) => return self.fail(failure),
            }
        }
    }

    /// `None` if the reading was abandoned.
    fn read_piece(&self, mut items: Vec<Item>) -> Result<Option<Piece>, Failure> {
        let length = items.last().map_or(0, |item| item.range.end);
        let mut buffer = self.buffers.pool.take(&*self.buffers.backend, length);
        for item in &mut items {
            if self.lock().abandoned {
                return Ok(None);
            }
            let started = Instant::now();
            let (row, kind) = item.part;
            let pinned = self.plan.rows().get(row).ok_or(Failure::Refused)?;
            let into = buffer.as_mut().get_mut(item.range.clone()).ok_or(Failure::Refused)?;
            pinned.read(kind, into).map_err(|error| {
                tracing::debug!(%error, "a row is unusable");
                Failure::Unusable
            })?;
            item.took = started.elapsed();
        }
        Ok(Some(Piece { items, buffer }))
    }

    fn put(&self, piece: Piece) {
        let mut state = self.lock();
        if state.abandoned {
            // Late bytes: the buffer goes back, outside of the lock.
            drop(state);
            return drop(piece);
        }
        state.done.push(piece);
        state.left -= 1;
        if state.left == 0 {
            self.finished(state);
        }
    }

    fn fail(&self, failure: Failure) {
        let mut state = self.lock();
        state.failed.get_or_insert(failure);
        state.todo.clear();
        self.finished(state);
    }

    fn finished(&self, mut state: MutexGuard<'_, FetchState>) {
        state.took = state.began.map_or(Duration::ZERO, |began| began.elapsed());
        drop(state);
        self.changed.notify_all();
        if let Some(wake) = &self.wake {
            wake();
        }
    }
}

impl Reading {
    /// Whether it is over, successfully or not.
    pub(crate) fn is_over(&self) -> bool {
        self.fetch.lock().outcome().is_some()
    }

    /// Blocks until it is over or `until` has passed.
    pub(crate) fn wait(&self, until: Instant) {
        let mut state = self.fetch.lock();
        while state.outcome().is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.fetch.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How long it has been since it was asked for.
    pub(crate) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// Takes what has arrived and abandons the rest.
    pub(crate) fn take(self) -> ReadResult {
        self.abandon();
        let mut state = self.fetch.lock();
        ReadResult {
            outcome: state.outcome(),
            parts: Parts { pieces: std::mem::take(&mut state.done) },
            took: state.took,
        }
    }

    fn abandon(&self) {
        let mut pool = self.pool.lock();
        pool.queue.retain(|fetch| !Arc::ptr_eq(fetch, &self.fetch));
        let mut state = self.fetch.lock();
        if state.abandoned {
            return;
        }
        state.abandoned = true;
        state.todo.clear();
        pool.stuck += state.running;
        drop(state);
        // Queued readings may have waited for the threads that now count as stuck.
        for _ in 0..pool.queue.len() {
            self.pool.start_thread(&mut pool);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.abandon();
    }
}

#[cfg(test)]
mod tests;
