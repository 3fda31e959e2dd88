//! Never slower than cold: running estimates of what a prefill and a restore cost, and the choice between them.
//!
//! A restore moves bytes, a prefill computes them; which is cheaper depends on the machine and on the day. The worker
//! reports what it measured and asks, for each chain of segments, how many of them to restore. A tier that turned slow
//! is left alone, but one segment of it is tried again after a number of choices, so that it can come back. It must never
//! look at a clock: time comes in as measured durations, so the same reports give the same choices.

mod remote;

use std::time::Duration;

use poncho_cache::Tier;

use crate::config::RestoreRule;

pub use remote::FetchCost;

/// How far one whole measurement moves an estimate, on a logarithmic scale: fast enough to follow a disk that turns
/// slow within a few reads, slow enough that one hiccup does not condemn it.
const WEIGHT: f64 = 0.5;
/// Two measurements in a row that are off by more than this factor, in the same direction, are believed at once.
const FAR: f64 = 2.0;
/// A measurement counts half at this size: shorter ones are mostly noise and fixed cost.
const HALF_BYTES: f64 = 1_048_576.0;
const HALF_TOKENS: f64 = 32.0;
/// A tier in use must become this much slower than computing before it is left, and a tier that was left this much
/// faster before it is used again; between the two nothing changes, so that choices do not flutter.
const HYSTERESIS: f64 = 1.15;
/// Choices that pass a tier over before one segment of it is tried again; doubled after each try that changed nothing.
const FIRST_PROBE: u32 = 8;
const LAST_PROBE: u32 = 64;
/// Tokens a second that a prefill is taken to compute before one was measured.
const ASSUMED_PREFILL: f64 = 500.0;
/// The longest that reads of a restore are waited for, however slow computing is.
const LONGEST_READ: Duration = Duration::from_secs(120);

/// A piece of a row's chain that could be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainSegment {
    /// Tokens of the prompt that it saves (fewer than it holds, if it is cut).
    pub tokens: usize,
    /// Bytes to move.
    pub bytes: u64,
    /// Where it lies.
    pub tier: Tier,
    /// Whether a sequence can go on from its end: always on plain attention, else where a partial state was saved.
    pub resumable: bool,
}

/// How much of a chain to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreChoice {
    /// Leading segments to restore; the rest of the prompt is computed.
    pub segments: usize,
    /// Tokens that they save.
    pub tokens: usize,
    /// What restoring and then computing is expected to take; absent while no prefill was measured.
    pub expected: Option<Duration>,
    /// The tier that has its last segment restored only to measure it again.
    pub probe: Option<Tier>,
}

/// The estimates of one model.
#[derive(Debug, Clone)]
pub struct Estimates {
    rule: RestoreRule,
    /// Tokens a second.
    prefill: Option<Speed>,
    tiers: [TierEstimate; 3],
}

#[derive(Debug, Clone, Copy)]
struct Speed {
    /// Natural logarithm of units a second: twice as fast and half as fast are equally far.
    log_rate: f64,
    half: f64,
    measured: bool,
    /// The last measurement, if it was far off.
    outlier: Option<f64>,
}

impl Speed {
    fn assumed(rate: f64, half: f64) -> Self {
        Self { log_rate: rate.ln(), half, measured: false, outlier: None }
    }

    fn rate(&self) -> f64 {
        self.log_rate.exp()
    }

    fn observe(&mut self, units: f64, seconds: f64) {
        let measured = (units / seconds).ln();
        let off = measured - self.log_rate;
        // A short one says little, also about those before it.
        let is_telling = units * 8.0 >= self.half;
        let before = if is_telling { self.outlier.take() } else { None };
        let is_far = is_telling && off.abs() > FAR.ln();
        match before.filter(|before| is_far && (before - self.log_rate).signum() == off.signum()) {
            // Once may be a hiccup; twice is how it is now.
            Some(before) => self.log_rate = if off > 0.0 { measured.min(before) } else { measured.max(before) },
            // The first restore after a start finds nothing warm: by itself it says little about those that follow.
            None if is_far && off < 0.0 && !self.measured => {
                self.outlier = Some(measured);
                return;
            }
            None => {
                let whole = if self.measured { WEIGHT } else { 1.0 };
                self.log_rate += whole * units / (units + self.half) * off;
                self.outlier = if is_telling { is_far.then_some(measured) } else { self.outlier };
            }
        }
        self.measured = true;
    }
}

