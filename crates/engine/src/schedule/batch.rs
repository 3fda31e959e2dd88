//! The tick planner: which rows go into the next decode call.
//!
//! A pure function of the work at hand and the budget, called by the worker once a tick. Decode rows go first and whole,
//! because a reader waits for each of them. Then come requests with little left to compute, oldest first, and then slices of
//! long prompts. It must never plan more rows than the batch holds, never let the oldest prefill starve, and never allocate
//! once its buffers are warm.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::error::EngineError;
use crate::schedule::pace::{self, SHORT, SHORT_TICKS, SMALLEST_SLICE};

/// What a request wants of the next tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// One row: the token drawn last.
    Decode,
    /// The part of the prompt that is not computed yet.
    Prefill(Prefill),
}

/// The part of a prompt that is not computed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefill {
    /// Position of the next token to compute.
    pub position: usize,
    /// Tokens still to compute.
    pub remaining: usize,
    /// Tokens until the request pauses for a save, or `remaining`. A slice ends there at the latest.
    pub until_pause: usize,
    /// For cold-exact requests: slices end at multiples of this and nowhere else.
    pub grid: Option<NonZeroUsize>,
}

impl Prefill {
    /// Whether it goes before long prompts.
    fn is_short(&self) -> bool {
        self.grid.is_none() && self.remaining <= SHORT
    }

    fn is_long(&self) -> bool {
        self.grid.is_none() && self.remaining > SHORT
    }

    /// The whole slice up to the next multiple of the grid.
    fn whole(&self, grid: NonZeroUsize) -> usize {
        self.until_pause.min(grid.get() - self.position % grid)
    }
}

/// How many rows a tick may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Rows of a batch.
    pub n_batch: usize,
    /// The most rows that one prefill may take, so that the others move too; `None` for no limit.
    pub prefill_chunk: Option<NonZeroUsize>,
    /// The most prefill rows in all. Equal to `n_batch` but after "no room", when the worker tries with less.
    pub prefill_rows: usize,
    /// The most rows of long prompts, all of them together.
    pub long_rows: usize,
    /// Rows that short requests may take at least, even if long prompts have fewer.
    short_floor: usize,
    /// Whether `long_rows` follows the measured speed.
    is_paced: bool,
}

impl Budget {
    /// A checked budget for a model with `n_seq` sequences and, if it serves cold-exact requests, a grid.
    ///
    /// # Errors
    /// If `n_seq` decode rows, and beside them one slice of the grid, would not fit into a batch: such a model could
    /// stand still forever.
    pub fn new(
        n_batch: usize,
        prefill_chunk: Option<NonZeroUsize>,
        n_seq: usize,
        grid: Option<NonZeroUsize>,
    ) -> Result<Self, EngineError> {
        let needed = n_seq.saturating_add(grid.map_or(0, NonZeroUsize::get));
        if n_batch == 0 || n_batch < needed {
            let grid = grid.map_or_else(String::new, |grid| format!(" and a grid of {grid}"));
            let reason = format!("{n_batch} rows cannot hold {n_seq} sequences{grid}, at least {needed} are needed");
            return Err(EngineError::Config { setting: "n_batch".to_owned(), reason });
        }
        // With this number of rows, one short request on every sequence ends in time.
        let short_floor = n_seq.saturating_mul(SHORT.div_ceil(SHORT_TICKS));
        Ok(Self { n_batch, prefill_chunk, prefill_rows: n_batch, long_rows: n_batch, short_floor, is_paced: false })
    }

    /// The same, with ticks that end soon: [`Budget::set_rate`] decides how many rows long prompts get.
    #[must_use]
    pub fn paced(self) -> Self {
        let paced = Self { is_paced: true, ..self };
        Self { long_rows: pace::long_rows(None, self.n_batch, Duration::ZERO), ..paced }
    }

    /// Adapts the rows of long prompts to the speed of a prefill, in tokens a second. Work of the time `lost` may be given up
    /// if a request arrives.
    pub fn set_rate(&mut self, rate: Option<f64>, lost: Duration) {
        if self.is_paced {
            self.long_rows = pace::long_rows(rate, self.n_batch, lost);
        }
    }

    /// Whether the rows of long prompts follow the measured speed.
    #[must_use]
    pub fn is_paced(&self) -> bool {
        self.is_paced
    }

    /// The chunk for a batch size if none is configured: a quarter of the batch, and enough rows to be efficient.
    #[must_use]
    pub fn default_chunk(n_batch: usize) -> NonZeroUsize {
        NonZeroUsize::new((n_batch / 4).max(SMALLEST_SLICE)).unwrap_or(NonZeroUsize::MIN)
    }

    /// The most rows of one prefill.
    fn chunk(&self) -> usize {
        self.prefill_chunk.map_or(usize::MAX, NonZeroUsize::get)
    }

    /// The most rows of short requests.
    fn short_rows(&self) -> usize {
        self.long_rows.max(self.short_floor)
    }

    /// The next slice of a long prompt, of at most `rows` rows. A short end goes along if the budget is paced: whether it
    /// would be computed alone must not depend on the measured speed.
    fn slice_of(&self, prefill: &Prefill, rows: usize) -> usize {
        let rows = rows.min(self.chunk());
        let is_short_end = self.is_paced && rows >= SMALLEST_SLICE && prefill.until_pause < rows + SMALLEST_SLICE;
        if is_short_end { prefill.until_pause } else { prefill.until_pause.min(rows) }
    }
}

