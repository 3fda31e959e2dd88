//! How many draft rows a tick gets, and what they were worth.
//!
//! Pure: the worker brings measured step times and outcomes, and asks before each tick. A row more makes the step longer for
//! every request in it, so the choice maximises the product of all requests' expected speeds: a request gets rows only if they
//! help it more than they cost the others. What drafts cost and bring is counted; where they lose, they stop, and are tried
//! again with less than one part in a hundred of the time. It must never let drafts cost more than that for long.

mod search;

use self::search::Search;

/// The longest draft of one request.
pub const LONGEST: usize = 15;
/// Rows in one call with a time of their own.
const TIMED: usize = 128;
/// How far beyond the measured calls a time is extrapolated, as a multiple of the distance between them: two calls that differ
/// by a row do not show what sixty rows cost.
const BEYOND: f64 = 4.0;
/// How far a measurement moves all estimates together: steps become slower as conversations grow.
const DRIFT: f64 = 0.1;
/// How far it moves its own beside the others: as in a mean of all measurements, until there are this many. What is chosen
/// depends on the ratios, and a choice by ratios that follow each measurement would be the one with the luckiest ones.
const WEIGHED: u8 = 20;
/// How far a measurement moves the time that a change of rows takes.
const WEIGHT: f64 = 0.15;
/// A measurement further off than this factor is of a call that something else held up. If this many in a row are, steps
/// have become slower or faster, and each counts as this far off.
const FARTHEST: f64 = 2.0;
const IN_A_ROW: u8 = 3;
/// Measurements of which the shortest counts: the first one may be of a call that was held up.
const FIRST_FEW: u8 = 3;
/// Steps that drafts may lose at first, and the part of all steps that they may lose later.
const FIRST_LOSS: f64 = 1.0;
const LOSS: f64 = 0.006;
/// Bounds of what is counted.
const MOST_CREDIT: f64 = 5.0;
const MOST_DEBT: f64 = -8.0;
/// The gain that a draft must promise, as a factor of the speed.
const WORTHWHILE: f64 = 1.02;
/// A gain that a wrong estimate of the plain step cannot explain, and how many ticks with less may follow each other: then a
/// plain step is measured, because a step that is never computed would be believed to be slow forever.
const CLEAR: f64 = 1.1;
const LESS_THAN_CLEAR: u32 = 16;
/// Ticks without drafts until one is tried; doubled after each try that changed nothing.
const FIRST_TRY: u32 = 64;
const LAST_TRY: u32 = 2048;
/// Outcomes that an estimate of acceptance remembers.
const REMEMBERED: f64 = 64.0;
/// What the outcomes of all requests count for a request that has few of its own.
const PRIOR: f64 = 6.0;

/// Classes of match lengths.
const CLASSES: usize = 7;
/// How many drafts are right, before any was tried, by class.
const ASSUMED: [f64; CLASSES] = [0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9];
/// A class with fewer outcomes than this is tried while drafts earn.
const KNOWN: f64 = 24.0;
/// What is left of a class's outcomes after a tick.
const FADING: f64 = 0.998;

/// The class of a match length.
fn class(matched: usize) -> usize {
    match matched {
        0..=2 => 0,
        3 => 1,
        4 => 2,
        5..=7 => 3,
        8..=14 => 4,
        15..=31 => 5,
        _ => 6,
    }
}

/// How many draft tokens turned out right, by the length of their match. Each token that is right makes the match of the
/// next one longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Acceptance {
    /// Tokens that were compared with a draw, and those that were equal.
    classes: [(f64, f64); CLASSES],
}

impl Default for Acceptance {
    /// What is assumed before anything was tried.
    fn default() -> Self {
        Self { classes: ASSUMED.map(|rate| (2.0, 2.0 * rate)) }
    }
}

impl Acceptance {
    /// Of a request that has tried nothing yet.
    pub const NONE: Self = Self { classes: [(0.0, 0.0); CLASSES] };

