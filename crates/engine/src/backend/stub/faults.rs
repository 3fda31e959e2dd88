//! Faults on demand, and what the stub has counted: the handle with which a test steers it.
//!
//! A test keeps a clone of the handle that it gave to `StubBackend`; every model and context of that backend reports
//! here. A decode can be held until the test lets it go, so that "during a decode" is a state and not a race. It must
//! never do anything that nobody asked for.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::{Batch, Token};

/// How often a held decode looks at its abort flag, which nobody can announce to it.
const ABORT_POLL: Duration = Duration::from_millis(1);

/// What a decode call does instead of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeFault {
    /// Returns `NoRoom` and changes nothing.
    NoRoom,
    /// Reads half of the rows, then returns `Aborted`.
    Aborted,
    /// Reads half of the rows, then returns `Fatal` with this code.
    Fatal(i32),
    /// Panics, as a bug in the worker's thread would.
    Panic,
    /// Holds before the last micro-batch until released, then goes on; ends with `Aborted` if the abort flag is set.
    Block,
    /// As `Block`, but deaf to the abort flag while it is held: what a watchdog is for.
    Hang,
}

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StubCall {
    /// `Backend::load_model`.
    LoadModel,
    /// `Model::new_context`.
    NewContext,
    /// `Model::load_adapter`.
    LoadAdapter,
    /// `Context::set_adapters`.
    SetAdapters,
    /// `Context::state_read`.
    StateRead,
    /// `Context::state_write`.
    StateWrite,
    /// `Context::pack_range`.
    Pack,
    /// `Context::restore_begin`.
    RestoreBegin,
    /// `Context::restore_segments`, for each row.
    RestoreSegment,
    /// `Context::restore_finish`.
    RestoreFinish,
}

/// What was done so far, by all models and contexts of the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StubCounts {
    /// Decode calls, whatever came of them.
    pub decodes: u64,
    /// Rows in those calls.
    pub rows: u64,
    /// Rows of decodes that were done whole.
    pub tokens: u64,
    /// Decodes refused as `Invalid`: a bug of the caller.
    pub invalid: u64,
    /// Decodes refused for lack of cells, injected ones not among them.
    pub no_room: u64,
    /// Contexts created.
    pub contexts: u64,
    /// Contexts that live now.
    pub live_contexts: u64,
    /// Segments packed.
    pub packs: u64,
    /// Restores that ended well.
    pub restores: u64,
    /// Stored states that were refused for what they hold: damage, or a bug of the caller.
    pub refused: u64,
    /// Conversations rendered.
    pub renders: u64,
    /// Bytes of the texts that were tokenized.
    pub tokenized_bytes: u64,
}

/// The handle. Clones speak of the same thing.
#[derive(Clone, Debug, Default)]
pub struct StubFaults {
    shared: Arc<FaultHub>,
}

#[derive(Debug, Default)]
struct FaultHub {
    state: Mutex<FaultState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct FaultState {
    /// By the number of the decode, counted from 1.
    decodes: BTreeMap<u64, DecodeFault>,
    /// How many of the next calls fail.
    calls: HashMap<StubCall, u32>,
    /// Decodes that are held now.
    held: u32,
    /// Rises with every release.
    releases: u64,
    counts: StubCounts,
    batches: Option<Vec<Batch>>,
    /// What a decode takes at least.
    decode_time: Duration,
    /// A batch with these tokens in a row ends the process.
    poison: Vec<Token>,
}

impl StubFaults {
    /// A handle without any fault.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the `nth` decode from now fail, 1 being the next one.
    pub fn on_decode(&self, nth: u64, fault: DecodeFault) {
        let mut state = self.lock();
        let number = state.counts.decodes.saturating_add(nth.max(1));
        state.decodes.insert(number, fault);
    }

    /// Lets the next `times` calls of a kind fail; 0 takes that back.
    pub fn fail_next(&self, call: StubCall, times: u32) {
        self.lock().calls.insert(call, times);
    }

    /// From now on each decode keeps its thread busy for at least so long, as computing would.
    pub fn busy_decodes(&self, time: Duration) {
        self.lock().decode_time = time;
    }

    /// From now on a batch that has these tokens in a row ends the process, as an assertion of llama.cpp would.
    pub fn abort_on(&self, tokens: &[Token]) {
        self.lock().poison = tokens.to_vec();
    }

    /// Spends what a decode takes.
    pub(super) fn be_busy(&self) {
        let time = self.lock().decode_time;
        let started = Instant::now();
        while started.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    /// Forgets every fault that has not happened yet.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.decodes.clear();
        state.calls.clear();
    }

    /// Lets the decodes that are held now go on. One that is held later waits for the next release.
    pub fn release(&self) {
        let mut state = self.lock();
        state.releases += 1;
        // They are not held from here on, even if their threads have not run yet.
        state.held = 0;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until a decode is held; `false` if none was within the time.
    #[must_use]
    pub fn wait_until_held(&self, timeout: Duration) -> bool {
        self.wait(timeout, |state| state.held > 0)
    }

    /// Waits until this number of decodes has started since the beginning; `false` on a timeout.
    #[must_use]
    pub fn wait_for_decodes(&self, decodes: u64, timeout: Duration) -> bool {
        self.wait(timeout, |state| state.counts.decodes >= decodes)
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> StubCounts {
        self.lock().counts
    }

    /// Keeps every batch from now on.
    pub fn record_batches(&self) {
        self.lock().batches.get_or_insert_default();
    }

    /// The batches since the last call, if they are recorded.
    #[must_use]
    pub fn take_batches(&self) -> Vec<Batch> {
        self.lock().batches.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Counts a decode and says what is to happen to it.
    pub(super) fn start_decode(&self, batch: &Batch) -> Option<DecodeFault> {
        let mut state = self.lock();
        state.counts.decodes += 1;
        state.counts.rows += batch.rows.len() as u64;
        if let Some(batches) = &mut state.batches {
            batches.push(batch.clone());
        }
        let tokens: Vec<Token> = batch.rows.iter().map(|row| row.token).collect();
        if !state.poison.is_empty() && tokens.windows(state.poison.len()).any(|window| window == state.poison) {
            std::process::abort();
        }
        let number = state.counts.decodes;
        let fault = state.decodes.remove(&number);
        drop(state);
        self.shared.changed.notify_all();
        fault
    }

    /// Holds the calling thread until it is released or, if it listens, the flag is set.
    pub(super) fn hold(&self, abort: Option<&AtomicBool>) {
        let mut state = self.lock();
        state.held += 1;
        let releases = state.releases;
        self.shared.changed.notify_all();
        while state.releases == releases && !abort.is_some_and(|abort| abort.load(Ordering::Relaxed)) {
            let waited = self.shared.changed.wait_timeout(state, ABORT_POLL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.releases == releases {
            state.held -= 1;
        }
    }

    /// Whether this call is to fail.
    pub(super) fn fails(&self, call: StubCall) -> bool {
        match self.lock().calls.get_mut(&call) {
            Some(times) if *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        }
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut StubCounts)) {
        change(&mut self.lock().counts);
    }

    fn wait(&self, timeout: Duration, reached: impl Fn(&FaultState) -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !reached(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, FaultState> {
        // Counters stay right even if a thread panicked with the lock in hand.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
