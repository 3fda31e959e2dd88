//! What the store is measured to do: bytes per second and the time of a small request.
//!
//! Fed by fetches and probes, read by the engine's cost model. Pure. A bad sample counts at once, a good one slowly: to
//! use a slow store costs a request, to leave a fast one alone costs a computation that was due anyway.

use std::time::Duration;

/// A transfer below this many bytes says little about the rate.
const LEAST_BYTES: u64 = 256 << 10;

/// See the module.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Meter {
    bytes_per_second: Option<f64>,
    round_trip: Option<f64>,
}

impl Meter {
    pub(crate) fn bytes_per_second(&self) -> Option<f64> {
        self.bytes_per_second
    }

    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// A small request took this long.
    pub(crate) fn small(&mut self, took: Duration) {
        let sample = took.as_secs_f64();
        self.round_trip = Some(match self.round_trip {
            Some(known) if sample < known => known + 0.3 * (sample - known),
            Some(known) => known + 0.5 * (sample - known),
            None => sample,
        });
    }

    /// Bytes came within this time, the first round trip included.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub(crate) fn transfer(&mut self, bytes: u64, took: Duration) {
        if bytes < LEAST_BYTES {
            return;
        }
        let seconds = took.as_secs_f64();
        let net = (seconds - self.round_trip.unwrap_or(0.0)).max(seconds * 0.1).max(1e-6);
        self.rate(bytes as f64 / net);
    }

    /// A transfer was given up: the rate is at most this.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub(crate) fn gave_up(&mut self, bytes: u64, took: Duration) {
        let at_most = bytes as f64 / took.as_secs_f64().max(1e-6);
        if self.bytes_per_second.is_none_or(|known| at_most < known) {
            self.bytes_per_second = Some(at_most);
        }
    }

    /// A probe measured the store from scratch.
    pub(crate) fn reset(&mut self, bytes_per_second: Option<f64>, round_trip: Duration) {
        self.round_trip = Some(round_trip.as_secs_f64());
        if bytes_per_second.is_some() {
            self.bytes_per_second = bytes_per_second;
        }
    }

    fn rate(&mut self, sample: f64) {
        self.bytes_per_second = Some(match self.bytes_per_second {
            Some(known) if sample > known => known + 0.3 * (sample - known),
            Some(known) => known + 0.6 * (sample - known),
            None => sample,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_transfer_counts_at_once_and_a_fast_one_slowly() {
        let mut meter = Meter::default();
        let second = Duration::from_secs(1);
        meter.transfer(100 << 20, second);
        let fast = meter.bytes_per_second().expect("measured");
        meter.transfer(1 << 20, second);
        let after_slow = meter.bytes_per_second().expect("measured");
        assert!(after_slow < 0.5 * fast);
        meter.transfer(100 << 20, second);
        assert!(meter.bytes_per_second().expect("measured") < 0.8 * fast);
        meter.transfer(10, second);
        assert!(meter.bytes_per_second().expect("measured") > after_slow, "ten bytes say nothing");
    }

    #[test]
    fn the_round_trip_is_not_part_of_the_rate() {
        let mut meter = Meter::default();
        meter.small(Duration::from_millis(500));
        meter.transfer(10 << 20, Duration::from_secs(1));
        let rate = meter.bytes_per_second().expect("measured");
        assert!((rate - f64::from(20 << 20)).abs() < 1000.0, "{rate}");
    }
}