    /// Notes that `accepted` tokens of a draft were right, and whether one after them was wrong.
    pub fn record(&mut self, matched: usize, accepted: usize, is_refused: bool) {
        for place in 0..accepted + usize::from(is_refused) {
            let Some((tried, right)) = self.classes.get_mut(class(matched + place)) else { return };
            *tried += 1.0;
            *right += f64::from(u8::from(place < accepted));
            if *tried > REMEMBERED {
                let scale = REMEMBERED / *tried;
                (*tried, *right) = (*tried * scale, *right * scale);
            }
        }
    }

    /// One tick has passed. A class that was wrong for a while and is not tried any longer becomes new again in the end.
    fn fade(&mut self) {
        for (tried, right) in self.classes.iter_mut().filter(|(tried, _)| *tried > KNOWN / 2.0) {
            (*tried, *right) = (*tried * FADING, *right * FADING);
        }
    }

    /// What a request with outcomes `own` can expect of a draft with such a match.
    #[must_use]
    pub fn candidate(&self, own: &Self, matched: usize, available: usize) -> Candidate {
        let mut rates = [0.0; LONGEST];
        for (place, rate) in rates.iter_mut().enumerate() {
            *rate = self.rate(own, class(matched + place));
        }
        let tried = self.classes.get(class(matched)).map_or(0.0, |(tried, _)| *tried);
        Candidate { available, rates, is_new: tried < KNOWN }
    }

    fn rate(&self, own: &Self, class: usize) -> f64 {
        let of = |table: &Self| table.classes.get(class).copied().unwrap_or_default();
        let ((tried, right), (own_tried, own_right)) = (of(self), of(own));
        let all = if tried > 0.0 { right / tried } else { 0.5 };
        ((own_right + PRIOR * all) / (own_tried + PRIOR)).clamp(0.0, 0.99)
    }
}

/// Measured times of decode calls, by the number of their rows.
#[derive(Debug, Clone)]
pub struct StepTimes {
    /// Natural logarithm of the seconds after a call with the same number of rows; index 0 is one row.
    known: Vec<Option<f64>>,
    /// How many measurements are in them, up to [`WEIGHED`].
    measured: Vec<u8>,
    /// Measurements in a row that were too far off.
    far_off: u8,
    /// Whether a call with this number of rows was made.
    made: Vec<bool>,
    /// Whether a call followed one with the same number of rows.
    repeated: Vec<bool>,
    /// The rows of the last call; `None` after a call with a prompt.
    last: Option<usize>,
    /// Seconds that a call takes longer after one with another number of rows: the library prepares it again.
    change: f64,
}

impl Default for StepTimes {
    fn default() -> Self {
        let (known, flags) = (vec![None; TIMED], vec![false; TIMED]);
        let measured = vec![0; TIMED];
        Self { known, measured, far_off: 0, made: flags.clone(), repeated: flags, last: None, change: 0.0 }
    }
}

impl StepTimes {
    /// Whether a call of `rows` rows is the first one of its kind. The library prepares such a call, which may take ten
    /// times as long as the call itself: its time says nothing about the next one.
    fn is_first(&mut self, rows: usize) -> bool {
        let made = rows.checked_sub(1).and_then(|place| self.made.get_mut(place));
        made.is_some_and(|made| !std::mem::replace(made, true))
    }

