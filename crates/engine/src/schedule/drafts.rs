//! How many draft rows a tick gets, and what they were worth.
//!
//! Pure: the worker brings measured step times and outcomes, and asks before each tick. A row more makes the step longer for
//! every request in it, so the choice maximises the product of all requests' expected speeds: a request gets rows only if they
//! help it more than they cost the others. What drafts cost and bring is counted; where they lose, they stop, and are tried
//! again with less than one part in a hundred of the time. It must never let drafts cost more than that for long.

mod acceptance;
mod search;
mod tick;
mod times;

use self::search::Search;

pub use self::acceptance::{Acceptance, Candidate, LONGEST};
pub use self::tick::{Joining, Tick};
pub use self::times::StepTimes;

/// What a call takes beyond this multiple of what was expected is not the price of its drafts: something else held it up.
const LATE: f64 = 1.25;
/// Steps that drafts may lose at first, and the part of all steps that they may lose later.
const FIRST_LOSS: f64 = 1.0;
const LOSS: f64 = 0.006;
/// Bounds of the balance, and of what accumulates in it while drafts earn nothing: a short reply may lose all of it.
const MOST_CREDIT: f64 = 5.0;
const MOST_ALLOWED: f64 = MOST_CREDIT / 2.0;
const MOST_DEBT: f64 = -3.0;
/// The gain that a draft must promise, as a factor of the speed.
const WORTHWHILE: f64 = 1.02;
/// A gain that a wrong estimate of the plain step cannot explain, and how many ticks with less may follow each other: then a
/// plain step is measured, because a step that is never computed would be believed to be slow forever.
const CLEAR: f64 = 1.1;
const LESS_THAN_CLEAR: u32 = 16;
/// Ticks without drafts until one is tried; doubled after each try that changed nothing.
const FIRST_TRY: u32 = 64;
const LAST_TRY: u32 = 2048;

/// A call with drafts, or the plain one after it, beside the call without them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// Seconds of the call without drafts.
    pub plain: f64,
    /// Seconds that drafts made it longer.
    pub more: f64,
}

impl Price {
    /// Seconds that a request in the call has gained if it drew that many draft tokens: each saves a call of its own. Negative if
    /// it only waited for the drafts of others.
    #[must_use]
    pub fn saved(self, accepted: usize) -> f64 {
        accepted as f64 * self.plain - self.more
    }
}

/// Decides how many draft rows each request gets.
#[derive(Debug, Clone)]
pub struct DraftPlanner {
    /// Step times of calls without prompts.
    pub times: StepTimes,
    /// Outcomes of all requests.
    pub acceptance: Acceptance,
    /// Steps that drafts have brought, less those that they have cost.
    credit: f64,
    /// Steps that drafts may lose on trials of classes with few outcomes. Trials have a budget apart from what drafts earn:
    /// beside many requests, one row costs nearly half a step and yields one outcome.
    curiosity: f64,
    /// Whether the drafts of this tick are such a trial.
    is_curious: bool,
    /// Whether the last call had drafts: the library then prepares a plain one again, which is a cost of the drafts.
    has_drafted: bool,
    /// Ticks since a draft was last computed.
    idle: u32,
    /// Ticks with drafts of no clear gain since the last plain one.
    unclear: u32,
    try_after: u32,
    /// Scratch, kept between ticks.
    lengths: Vec<usize>,
    trial: Vec<usize>,
}

impl Default for DraftPlanner {
    fn default() -> Self {
        Self {
            times: StepTimes::default(),
            acceptance: Acceptance::default(),
            credit: FIRST_LOSS,
            curiosity: FIRST_LOSS,
            is_curious: false,
            has_drafted: false,
            idle: 0,
            unclear: 0,
            try_after: FIRST_TRY,
            lengths: Vec::new(),
            trial: Vec::new(),
        }
    }
}

impl DraftPlanner {
    /// Whether drafts are worth looking for: a draft that is certainly right would pay, or it is time to try one.
    #[must_use]
    pub fn is_worth_looking(&self, tick: &Tick) -> bool {
        if tick.decodes == 0 || tick.room == 0 {
            return false;
        }
        if self.is_try_due() {
            return true;
        }
        if self.credit <= 0.0 {
            return false;
        }
        let Some(base) = tick.seconds(&self.times, &[]) else { return true };
        let shared = LONGEST.min((tick.room / tick.decodes).max(1));
        [(LONGEST.min(tick.room), 1), (shared, tick.decodes)].into_iter().any(|(length, drafting)| {
            let Some(seconds) = tick.seconds(&self.times, &vec![length; drafting]) else { return true };
            let gain = drafting as f64 * Candidate::CERTAIN.expected(length).ln();
            gain > tick.decodes as f64 * (seconds / base).ln()
        })
    }

    fn is_try_due(&self) -> bool {
        self.idle >= self.try_after && self.credit > 0.0
    }

