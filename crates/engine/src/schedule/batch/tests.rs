//! The planner as a pure function: what each rule gives, that no plan exceeds its budget, and that nobody starves.
//! Called by the test runner alone. It must never look at a clock.

use proptest::prelude::*;

use super::*;

fn prefill(remaining: usize) -> Work {
    Work::Prefill(Prefill { position: 0, remaining, until_pause: remaining, grid: None })
}

fn on_grid(position: usize, remaining: usize, grid: usize) -> Work {
    let grid = NonZeroUsize::new(grid);
    Work::Prefill(Prefill { position, remaining, until_pause: remaining, grid })
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

/// Moves all work on by a plan. Prompts that are computed decode from then on.
fn advance(work: &mut [Work], plan: &Plan) {
    for slice in &plan.prefills {
        let Work::Prefill(prefill) = &mut work[slice.index] else { panic!("not a prefill") };
        prefill.position += slice.len;
        prefill.remaining -= slice.len;
        prefill.until_pause = prefill.remaining;
        if prefill.remaining == 0 {
            work[slice.index] = Work::Decode;
        }
    }
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
fn a_short_request_is_whole_beside_a_long_prompt_that_fills_the_batch() {
    let plan = plan(&[prefill(5000), prefill(64)], &budget(512, 0));
    assert_eq!(slices(&plan), [(0, 448), (1, 64)]);
}

#[test]
fn short_requests_share_their_rows_in_order() {
    let budget = Budget { long_rows: 64, ..Budget::new(512, None, 5, None).unwrap() };
    let work = [prefill(5000), prefill(60), prefill(1), prefill(40), prefill(40)];
    assert_eq!(slices(&plan(&work, &budget)), [(0, 64), (1, 60), (2, 1), (3, 19)], "five sequences: 80 rows");
}

#[test]
fn of_several_long_prompts_the_oldest_has_half_and_the_shortest_the_rest() {
    let four = Budget { long_rows: 128, ..budget(512, 0) };
    let work = [prefill(5000), prefill(900), prefill(300), prefill(70)];
    assert_eq!(slices(&plan(&work, &four)), [(0, 64), (3, 64)]);
    assert_eq!(slices(&plan(&work[..3], &four)), [(0, 64), (2, 64)]);
    assert_eq!(slices(&plan(&work[..1], &four)), [(0, 128)], "alone it has everything");
    let tail = Budget { long_rows: 200, ..four };
    assert_eq!(slices(&plan(&work, &tail)), [(0, 100), (2, 30), (3, 70)]);
}

#[test]
fn a_prompt_that_pauses_soon_is_not_short() {
    let pausing = Work::Prefill(Prefill { position: 0, remaining: 5000, until_pause: 10, grid: None });
    let budget = Budget { long_rows: 64, ..budget(128, 0) };
    assert_eq!(slices(&plan(&[prefill(1000), pausing], &budget)), [(0, 54), (1, 10)]);
}

#[test]
fn a_paced_budget_follows_the_speed_and_takes_short_ends_along() {
    let mut budget = Budget::new(2048, Some(Budget::default_chunk(2048)), 4, None).unwrap().paced();
    assert_eq!(slices(&plan(&[prefill(5000)], &budget)), [(0, 64)], "no speed is known yet");
    assert_eq!(slices(&plan(&[prefill(127)], &budget)), [(0, 127)], "63 tokens would be left");
    assert_eq!(slices(&plan(&[prefill(128)], &budget)), [(0, 64)]);
    budget.set_rate(Some(600.0), Duration::ZERO);
    assert_eq!(slices(&plan(&[prefill(5000)], &budget)), [(0, 128)]);
    budget.set_rate(Some(1e6), Duration::ZERO);
    let whole = plan(&[prefill(5000), prefill(5001), prefill(5002), prefill(5003), prefill(5004)], &budget);
    assert_eq!(whole.rows(), 2048, "a fast model fills its batches");
    assert_eq!(slices(&whole)[0], (0, 512), "in chunks");
}

#[test]
fn a_slice_on_the_grid_ends_at_the_grid_or_at_its_end() {
    let wide = budget(512, 16);
    assert_eq!(slices(&plan(&[on_grid(0, 1000, 100)], &wide)), [(0, 100)], "the chunk does not cut it");
    assert_eq!(slices(&plan(&[on_grid(130, 1000, 100)], &wide)), [(0, 70)]);
    assert_eq!(slices(&plan(&[on_grid(200, 30, 100)], &wide)), [(0, 30)]);
    let paced = wide.paced();
    assert_eq!(slices(&plan(&[on_grid(0, 1000, 100)], &paced)), [(0, 100)], "nor does the speed");
}

#[test]
fn a_slice_on_the_grid_waits_rather_than_being_cut() {
    let work = [prefill(60), on_grid(0, 500, 50), prefill(500)];
    assert_eq!(slices(&plan(&work, &budget(100, 0))), [(0, 50), (2, 50)], "a long prompt has half of the room");
    let less = Budget { prefill_rows: 40, ..budget(100, 0) };
    assert!(plan(&[on_grid(0, 500, 50)], &less).is_empty(), "less room must not cut it either");
    let misfit = Budget { n_batch: 30, prefill_rows: 30, ..budget(100, 0) };
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
    let prefill = |(position, remaining, pause): (usize, usize, usize), grid| {
        Work::Prefill(Prefill { position, remaining, until_pause: remaining.min(pause), grid })
    };
    let numbers = || (0_usize..300, 1_usize..300, 1_usize..600);
    let one = prop_oneof![
        Just(Work::Decode),
        numbers().prop_map(move |numbers| prefill(numbers, None)),
        numbers().prop_map(move |numbers| prefill(numbers, NonZeroUsize::new(24))),
    ];
    prop::collection::vec(one, 0..8)
}

proptest! {
    #[test]
    fn a_plan_keeps_its_promises(
        work in any_work(),
        n_batch in 32_usize..400,
        chunk in 0_usize..80,
        rate in prop::option::of(0.0..5000.0),
    ) {
        let budget = Budget::new(n_batch, NonZeroUsize::new(chunk), 8, NonZeroUsize::new(24)).unwrap();
        let mut paced = budget.paced();
        paced.set_rate(rate, Duration::ZERO);
        for (budget, more) in [(budget, 0), (paced, SHORT - 1)] {
            let plan = plan(&work, &budget);
            prop_assert!(plan.rows() <= n_batch);
            let decoding = (0..work.len()).filter(|&index| work[index] == Work::Decode);
            prop_assert_eq!(&plan.decodes, &decoding.collect::<Vec<_>>(), "every decode is in");
            prop_assert!(plan.prefills.is_sorted_by(|a, b| a.index < b.index), "in order, one slice each");
            let (mut long_rows, mut short_rows) = (0, 0);
            for slice in &plan.prefills {
                let Work::Prefill(prefill) = work[slice.index] else { panic!("not a prefill") };
                prop_assert!(slice.len >= 1 && slice.len <= prefill.until_pause);
                match prefill.grid {
                    Some(_) => prop_assert!(slice.len == prefill.until_pause.min(24 - prefill.position % 24)),
                    None if prefill.is_short() => short_rows += slice.len,
                    None => {
                        prop_assert!(chunk == 0 || slice.len <= chunk + more);
                        long_rows += slice.len;
                    }
                }
            }
            prop_assert!(long_rows <= budget.long_rows + more, "{long_rows} of {}", budget.long_rows);
            prop_assert!(short_rows <= budget.short_rows());
            let oldest = prefills(&work).next().map(|(index, _)| index);
            let has_moved = oldest.is_none_or(|oldest| plan.prefills.iter().any(|slice| slice.index == oldest));
            prop_assert!(has_moved, "the oldest prefill moves");
            // A short request is cut or left out only if the rows are used up.
            let lens: Vec<usize> = (0..work.len())
                .map(|index| plan.prefills.iter().find(|slice| slice.index == index).map_or(0, |slice| slice.len))
                .collect();
            let mut is_used_up = false;
            for (index, prefill) in prefills(&work).filter(|(_, prefill)| prefill.is_short()) {
                prop_assert!(!is_used_up || lens[index] == 0, "a younger short request went first");
                is_used_up |= lens[index] < prefill.until_pause.min(budget.chunk());
            }
        }
    }

    #[test]
    fn all_work_ends_and_decoders_move_in_every_tick(
        lens in prop::collection::vec((1_usize..2000, any::<bool>()), 1..6),
        n_batch in 32_usize..200,
        is_paced in any::<bool>(),
    ) {
        let budget = Budget::new(n_batch, Some(Budget::default_chunk(n_batch)), 7, NonZeroUsize::new(24)).unwrap();
        let budget = if is_paced { budget.paced() } else { budget };
        let mut work: Vec<Work> =
            lens.iter().map(|&(len, exact)| if exact { on_grid(0, len, 24) } else { prefill(len) }).collect();
        work.push(Work::Decode);
        let mut plan = Plan::default();
        let mut ticks = 0;
        while work.iter().any(|work| *work != Work::Decode) {
            plan_into(&work, &budget, &mut plan);
            prop_assert!(plan.decodes.contains(&(work.len() - 1)));
            advance(&mut work, &plan);
            ticks += 1;
            prop_assert!(ticks < 2000, "the work never ends");
        }
    }

    /// Everyday use 1: whatever is being read, a short request has its first token within four ticks, and a long prompt
    /// beside any number of short requests takes at most a tenth more ticks than alone.
    #[test]
    fn short_requests_wait_four_ticks_and_a_long_prompt_loses_none(
        long in 65_usize..20_000,
        n_seq in 2_usize..17,
        more in 0_usize..2000,
        rate in 0.0..20_000.0,
        arrivals in prop::collection::vec((1_usize..=SHORT, 0_usize..4), 1..200),
    ) {
        // Enough that half of the room holds the rows of all short requests.
        let n_batch = n_seq * (2 * SHORT / SHORT_TICKS + 1) + 128 + more;
        let chunk = Some(Budget::default_chunk(n_batch));
        let mut budget = Budget::new(n_batch, chunk, n_seq, None).unwrap().paced();
        budget.set_rate(Some(rate), Duration::ZERO);
        let mut plan = Plan::default();
        let mut alone = 0;
        let mut work = vec![prefill(long)];
        while work[0] != Work::Decode {
            plan_into(&work, &budget, &mut plan);
            advance(&mut work, &plan);
            alone += 1;
        }
        // A short request of `new` tokens arrives `pause` ticks after the one before, or when a sequence is free.
        let mut work = vec![prefill(long)];
        let mut waits: Vec<usize> = vec![0];
        let (mut ticks, mut arrivals, mut pause) = (0, arrivals.into_iter().cycle().peekable(), 0);
        while work[0] != Work::Decode {
            while work.len() < n_seq && arrivals.peek().is_some_and(|(_, after)| *after <= pause) {
                let (new, _) = arrivals.next().unwrap();
                work.push(prefill(new));
                waits.push(0);
                pause = 0;
            }
            pause += 1;
            plan_into(&work, &budget, &mut plan);
            prop_assert!(plan.rows() <= n_batch);
            advance(&mut work, &plan);
            ticks += 1;
            waits.iter_mut().for_each(|wait| *wait += 1);
            for index in (1..work.len()).rev().filter(|&index| work[index] == Work::Decode).collect::<Vec<_>>() {
                prop_assert!(waits[index] <= SHORT_TICKS, "{} ticks", waits[index]);
                work.remove(index);
                waits.remove(index);
            }
            prop_assert!(waits.iter().skip(1).all(|wait| *wait < SHORT_TICKS), "{waits:?}");
        }
        prop_assert!(ticks * 10 <= alone * 11, "{ticks} ticks instead of {alone}");
    }
}
