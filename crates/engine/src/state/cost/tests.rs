//! Tests of `cost.rs`: the measured numbers of a large GPU, a tier that turns slow and comes back, and properties.
//!
//! Run by `cargo test` only. Time is simulated; they must never depend on the speed of the machine that runs them.

use proptest::prelude::*;

use super::*;

/// An 8B model on a large GPU: bytes of state per token, and prefill at 86 us a token.
const BYTES_PER_TOKEN: u64 = 131_072;
const PREFILL: f64 = 86e-6;

fn segment(tokens: usize, tier: Tier) -> ChainSegment {
    ChainSegment { tokens, bytes: tokens as u64 * BYTES_PER_TOKEN, tier, resumable: true }
}

fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}

/// Estimates that measured a prefill and one tier often enough to know them.
fn measured(tier: Tier, bytes_per_second: f64) -> Estimates {
    let mut estimates = Estimates::new(RestoreRule::Faster);
    for _ in 0..20 {
        estimates.record_prefill(2048, seconds(2048.0 * PREFILL));
        estimates.record_restore(tier, 1 << 28, seconds((1 << 28) as f64 / bytes_per_second));
    }
    estimates
}

fn restored(tier: Tier, bytes_per_second: f64) -> usize {
    measured(tier, bytes_per_second).choose(&[segment(2048, tier); 4], 8192 + 50).segments
}

#[test]
fn the_measured_machine_restores_from_memory_and_from_its_disk() {
    // 17 us a token from memory, 2.4 us page-locked, 50 us from disk: all below the 86 us of computing.
    assert_eq!(restored(Tier::Ram, 7e9), 4);
    assert_eq!(restored(Tier::Ram, 55e9), 4);
    assert_eq!(restored(Tier::Disk, 2.6e9), 4);
    // 131 us a token: computing is cheaper.
    assert_eq!(restored(Tier::Disk, 1.0e9), 0);
}

#[test]
fn the_expected_time_adds_both_ways_up() {
    let mut estimates = measured(Tier::Disk, 2.6e9);
    let choice = estimates.choose(&[segment(2048, Tier::Disk)], 4096);
    let exact = 2048.0 * (BYTES_PER_TOKEN as f64 / 2.6e9 + PREFILL);
    let expected = choice.expected.unwrap().as_secs_f64();
    assert!((expected / exact - 1.0).abs() < 0.05, "{expected} for {exact}");
    assert_eq!((choice.segments, choice.tokens, choice.probe), (1, 2048, None));
}

#[test]
fn unmeasured_means_restored_as_far_as_one_can_go_on_from() {
    let mut chain = [segment(512, Tier::Disk); 3];
    chain[2].resumable = false;
    let choice = Estimates::new(RestoreRule::Faster).choose(&chain, 2000);
    assert_eq!((choice.segments, choice.tokens, choice.expected), (2, 1024, None));
    assert_eq!(Estimates::new(RestoreRule::Faster).choose(&[], 2000).segments, 0);
}

#[test]
fn a_chain_is_cut_where_its_slow_part_begins() {
    let mut estimates = measured(Tier::Disk, 0.2e9);
    let [fast, slow] = [Tier::Ram, Tier::Disk].map(|tier| segment(2048, tier));
    assert_eq!(estimates.choose(&[fast, fast, slow, slow], 9000).segments, 2);
    assert_eq!(estimates.choose(&[slow, fast], 9000).segments, 0, "the fast one is out of reach");
    let huge = segment(60_000, Tier::Ram);
    assert_eq!(estimates.choose(&[segment(100, Tier::Disk), huge], 61_000).segments, 2, "a small toll is paid");
}

#[test]
fn a_state_that_cannot_be_resumed_is_no_place_to_stop() {
    let mut estimates = measured(Tier::Disk, 0.2e9);
    let mut chain = [segment(2048, Tier::Ram), segment(2048, Tier::Disk)];
    chain[0].resumable = false;
    let choice = estimates.choose(&chain, 5000);
    assert_eq!(choice.segments, 0, "0.34 s of computing is cheaper than 1.3 s of reading");
}

