//! How often something took how long, in fixed buckets.
//!
//! Replies fill one of their own while they grow and hand it over at their end, so that no token waits for a lock. It
//! must never allocate.

use std::time::Duration;

/// Upper bounds in seconds: from a token of a tiny model to the prefill of a book on a small machine.
pub(crate) const BOUNDS: [f64; 19] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

/// See the module.
#[derive(Debug, Default, Clone)]
pub(crate) struct Histogram {
    /// One for each bound, not yet summed up.
    buckets: [u64; BOUNDS.len()],
    pub(crate) count: u64,
    /// Seconds.
    pub(crate) sum: f64,
}

impl Histogram {
    /// Takes one time in.
    pub(crate) fn observe(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.count += 1;
        self.sum += seconds;
        if let Some((bucket, _)) = self.buckets.iter_mut().zip(BOUNDS).find(|(_, bound)| seconds <= *bound) {
            *bucket += 1;
        }
    }

    /// Takes all of another in.
    pub(crate) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.buckets.iter_mut().zip(other.buckets).for_each(|(bucket, more)| *bucket += more);
    }

    /// Every bound with the number of times up to it.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        BOUNDS.into_iter().zip(self.buckets).scan(0, |below, (bound, count)| {
            *below += count;
            Some((bound, *below))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_nothing_is_lost_above_the_last() {
        let mut one = Histogram::default();
        for millis in [1, 3, 3, 20_000, 400_000] {
            one.observe(Duration::from_millis(millis));
        }
        let below =
            |histogram: &Histogram, bound: f64| histogram.cumulative().find(|(found, _)| *found == bound).unwrap().1;
        for (bound, count) in [(0.0005, 0), (0.001, 1), (0.0025, 1), (0.005, 3), (10.0, 3), (30.0, 4), (300.0, 4)] {
            assert_eq!(below(&one, bound), count, "{bound}");
        }
        assert_eq!((one.count, one.sum), (5, 420.007));
        let mut both = one.clone();
        both.add(&one);
        assert_eq!((both.count, below(&both, 300.0), below(&both, 0.001)), (10, 8, 2));
    }

    #[test]
    fn the_bounds_ascend() {
        assert!(BOUNDS.is_sorted_by(|low, high| low < high));
    }
}
