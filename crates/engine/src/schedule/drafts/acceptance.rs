//! How many guesses turn out right, and what a request can expect of the next ones.
//!
//! Used by the worker, which records outcomes and asks before each tick, and by the planner; pure. It must never keep a
//! token.

/// The longest draft of one request.
pub const LONGEST: usize = 15;
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
    pub(super) fn fade(&mut self) {
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

/// What a request could be given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Draft tokens that were found.
    pub(super) available: usize,
    /// For each the chance that it is right if those before it are.
    pub(super) rates: [f64; LONGEST],
    /// Whether little is known of such drafts.
    pub(super) is_new: bool,
}

impl Candidate {
    /// Nothing was found.
    pub const NONE: Self = Self { available: 0, rates: [0.0; LONGEST], is_new: false };

    /// As sure as any.
    pub(super) const CERTAIN: Self = Self { available: LONGEST, rates: [0.99; LONGEST], is_new: false };

    /// Draft tokens that were found.
    #[must_use]
    pub fn available(&self) -> usize {
        self.available
    }

    /// The tokens that a step with `rows` draft rows is expected to yield.
    pub(super) fn expected(&self, rows: usize) -> f64 {
        let mut chance = 1.0;
        self.rates.iter().take(rows).fold(1.0, |sum, rate| {
            chance *= rate;
            sum + chance
        })
    }

    /// The chance of the first token; below that of any draft if there is none.
    pub(super) fn rate(&self) -> f64 {
        self.rates.first().copied().filter(|_| self.available > 0).unwrap_or(-1.0)
    }
}