    /// Records a call of `rows` rows.
    pub fn record(&mut self, rows: usize, seconds: f64) {
        let place = rows.wrapping_sub(1);
        let is_repeated = self.last.replace(rows) == Some(rows);
        if !(seconds > 0.0 && seconds.is_finite()) || place >= self.known.len() {
            return;
        }
        let before = self.known.get(place).copied().flatten();
        let is_few = self.measured.get(place).is_some_and(|count| *count < FIRST_FEW);
        let is_steady = self.repeated.get(place).is_some_and(|repeated| *repeated);
        if let Some(steady) = before.map(f64::exp).filter(|_| is_steady && !is_repeated) {
            let more = (seconds - steady).clamp(0.0, steady);
            self.change += WEIGHT * (more - self.change);
        }
        if self.is_held_up(rows, seconds) {
            self.far_off = self.far_off.saturating_add(1);
            if self.far_off < IN_A_ROW {
                return;
            }
        } else {
            self.far_off = 0;
        }
        if let Some(repeated) = self.repeated.get_mut(place).filter(|_| is_repeated) {
            *repeated = true;
        }
        let change = if is_repeated { 0.0 } else { self.change.min(seconds / 2.0) };
        let measured = (seconds - change).ln();
        let off = before.map(|log| (measured - log).clamp(-FARTHEST.ln(), FARTHEST.ln()));
        if is_few && let Some((log, count)) = self.known.get_mut(place).zip(self.measured.get_mut(place)) {
            *count += 1;
            *log = Some(log.map_or(measured, |log| log.min(measured)));
            return;
        }
        let off = off.unwrap_or(0.0);
        for log in self.known.iter_mut().flatten() {
            *log += DRIFT * off;
        }
        if let Some((Some(log), count)) = self.known.get_mut(place).zip(self.measured.get_mut(place)) {
            *count = (*count + 1).min(WEIGHED);
            *log += off / f64::from(*count);
        }
    }

    /// Whether calls of `rows` rows were measured so rarely that all of them may have been held up.
    fn is_uncertain(&self, rows: usize) -> bool {
        let count = rows.checked_sub(1).and_then(|place| self.measured.get(place).copied());
        count.is_some_and(|count| (1..FIRST_FEW).contains(&count))
    }

    /// Whether a call took so much longer or shorter than calls of its kind that its time says nothing about the next one.
    fn is_held_up(&self, rows: usize, seconds: f64) -> bool {
        let Some(place) = rows.checked_sub(1) else { return false };
        let is_known = self.measured.get(place).is_some_and(|count| *count >= FIRST_FEW);
        let known = self.known.get(place).copied().flatten().filter(|_| is_known);
        known.is_some_and(|log| (seconds.ln() - log).abs() > FARTHEST.ln())
    }

    /// A call with other rows beside those of replies was made.
    fn interrupt(&mut self) {
        self.last = None;
    }

    /// The expected seconds of the next call, with what it takes to prepare it if the last one had other rows.
    fn next_seconds(&self, rows: usize) -> Option<f64> {
        let change = if self.last == Some(rows) { 0.0 } else { self.change };
        Some(self.seconds(rows)? + change)
    }

    /// The expected seconds of a call after one like it; `None` if nothing is known of calls with so few rows or fewer, or too
    /// little of larger ones.
    #[must_use]
    pub fn seconds(&self, rows: usize) -> Option<f64> {
        let at = |place: usize| self.known.get(place).copied().flatten().map(|log| ((place + 1) as f64, log.exp()));
        let place = rows.checked_sub(1)?;
        let rows = rows as f64;
        let below = (0..=place.min(self.known.len() - 1)).rev().find_map(at)?;
        if (below.0 - rows).abs() < 0.5 {
            return Some(below.1);
        }
        let through = |one: (f64, f64), two: (f64, f64)| one.1 + (two.1 - one.1) / (two.0 - one.0) * (rows - one.0);
        if let Some(above) = (place..self.known.len()).find_map(at) {
            // More rows are never faster.
            return Some(through(below, (above.0, above.1.max(below.1))));
        }
        let first = (0..self.known.len()).find_map(at)?;
        if rows > below.0 + BEYOND * (below.0 - first.0) {
            return None;
        }
        Some(through((first.0, first.1.min(below.1)), below).max(below.1))
    }
}

/// How the rows of a batch are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joining {
    /// All rows together.
    Together,
    /// Rows of different sequences together only while all of them have rows left: one pass for all first rows, another
    /// for what is left of those that have more.
    ByLength,
}

/// What a request could be given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Draft tokens that were found.
    available: usize,
    /// For each the chance that it is right if those before it are.
    rates: [f64; LONGEST],
    /// Whether little is known of such drafts.
    is_new: bool,
}