    /// The number of draft rows for each candidate, in their order. Counts as one tick.
    pub fn plan(&mut self, tick: &Tick, candidates: &[Candidate]) -> &[usize] {
        self.credit = self.credit.max((self.credit + LOSS).min(MOST_ALLOWED));
        self.curiosity = (self.curiosity + LOSS).min(FIRST_LOSS);
        self.is_curious = false;
        self.idle = self.idle.saturating_add(1);
        self.acceptance.fade();
        let mut lengths = std::mem::take(&mut self.lengths);
        lengths.clear();
        lengths.resize(candidates.len(), 0);
        if self.credit > 0.0 && tick.room > 0 {
            self.choose(tick, candidates, &mut lengths);
        }
        if lengths.iter().any(|length| *length > 0) {
            self.idle = 0;
        } else {
            self.unclear = 0;
        }
        self.lengths = lengths;
        &self.lengths
    }

    fn choose(&mut self, tick: &Tick, candidates: &[Candidate], lengths: &mut [usize]) {
        let best = (0..candidates.len())
            .filter(|place| candidates.get(*place).is_some_and(|candidate| candidate.available > 0))
            .max_by(|one, two| rate(candidates, *one).total_cmp(&rate(candidates, *two)));
        let is_uncertain = tick.passes(&[]).iter().any(|rows| self.times.is_uncertain(*rows));
        let Some(best) = best.filter(|_| !is_uncertain) else { return };
        let Some(base) = tick.seconds(&self.times, &[]) else { return };
        let is_try = self.is_try_due();
        let mut trial = std::mem::take(&mut self.trial);
        trial.clear();
        trial.resize(candidates.len(), 0);
        tick.try_one(candidates, best, &mut trial);
        let Some(tried) = tick.seconds(&self.times, &trial) else {
            // Nothing is known of longer calls: measures one, as soon as the plain one is known.
            lengths.copy_from_slice(&trial);
            self.trial = trial;
            return;
        };
        trial.fill(0);
        let longest = base * (1.0 + self.credit);
        let (times, most) = (&self.times, WORTHWHILE.ln());
        let search = Search { tick, times, base, longest, trial: &mut trial, best: lengths, most };
        let gain = match &tick.joining {
            _ if search.is_hopeless(candidates) => most,
            Joining::Neighbours { .. } if tick.decodes > 1 => search.equal(candidates),
            _ => search.each(candidates),
        };
        self.trial = trial;
        self.unclear = if gain > tick.decodes as f64 * CLEAR.ln() { 0 } else { self.unclear.saturating_add(1) };
        if self.unclear > LESS_THAN_CLEAR {
            lengths.fill(0);
            return;
        }
        let cost = (tried / base - 1.0).max(0.0);
        let is_new = candidates.get(best).is_some_and(|candidate| candidate.is_new)
            && self.credit > MOST_CREDIT / 2.0
            && cost <= self.curiosity;
        if (is_try || is_new) && tried <= longest && lengths.iter().all(|length| *length == 0) {
            if is_try {
                self.try_after = self.try_after.saturating_mul(2).min(LAST_TRY);
            } else {
                self.curiosity -= cost;
                self.is_curious = true;
            }
            tick.try_one(candidates, best, lengths);
        }
    }

    /// Records a tick: the numbers of draft rows, how many of them were right, and the time of the call with what followed
    /// from it. Returns what drafts cost; `None` if they had no part in it, or if too little is known.
    pub fn record(&mut self, tick: &Tick, lengths: &[usize], accepted: usize, seconds: f64) -> Option<Price> {
        // Without drafts every step would be like the one before it.
        let base = tick.plain_seconds(&self.times);
        let drafts: usize = lengths.iter().sum();
        if tick.prefill_seconds > 0.0 {
            self.times.interrupt();
            // The time of a call with prompts says nothing about drafts.
            let drafted = tick.steady_seconds(&self.times, lengths).filter(|_| drafts > 0);
            return base.zip(drafted).map(|(plain, drafted)| Price { plain, more: drafted - plain });
        }
        let expected = tick.seconds(&self.times, lengths);
        let is_first = self.times.record_call(&tick.passes(lengths), seconds);
        let base = base?;
        let returns = std::mem::replace(&mut self.has_drafted, drafts > 0) && drafts == 0;
        if drafts == 0 && !returns {
            return None;
        }
        let in_time = expected.map_or(seconds, |expected| seconds.min(LATE * expected));
        // The first call of its kind counts as one step at most, because it is needed once.
        let most = if is_first { 1.0 } else { f64::INFINITY };
        let cost = (in_time / base - 1.0).clamp(0.0, most);
        let gain = accepted as f64 / tick.decodes.max(1) as f64;
        let worth = gain - cost;
        self.credit = (self.credit + worth).clamp(MOST_DEBT, MOST_CREDIT);
        if self.is_curious {
            self.curiosity = (self.curiosity + gain).min(FIRST_LOSS);
        }
        if worth > 0.0 {
            self.try_after = FIRST_TRY;
        }
        // What its preparation takes is lost all the same.
        let taken = if is_first { seconds } else { in_time };
        Some(Price { plain: base, more: (taken - base).max(0.0) })
    }
}

fn rate(candidates: &[Candidate], place: usize) -> f64 {
    candidates.get(place).map_or(-1.0, Candidate::rate)
}

#[cfg(test)]
mod tests;
