//! Costs, the choice of a node, hot prefixes, drain, admission, and what follows a failure.

use std::time::Duration;

use poncho_cluster::index::Slot;
use poncho_cluster::member::{Load, Member, Rates, State};
use poncho_cluster::route::{
    Ask, Attempt, Candidate, Considered, Decision, Dispatch, Expected, Held, Sample, Source, Starts, Step, choose,
    retry_after,
};
use poncho_kinds::Tier;

/// 8B on one large GPU: 131 kB per token.
const RATES: Rates = Rates {
    prefill_tokens: 10_000.0,
    decode_step: 0.01,
    decode_stream: 0.000_2,
    bytes_per_token: 131_072.0,
    ram_bytes: 20e9,
    disk_bytes: 3e9,
    peer_bytes: 10e9,
    shared_bytes: 1e9,
    remote_delay: 0.002,
};

const ASK: Ask = Ask { tokens: 10_000, reply_tokens: 100 };

fn member() -> Member {
    let load =
        Load { running: 0, places: 16, waiting: 0, queue: 32, backlog_tokens: 0.0, line_bytes: 0.0, mean_stay: 4.0 };
    Member { state: State::Up, rates: RATES, load }
}

fn held(tokens: u32) -> Option<Held> {
    Some(Held { tokens, tier: Tier::Ram })
}

fn pick(members: &[(Member, Option<Held>)], expected: &[Expected]) -> Decision {
    let candidates: Vec<Candidate<'_>> = members
        .iter()
        .enumerate()
        .map(|(place, (member, held))| Candidate {
            node: Slot(u32::try_from(place).unwrap()),
            member,
            held: *held,
            live: 0,
        })
        .collect();
    choose(&ASK, &candidates, 0, expected, 1, members.iter().map(|(member, _)| member)).unwrap()
}

fn of(decision: &Decision, node: u32) -> Considered {
    *decision.considered.iter().find(|one| one.node == Slot(node)).unwrap()
}

#[test]
fn the_node_that_holds_the_prefix_serves_it() {
    let decision = pick(&[(member(), None), (member(), held(9_000)), (member(), held(2_000))], &[]);
    assert_eq!((decision.node, decision.cost.source, decision.cost.from_cache), (Slot(1), Source::Local, 9_000));
    assert_eq!(of(&decision, 0).cost.source, Source::Peer(Slot(1)), "another node would pull it");
}

#[test]
fn a_busy_holder_gives_way_to_a_node_that_pulls() {
    let mut busy = member();
    busy.load.backlog_tokens = 50_000.0;
    let decision = pick(&[(busy, held(9_000)), (member(), None)], &[]);
    assert_eq!((decision.node, decision.cost.source), (Slot(1), Source::Peer(Slot(0))));
    assert!(of(&decision, 0).cost.queue > 4.9);
}

#[test]
fn a_slow_line_is_never_chosen_over_computing() {
    let mut slow = member();
    slow.rates.peer_bytes = 125e6;
    let mut busy = member();
    busy.load.backlog_tokens = 50_000.0;
    let decision = pick(&[(busy, held(9_000)), (slow, None)], &[]);
    assert_eq!((decision.node, decision.cost.source), (Slot(1), Source::Compute), "131 kB per token at 1 Gbit");
}

#[test]
fn the_shared_tier_counts_as_a_source() {
    let mut fast = member();
    fast.rates.shared_bytes = 5e9;
    let candidates = [Candidate { node: Slot(0), member: &fast, held: None, live: 0 }];
    let decision = choose(&ASK, &candidates, 9_500, &[], 1, [].into_iter()).unwrap();
    assert_eq!((decision.cost.source, decision.cost.from_cache), (Source::Shared, 9_500));
}

#[test]
fn two_nodes_compute_a_prefix_and_a_third_one_waits_for_it() {
    let starts: Vec<Expected> =
        (0..2).map(|node| Expected { node: Slot(node), tokens: 9_984, ready_in: 1.0 }).collect();
    let mut full = member();
    (full.load.running, full.load.waiting) = (16, 32);
    let decision = pick(&[(full, None), (full, None), (member(), None)], &starts);
    assert_eq!(decision.node, Slot(2));
    assert!(matches!(decision.cost.source, Source::Peer(_)), "{decision:?}");
    assert!(decision.cost.prefix >= 1.0, "it waits until the prefix is there");
    assert_eq!(decision.cost.doubled, 0);
}

#[test]
fn sixty_four_equal_prompts_are_computed_at_most_twice_and_spread() {
    let blocks: Vec<u64> = (1..=39).collect();
    let mut members = [member(); 4];
    let mut starts = Starts::default();
    let (mut cold, mut served) = (0, [0_u32; 4]);
    for number in 0..64 {
        let mut expected = Vec::new();
        starts.find(&blocks, 256, 0.0, &mut expected);
        let listed: Vec<(Member, Option<Held>)> = members.iter().map(|member| (*member, None)).collect();
        let decision = pick(&listed, &expected);
        let member = &mut members[decision.node.0 as usize];
        served[decision.node.0 as usize] += 1;
        member.load.running += 1;
        let computed = ASK.tokens - decision.cost.from_cache;
        member.load.backlog_tokens += f64::from(computed);
        if computed > 1_000 {
            cold += 1;
            starts.begin(decision.node, &blocks, 0.0, decision.cost.first_token());
        }
        assert!(cold <= 2, "request {number}: {decision:?}");
    }
    let most = served.iter().max().copied().unwrap();
    assert!(most <= 24, "at most 1.5 times the mean of 16: {served:?}");
}

