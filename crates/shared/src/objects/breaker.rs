//! Whether the store is used at the moment, and when a failing one is tried again.
//!
//! Reads and uploads have one each. Pure: the time comes from the caller. For reads the tier itself probes the store in the
//! background, so that no request ever pays for the attempt; for uploads the next upload is the attempt.

use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub(crate) struct Breaker {
    first_pause: Duration,
    longest_pause: Duration,
    state: State,
}

#[derive(Debug)]
enum State {
    Closed,
    Open { reason: String, pause: Duration, retry_at: Instant },
}

impl Breaker {
    /// A store that works until it fails.
    pub(crate) fn closed(first_pause: Duration, longest_pause: Duration) -> Self {
        Self { first_pause, longest_pause, state: State::Closed }
    }

    /// A store that is not used before it was tried.
    pub(crate) fn untried(first_pause: Duration, longest_pause: Duration, now: Instant) -> Self {
        let state = State::Open { reason: "not tried yet".to_owned(), pause: Duration::ZERO, retry_at: now };
        Self { first_pause, longest_pause, state }
    }

    /// Whether requests may use the store.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Why it is not used.
    pub(crate) fn reason(&self) -> Option<&str> {
        match &self.state {
            State::Closed => None,
            State::Open { reason, .. } => Some(reason),
        }
    }

    /// Time until the store is tried again; zero if it is due or in use.
    pub(crate) fn retry_in(&self, now: Instant) -> Duration {
        match &self.state {
            State::Closed => Duration::ZERO,
            State::Open { retry_at, .. } => retry_at.saturating_duration_since(now),
        }
    }

    /// A request failed: the store is tried again at once, in the background, and left alone until that works. True if
    /// it was in use until now.
    pub(crate) fn trip(&mut self, reason: String, now: Instant) -> bool {
        let was_closed = self.is_closed();
        if was_closed {
            self.state = State::Open { reason, pause: Duration::ZERO, retry_at: now };
        }
        was_closed
    }

    /// The attempt failed too.
    pub(crate) fn failed_again(&mut self, reason: String, now: Instant) {
        let pause = match &self.state {
            State::Open { pause, .. } if !pause.is_zero() => (*pause * 2).min(self.longest_pause),
            State::Open { .. } | State::Closed => self.first_pause,
        };
        self.state = State::Open { reason, pause, retry_at: now + pause };
    }

    /// A request or an attempt worked. True if the store was left alone until now.
    pub(crate) fn worked(&mut self) -> bool {
        let was_open = !self.is_closed();
        self.state = State::Closed;
        was_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_up_to_the_longest_and_start_over_after_success() {
        let mut now = Instant::now();
        let mut breaker = Breaker::closed(SECOND, 20 * SECOND);
        assert!(breaker.trip("reset".to_owned(), now) && !breaker.trip("reset".to_owned(), now));
        assert_eq!(breaker.retry_in(now), Duration::ZERO, "the first attempt is immediate");
        let mut pauses = Vec::new();
        for _ in 0..7 {
            breaker.failed_again("reset".to_owned(), now);
            pauses.push(breaker.retry_in(now).as_secs());
            now += breaker.retry_in(now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 20, 20]);
        assert!(breaker.worked() && breaker.is_closed() && breaker.reason().is_none());
        breaker.failed_again("full".to_owned(), now);
        assert_eq!((breaker.retry_in(now), breaker.reason()), (SECOND, Some("full")));
    }
}
