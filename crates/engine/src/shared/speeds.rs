//! How fast a model runs here, as its worker measured it; readable by anybody without asking the worker.
//!
//! The worker writes after each decode call, reports read. Relaxed atomics: the values of one report may be of two moments.
//! It must never look at a clock: durations come in as they were measured.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use poncho_api::Speeds;

/// The share of the newest measurement in a mean.
const WEIGHT: f64 = 0.05;

/// What decode calls without prompts cost: a step with one stream, and what each further one adds. A line through the
/// running means.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct DecodeSpeed {
    calls: u64,
    streams: f64,
    seconds: f64,
    streams_squared: f64,
    product: f64,
}

impl DecodeSpeed {
    /// Records a call for that many streams.
    pub(crate) fn record(&mut self, streams: usize, took: Duration) {
        if streams == 0 {
            return;
        }
        self.calls = self.calls.saturating_add(1);
        // The first ones count alike.
        let weight = WEIGHT.max((self.calls as f64).recip());
        let (streams, seconds) = (streams as f64, took.as_secs_f64());
        let mean = |mean: &mut f64, value: f64| *mean += weight * (value - *mean);
        mean(&mut self.streams, streams);
        mean(&mut self.seconds, seconds);
        mean(&mut self.streams_squared, streams * streams);
        mean(&mut self.product, streams * seconds);
    }

    /// Seconds of a call with one stream, and seconds for each further one.
    pub(crate) fn line(&self) -> Option<(f64, f64)> {
        if self.calls == 0 {
            return None;
        }
        let spread = self.streams_squared - self.streams * self.streams;
        let slope = if spread > 1e-3 { (self.product - self.streams * self.seconds) / spread } else { 0.0 };
        // A step is never cheaper with more streams, nor free.
        let slope = slope.clamp(0.0, self.seconds / self.streams.max(1.0));
        Some((self.seconds - slope * (self.streams - 1.0), slope))
    }
}

/// See the module. A value of 0 was not measured yet.
#[derive(Debug, Default)]
pub(crate) struct SpeedBoard {
    prefill: AtomicU64,
    decode_step: AtomicU64,
    decode_stream: AtomicU64,
    bytes_per_token: AtomicU64,
    ram: AtomicU64,
    disk: AtomicU64,
}

impl SpeedBoard {
    /// What the file of the model says; 0 if it says nothing.
    pub(crate) fn set_bytes_per_token(&self, bytes: u64) {
        self.bytes_per_token.store(bytes, Ordering::Relaxed);
    }

    /// The worker's estimates after a decode call.
    pub(crate) fn set(&self, prefill: Option<f64>, decode: &DecodeSpeed, ram: f64, disk: f64) {
        let store = |place: &AtomicU64, value: f64| place.store(value.to_bits(), Ordering::Relaxed);
        store(&self.prefill, prefill.unwrap_or(0.0));
        if let Some((step, stream)) = decode.line() {
            store(&self.decode_step, step);
            store(&self.decode_stream, stream);
        }
        store(&self.ram, ram);
        store(&self.disk, disk);
    }

    /// A copy.
    pub(crate) fn report(&self) -> Speeds {
        let load = |place: &AtomicU64| f64::from_bits(place.load(Ordering::Relaxed));
        let measured = |place: &AtomicU64| Some(load(place)).filter(|value| *value > 0.0);
        let step = measured(&self.decode_step);
        Speeds {
            prefill: measured(&self.prefill),
            decode_step: step,
            decode_stream: step.map(|_| load(&self.decode_stream)),
            bytes_per_token: Some(self.bytes_per_token.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0),
            ram: measured(&self.ram),
            disk: measured(&self.disk),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(calls: &[(usize, f64)]) -> DecodeSpeed {
        let mut speed = DecodeSpeed::default();
        for (streams, millis) in calls {
            speed.record(*streams, Duration::from_secs_f64(millis / 1e3));
        }
        speed
    }

    #[test]
    fn a_step_and_a_further_stream_are_told_apart() {
        // 10 ms for one stream, 2 ms for each further one.
        let calls: Vec<(usize, f64)> = (0..200).map(|call| (1 + call % 4, 10.0 + 2.0 * (call % 4) as f64)).collect();
        let (step, stream) = decode(&calls).line().unwrap();
        assert!((step - 0.010).abs() < 5e-4 && (stream - 0.002).abs() < 3e-4, "{step} {stream}");
    }

    #[test]
    fn streams_that_never_vary_say_nothing_about_a_further_one() {
        assert_eq!(decode(&[]).line(), None);
        let (step, stream) = decode(&[(3, 12.0); 50]).line().unwrap();
        assert!((step - 0.012).abs() < 1e-9 && stream == 0.0, "{step} {stream}");
        // A machine that was slower with fewer streams: noise, not a gain.
        let (_, stream) = decode(&[(1, 30.0), (4, 10.0), (1, 30.0), (4, 10.0)]).line().unwrap();
        assert_eq!(stream.to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn what_was_not_measured_is_not_reported() {
        let board = SpeedBoard::default();
        assert_eq!(board.report(), Speeds::default());
        board.set_bytes_per_token(1024);
        board.set(Some(500.0), &decode(&[(1, 10.0)]), 5e9, 1e9);
        let speeds = board.report();
        assert_eq!((speeds.prefill, speeds.bytes_per_token), (Some(500.0), Some(1024)));
        assert_eq!((speeds.decode_stream, speeds.ram, speeds.disk), (Some(0.0), Some(5e9), Some(1e9)));
    }
}