impl Candidate {
    /// Nothing was found.
    pub const NONE: Self = Self { available: 0, rates: [0.0; LONGEST], is_new: false };

    /// As sure as any.
    const CERTAIN: Self = Self { available: LONGEST, rates: [0.99; LONGEST], is_new: false };

    /// Draft tokens that were found.
    #[must_use]
    pub fn available(&self) -> usize {
        self.available
    }

    /// The tokens that a step with `rows` draft rows is expected to yield.
    fn expected(&self, rows: usize) -> f64 {
        let mut chance = 1.0;
        self.rates.iter().take(rows).fold(1.0, |sum, rate| {
            chance *= rate;
            sum + chance
        })
    }

    /// The chance of the first token; below that of any draft if there is none.
    fn rate(&self) -> f64 {
        self.rates.first().copied().filter(|_| self.available > 0).unwrap_or(-1.0)
    }
}

/// The decode rows of a tick that drafts are added to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Requests with a decode row.
    pub decodes: usize,
    /// Seconds that the prompts in it take.
    pub prefill_seconds: f64,
    /// Draft rows that fit.
    pub room: usize,
    /// How rows are computed.
    pub joining: Joining,
}

/// Draft rows as far as their time depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Shape {
    /// All of them.
    rows: usize,
    /// Requests that have some.
    drafting: usize,
    /// The most that one request has.
    longest: usize,
}

impl Shape {
    fn of(lengths: &[usize]) -> Self {
        let drafting = lengths.iter().filter(|length| **length > 0).count();
        Self { rows: lengths.iter().sum(), drafting, longest: lengths.iter().copied().max().unwrap_or(0) }
    }

    fn equal(length: usize, drafting: usize) -> Self {
        Self { rows: length * drafting, drafting, longest: length }
    }
}

impl Tick {
    /// Whether one pass computes all rows.
    fn is_one_pass(&self, drafts: Shape) -> bool {
        let is_equal = drafts.drafting == self.decodes && drafts.rows == drafts.longest * drafts.drafting;
        self.joining == Joining::Together || self.decodes == 1 || drafts.rows == 0 || is_equal
    }

    /// The drafts that cost least: one row for the best request, or for all of them if they are computed in one pass then.
    fn try_one(&self, candidates: &[Candidate], best: usize, lengths: &mut [usize]) {
        let is_alone = self.joining == Joining::Together || self.decodes == 1;
        let all = candidates.len() == self.decodes && candidates.iter().all(|candidate| candidate.available > 0);
        if !is_alone && all && self.decodes <= self.room {
            lengths.fill(1);
        } else if let Some(length) = lengths.get_mut(best) {
            *length = 1;
        }
    }

    /// The expected seconds with these draft rows.
    fn seconds(&self, times: &StepTimes, drafts: Shape) -> Option<f64> {
        let decode = if self.is_one_pass(drafts) {
            times.next_seconds(self.decodes + drafts.rows)?
        } else {
            times.seconds(self.decodes)? + times.seconds(drafts.rows)?
        };
        Some(decode + self.prefill_seconds)
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
        let Some(base) = tick.seconds(&self.times, Shape::default()) else { return true };
        let length = LONGEST.min(tick.room);
        let shared = LONGEST.min((tick.room / tick.decodes).max(1));
        [Shape::equal(length, 1), Shape::equal(shared, tick.decodes)].into_iter().any(|drafts| {
            let Some(seconds) = tick.seconds(&self.times, drafts) else { return true };
            let gain = drafts.drafting as f64 * Candidate::CERTAIN.expected(drafts.longest).ln();
            gain > tick.decodes as f64 * (seconds / base).ln()
        })
    }

    fn is_try_due(&self) -> bool {
        self.idle >= self.try_after && self.credit > 0.0
    }