#[derive(Debug, Clone, Copy)]
struct TierEstimate {
    /// Bytes a second.
    speed: Speed,
    /// Seconds before the first byte.
    latency: f64,
    /// Whether the last choice that met it found computing cheaper.
    shunned: bool,
    /// Choices that passed it over since it was last read.
    passed_over: u32,
    /// How many of them until it is tried again.
    probe_after: u32,
}

impl TierEstimate {
    /// What to believe before anything was measured: low, but fast enough that a first read happens.
    fn assumed(tier: Tier) -> Self {
        let (rate, latency) = match tier {
            Tier::Ram => (5e9, 20e-6),
            Tier::RamFile => (3e9, 60e-6),
            Tier::Disk => (1e9, 150e-6),
        };
        let speed = Speed::assumed(rate, HALF_BYTES);
        Self { speed, latency, shunned: false, passed_over: 0, probe_after: FIRST_PROBE }
    }

    fn seconds(&self, bytes: u64) -> f64 {
        self.latency + bytes as f64 / self.speed.rate()
    }

    fn bias(&self) -> f64 {
        if self.shunned { HYSTERESIS } else { HYSTERESIS.recip() }
    }
}

impl Default for Estimates {
    fn default() -> Self {
        Self { rule: RestoreRule::Faster, prefill: None, tiers: Tier::ALL.map(TierEstimate::assumed) }
    }
}

impl Estimates {
    /// Estimates that know nothing yet: everything that can be restored is.
    #[must_use]
    pub fn new(rule: RestoreRule) -> Self {
        Self { rule, ..Self::default() }
    }

    /// Records a prefill.
    pub fn record_prefill(&mut self, tokens: usize, elapsed: Duration) {
        let (tokens, seconds) = (tokens as f64, elapsed.as_secs_f64());
        if tokens > 0.0 && seconds > 0.0 {
            self.prefill.get_or_insert_with(|| Speed::assumed(tokens / seconds, HALF_TOKENS)).observe(tokens, seconds);
        }
    }

    /// Records that bytes of a tier were brought into a sequence, with the time for reading and copying together.
    pub fn record_restore(&mut self, tier: Tier, bytes: u64, elapsed: Duration) {
        let elapsed = elapsed.as_secs_f64();
        if bytes == 0 || elapsed <= 0.0 {
            return;
        }
        let Some(estimate) = self.tiers.get_mut(tier.index()) else { return };
        let seconds = (elapsed - estimate.latency).max(elapsed / 10.0);
        let before = estimate.speed.rate();
        estimate.speed.observe(bytes as f64, seconds);
        // It seems to be back: measure it again at once instead of waiting for the next turn.
        if bytes as f64 / seconds > 2.0 * before {
            estimate.probe_after = FIRST_PROBE;
            estimate.passed_over = FIRST_PROBE;
        }
    }

