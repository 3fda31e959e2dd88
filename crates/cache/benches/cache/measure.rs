//! Rounds, medians and quartiles.
//!
//! Contenders are timed in turns and change places from round to round, so that neither always runs second. The first
//! rounds only warm up and are not counted.

use std::time::{Duration, Instant};

use crate::Outcome;

/// Rounds that are run and not counted.
const WARM_UP: usize = 3;

/// Measured values in ascending order.
#[derive(Debug, Clone)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    pub(crate) fn median(&self) -> f64 {
        self.at_quarter(2)
    }

    /// The first and the third quartile.
    pub(crate) fn quartiles(&self) -> (f64, f64) {
        (self.at_quarter(1), self.at_quarter(3))
    }

    fn at_quarter(&self, quarter: usize) -> f64 {
        self.0.get(self.0.len().saturating_sub(1) * quarter / 4).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn map(&self, change: impl Fn(f64) -> f64) -> Self {
        Self::new(self.0.iter().map(|value| change(*value)).collect())
    }
}

/// Two contenders, in seconds, and how many times as fast as the second the first was in each round.
pub(crate) struct Duel {
    pub(crate) ours: Samples,
    pub(crate) theirs: Samples,
    pub(crate) ratio: Samples,
}

/// Runs both in turns. Each returns the time of the part that counts, so that setting up and clearing away do not.
pub(crate) fn duel(
    rounds: usize,
    mut ours: impl FnMut() -> Outcome<Duration>,
    mut theirs: impl FnMut() -> Outcome<Duration>,
) -> Outcome<Duel> {
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for round in 0..rounds + WARM_UP {
        let (our_time, their_time) = if round.is_multiple_of(2) {
            let our_time = ours()?;
            (our_time, theirs()?)
        } else {
            let their_time = theirs()?;
            (ours()?, their_time)
        };
        if round >= WARM_UP {
            our_times.push(our_time.as_secs_f64());
            their_times.push(their_time.as_secs_f64());
        }
    }
    let ratio = our_times.iter().zip(&their_times).map(|(ours, theirs)| theirs / ours).collect();
    Ok(Duel { ours: Samples::new(our_times), theirs: Samples::new(their_times), ratio: Samples::new(ratio) })
}

/// Runs `work` for `rounds` rounds after the warm-up; the samples are in seconds.
pub(crate) fn repeat(rounds: usize, mut work: impl FnMut() -> Outcome<Duration>) -> Outcome<Samples> {
    let mut times = Vec::new();
    for round in 0..rounds + WARM_UP {
        let time = work()?;
        if round >= WARM_UP {
            times.push(time.as_secs_f64());
        }
    }
    Ok(Samples::new(times))
}

/// The time that something takes, and what it returns.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let value = work();
    (value, started.elapsed())
}
