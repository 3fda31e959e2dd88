//! The pressure watcher: evicts rows before the machine runs out of memory.
//!
//! Started by the handle of a cache, which lends it an eviction function. `PressureConfig::bytes_to_evict` is the
//! whole decision and is pure; the thread only asks a source, decides and calls. It must never make its settings or
//! its report wait for a sample or an eviction, and never die of a panicking source.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::kinds::Tier;
use crate::pressure::sources::{PressureError, PressureSample, PressureSource};

use super::backoff::Backoff;
use super::config::{PressureConfig, PressureConfigError};

/// Frees at least this number of bytes in the given tiers where it can, and returns how many it freed.
pub type EvictBytes = Box<dyn Fn(u64, &[Tier]) -> u64 + Send + Sync>;

/// One eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PressureAction {
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes that were freed.
    pub freed: u64,
    /// When it was done.
    pub at: SystemTime,
}

/// Samples and evictions of the watcher.
#[derive(Debug, Clone, Default)]
pub struct PressureReport {
    /// The last sample that could be taken.
    pub last_sample: Option<PressureSample>,
    /// The last eviction.
    pub last_action: Option<PressureAction>,
    /// The error of the last sample, `None` if it succeeded.
    pub last_error: Option<Arc<PressureError>>,
    /// Samples taken, failed ones included.
    pub samples: u64,
    /// Evictions done.
    pub evictions: u64,
    /// Samples at which bytes were wanted and nothing was evicted, because evictions before had changed nothing.
    pub held_back: u64,
}

/// A watcher; dropping it stops and joins its thread.
pub struct PressureWatcher {
    shared: Arc<Shared>,
    /// Started when the watcher is first switched on: most never are.
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    config: PressureConfig,
    evict: EvictBytes,
    /// Read and changed for moments only; the thread sleeps on it.
    control: Mutex<Control>,
    wake: Condvar,
    /// Held for a whole sample and its eviction, so that a forced one and the thread's own take turns.
    watched: Mutex<Watched>,
    report: Mutex<PressureReport>,
}

struct Watched {
    source: Box<dyn PressureSource>,
    backoff: Backoff,
}

/// Who asks for a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// The thread, after an interval.
    InTurn,
    /// A caller, who wants it done whatever earlier evictions changed.
    ByHand,
}

struct Control {
    enabled: bool,
    stopping: bool,
    /// When the thread samples next; `None` if that is further away than the clock reaches.
    due: Option<Instant>,
    /// A source that takes over at the next sample. Kept here so that nobody waits for a slow sample to end.
    next_source: Option<Box<dyn PressureSource>>,
}

impl PressureWatcher {
    /// Checks the settings; if `enabled`, starts the thread, which samples at once.
    ///
    /// # Errors
    /// When the settings are wrong or no thread can be started.
    pub fn start(config: PressureConfig, evict: EvictBytes) -> Result<Self, PressureConfigError> {
        config.validate()?;
        let control =
            Control { enabled: config.enabled, stopping: false, due: Some(Instant::now()), next_source: None };
        let shared = Arc::new(Shared {
            watched: Mutex::new(Watched { source: config.source.source(), backoff: Backoff::default() }),
            config,
            evict,
            control: Mutex::new(control),
            wake: Condvar::new(),
            report: Mutex::default(),
        });
        let watcher = Self { shared, thread: Mutex::default() };
        if watcher.is_enabled() {
            watcher.start_thread().map_err(PressureConfigError::Thread)?;
        }
        Ok(watcher)
    }

    fn start_thread(&self) -> io::Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let watched = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("poncho-pressure".to_owned());
            *thread = Some(builder.spawn(move || watched.watch())?);
        }
        Ok(())
    }

    /// Switches the sampling on (the first sample is taken at once) or off. It stays off, with a line in the log, if
    /// the system gives no thread for it.
    pub fn set_enabled(&self, enabled: bool) {
        let started = if enabled { self.start_thread() } else { Ok(()) };
        if let Err(error) = &started {
            tracing::warn!(%error, "the pressure watcher got no thread and stays off; end other threads and try again");
        }
        self.shared.change(|control| control.enabled = enabled && started.is_ok());
    }

    /// Whether the watcher samples on its own.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        lock(&self.shared.control).enabled
    }

    /// Samples another source from now on, at once if the watcher is on. Does not wait for a sample that is under way.
    pub fn set_source(&self, source: Box<dyn PressureSource>) {
        self.shared.change(|control| control.next_source = Some(source));
    }

    /// Samples and acts now, on the caller's thread, also when the watcher is off.
    pub fn force(&self) -> PressureReport {
        self.shared.sample_and_act(Asked::ByHand);
        self.report()
    }

    /// Samples and evictions so far.
    #[must_use]
    pub fn report(&self) -> PressureReport {
        lock(&self.shared.report).clone()
    }
}

