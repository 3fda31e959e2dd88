//! The tick planner: which rows go into the next decode call.
//!
//! A pure function of the work at hand and the budget, called by the worker once a tick. Decode rows go first and
//! whole, because a reader waits for each of them; then slices of prefill, oldest request first. It must never plan
//! more rows than the batch holds, never let the oldest prefill starve, and never allocate once its buffers are warm.

use std::num::NonZeroUsize;

use crate::error::EngineError;

/// What a request wants of the next tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// One row: the token drawn last.
    Decode,
    /// The part of the prompt that is not computed yet.
    Prefill {
        /// Position of the next token to compute.
        position: usize,
        /// Tokens still to compute.
        remaining: usize,
        /// For cold-exact requests: slices end at multiples of this and nowhere else.
        grid: Option<NonZeroUsize>,
    },
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
        Ok(Self { n_batch, prefill_chunk, prefill_rows: n_batch })
    }

    /// The chunk for a batch size if none is configured: a quarter of the batch, and enough rows to be efficient.
    #[must_use]
    pub fn default_chunk(n_batch: usize) -> NonZeroUsize {
        NonZeroUsize::new(n_batch / 4).map_or(SMALLEST_CHUNK, |quarter| quarter.max(SMALLEST_CHUNK))
    }
}

/// Below this a slice costs nearly as much as a larger one.
const SMALLEST_CHUNK: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

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
}