#[test]
fn a_draining_node_gets_nothing_and_lends_its_rows() {
    let mut draining = member();
    draining.state = State::Draining;
    let decision = pick(&[(draining, held(9_000)), (member(), None)], &[]);
    assert_eq!((decision.node, decision.cost.source), (Slot(1), Source::Peer(Slot(0))));
    assert!(decision.considered.iter().all(|one| one.node != Slot(0)));
}

#[test]
fn rates_that_make_no_sense_neither_panic_nor_win() {
    let mut odd = member();
    let nan = f64::NAN;
    odd.rates = Rates { prefill_tokens: nan, decode_step: nan, peer_bytes: 0.0, ram_bytes: -1.0, ..RATES };
    (odd.load.backlog_tokens, odd.load.mean_stay) = (nan, nan);
    let decision = pick(&[(odd, None), (member(), None), (odd, held(9_000))], &[]);
    assert_eq!(decision.node, Slot(1));
}

#[test]
fn two_routers_agree_on_where_a_cold_prefix_starts() {
    let members: Vec<(Member, Option<Held>)> = vec![(member(), None); 20];
    let first = pick(&members, &[]).node;
    assert!((0..10).all(|_| pick(&members, &[]).node == first));
    let sample = Sample { by_prefix: 4, by_request: 4 };
    let (one, other): (Vec<usize>, Vec<usize>) =
        (sample.places(77, 1, 1000).collect(), sample.places(77, 2, 1000).collect());
    assert_eq!(one[..4], other[..4]);
    assert_ne!(one[4..], other[4..]);
    assert_eq!(sample.places(77, 1, 0).count(), 0);
}

#[test]
fn a_full_cluster_says_when_a_place_is_free() {
    let mut full = member();
    (full.load.running, full.load.waiting, full.load.mean_stay) = (16, 32, 64.0);
    let members = [full, full];
    let candidates: Vec<Candidate<'_>> =
        members.iter().map(|member| Candidate { node: Slot(0), member, held: None, live: 0 }).collect();
    let refusal = choose(&ASK, &candidates, 0, &[], 1, members.iter()).unwrap_err();
    assert_eq!(refusal.after, Duration::from_secs(4), "16 requests of 64 s each: one ends every 4 s");
    assert_eq!(retry_after(members.iter(), 10).after, Duration::from_secs(24), "ten others come back first");
    assert_eq!(retry_after([].into_iter(), 0).after, Duration::from_secs(5));
    let mut never = full;
    never.load.mean_stay = f64::INFINITY;
    assert_eq!(retry_after([never].iter(), 3).after, Duration::from_secs(5));
    assert!(refusal.to_string().contains("try again in 4 s"));
}

#[test]
fn a_start_ends_when_its_node_announces_it_fails_or_goes() {
    let blocks: Vec<u64> = (1..=10).collect();
    let mut starts = Starts::default();
    let mut found = Vec::new();
    let first = starts.begin(Slot(1), &blocks[..8], 0.0, 2.0);
    starts.begin(Slot(2), &blocks, 0.0, 3.0);
    starts.find(&blocks, 256, 1.0, &mut found);
    assert_eq!(found[0], Expected { node: Slot(1), tokens: 8 * 256, ready_in: 1.0 });
    assert_eq!(found[1], Expected { node: Slot(2), tokens: 10 * 256, ready_in: 2.0 });
    starts.announced(Slot(2), &blocks[..5]);
    assert_eq!(starts.len(), 2, "half of it is not all of it");
    starts.announced(Slot(2), &blocks);
    starts.end(first);
    assert!(starts.is_empty());
    starts.begin(Slot(3), &blocks, 10.0, 11.0);
    starts.remove_node(Slot(3));
    assert!(starts.is_empty());
    starts.begin(Slot(3), &blocks, 20.0, 21.0);
    starts.find(&blocks, 256, 60.0, &mut found);
    assert_eq!(found, [], "its node should have announced it long ago");
    starts.expire(60.0);
    assert!(starts.is_empty());
}

#[test]
fn a_request_ends_once_and_two_lost_nodes_are_enough() {
    let mut dispatch = Dispatch::new();
    assert_eq!(dispatch.attempted(Slot(1), Attempt::Refused), Step::TryAgain);
    assert!(!dispatch.may_try(Slot(1)) && dispatch.may_try(Slot(2)));
    assert_eq!(dispatch.attempted(Slot(2), Attempt::Lost), Step::TryAgain);
    assert_eq!(dispatch.attempted(Slot(3), Attempt::Lost), Step::GiveUp);
    assert_eq!(dispatch.attempted(Slot(4), Attempt::Done), Step::GiveUp, "the first end stays");
    assert_eq!((dispatch.ended(), dispatch.may_try(Slot(5))), (Some(Step::GiveUp), false));
    let mut nobody = Dispatch::new();
    assert_eq!((nobody.exhausted(), nobody.exhausted()), (Step::TryLater, Step::TryLater));
}
