//! Measured times of decode calls, by the number of their rows.
//!
//! Used by the planner of drafts, which records each call and asks what another one would take; pure. A call that something
//! else held up must never count as what calls of its kind take.

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
/// How far a measurement moves the time that a change of rows takes, once a mean of all of them moves less.
const WEIGHT: f64 = 0.15;
/// A measurement further off than this factor is of a call that something else held up. If this many in a row are, steps
/// have become slower or faster, and each counts as this far off.
const FARTHEST: f64 = 2.0;
const IN_A_ROW: u8 = 3;
/// Measurements of which the shortest counts: the first one may be of a call that was held up.
pub(super) const FIRST_FEW: u8 = 3;

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
    /// The rows of the last pass; `None` after a call with a prompt.
    last: Option<usize>,
    /// Seconds that a call takes longer after one with another number of rows: the library prepares it again.
    change: f64,
    /// How often that was measured.
    changes: u32,
}

impl Default for StepTimes {
    fn default() -> Self {
        let (known, flags) = (vec![None; TIMED], vec![false; TIMED]);
        let measured = vec![0; TIMED];
        Self { known, measured, far_off: 0, made: flags.clone(), repeated: flags, last: None, change: 0.0, changes: 0 }
    }
}

impl StepTimes {
    /// Whether a call of `rows` rows is the first one of its kind. The library prepares such a call, which may take ten
    /// times as long as the call itself: its time says nothing about the next one.
    fn is_first(&mut self, rows: usize) -> bool {
        let made = rows.checked_sub(1).and_then(|place| self.made.get_mut(place));
        made.is_some_and(|made| !std::mem::replace(made, true))
    }

    /// Records a call of these passes, and returns whether one of them was the first of its kind.
    pub(super) fn record_call(&mut self, passes: &[usize], seconds: f64) -> bool {
        let is_first = passes.iter().filter(|rows| self.is_first(**rows)).count() > 0;
        if is_first {
            self.interrupt();
        } else if let [rows] = passes {
            self.record(*rows, seconds);
        } else {
            self.record_passes(passes, seconds);
        }
        is_first
    }

    /// Records passes of which only the sum is known: each has its share of what was expected, and one of which nothing is
    /// known has the rest.
    fn record_passes(&mut self, passes: &[usize], seconds: f64) {
        let mut last = self.last;
        let expected = passes.iter().map(|rows| self.seconds_after(last.replace(*rows), *rows));
        let expected: Vec<Option<f64>> = expected.collect();
        self.last = last;
        let sum: f64 = expected.iter().flatten().sum();
        let unknown = expected.iter().filter(|expected| expected.is_none()).count();
        let rest = (seconds - sum).max(seconds / 4.0) / unknown.max(1) as f64;
        for (rows, expected) in passes.iter().zip(expected) {
            match (expected, self.seconds(*rows)) {
                (None, _) => self.note(*rows, rest),
                (Some(_), Some(steady)) if unknown == 0 => self.note(*rows, steady * seconds / sum),
                _ => {}
            }
        }
    }

    /// Records a call of one pass with `rows` rows.
    pub fn record(&mut self, rows: usize, seconds: f64) {
        let is_repeated = self.last.replace(rows) == Some(rows);
        let Some(place) = self.place(rows).filter(|_| seconds > 0.0 && seconds.is_finite()) else { return };
        let is_steady = self.repeated.get(place).is_some_and(|repeated| *repeated);
        let steady = self.known.get(place).copied().flatten().map(f64::exp);
        if let Some(steady) = steady.filter(|_| is_steady && !is_repeated) {
            let more = (seconds - steady).clamp(0.0, steady);
            self.changes = self.changes.saturating_add(1);
            self.change += WEIGHT.max(1.0 / f64::from(self.changes)) * (more - self.change);
        }
        let is_held_up = self.is_held_up(rows, seconds);
        if let Some(repeated) = self.repeated.get_mut(place).filter(|_| is_repeated && !is_held_up) {
            *repeated = true;
        }
        let change = if is_repeated { 0.0 } else { self.change.min(seconds / 2.0) };
        self.note(rows, seconds - change);
    }

    /// Moves the estimates by a pass that took so long after one like it.
    fn note(&mut self, rows: usize, seconds: f64) {
        let Some(place) = self.place(rows).filter(|_| seconds > 0.0 && seconds.is_finite()) else { return };
        if self.is_held_up(rows, seconds) {
            self.far_off = self.far_off.saturating_add(1);
            if self.far_off < IN_A_ROW {
                return;
            }
        } else {
            self.far_off = 0;
        }
        let measured = seconds.ln();
        let before = self.known.get(place).copied().flatten();
        let is_few = self.measured.get(place).is_some_and(|count| *count < FIRST_FEW);
        if is_few && let Some((log, count)) = self.known.get_mut(place).zip(self.measured.get_mut(place)) {
            *count += 1;
            *log = Some(log.map_or(measured, |log| log.min(measured)));
            return;
        }
        let off = before.map_or(0.0, |log| (measured - log).clamp(-FARTHEST.ln(), FARTHEST.ln()));
        for log in self.known.iter_mut().flatten() {
            *log += DRIFT * off;
        }
        if let Some((Some(log), count)) = self.known.get_mut(place).zip(self.measured.get_mut(place)) {
            *count = (*count + 1).min(WEIGHED);
            *log += off / f64::from(*count);
        }
    }

    /// Where calls of `rows` rows are kept; `None` if they are not.
    fn place(&self, rows: usize) -> Option<usize> {
        rows.checked_sub(1).filter(|place| *place < self.known.len())
    }

    /// Whether calls of `rows` rows were measured so rarely that all of them may have been held up.
    pub(super) fn is_uncertain(&self, rows: usize) -> bool {
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
    pub(super) fn interrupt(&mut self) {
        self.last = None;
    }

    /// The rows of the last pass; `None` after a call with a prompt.
    pub(super) fn last(&self) -> Option<usize> {
        self.last
    }

    /// The expected seconds of a pass, with what it takes to prepare it if the last one had other rows.
    pub(super) fn seconds_after(&self, last: Option<usize>, rows: usize) -> Option<f64> {
        let change = if last == Some(rows) { 0.0 } else { self.change };
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
