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
    /// Whether all guesses together would not pay for the call with the fewest draft rows. Each comparison of the search works
    /// out the passes of a call; with sixteen requests all of them take a part in a hundred of a step.
    pub(super) fn is_hopeless(&self, candidates: &[Candidate]) -> bool {
        let Some(least) = self.tick.least_seconds(self.times) else { return false };
        let gain: f64 = candidates.iter().map(|candidate| candidate.expected(candidate.available).ln()).sum();
        least > self.longest || self.worth(gain, least) <= self.most
    }

    /// Adds rows one by one to the request that gains most, and keeps the number that is best for all. Returns the gain.
    pub(super) fn each(mut self, candidates: &[Candidate]) -> f64 {
        let more = |candidate: &Candidate, length: usize| {
            let is_left = length < candidate.available;
            is_left.then(|| (candidate.expected(length + 1) / candidate.expected(length)).ln())
        };
        let mut next: Vec<Option<f64>> = candidates.iter().map(|candidate| more(candidate, 0)).collect();
        let mut gain = 0.0;
        for _ in 0..self.tick.room {
            let gains = next.iter().enumerate().filter_map(|(place, gain)| gain.map(|gain| (place, gain)));
            let Some((place, best)) = gains.max_by(|one, two| one.1.total_cmp(&two.1)) else { break };
            gain += best;
            if let Some(((length, candidate), next)) =
                self.trial.get_mut(place).zip(candidates.get(place)).zip(next.get_mut(place))
            {
                *length += 1;
                *next = more(candidate, *length);
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
        let worth = self.worth(gain, seconds);
        if worth > self.most && seconds <= self.longest {
            self.most = worth;
            self.best.copy_from_slice(self.trial);
        }
        Some(())
    }

    /// What is left of a gain if the call takes so long.
    fn worth(&self, gain: f64, seconds: f64) -> f64 {
        gain - self.tick.decodes.max(1) as f64 * (seconds / self.base).ln()
    }
}
