//! Time as the cache sees it: a monotonic reading for timeouts, unix seconds for file headers.
//!
//! Held by the store, which hands it to reservations, waiters and the LRU. Nothing else in the crate may ask
//! the operating system for the time when a decision about a row depends on it: with `PausedClock` every such
//! decision is testable without waiting. Neither reading may ever run backwards within one clock's `now`.

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync + Debug {
    /// Time since the clock was made; never runs backwards.
    fn now(&self) -> Duration;

    /// Wall-clock seconds since 1970, as stored in file headers. May jump when the machine's time is set.
    fn unix_seconds(&self) -> u64;
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn unix_seconds(&self) -> u64 {
        // A machine set to before 1970 gets 0: the field only orders rows, it is never trusted.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// A clock that moves only on request.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug)]
pub struct PausedClock {
    start_unix_seconds: u64,
    elapsed: std::sync::Mutex<Duration>,
}

#[cfg(any(test, feature = "testing"))]
impl PausedClock {
    /// A paused clock that shows this wall-clock time.
    #[must_use]
    pub fn new(start_unix_seconds: u64) -> Self {
        Self { start_unix_seconds, elapsed: std::sync::Mutex::new(Duration::ZERO) }
    }

    /// Moves both readings forward.
    pub fn advance(&self, by: Duration) {
        let mut elapsed = self.elapsed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *elapsed = elapsed.saturating_add(by);
    }
}

#[cfg(any(test, feature = "testing"))]
impl Default for PausedClock {
    /// Starts at an arbitrary, recognisable time in 2023.
    fn default() -> Self {
        Self::new(1_700_000_000)
    }
}

#[cfg(any(test, feature = "testing"))]
impl Clock for PausedClock {
    fn now(&self) -> Duration {
        *self.elapsed.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn unix_seconds(&self) -> u64 {
        self.start_unix_seconds.saturating_add(self.now().as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_never_runs_backwards() {
        let clock = SystemClock::new();
        let readings: Vec<Duration> = (0..1000).map(|_| clock.now()).collect();
        assert!(readings.is_sorted());
        assert!(clock.unix_seconds() > 1_600_000_000);
    }

    #[test]
    fn paused_clock_moves_only_when_told() {
        let clock = PausedClock::new(50);
        assert_eq!((clock.now(), clock.unix_seconds()), (Duration::ZERO, 50));
        clock.advance(Duration::from_millis(1500));
        clock.advance(Duration::from_millis(500));
        assert_eq!((clock.now(), clock.unix_seconds()), (Duration::from_secs(2), 52));
        clock.advance(Duration::MAX);
        assert_eq!(clock.unix_seconds(), u64::MAX, "no overflow");
    }
}