/// A slice of one request's prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Index of the request in the work list.
    pub index: usize,
    /// Number of tokens, at least one.
    pub len: usize,
}

/// The rows of one tick. Kept between ticks for its buffers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Indexes of the requests that decode one token.
    pub decodes: Vec<usize>,
    /// The prefill slices, oldest request first.
    pub prefills: Vec<Slice>,
    /// Long prompts and prompts on a grid: what is left to compute, and the index of the request.
    waiting: Vec<(usize, usize)>,
}

impl Plan {
    /// Rows in the batch.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.decodes.len() + self.prefill_rows()
    }

    /// Rows that are prefill.
    #[must_use]
    pub fn prefill_rows(&self) -> usize {
        self.prefills.iter().map(|slice| slice.len).sum()
    }

    /// Whether nothing can be done in this tick.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.decodes.is_empty() && self.prefills.is_empty()
    }

    fn add(&mut self, index: usize, len: usize) {
        if len > 0 {
            self.prefills.push(Slice { index, len });
        }
    }
}

/// Plans one tick into `plan`. `work` is in the order of admission, and so are the rows.
///
/// The oldest prefill moves in every tick: beside short requests it gets its slice, or at least half of the room, and beside
/// other long prompts at least half of their rows. The other half goes to the prompt that is done first. Short requests share
/// their rows in the order of admission.
///
/// A slice on a grid is whole or not at all; one that does not fit beside other work waits for a later tick. It is cut only
/// if a whole batch could not hold it, which [`Budget::new`] excludes.
pub fn plan_into(work: &[Work], budget: &Budget, plan: &mut Plan) {
    plan.decodes.clear();
    plan.prefills.clear();
    plan.waiting.clear();
    let decoding = work.iter().enumerate().filter(|(_, work)| matches!(work, Work::Decode));
    plan.decodes.extend(decoding.map(|(index, _)| index).take(budget.n_batch));

    let mut room = budget.n_batch.saturating_sub(plan.decodes.len()).min(budget.prefill_rows);
    let mut longs = budget.long_rows;
    let Some((first, prefill)) = prefills(work).next() else { return };
    let oldest = match prefill.grid {
        Some(_) => Some((first, prefill)),
        None => prefills(work).find(|(_, prefill)| prefill.is_long()),
    };
    let kept = oldest.map(|(index, prefill)| {
        let len = match prefill.grid {
            Some(grid) => {
                let whole = prefill.whole(grid);
                let is_hopeless = whole > budget.n_batch && plan.decodes.is_empty();
                if whole <= room || is_hopeless { whole.min(room) } else { 0 }
            }
            None => {
                let has_rivals = prefills(work).filter(|(_, prefill)| prefill.is_long()).count() > 1;
                let share = if has_rivals { longs.div_ceil(2) } else { longs };
                let half = if index == first { room.div_ceil(2) } else { room / 2 };
                budget.slice_of(prefill, share).min(half)
            }
        };
        room -= len;
        Slice { index, len }
    });
    longs = longs.saturating_sub(kept.map_or(0, |kept| kept.len));
    plan_short(work, budget, &mut room, plan);
    plan_long(work, budget, kept, (room, longs), plan);
    plan.prefills.sort_unstable_by_key(|slice| slice.index);
}

/// The prefills in the order of admission.
fn prefills(work: &[Work]) -> impl Iterator<Item = (usize, &Prefill)> {
    work.iter().enumerate().filter_map(|(index, work)| match work {
        Work::Decode => None,
        Work::Prefill(prefill) => Some((index, prefill)),
    })
}

/// Adds short requests in their order.
fn plan_short(work: &[Work], budget: &Budget, room: &mut usize, plan: &mut Plan) {
    let mut left = budget.short_rows().min(*room);
    for (index, prefill) in prefills(work).filter(|(_, prefill)| prefill.is_short()) {
        let len = prefill.until_pause.min(budget.chunk()).min(left);
        plan.add(index, len);
        left -= len;
        *room -= len;
    }
}

/// Adds the prompts that are neither short nor the oldest, those with the least to compute first. The oldest has the rows
/// that were kept for it, and gets what the others leave.
fn plan_long(
    work: &[Work],
    budget: &Budget,
    oldest: Option<Slice>,
    (mut room, mut longs): (usize, usize),
    plan: &mut Plan,
) {
    let is_other = |index: usize| oldest.is_none_or(|oldest| oldest.index != index);
    let others = prefills(work).filter(|(index, prefill)| is_other(*index) && !prefill.is_short());
    plan.waiting.extend(others.map(|(index, prefill)| (prefill.remaining, index)));
    plan.waiting.sort_unstable();
    for place in 0..plan.waiting.len() {
        let Some((_, index)) = plan.waiting.get(place).copied() else { break };
        let Some(Work::Prefill(prefill)) = work.get(index) else { continue };
        let len = match prefill.grid {
            Some(grid) => Some(prefill.whole(grid)).filter(|whole| *whole <= room).unwrap_or(0),
            None if longs > 0 => budget.slice_of(prefill, longs).min(room),
            None => 0,
        };
        plan.add(index, len);
        room -= len;
        if prefill.is_long() {
            longs = longs.saturating_sub(len);
        }
    }
    if let Some(Slice { index, len }) = oldest
        && let Some(Work::Prefill(prefill)) = work.get(index)
    {
        let more =
            if prefill.is_long() { budget.slice_of(prefill, len + longs).saturating_sub(len).min(room) } else { 0 };
        plan.add(index, len + more);
    }
}

#[cfg(test)]
mod tests;
