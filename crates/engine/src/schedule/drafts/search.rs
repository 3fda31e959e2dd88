//! The search for the numbers of draft rows that gain most in one call.
//!
//! Made by the planner for a tick with known times; pure. It must never use more rows than the call has room for.

use super::{Candidate, LONGEST, StepTimes, Tick, rate};

/// Numbers of rows that are tried, and the best of them so far.
pub(super) struct Search<'a> {
    pub(super) tick: &'a Tick,
    pub(super) times: &'a StepTimes,
    /// Seconds of the call without drafts.
    pub(super) base: f64,
    /// The most seconds of a call: what drafts lose if all of them are wrong must be there to be lost.
    pub(super) longest: f64,
    /// By candidate; all 0 before the search.
    pub(super) trial: &'a mut [usize],
    pub(super) best: &'a mut [usize],
    /// The gain of the best, or the least that is wanted: the logarithm of the product of all factors.
    pub(super) most: f64,
}

impl Search<'_> {
    /// Adds rows one by one to the request that gains most, and keeps the number that is best for all. Returns the gain.
    pub(super) fn each(mut self, candidates: &[Candidate]) -> f64 {
        let mut gain = 0.0;
        for _ in 0..self.tick.room {
            let step = |place: usize| {
                let (candidate, length) = candidates.get(place).zip(self.trial.get(place).copied())?;
                let more = candidate.expected(length + 1) / candidate.expected(length);
                (length < candidate.available).then(|| more.ln())
            };
            let next = (0..candidates.len()).filter_map(|place| step(place).map(|gain| (place, gain)));
            let Some((place, more)) = next.max_by(|one, two| one.1.total_cmp(&two.1)) else { break };
            gain += more;
            if let Some(length) = self.trial.get_mut(place) {
                *length += 1;
            }
            if self.compare(gain).is_none() {
                break;
            }
        }
        self.most
    }

    /// The same number of rows for the best requests. Returns the gain.
    pub(super) fn equal(mut self, candidates: &[Candidate]) -> f64 {
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|one, two| rate(candidates, *two).total_cmp(&rate(candidates, *one)));
        for rows in 1..=LONGEST {
            self.trial.fill(0);
            let (mut gain, mut drafting) = (0.0, 0);
            for place in &order {
                let Some(candidate) = candidates.get(*place).filter(|candidate| candidate.available >= rows) else {
                    continue;
                };
                drafting += 1;
                if drafting * rows > self.tick.room {
                    break;
                }
                gain += candidate.expected(rows).ln();
                if let Some(length) = self.trial.get_mut(*place) {
                    *length = rows;
                }
                // Two passes may have no known time where one pass for all has one.
                let _ = self.compare(gain);
            }
        }
        self.most
    }

    /// Keeps the trial if it is worth more than the best; `gain` is what its tokens are. `None`: nothing is known of the
    /// time of such a call.
    fn compare(&mut self, gain: f64) -> Option<()> {
        let seconds = self.tick.seconds(self.times, self.trial)?;
        let requests = self.tick.decodes.max(1) as f64;
        let worth = gain - requests * (seconds / self.base).ln();
        if worth > self.most && seconds <= self.longest {
            self.most = worth;
            self.best.copy_from_slice(self.trial);
        }
        Some(())
    }
}
