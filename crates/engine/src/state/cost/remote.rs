//! What a fetch from the shared tier may cost: whether it pays, and how long it is waited for.
//!
//! Made by the worker when a request comes in and carried to the thread that fetches. Plain arithmetic: it must never look
//! at a clock. A fetch runs beside the prefill, so a wrong estimate costs bandwidth and at most `WAIT_SHARE` of the time
//! that computing takes.

use std::time::Duration;

use poncho_cache::RemoteRates;

use super::{ASSUMED_PREFILL, Estimates, LONGEST_READ};
use crate::config::RestoreRule;

/// What to believe of a store before anything was measured: low, but fast enough that a first fetch happens.
const ASSUMED_RATE: f64 = 50e6;
const ASSUMED_ROUND_TRIP: Duration = Duration::from_millis(20);
/// Rounds of a fetch: one for the description, one for the bytes.
const ROUNDS: f64 = 2.0;
/// The share of the time for computing that a request waits before it computes beside the fetch.
const WAIT_SHARE: f64 = 0.02;
/// A fetch that takes more than this share of the time for computing would come late.
const DEADLINE_SHARE: f64 = 0.5;

/// The price of computing a prompt, for comparing with a fetch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchCost {
    /// Tokens a second.
    prefill_rate: f64,
    rule: RestoreRule,
}

impl Estimates {
    /// What a fetch is compared with.
    #[must_use]
    pub fn fetch_cost(&self) -> FetchCost {
        FetchCost { prefill_rate: self.prefill_rate().unwrap_or(ASSUMED_PREFILL), rule: self.rule }
    }
}

impl FetchCost {
    fn computing(&self, tokens: usize) -> f64 {
        tokens as f64 / self.prefill_rate
    }

    fn share(&self, tokens: usize, share: f64) -> Duration {
        match self.rule {
            RestoreRule::Faster => {
                let seconds = self.computing(tokens) * share;
                Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_READ).min(LONGEST_READ)
            }
            RestoreRule::Always => LONGEST_READ,
        }
    }

    /// Whether a fetch that saves this many tokens comes in time, as far as the rates say. `bytes` is `None` before the row
    /// is found.
    #[must_use]
    pub fn pays(&self, tokens: usize, bytes: Option<u64>, rates: RemoteRates) -> bool {
        let round_trip = rates.round_trip.unwrap_or(ASSUMED_ROUND_TRIP).as_secs_f64();
        let rate = rates.bytes_per_second.filter(|rate| *rate > 0.0).unwrap_or(ASSUMED_RATE);
        let fetching = ROUNDS * round_trip + bytes.unwrap_or(0) as f64 / rate;
        self.rule == RestoreRule::Always || fetching < self.computing(tokens) * DEADLINE_SHARE
    }

    /// How long the fetch may take: half of what computing these tokens would.
    #[must_use]
    pub fn deadline(&self, tokens: usize) -> Duration {
        self.share(tokens, DEADLINE_SHARE)
    }

    /// How long the request waits before it computes beside the fetch.
    #[must_use]
    pub fn wait(&self, tokens: usize) -> Duration {
        self.share(tokens, WAIT_SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(bytes_per_second: f64, millis: u64) -> RemoteRates {
        let round_trip = Some(Duration::from_millis(millis));
        RemoteRates { bytes_per_second: Some(bytes_per_second), round_trip }
    }

    fn at(tokens_per_second: u64) -> FetchCost {
        let mut estimates = Estimates::new(RestoreRule::Faster);
        let tokens = usize::try_from(tokens_per_second).unwrap();
        (0..8).for_each(|_| estimates.record_prefill(tokens, Duration::from_secs(1)));
        estimates.fetch_cost()
    }

    #[test]
    fn a_fetch_pays_where_bandwidth_exceeds_bytes_per_token_times_the_prefill_rate() {
        // 2,000 tokens of 23 kB at 200 tokens a second: ten seconds to compute.
        let (cost, tokens, bytes) = (at(200), 2000, Some(2000 * 23_000));
        assert!(cost.pays(tokens, bytes, rates(20e6, 1)));
        assert!(!cost.pays(tokens, bytes, rates(1e6, 1)), "a store at 1 MB/s");
        assert!(!cost.pays(tokens, bytes, rates(1e9, 5000)), "five seconds of latency");
        assert!(!cost.pays(20, None, rates(1e9, 50)), "a short prompt is computed before the store answers");
        assert!(cost.pays(tokens, None, RemoteRates { bytes_per_second: None, round_trip: None }));
    }

    #[test]
    fn waiting_costs_at_most_a_fortieth_of_computing() {
        let cost = at(200);
        assert!(cost.wait(2000).as_secs_f64() <= 0.025 * 10.5);
        assert!(cost.deadline(2000).as_secs_f64() <= 0.5 * 10.5);
        let always = Estimates::new(RestoreRule::Always).fetch_cost();
        assert_eq!(always.wait(1), LONGEST_READ);
        assert!(always.pays(1, Some(u64::MAX), rates(1.0, 60_000)));
    }
}