/// Plans one tick into `plan`. `work` is in the order of admission, and so are the rows.
///
/// A slice on a grid is whole or not at all; one that does not fit beside the older work waits for a later tick while
/// younger work uses the room. It is cut only if a whole batch could not hold it, which [`Budget::new`] excludes.
pub fn plan_into(work: &[Work], budget: &Budget, plan: &mut Plan) {
    plan.decodes.clear();
    plan.prefills.clear();
    let decoding = work.iter().enumerate().filter(|(_, work)| matches!(work, Work::Decode));
    plan.decodes.extend(decoding.map(|(index, _)| index).take(budget.n_batch));

    let mut room = budget.n_batch.saturating_sub(plan.decodes.len()).min(budget.prefill_rows);
    for (index, work) in work.iter().enumerate() {
        let Work::Prefill { position, remaining, grid } = *work else { continue };
        let len = match grid {
            Some(grid) => {
                let whole = remaining.min(grid.get() - position % grid);
                let hopeless = whole > budget.n_batch && plan.is_empty();
                if whole <= room || hopeless { whole.min(room) } else { 0 }
            }
            None => remaining.min(room).min(budget.prefill_chunk.map_or(usize::MAX, NonZeroUsize::get)),
        };
        if len > 0 {
            plan.prefills.push(Slice { index, len });
            room -= len;
        }
        if room == 0 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefill(remaining: usize) -> Work {
        Work::Prefill { position: 0, remaining, grid: None }
    }

    fn on_grid(position: usize, remaining: usize, grid: usize) -> Work {
        Work::Prefill { position, remaining, grid: NonZeroUsize::new(grid) }
    }

    fn budget(n_batch: usize, chunk: usize) -> Budget {
        Budget::new(n_batch, NonZeroUsize::new(chunk), 1, None).unwrap()
    }

    fn plan(work: &[Work], budget: &Budget) -> Plan {
        let mut plan = Plan::default();
        plan_into(work, budget, &mut plan);
        plan
    }

    fn slices(plan: &Plan) -> Vec<(usize, usize)> {
        plan.prefills.iter().map(|slice| (slice.index, slice.len)).collect()
    }

    #[test]
    fn decodes_go_first_though_they_are_younger() {
        let plan = plan(&[prefill(1000), Work::Decode, Work::Decode], &budget(512, 0));
        assert_eq!(plan.decodes, [1, 2]);
        assert_eq!(slices(&plan), [(0, 510)]);
    }

    #[test]
    fn a_chunk_leaves_room_for_younger_prefills() {
        let plan = plan(&[prefill(1000), prefill(50), prefill(1000), prefill(1000)], &budget(300, 128));
        assert_eq!(slices(&plan), [(0, 128), (1, 50), (2, 122)]);
        assert_eq!(plan.rows(), 300);
    }

    #[test]
    fn a_slice_on_the_grid_ends_at_the_grid_or_at_its_end() {
        let wide = budget(512, 16);
        assert_eq!(slices(&plan(&[on_grid(0, 1000, 100)], &wide)), [(0, 100)], "the chunk does not cut it");
        assert_eq!(slices(&plan(&[on_grid(130, 1000, 100)], &wide)), [(0, 70)]);
        assert_eq!(slices(&plan(&[on_grid(200, 30, 100)], &wide)), [(0, 30)]);
    }

    #[test]
    fn a_slice_on_the_grid_waits_rather_than_being_cut() {
        let work = [prefill(60), on_grid(0, 500, 50), prefill(500)];
        assert_eq!(slices(&plan(&work, &budget(100, 0))), [(0, 60), (2, 40)]);
        let less = Budget { prefill_rows: 40, ..budget(100, 0) };
        assert!(plan(&[on_grid(0, 500, 50)], &less).is_empty(), "less room must not cut it either");
        let misfit = Budget { n_batch: 30, prefill_chunk: None, prefill_rows: 30 };
        assert_eq!(slices(&plan(&[on_grid(0, 500, 50)], &misfit)), [(0, 30)], "it could never be whole");
    }

    #[test]
    fn a_budget_that_could_stand_still_is_refused() {
        assert!(Budget::new(4, None, 4, None).is_ok());
        assert!(Budget::new(0, None, 0, None).is_err());
        let error = Budget::new(64, None, 4, NonZeroUsize::new(64)).unwrap_err();
        assert!(error.to_string().contains("68"), "{error}");
        assert_eq!(Budget::default_chunk(2048).get(), 512);
        assert_eq!(Budget::default_chunk(100).get(), 64);
    }

    fn any_work() -> impl Strategy<Value = Vec<Work>> {
        let one = prop_oneof![
            Just(Work::Decode),
            (0_usize..300, 1_usize..300).prop_map(|(position, remaining)| Work::Prefill {
                position,
                remaining,
                grid: None
            }),
            (0_usize..300, 1_usize..300).prop_map(|(position, remaining)| on_grid(position, remaining, 24)),
        ];
        prop::collection::vec(one, 0..8)
    }

    proptest! {
        #[test]
        fn a_plan_keeps_its_promises(work in any_work(), n_batch in 32_usize..200, chunk in 0_usize..80) {
            let budget = Budget::new(n_batch, NonZeroUsize::new(chunk), 8, NonZeroUsize::new(24)).unwrap();
            let plan = plan(&work, &budget);
            prop_assert!(plan.rows() <= n_batch);
            let decoding = (0..work.len()).filter(|&index| work[index] == Work::Decode);
            prop_assert_eq!(&plan.decodes, &decoding.collect::<Vec<_>>(), "every decode is in");
            prop_assert!(plan.prefills.is_sorted_by(|a, b| a.index < b.index));
            for slice in &plan.prefills {
                let Work::Prefill { position, remaining, grid } = work[slice.index] else { panic!("not a prefill") };
                prop_assert!(slice.len >= 1 && slice.len <= remaining);
                match grid {
                    Some(_) => prop_assert!(slice.len == remaining.min(24 - position % 24)),
                    None => prop_assert!(chunk == 0 || slice.len <= chunk),
                }
            }
            let oldest = work.iter().position(|work| *work != Work::Decode);
            prop_assert_eq!(plan.prefills.first().map(|slice| slice.index), oldest, "the oldest prefill moves");
        }

        #[test]
        fn all_work_ends_and_decoders_move_in_every_tick(
            lens in prop::collection::vec((1_usize..2000, any::<bool>()), 1..6),
            n_batch in 32_usize..200,
        ) {
            let budget = Budget::new(n_batch, Some(Budget::default_chunk(n_batch)), 7, NonZeroUsize::new(24)).unwrap();
            let mut work: Vec<Work> =
                lens.iter().map(|&(len, exact)| if exact { on_grid(0, len, 24) } else { prefill(len) }).collect();
            work.push(Work::Decode);
            let mut plan = Plan::default();
            let mut ticks = 0;
            while work.iter().any(|work| *work != Work::Decode) {
                plan_into(&work, &budget, &mut plan);
                prop_assert!(plan.decodes.contains(&(work.len() - 1)));
                for slice in &plan.prefills {
                    if let Work::Prefill { position, remaining, .. } = &mut work[slice.index] {
                        *position += slice.len;
                        *remaining -= slice.len;
                        if *remaining == 0 {
                            work[slice.index] = Work::Decode;
                        }
                    }
                }
                ticks += 1;
                prop_assert!(ticks < 2000, "the work never ends");
            }
        }
    }
}