#[test]
fn near_equal_costs_do_not_flutter() {
    let mut estimates = measured(Tier::Disk, 2.6e9);
    let chain = [segment(2048, Tier::Disk)];
    let even = BYTES_PER_TOKEN as f64 / PREFILL;
    let mut changes = 0;
    let mut last = estimates.choose(&chain, 2100).segments;
    for turn in 0..40 {
        let noise = if turn % 2 == 0 { 1.05 } else { 0.95 };
        estimates.record_restore(Tier::Disk, 1 << 28, seconds((1 << 28) as f64 / (even * noise)));
        let choice = estimates.choose(&chain, 2100);
        changes += usize::from(choice.segments != last);
        last = choice.segments;
    }
    assert_eq!((changes, last), (0, 1), "what was restored stays restored");
}

/// Serves one request on a machine with a disk of this speed; returns the choice.
fn serve(estimates: &mut Estimates, chain: &[ChainSegment], disk: f64) -> RestoreChoice {
    let choice = estimates.choose(chain, 8192 + 100);
    for segment in &chain[..choice.segments] {
        estimates.record_restore(segment.tier, segment.bytes, seconds(segment.bytes as f64 / disk));
    }
    let computed = 8192 + 100 - choice.tokens;
    estimates.record_prefill(computed, seconds(computed as f64 * PREFILL));
    choice
}

#[test]
fn a_tier_that_turned_slow_is_left_and_comes_back() {
    let mut estimates = measured(Tier::Disk, 2.6e9);
    let chain = [segment(2048, Tier::Disk); 4];
    assert_eq!(serve(&mut estimates, &chain, 2.6e9).segments, 4);

    let slow: Vec<_> = (0..1000).map(|_| serve(&mut estimates, &chain, 0.05e9)).collect();
    let full = slow.iter().filter(|choice| choice.segments == 4).count();
    assert_eq!(full, 1, "one request measures it");
    let probes: Vec<_> = slow.iter().filter(|choice| choice.segments > 0).skip(1).collect();
    assert!(probes.iter().all(|choice| choice.segments == 1 && choice.probe == Some(Tier::Disk)), "{probes:?}");
    assert!((10..=20).contains(&probes.len()), "{} probes in 1000 requests", probes.len());

    let noticed = (1..200).find(|_| serve(&mut estimates, &chain, 2.6e9).probe.is_some());
    assert!(noticed.is_some_and(|requests| requests <= 65), "tried again after {noticed:?} requests");
    let back = (1..200).find(|_| serve(&mut estimates, &chain, 2.6e9).segments == 4);
    assert!(back.is_some_and(|requests| requests <= 8), "used again {back:?} requests after that");
    assert!((0..100).all(|_| serve(&mut estimates, &chain, 2.6e9).segments == 4), "and it stays");
}

#[test]
fn one_small_slow_read_does_not_condemn_a_tier() {
    let mut estimates = measured(Tier::Disk, 2.6e9);
    estimates.record_restore(Tier::Disk, 4096, Duration::from_millis(50));
    assert_eq!(estimates.choose(&[segment(2048, Tier::Disk); 4], 8200).segments, 4);
    let before = estimates.restore_rate(Tier::Disk);
    estimates.record_restore(Tier::Disk, 0, Duration::from_secs(9));
    estimates.record_restore(Tier::Disk, 1 << 20, Duration::ZERO);
    estimates.record_prefill(0, Duration::from_secs(1));
    assert_eq!(estimates.restore_rate(Tier::Disk).to_bits(), before.to_bits(), "nothing was measured");
}

