//! What the planner chooses for given times and outcomes, and what that costs in the worst case.

use super::times::FIRST_FEW;
use super::*;

/// Sequences with cells of their own, side by side.
fn neighbours(count: u32) -> Joining {
    apart(&(0..count).collect::<Vec<_>>())
}

/// Sequences with cells of their own, and nothing between them.
fn apart(sequences: &[u32]) -> Joining {
    Joining::Neighbours { requests: sequences.to_vec(), bridges: Vec::new() }
}

fn tick(decodes: usize, joining: Joining) -> Tick {
    Tick { decodes, prefill_seconds: 0.0, room: 64, joining }
}

/// A planner that has measured calls of 1 to 32 rows.
fn measured(seconds: impl Fn(f64) -> f64) -> DraftPlanner {
    let mut planner = DraftPlanner::default();
    for rows in 1..=32 {
        (0..FIRST_FEW).for_each(|_| planner.times.record(rows, seconds(rows as f64)));
    }
    planner
}

/// As on a graphics card: a row more costs 6 %.
fn flat(rows: f64) -> f64 {
    0.004 * (1.0 + 0.06 * (rows - 1.0))
}

/// As on two cores: a row more costs a step.
fn steep(rows: f64) -> f64 {
    0.05 * rows
}

fn candidate(rate: f64) -> Candidate {
    Candidate { available: LONGEST, rates: [rate; LONGEST], is_new: false }
}

#[test]
fn drafts_are_longer_the_surer_they_are_and_the_cheaper_rows_are() {
    let tick = tick(1, Joining::Together);
    let lengths = |planner: &mut DraftPlanner| {
        [0.05, 0.4, 0.8, 0.97].map(|rate| planner.plan(&tick, &[candidate(rate)]).first().copied().unwrap())
    };
    let [none, short, long, all] = lengths(&mut measured(flat));
    assert!(none == 0 && short > 0 && long > short && all == LONGEST, "{none} {short} {long} {all}");
    assert_eq!(lengths(&mut measured(steep)), [0; 4]);
    assert!(!measured(steep).is_worth_looking(&tick), "then nothing is searched");
    assert!(measured(flat).is_worth_looking(&tick));
}

#[test]
fn a_request_gets_rows_only_if_they_help_it_more_than_they_cost_its_neighbours() {
    let many = tick(16, Joining::Together);
    let mut candidates = vec![Candidate::NONE; 16];
    candidates[3] = candidate(0.9);
    let mut planner = measured(|rows| 0.004 * (1.0 + 0.3 * (rows - 1.0)));
    let alone: usize = planner.plan(&tick(1, Joining::Together), &[candidate(0.9)]).iter().sum();
    let beside: usize = planner.plan(&many, &candidates).iter().sum();
    assert!(alone > 2 * beside, "{alone} alone, {beside} beside fifteen");
    let all = vec![candidate(0.9); 16];
    let lengths = measured(flat).plan(&many, &all).to_vec();
    let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
    assert!(most - least <= 1 && *least > 0, "equals get equal shares: {lengths:?}");
}