    /// The number of draft rows for each candidate, in their order. Counts as one tick.
    pub fn plan(&mut self, tick: &Tick, candidates: &[Candidate]) -> &[usize] {
        self.credit = (self.credit + LOSS).min(MOST_CREDIT);
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
        let Some(best) = best.filter(|_| !self.times.is_uncertain(tick.decodes)) else { return };
        let Some(base) = tick.seconds(&self.times, Shape::default()) else { return };
        let is_try = self.is_try_due();
        let mut trial = std::mem::take(&mut self.trial);
        trial.clear();
        trial.resize(candidates.len(), 0);
        tick.try_one(candidates, best, &mut trial);
        let Some(tried) = tick.seconds(&self.times, Shape::of(&trial)) else {
            // Nothing is known of longer calls: measures one, as soon as the plain one is known.
            lengths.copy_from_slice(&trial);
            self.trial = trial;
            return;
        };
        trial.fill(0);
        let longest = base * (1.0 + self.credit);
        let (times, most) = (&self.times, WORTHWHILE.ln());
        let search = Search { tick, times, base, longest, trial: &mut trial, best: lengths, most };
        let gain = match tick.joining {
            Joining::ByLength if tick.decodes > 1 => search.equal(candidates),
            _ => search.each(candidates),
        };
        self.trial = trial;
        self.unclear = if gain > tick.decodes as f64 * CLEAR.ln() { 0 } else { self.unclear.saturating_add(1) };
        if self.unclear > LESS_THAN_CLEAR {
            lengths.fill(0);
            return;
        }
        let is_new = candidates.get(best).is_some_and(|candidate| candidate.is_new) && self.credit > MOST_CREDIT / 2.0;
        if (is_try || is_new) && tried <= longest && lengths.iter().all(|length| *length == 0) {
            if is_try {
                self.try_after = self.try_after.saturating_mul(2).min(LAST_TRY);
            }
            tick.try_one(candidates, best, lengths);
        }
    }

    /// Records a tick: the numbers of draft rows, how many of them were right, and the time of the call with what followed
    /// from it.
    pub fn record(&mut self, tick: &Tick, lengths: &[usize], accepted: usize, seconds: f64) {
        let drafts: usize = lengths.iter().sum();
        if tick.prefill_seconds > 0.0 {
            self.times.interrupt();
            return;
        }
        // Without drafts every step would be like the one before it.
        let base = self.times.seconds(tick.decodes);
        let expected = tick.seconds(&self.times, Shape::of(lengths));
        let is_one_pass = tick.is_one_pass(Shape::of(lengths));
        let is_held_up = is_one_pass && self.times.is_held_up(tick.decodes + drafts, seconds);
        let is_first = self.times.is_first(if is_one_pass { tick.decodes + drafts } else { drafts });
        if is_first {
            self.times.interrupt();
        } else if is_one_pass {
            self.times.record(tick.decodes + drafts, seconds);
        } else if let Some(first) = self.times.seconds(tick.decodes) {
            self.times.record(drafts, (seconds - first).max(first / 4.0));
        }
        let Some(base) = base else { return };
        let returns = std::mem::replace(&mut self.has_drafted, drafts > 0) && drafts == 0;
        if drafts == 0 {
            if returns {
                self.credit = (self.credit - (seconds / base - 1.0).clamp(0.0, FARTHEST)).max(MOST_DEBT);
            }
            return;
        }
        let requests = tick.decodes.max(1) as f64;
        // A call that something else held up costs what was expected: a row never costs more than a step. Nor does the first
        // call of its kind count as more than one, because it is needed once.
        let most = if is_first { 1.0 } else { drafts as f64 };
        let seconds = expected.filter(|_| is_held_up).map_or(seconds, |expected| seconds.min(FARTHEST * expected));
        let cost = (seconds / base - 1.0).clamp(0.0, most);
        let worth = accepted as f64 / requests - cost;
        self.credit = (self.credit + worth).clamp(MOST_DEBT, MOST_CREDIT);
        if worth > 0.0 {
            self.try_after = FIRST_TRY;
        }
    }
}

fn rate(candidates: &[Candidate], place: usize) -> f64 {
    candidates.get(place).map_or(-1.0, Candidate::rate)
}

#[cfg(test)]
mod tests;