    /// How long the reads of a restore may take: half of what computing the tokens would, and never less
    /// than `floor`.
    #[must_use]
    pub fn patience(&self, tokens: usize, floor: Duration) -> Duration {
        let seconds = tokens as f64 / self.prefill_rate().unwrap_or(ASSUMED_PREFILL) / 2.0;
        let half = match self.rule {
            RestoreRule::Faster => Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_READ).min(LONGEST_READ),
            RestoreRule::Always => LONGEST_READ,
        };
        half.max(floor)
    }

    /// The estimated speed of a prefill, in tokens a second.
    #[must_use]
    pub fn prefill_rate(&self) -> Option<f64> {
        self.prefill.as_ref().map(Speed::rate)
    }

    /// The estimated speed of a tier, in bytes a second.
    #[must_use]
    pub fn restore_rate(&self, tier: Tier) -> f64 {
        self.tier(tier).speed.rate()
    }

    /// How many leading segments of a chain to restore for a prompt of `prompt_tokens` tokens, so that it is ready
    /// soonest. Counts as one choice for the probes.
    pub fn choose(&mut self, chain: &[ChainSegment], prompt_tokens: usize) -> RestoreChoice {
        let rate = self.prefill_rate().filter(|_| self.rule == RestoreRule::Faster);
        let Some(per_token) = rate.map(f64::recip) else {
            let all = chain.iter().rposition(|segment| segment.resumable).map_or(0, |last| last + 1);
            return self.outcome(chain, prompt_tokens, all, None);
        };
        let (mut best, mut least) = (0, prompt_tokens as f64 * per_token);
        let (mut restoring, mut saved) = (0.0, 0);
        for (count, segment) in (1..).zip(chain) {
            let tier = self.tier(segment.tier);
            restoring += tier.seconds(segment.bytes) * tier.bias();
            saved += segment.tokens;
            let total = restoring + prompt_tokens.saturating_sub(saved) as f64 * per_token;
            if segment.resumable && total <= least {
                (best, least) = (count, total);
            }
        }
        let (count, probe) = self.remember(chain, best, per_token);
        self.outcome(chain, prompt_tokens, count, probe)
    }

    /// Notes which tiers were used and which were passed over; one that was passed over often enough gets its probe.
    fn remember(&mut self, chain: &[ChainSegment], best: usize, per_token: f64) -> (usize, Option<Tier>) {
        let (used, rest) = chain.split_at_checked(best).unwrap_or((chain, &[]));
        for segment in used {
            if let Some(tier) = self.tiers.get_mut(segment.tier.index()) {
                (tier.shunned, tier.passed_over, tier.probe_after) = (false, 0, FIRST_PROBE);
            }
        }
        // A fast segment behind a slow one is passed over too, but not by its own fault.
        let slow = rest.iter().find(|segment| {
            let tier = self.tier(segment.tier);
            tier.seconds(segment.bytes) * tier.bias() > segment.tokens as f64 * per_token
        });
        let next_end = rest.iter().position(|segment| segment.resumable).map(|place| best + place + 1);
        let (Some(slow), Some(next_end)) = (slow.map(|segment| segment.tier), next_end) else { return (best, None) };
        let Some(tier) = self.tiers.get_mut(slow.index()) else { return (best, None) };
        tier.shunned = true;
        let reached = chain.get(best..next_end).is_some_and(|part| part.iter().any(|segment| segment.tier == slow));
        if tier.passed_over < tier.probe_after || !reached {
            tier.passed_over = tier.passed_over.saturating_add(1);
            return (best, None);
        }
        tier.passed_over = 0;
        tier.probe_after = tier.probe_after.saturating_mul(2).min(LAST_PROBE);
        (next_end, Some(slow))
    }

    fn outcome(
        &self,
        chain: &[ChainSegment],
        prompt_tokens: usize,
        count: usize,
        probe: Option<Tier>,
    ) -> RestoreChoice {
        let used = chain.get(..count).unwrap_or(chain);
        let tokens: usize = used.iter().map(|segment| segment.tokens).sum();
        let restoring: f64 = used.iter().map(|segment| self.tier(segment.tier).seconds(segment.bytes)).sum();
        let expected = self.prefill_rate().map(|rate| {
            let seconds = restoring + prompt_tokens.saturating_sub(tokens) as f64 / rate;
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        });
        RestoreChoice { segments: used.len(), tokens, expected, probe }
    }

    fn tier(&self, tier: Tier) -> TierEstimate {
        self.tiers.get(tier.index()).copied().unwrap_or_else(|| TierEstimate::assumed(tier))
    }
}

#[cfg(test)]
mod tests;