#[test]
fn sequences_with_cells_of_their_own_get_equal_numbers_of_rows() {
    let mut planner = measured(flat);
    let all = [candidate(0.9), candidate(0.8), candidate(0.85), candidate(0.9)];
    let lengths = planner.plan(&tick(4, neighbours(4)), &all).to_vec();
    assert!(lengths[0] > 0 && lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
    let mut one = all.map(|_| Candidate::NONE);
    one[1] = candidate(0.5);
    assert_eq!(planner.plan(&tick(4, neighbours(4)), &one), [0; 4], "a second pass does not pay for one of four");
}

#[test]
fn only_sequences_that_follow_each_other_are_computed_together() {
    let tick = |sequences: &[u32]| tick(sequences.len(), apart(sequences));
    assert_eq!(tick(&[0, 1, 2, 3]).passes(&[]), [4]);
    assert_eq!(tick(&[0, 1, 2, 3]).passes(&[3, 3, 3, 3]), [16]);
    assert_eq!(tick(&[0, 2]).passes(&[]), [1, 1]);
    assert_eq!(tick(&[0, 2]).passes(&[7, 7]), [8, 8]);
    assert_eq!(tick(&[1, 2, 3]).passes(&[0, 4, 4]), [3, 8]);
    assert_eq!(tick(&[1, 2, 3]).passes(&[4, 0, 4]), [3, 4, 4], "the second one has no row left between them");
    assert_eq!(tick(&[0, 1, 5]).passes(&[2, 1, 0]), [4, 1, 1]);
    assert_eq!(tick(&[6]).passes(&[5]), [6]);
}

#[test]
fn a_row_of_a_resting_sequence_joins_the_passes_on_both_sides() {
    let tick = |requests: &[u32], bridges: &[u32]| {
        tick(requests.len(), Joining::Neighbours { requests: requests.to_vec(), bridges: bridges.to_vec() })
    };
    assert_eq!(tick(&[0, 2], &[1]).passes(&[]), [3]);
    assert_eq!(tick(&[0, 2], &[1]).passes(&[3, 3]), [12]);
    assert_eq!(tick(&[0, 3, 4], &[1, 2]).passes(&[1, 1, 1]), [10]);
    assert_eq!(tick(&[0, 3, 5], &[4]).passes(&[]), [1, 3], "one gap is closed, the other is not");
    assert_eq!(tick(&[0, 2], &[1]).passes(&[0, 3]), [3, 6], "a draft of one request alone");
}

/// Two requests are neighbours or not, from one tick to the next; each must be judged by the time of its passes.
#[test]
fn passes_are_told_apart() {
    let mut planner = DraftPlanner::default();
    let (together, apart) = (tick(2, neighbours(2)), tick(2, apart(&[0, 2])));
    for _ in 0..40 {
        planner.record(&together, &[0, 0], 0, flat(2.0));
        planner.record(&apart, &[0, 0], 0, 2.0 * flat(1.0));
        planner.record(&together, &[1, 1], 0, flat(4.0));
    }
    let near = |seconds: Option<f64>, expected: f64| {
        let seconds = seconds.unwrap();
        assert!((seconds / expected - 1.0).abs() < 0.03, "{seconds} instead of {expected}");
    };
    near(together.plain_seconds(&planner.times), flat(2.0));
    near(apart.plain_seconds(&planner.times), 2.0 * flat(1.0));
}

#[test]
fn drafts_pay_for_their_rows_and_not_for_accidents() {
    let tick = tick(1, Joining::Together);
    let mut planner = measured(flat);
    let mut costs = |rows: usize, seconds: f64| {
        let before = planner.credit;
        planner.record(&tick, &[rows], 0, seconds);
        before - planner.credit
    };
    // First calls of their kind count otherwise.
    let _ = [costs(0, flat(1.0)), costs(4, flat(5.0)), costs(0, flat(1.0))];
    let near = |cost: f64, expected: f64| assert!((cost - expected).abs() < 0.05, "{cost} instead of {expected}");
    near(costs(4, flat(5.0)), 0.24);
    near(costs(0, 1.2 * flat(1.0)), 0.2);
    near(costs(0, 10.0 * flat(1.0)), 0.0);
    near(costs(4, 10.0 * flat(5.0)), 1.25 * 1.24 - 1.0);
    assert!(costs(0, 10.0 * flat(1.0)) < 1.0, "what changes take was measured by accidents too");
}

#[test]
fn a_draft_saves_a_call_for_each_token_less_what_it_made_the_call_longer() {
    let alone = tick(1, Joining::Together);
    let mut planner = measured(flat);
    let near = |price: Option<Price>, accepted: usize, steps: f64| {
        let saved = price.unwrap().saved(accepted) / flat(1.0);
        assert!((saved - steps).abs() < 0.05, "{saved} instead of {steps} steps");
    };
    assert_eq!(planner.record(&alone, &[0], 0, flat(1.0)), None, "drafts had no part in it");
    // The first call of its kind costs what it takes, and the plain one after it is longer too.
    near(planner.record(&alone, &[4], 3, 3.0 * flat(1.0)), 3, 1.0);
    near(planner.record(&alone, &[4], 3, flat(5.0)), 3, 2.76);
    near(planner.record(&alone, &[0], 0, 1.2 * flat(1.0)), 0, -0.2);
    assert_eq!(planner.record(&alone, &[0], 0, flat(1.0)), None);
    let beside = Tick { prefill_seconds: 1.0, ..alone };
    let mut planner = measured(flat);
    near(planner.record(&beside, &[4], 4, 2.0), 4, 3.76);
    assert_eq!(planner.record(&beside, &[0], 0, 2.0), None);
}

#[test]
fn longer_calls_are_measured_first_with_one_row() {
    let tick = tick(1, Joining::Together);
    let mut planner = DraftPlanner::default();
    assert_eq!(planner.plan(&tick, &[candidate(0.9)]), [0], "the plain step comes first");
    // The first call of each kind is not measured.
    planner.record(&tick, &[0], 0, 10.0 * flat(1.0));
    for _ in 0..FIRST_FEW {
        assert_eq!(planner.plan(&tick, &[candidate(0.9)]), [0]);
        planner.record(&tick, &[0], 0, flat(1.0));
    }
    assert_eq!(planner.plan(&tick, &[candidate(0.9)]), [1]);
    planner.record(&tick, &[1], 1, 10.0 * flat(2.0));
    assert_eq!(planner.plan(&tick, &[candidate(0.9)]), [1]);
    planner.record(&tick, &[1], 1, flat(2.0));
    assert!(planner.plan(&tick, &[candidate(0.9)])[0] > 4, "from there on by what was measured");
}

/// A library prepares each new number of rows at its first call. Drafts must pay all the same, and soon.
#[test]
fn slow_first_calls_do_not_end_drafts() {
    let calls = std::cell::RefCell::new(std::collections::HashSet::new());
    let seconds = |rows: f64| {
        let is_first = calls.borrow_mut().insert(rows.to_bits());
        flat(rows) * if is_first { 12.0 } else { 1.0 }
    };
    let factor = play(&mut DraftPlanner::default(), seconds, 600, |number| number % 10 > 0);
    assert!(factor < 0.6, "{factor}");
}

/// Plays ticks with drafts that are right with the given chance and returns the time, as a factor of that without drafts.
fn play(
    planner: &mut DraftPlanner,
    seconds: impl Fn(f64) -> f64,
    ticks: usize,
    is_right: impl Fn(usize) -> bool,
) -> f64 {
    let tick = tick(1, Joining::Together);
    let own = Acceptance::NONE;
    let (mut time, mut tokens) = (0.0, 0);
    for number in 0..ticks {
        let candidates = [planner.acceptance.candidate(&own, 32, LONGEST)];
        let rows = if planner.is_worth_looking(&tick) {
            planner.plan(&tick, &candidates)[0]
        } else {
            planner.plan(&tick, &[]).len()
        };
        let accepted = (0..rows).take_while(|row| is_right(number * 31 + row)).count();
        let took = seconds((1 + rows) as f64);
        planner.acceptance.record(32, accepted, accepted < rows);
        planner.record(&tick, &[rows], accepted, took);
        time += took;
        tokens += 1 + accepted;
    }
    time / (tokens as f64 * seconds(1.0))
}

#[test]
fn drafts_that_are_never_right_cost_at_most_two_parts_in_a_hundred() {
    for (name, seconds) in [("flat", flat as fn(f64) -> f64), ("steep", steep)] {
        for ticks in [250, 400] {
            let factor = play(&mut DraftPlanner::default(), seconds, ticks, |_| false);
            assert!(factor < 1.02, "{name}, {ticks} steps: {factor}");
        }
        let factor = play(&mut measured(seconds), seconds, 4000, |_| false);
        assert!(factor < 1.015, "{name}: {factor}");
    }
}

/// With sixteen requests on a GPU, what drafts had earned was spent on single guesses of a kind that was not known well: right
/// ones, each of which cost all requests half a step. Replies took 3 to 7 % longer.
#[test]
fn finding_out_about_guesses_costs_less_than_one_step_in_a_hundred_also_while_drafts_earn() {
    for joining in [Joining::Together, neighbours(16)] {
        // A row more takes four tenths of a step.
        let mut planner = measured(|rows| if rows < 17.0 { 0.01 } else { 0.014 });
        let many = tick(16, joining);
        let mut candidates = vec![Candidate::NONE; 16];
        candidates[3] = Candidate { is_new: true, available: 1, ..candidate(0.9) };
        let (ticks, mut drafted) = (1000, 0);
        for _ in 0..ticks {
            planner.credit = MOST_CREDIT;
            let lengths = planner.plan(&many, &candidates).to_vec();
            let rows: usize = lengths.iter().sum();
            drafted += rows;
            planner.record(&many, &lengths, rows, if rows == 0 { 0.01 } else { 0.014 });
        }
        let lost = 0.4 * drafted as f64;
        assert!(drafted > 0 && lost < 0.01 * f64::from(ticks) + FIRST_LOSS, "{drafted} tries");
    }
}

/// After long replies without drafts, a short one lost up to five steps.
#[test]
fn little_accumulates_while_drafts_earn_nothing_and_what_they_earned_is_kept() {
    let one = tick(1, Joining::Together);
    let mut planner = measured(flat);
    (0..10_000).for_each(|_| drop(planner.plan(&one, &[]).to_vec()));
    assert!(planner.credit > FIRST_LOSS && planner.credit <= MOST_ALLOWED, "{}", planner.credit);
    planner.credit = MOST_CREDIT;
    planner.plan(&one, &[]);
    assert!(planner.credit >= MOST_CREDIT, "{}", planner.credit);
}

#[test]
fn drafts_come_back_when_they_are_right_again() {
    let mut planner = DraftPlanner::default();
    play(&mut planner, flat, 2000, |_| false);
    let factor = play(&mut planner, flat, 6000, |number| number % 10 > 0);
    assert!(factor < 0.5, "{factor}");
}

#[test]
fn a_slow_machine_computes_none_even_if_all_are_right() {
    let factor = play(&mut DraftPlanner::default(), |rows| 0.05 * rows, 2000, |_| true);
    assert!(factor < 1.01, "{factor}");
}

#[test]
fn times_between_two_measurements_lie_between_them() {
    let mut times = StepTimes::default();
    assert_eq!(times.seconds(1), None);
    times.record(1, 1.0);
    assert_eq!((times.seconds(1), times.seconds(2)), (Some(1.0), None));
    times.record(5, 2.0);
    assert!((times.seconds(3).unwrap() - 1.5).abs() < 1e-9);
    assert!((times.seconds(9).unwrap() - 3.0).abs() < 1e-9);
    times.record(5, f64::NAN);
    times.record(0, 1.0);
    times.record(1000, 1.0);
    assert!((times.seconds(5).unwrap() - 2.0).abs() < 1e-9);
    for _ in 0..200 {
        times.record(1, 2.0);
    }
    assert!(times.seconds(5).unwrap() > 2.5, "all steps become slower as conversations grow");
}

#[test]
fn a_request_with_outcomes_of_its_own_is_judged_by_them() {
    let (all, mut own) = (Acceptance::default(), Acceptance::NONE);
    let rate = |own: &Acceptance, matched| all.candidate(own, matched, 1).rate();
    let before = rate(&own, 10);
    for _ in 0..20 {
        own.record(10, 0, true);
    }
    assert!(rate(&own, 10) < before / 2.0);
    assert!((rate(&own, 40) - rate(&Acceptance::NONE, 40)).abs() < 1e-9, "another length, another class");
}

/// A call takes 0.4 ms longer after one with another number of rows.
fn record_changing(times: &mut StepTimes, calls: &[usize]) {
    let mut last = None;
    for rows in calls {
        let change = if last == Some(*rows) { 0.0 } else { 0.0004 };
        times.record(*rows, flat(*rows as f64) + change);
        last = Some(*rows);
    }
}

#[test]
fn a_call_with_other_rows_than_the_last_one_is_expected_to_take_longer() {
    let mut times = StepTimes::default();
    record_changing(&mut times, &[1, 1, 1, 1, 5, 5, 5].repeat(20));
    let near = |seconds: Option<f64>, expected: f64| {
        let seconds = seconds.unwrap();
        assert!((seconds / expected - 1.0).abs() < 0.02, "{seconds} instead of {expected}");
    };
    near(times.seconds(1), flat(1.0));
    near(times.seconds_after(times.last(), 5), flat(5.0));
    near(times.seconds_after(times.last(), 1), flat(1.0) + 0.0004);
    times.interrupt();
    near(times.seconds_after(times.last(), 5), flat(5.0) + 0.0004);
}

#[test]
fn a_number_of_rows_that_is_nearly_the_best_is_kept() {
    let alone = tick(1, Joining::Together);
    let next = |last: usize| {
        let mut planner = measured(flat);
        record_changing(&mut planner.times, &[1, 1, 1, 1, 6, 6, 6, 8, 8, 8].repeat(20));
        record_changing(&mut planner.times, &[last; 4]);
        planner.plan(&alone, &[candidate(0.75)]).first().copied().unwrap()
    };
    let free = measured(flat).plan(&alone, &[candidate(0.75)]).first().copied().unwrap();
    assert_eq!(free, 6, "the best without a last call");
    assert_eq!((next(6), next(8)), (5, 7), "as many draft rows as in the last call");
}

#[test]
fn plain_steps_that_were_held_up_do_not_make_wrong_drafts_look_cheap() {
    let tick = tick(1, Joining::Together);
    let mut planner = DraftPlanner::default();
    play(&mut planner, flat, 200, |_| false);
    planner.record(&tick, &[0], 0, 100.0 * flat(1.0));
    assert!((planner.times.seconds(1).unwrap() / flat(1.0) - 1.0).abs() < 0.02, "one call says nothing");
    for _ in 0..40 {
        planner.record(&tick, &[0], 0, 3.0 * flat(1.0));
    }
    assert!(planner.times.seconds(1).unwrap() > 2.5 * flat(1.0), "many in a row do");
}

#[test]
fn few_calls_do_not_show_what_many_rows_cost() {
    let mut times = StepTimes::default();
    for _ in 0..5 {
        times.record(16, 1.0);
        times.record(17, 1.0);
    }
    assert!(times.seconds(20).is_some() && times.seconds(60).is_none());
}

/// How drafts of a stream turn out: by the number of the tick, the stream and the row.
type Outcome = fn(usize, usize, usize) -> bool;

/// Plays ticks with several streams and returns the time for a token, as a factor of that without drafts.
fn play_streams(streams: usize, joining: Joining, machine: Machine, ticks: usize, is_right: Outcome) -> f64 {
    let Machine { seconds, change, .. } = machine;
    let tick = tick(streams, joining);
    let mut last = Vec::new();
    let mut planner = DraftPlanner::default();
    let mut own = vec![Acceptance::NONE; streams];
    let (mut time, mut tokens) = (0.0, 0);
    for number in 0..ticks {
        let mut lengths = vec![0; streams];
        if planner.is_worth_looking(&tick) {
            let found = own.iter().map(|own| planner.acceptance.candidate(own, 5, LONGEST));
            let candidates: Vec<Candidate> = found.collect();
            lengths.copy_from_slice(planner.plan(&tick, &candidates));
        } else {
            planner.plan(&tick, &[]);
        }
        let mut sum = 0;
        for ((stream, rows), own) in lengths.iter().enumerate().zip(&mut own) {
            let accepted = (0..*rows).take_while(|row| is_right(number, stream, *row)).count();
            if *rows > 0 {
                planner.acceptance.record(5, accepted, accepted < *rows);
                own.record(5, accepted, accepted < *rows);
            }
            sum += accepted;
        }
        let passes = tick.passes(&lengths);
        let mut took: f64 = passes.iter().map(|rows| seconds(*rows as f64)).sum();
        if last != passes {
            took += change * seconds(streams as f64);
        }
        last = passes;
        // Times vary by a tenth, and now and then something else holds a call up, with or without drafts.
        let varied = took * (0.9 + 0.2 * ((number * 7919 % 101) as f64 / 100.0));
        let held_up = if number % 97 == 96 { 100.0 * took } else { 0.0 };
        planner.record(&tick, &lengths, sum, varied + held_up);
        time += varied;
        tokens += streams + sum;
    }
    time * streams as f64 / (tokens as f64 * seconds(streams as f64))
}

#[derive(Clone, Copy)]
struct Machine {
    name: &'static str,
    /// Seconds of a call with that many rows.
    seconds: fn(f64) -> f64,
    /// What a call takes longer after one with other rows, in plain steps.
    change: f64,
}

#[test]
fn drafts_cost_at_most_two_parts_in_a_hundred_whatever_turns_out() {
    let outcomes: [(&str, Outcome); 6] = [
        ("never right", |_, _, _| false),
        ("the first is right", |_, _, row| row == 0),
        ("right in every third step", |number, stream, _| (number + stream).is_multiple_of(3)),
        ("right for a while, then wrong", |number, _, _| (number / 100).is_multiple_of(2)),
        ("right for short whiles", |number, _, _| (number / 20).is_multiple_of(4)),
        ("right for one stream", |_, stream, _| stream == 0),
    ];
    let machines = [
        Machine { name: "flat", seconds: flat, change: 0.0 },
        // Three times what was measured on a graphics card.
        Machine { name: "flat, with changes that cost a third of a step", seconds: flat, change: 0.33 },
        Machine { name: "steep", seconds: steep, change: 0.0 },
        Machine { name: "half a step", seconds: |rows| 0.01 * (1.0 + 0.5 * (rows - 1.0)), change: 0.0 },
        // As a graphics card with kernels that take eight rows at a time.
        Machine { name: "stairs", seconds: |rows| 0.004 * (0.7 + 0.3 * (rows / 8.0).ceil()), change: 0.1 },
    ];
    let mut worst = Vec::new();
    for machine in machines {
        for (outcome, is_right) in outcomes {
            for streams in [1_u32, 4, 16] {
                for joining in [Joining::Together, neighbours(streams)] {
                    for ticks in [250, 500] {
                        let factor = play_streams(streams as usize, joining.clone(), machine, ticks, is_right);
                        if factor > 1.02 {
                            let name = machine.name;
                            let what = format!("{name}, {outcome}, {streams} streams, {joining:?}, {ticks} steps");
                            worst.push(format!("{what}: {factor:.3}"));
                        }
                    }
                }
            }
        }
    }
    assert_eq!(worst, Vec::<String>::new());
}