/// On a GPU the first restore from memory took 80 times as long as the second, and eight long prompts were computed for it.
#[test]
fn a_slow_first_restore_does_not_condemn_a_tier_and_a_second_one_does() {
    let chain = [segment(2048, Tier::Ram); 4];
    let mut estimates = Estimates::new(RestoreRule::Faster);
    estimates.record_prefill(2048, seconds(2048.0 * PREFILL));
    estimates.record_restore(Tier::Ram, 78_000_000, seconds(0.148));
    assert_eq!(estimates.choose(&chain, 8200).segments, 4, "once may be a hiccup");
    let mut slow = estimates.clone();
    estimates.record_restore(Tier::Ram, 78_000_000, seconds(0.0019));
    assert!(estimates.restore_rate(Tier::Ram) > 3e10, "the second one is believed");
    slow.record_restore(Tier::Ram, 78_000_000, seconds(0.148));
    assert_eq!(slow.choose(&chain, 8200).segments, 0, "twice is how it is");
}

proptest! {
    #[test]
    fn a_choice_is_close_to_the_best_of_all(
        parts in prop::collection::vec((1_usize..4000, 0_usize..3, prop::bool::weighted(0.7)), 0..8),
        rates in prop::array::uniform3(0.1e9_f64..20e9), extra in 0_usize..3000,
    ) {
        let mut estimates = Estimates::new(RestoreRule::Faster);
        for _ in 0..30 {
            estimates.record_prefill(2048, seconds(2048.0 * PREFILL));
            for (tier, rate) in Tier::ALL.into_iter().zip(rates) {
                estimates.record_restore(tier, 1 << 28, seconds((1 << 28) as f64 / rate));
            }
        }
        let chain: Vec<ChainSegment> = parts.iter()
            .map(|&(tokens, tier, resumable)| ChainSegment { resumable, ..segment(tokens, Tier::ALL[tier]) })
            .collect();
        let prompt = extra + chain.iter().map(|segment| segment.tokens).sum::<usize>();
        let cost = |count: usize| {
            let restore: f64 = chain[..count].iter()
                .map(|segment| segment.bytes as f64 / rates[segment.tier.index()] + 200e-6)
                .sum();
            restore + (prompt - chain[..count].iter().map(|segment| segment.tokens).sum::<usize>()) as f64 * PREFILL
        };
        let choice = estimates.choose(&chain, prompt);
        prop_assert!(choice.segments == 0 || chain[choice.segments - 1].resumable);
        prop_assert_eq!(choice.tokens, chain[..choice.segments].iter().map(|segment| segment.tokens).sum::<usize>());
        // A tier that turned out twice as fast as assumed is measured again, whatever that costs.
        prop_assume!(choice.probe.is_none());
        let best = (0..=chain.len()).filter(|&count| count == 0 || chain[count - 1].resumable).map(cost).fold(f64::MAX, f64::min);
        prop_assert!(cost(choice.segments) <= best * 1.2 + 0.003, "{} for {}", cost(choice.segments), best);
    }
}

/// Hardening 15: reading has a deadline, half of what computing would take.
#[test]
fn reads_are_waited_for_half_as_long_as_computing_takes_and_within_bounds() {
    let floor = Duration::from_secs(1);
    let mut estimates = Estimates::new(RestoreRule::Faster);
    assert_eq!(estimates.patience(10, floor), floor, "little to compute");
    let unmeasured = estimates.patience(20_000, floor);
    assert!(unmeasured > floor && unmeasured < Duration::from_secs(60), "{unmeasured:?}");
    estimates.record_prefill(1000, Duration::from_secs(10));
    assert_eq!(estimates.patience(2000, floor).as_secs_f64().round(), 10.0);
    assert_eq!(estimates.patience(2000, Duration::from_secs(30)), Duration::from_secs(30));
    let longest = estimates.patience(usize::MAX, floor);
    assert!(longest <= Duration::from_secs(120), "{longest:?}");
    assert_eq!(Estimates::new(RestoreRule::Always).patience(1, floor), longest, "what is stored is always put back");
}
