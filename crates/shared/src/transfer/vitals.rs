//! The state of a tier that both directions share: breakers, rates, counters, rows that are not to be used.
//!
//! Used by the tier, by reads, uploads and the background probe. Locks are held for moments, never across a request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use object_store::path::Path;
use tokio::sync::Notify;

use crate::content::manifest::Damage;
use crate::objects::breaker::Breaker;
use crate::objects::meter::Meter;
use crate::settings::Timing;

/// Rows that are remembered as damaged, at most.
const MOST_DISTRUSTED: usize = 4096;
/// A damaged row is looked at again after this time: somebody may have written it again.
const DISTRUST_FOR: Duration = Duration::from_secs(600);
/// Damaged rows in a row after which the whole store is left alone.
const MOST_DAMAGED: u32 = 2;

/// Numbers for reports.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) found: AtomicU64,
    pub(crate) missed: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) uploaded_rows: AtomicU64,
    pub(crate) uploaded_bytes: AtomicU64,
    pub(crate) dropped_offers: AtomicU64,
    pub(crate) damaged: [AtomicU64; Damage::ALL.len()],
}

impl Counters {
    pub(crate) fn damage(&self, damage: Damage) -> u64 {
        Damage::ALL.iter().zip(&self.damaged).find(|(kind, _)| **kind == damage).map_or(0, |(_, count)| load(count))
    }