impl Drop for PressureWatcher {
    fn drop(&mut self) {
        self.shared.change(|control| control.stopping = true);
        // The eviction function may own the watcher; its thread cannot wait for itself.
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Control)) {
        let mut control = lock(&self.control);
        change(&mut control);
        control.due = Some(Instant::now());
        drop(control);
        self.wake.notify_all();
    }

    fn watch(&self) {
        let interval = Duration::from_millis(self.config.interval_ms);
        while self.wait_until_due(interval) {
            self.sample_and_act(Asked::InTurn);
        }
    }

    /// Sleeps until the next sample is due; `false` when the watcher stops.
    fn wait_until_due(&self, interval: Duration) -> bool {
        let mut control = lock(&self.control);
        loop {
            if control.stopping {
                return false;
            }
            let now = Instant::now();
            control = match control.due {
                Some(due) if control.enabled && due <= now => {
                    control.due = now.checked_add(interval);
                    return true;
                }
                Some(due) if control.enabled => {
                    let waited = self.wake.wait_timeout(control, due.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.wake.wait(control).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn sample_and_act(&self, asked: Asked) {
        let mut watched = lock(&self.watched);
        if let Some(next) = lock(&self.control).next_source.take() {
            *watched = Watched { source: next, backoff: Backoff::default() };
        }
        let Watched { source, backoff } = &mut *watched;
        let sampled = catch_unwind(AssertUnwindSafe(|| source.sample()))
            .unwrap_or_else(|panic| Err(panicked(source.name(), panic.as_ref())));
        let used = sampled.as_ref().map_or(0, |sample| sample.used);
        let wanted = sampled.as_ref().ok().and_then(|sample| self.config.bytes_to_evict(*sample));
        if sampled.is_ok() && wanted.is_none() {
            backoff.calm();
        }
        let allowed = wanted.filter(|_| backoff.may_evict(used) || asked == Asked::ByHand);
        let held_back = allowed.is_none() && wanted.is_some();
        let evicted = allowed.map(|wanted| {
            let freed = catch_unwind(AssertUnwindSafe(|| (self.evict)(wanted, &self.config.evict_tiers)))
                .map_err(|panic| panicked("the eviction", panic.as_ref()))?;
            backoff.evicted(used, freed);
            tracing::info!(source = source.name(), wanted, freed, "evicted under memory pressure");
            Ok(PressureAction { wanted, freed, at: SystemTime::now() })
        });
        let mut report = lock(&self.report);
        report.samples += 1;
        report.held_back += u64::from(held_back);
        report.last_error = None;
        match sampled {
            Ok(sample) => report.last_sample = Some(sample),
            Err(error) => report.last_error = Some(Arc::new(error)),
        }
        match evicted {
            Some(Ok(action)) => {
                report.evictions += 1;
                report.last_action = Some(action);
            }
            Some(Err(error)) => report.last_error = Some(Arc::new(error)),
            None => {}
        }
        if let Some(error) = &report.last_error {
            tracing::warn!(source = source.name(), %error, "no pressure sample");
        }
    }
}

/// A holder that panicked leaves nothing half done here: every change is one assignment.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panicked(part: &str, panic: &(dyn Any + Send)) -> PressureError {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    PressureError::Panicked { part: part.to_owned(), message: text.unwrap_or("no message").to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Sends a message for each sample that is taken; panics if it has none.
    struct ScriptedSource {
        next: Option<PressureSample>,
        taken: Sender<()>,
    }

    impl PressureSource for ScriptedSource {
        fn name(&self) -> &str {
            "scripted"
        }

        fn sample(&mut self) -> Result<PressureSample, PressureError> {
            self.taken.send(()).unwrap();
            Ok(self.next.expect("no sample in the script"))
        }
    }

    fn scripted(used: Option<u64>) -> (Box<ScriptedSource>, Receiver<()>) {
        let (taken, receiver) = channel();
        let next = used.map(|used| PressureSample { used: used * MIB, total: 100 * MIB });
        (Box::new(ScriptedSource { next, taken }), receiver)
    }

    type Calls = Receiver<(u64, Vec<Tier>)>;

    /// A watcher with an eviction that frees half of what is asked.
    fn watcher(config: PressureConfig) -> (PressureWatcher, Calls) {
        let (calls, receiver) = channel();
        let evict = move |wanted: u64, tiers: &[Tier]| {
            calls.send((wanted, tiers.to_vec())).unwrap();
            wanted / 2
        };
        (PressureWatcher::start(config, Box::new(evict)).unwrap(), receiver)
    }

    #[test]
    fn forced_sample_acts_also_when_switched_off() {
        let (watcher, calls) = watcher(PressureConfig::default());
        assert!(!watcher.is_enabled());
        let calm = watcher.force();
        assert_eq!((calm.samples, calm.evictions, calm.last_action), (1, 0, None));
        watcher.set_source(scripted(Some(95)).0);
        // The source's receiver is gone, so its first act is to panic: reported, and nothing else breaks.
        assert!(matches!(watcher.force().last_error.as_deref(), Some(PressureError::Panicked { .. })));
        let (source, _taken) = scripted(Some(95));
        watcher.set_source(source);
        let report = watcher.force();
        assert_eq!(calls.try_recv().unwrap(), (20 * MIB, vec![Tier::Ram, Tier::RamFile]));
        let action = report.last_action.unwrap();
        assert_eq!((action.wanted, action.freed), (20 * MIB, 10 * MIB));
        assert_eq!(report.last_sample, Some(PressureSample { used: 95 * MIB, total: 100 * MIB }));
        assert_eq!((report.samples, report.evictions), (3, 1));
        assert!(report.last_error.is_none(), "the last sample went well");
    }

    #[test]
    fn thread_survives_a_panicking_source_and_takes_the_next_one() {
        // The interval is longer than any test run: every sample below comes from a change, not from time passing.
        let (watcher, calls) = watcher(PressureConfig { interval_ms: u64::MAX, ..PressureConfig::default() });
        let (broken, broken_taken) = scripted(None);
        watcher.set_source(broken);
        watcher.set_enabled(true);
        broken_taken.recv().unwrap();
        let (source, _taken) = scripted(Some(90));
        watcher.set_source(source);
        assert_eq!(calls.recv().unwrap().0, 15 * MIB);
    }

    #[test]
    fn thread_samples_again_after_the_interval() {
        let (watcher, calls) = watcher(PressureConfig { interval_ms: 1, ..PressureConfig::default() });
        let (source, _taken) = scripted(Some(90));
        watcher.set_source(source);
        watcher.set_enabled(true);
        for _ in 0..3 {
            assert_eq!(calls.recv().unwrap().0, 15 * MIB);
        }
        watcher.set_enabled(false);
        assert!(!watcher.is_enabled());
    }

    /// Hardening 8: rows left at every sample while what was measured stayed as full as before.
    #[test]
    fn evictions_that_free_nothing_where_it_is_measured_are_held_back() {
        let (watcher, calls) = watcher(PressureConfig::default());
        let (source, _taken) = scripted(Some(95));
        watcher.set_source(source);
        for _ in 0..100 {
            watcher.shared.sample_and_act(Asked::InTurn);
        }
        let report = watcher.report();
        assert!((1..=8).contains(&report.evictions), "{report:?}");
        assert_eq!(report.evictions + report.held_back, 100);
        assert_eq!(calls.try_iter().count() as u64, report.evictions);
        assert_eq!(watcher.force().evictions, report.evictions + 1, "a forced one is always done");
        let (fresh, _taken) = scripted(Some(95));
        watcher.set_source(fresh);
        watcher.shared.sample_and_act(Asked::InTurn);
        assert_eq!(watcher.report().evictions, report.evictions + 2, "another source starts from the beginning");
    }

    #[test]
    fn panicking_eviction_is_reported() {
        let evict: EvictBytes = Box::new(|_, _| panic!("store is gone"));
        let watcher = PressureWatcher::start(PressureConfig::default(), evict).unwrap();
        let (source, _taken) = scripted(Some(99));
        watcher.set_source(source);
        let report = watcher.force();
        assert!(report.last_error.unwrap().to_string().contains("store is gone"));
        assert_eq!((report.evictions, report.last_action), (0, None));
    }

    #[test]
    fn no_thread_runs_before_the_watcher_is_switched_on() {
        let (watcher, _calls) = watcher(PressureConfig { interval_ms: u64::MAX, ..PressureConfig::default() });
        assert!(lock(&watcher.thread).is_none());
        let (source, taken) = scripted(Some(10));
        watcher.set_source(source);
        watcher.set_enabled(true);
        taken.recv().unwrap();
        let first = lock(&watcher.thread).as_ref().map(|thread| thread.thread().id());
        watcher.set_enabled(false);
        watcher.set_enabled(true);
        taken.recv().unwrap();
        assert_eq!(lock(&watcher.thread).as_ref().map(|thread| thread.thread().id()), first, "one thread for its life");
    }

    #[test]
    fn dropping_ends_the_thread() {
        let (watcher, calls) = watcher(PressureConfig { enabled: true, ..PressureConfig::default() });
        drop(watcher);
        // The thread owned the eviction function, and with it the sender.
        assert!(calls.recv().is_err());
    }
}