    fn count_damage(&self, damage: Damage) {
        for (kind, count) in Damage::ALL.iter().zip(&self.damaged) {
            add(count, u64::from(*kind == damage));
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

pub(crate) fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[derive(Debug)]
struct State {
    reads: Breaker,
    writes: Breaker,
    meter: Meter,
    last_error: Option<String>,
    distrusted: HashMap<Path, Instant>,
    damaged_in_a_row: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Vitals {
    name: String,
    state: Mutex<State>,
    pub(crate) counters: Counters,
    /// Somebody asked for the rates since the last probe.
    used: AtomicBool,
    /// The first probe is over.
    tried: AtomicBool,
    /// Wakes the background probe and the uploads.
    pub(crate) changed: Notify,
}

impl Vitals {
    pub(crate) fn new(name: String, timing: &Timing) -> Self {
        let state = State {
            reads: Breaker::untried(timing.first_pause, timing.longest_pause, Instant::now()),
            writes: Breaker::closed(timing.first_pause, timing.longest_pause),
            meter: Meter::default(),
            last_error: None,
            distrusted: HashMap::new(),
            damaged_in_a_row: 0,
        };
        Self {
            name,
            state: Mutex::new(state),
            counters: Counters::default(),
            used: AtomicBool::new(false),
            tried: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests may use the store.
    pub(crate) fn is_readable(&self) -> bool {
        self.state().reads.is_closed()
    }

    pub(crate) fn read_retry_in(&self) -> Duration {
        self.state().reads.retry_in(Instant::now())
    }

    /// Time until the next upload may be tried.
    pub(crate) fn write_retry_in(&self) -> Duration {
        self.state().writes.retry_in(Instant::now())
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        let state = self.state();
        state.reads.reason().or(state.writes.reason()).map(str::to_owned).or_else(|| state.last_error.clone())
    }

    /// The last row that was damaged, without the state of the store.
    pub(crate) fn last_damage(&self) -> Option<String> {
        self.state().last_error.clone()
    }

    pub(crate) fn meter(&self) -> Meter {
        self.used.store(true, Ordering::Relaxed);
        self.state().meter
    }

    /// Whether the store was tried at all.
    pub(crate) fn is_tried(&self) -> bool {
        self.tried.load(Ordering::Acquire)
    }

    /// Whether somebody asked for the rates since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// A request of a read failed or came too late: the store is left alone until a probe works.
    pub(crate) fn read_failed(&self, reason: &str) {
        add(&self.counters.failures, 1);
        let mut state = self.state();
        state.last_error = Some(reason.to_owned());
        if state.reads.trip(reason.to_owned(), Instant::now()) {
            tracing::warn!(store = self.name, reason, "the shared tier fails; requests go on without it");
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// A fetch was given up after some bytes.
    pub(crate) fn read_late(&self, bytes: u64, took: Duration) {
        self.state().meter.gave_up(bytes, took);
        self.read_failed(&format!("no answer within {} ms", took.as_millis()));
    }

    pub(crate) fn small_read(&self, took: Duration) {
        self.state().meter.small(took);
    }

    pub(crate) fn fetched(&self, bytes: u64, took: Duration) {
        add(&self.counters.fetched_bytes, bytes);
        let mut state = self.state();
        state.meter.transfer(bytes, took);
        state.damaged_in_a_row = 0;
    }

    /// The background probe worked: the store is in use from now on.
    pub(crate) fn probed(&self, bytes_per_second: Option<f64>, round_trip: Duration) {
        let mut state = self.state();
        if state.reads.worked() {
            state.meter.reset(bytes_per_second, round_trip);
            tracing::info!(store = self.name, round_trip_ms = round_trip.as_millis(), "the shared tier is in use");
        } else {
            state.meter.small(round_trip);
            // One stream is slower than a fetch with several: it may only correct the rate upwards.
            if let Some(rate) = bytes_per_second
                && state.meter.bytes_per_second().is_none_or(|known| rate > known)
            {
                state.meter.reset(Some(rate), round_trip);
            }
        }
        drop(state);
        self.tried.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(crate) fn probe_failed(&self, reason: String) {
        self.tried.store(true, Ordering::Release);
        let mut state = self.state();
        tracing::debug!(store = self.name, reason, "the shared tier still fails");
        state.last_error = Some(reason.clone());
        state.reads.failed_again(reason, Instant::now());
    }

    /// Whether an upload failed.
    pub(crate) fn write_failed(&self, reason: String) {
        let mut state = self.state();
        if state.writes.is_closed() {
            tracing::warn!(store = self.name, reason, "uploads to the shared tier fail; they are tried again later");
        }
        state.last_error = Some(reason.clone());
        state.writes.failed_again(reason, Instant::now());
    }

    pub(crate) fn write_worked(&self) {
        if self.state().writes.worked() {
            tracing::info!(store = self.name, "uploads to the shared tier work again");
        }
    }

    /// A row is not what it promises: it is not used again, and the next offer of it is uploaded afresh.
    pub(crate) fn damaged(&self, path: &Path, damage: Damage) {
        self.counters.count_damage(damage);
        self.distrust(path);
        let mut state = self.state();
        state.damaged_in_a_row += 1;
        state.last_error = Some(format!("{path}: {}", damage.as_str()));
        if state.damaged_in_a_row > MOST_DAMAGED {
            state.reads.failed_again("several rows in a row are damaged".to_owned(), Instant::now());
        }
        drop(state);
        tracing::warn!(store = self.name, row = %path, reason = damage.as_str(), "a row of the shared tier is damaged");
        self.changed.notify_waiters();
    }

    pub(crate) fn distrust(&self, path: &Path) {
        let now = Instant::now();
        let distrusted = &mut self.state().distrusted;
        if distrusted.len() >= MOST_DISTRUSTED {
            distrusted.retain(|_, since| now.duration_since(*since) < DISTRUST_FOR);
        }
        if distrusted.len() < MOST_DISTRUSTED {
            distrusted.insert(path.clone(), now);
        }
    }

    pub(crate) fn is_distrusted(&self, path: &Path) -> bool {
        let since = self.state().distrusted.get(path).copied();
        since.is_some_and(|since| since.elapsed() < DISTRUST_FOR)
    }

    /// The row was written afresh.
    pub(crate) fn trust(&self, path: &Path) {
        self.state().distrusted.remove(path);
    }
}
