//! Announcements: gaps, restarts, pages, repetitions and sealed bytes.

use poncho_cluster::blocks::Lookup;
use poncho_cluster::hints::{
    Action, Announcer, Answer, Change, Changes, Directory, Incarnation, Question, Timing, decode, encode,
};
use poncho_cluster::index::{CompactIndex, Match, PrefixIndex, Row};
use poncho_cluster::member::State;
use poncho_kinds::{Key, Tier};

fn key(number: u64) -> Key {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Key::from_bytes(bytes)
}

fn row(number: u64) -> Row {
    Row { key: key(number), parent: None, blocks: vec![number], boundaries: Vec::new(), tier: Tier::Ram, bytes: 9 }
}

struct Prompt(Vec<u64>);

impl Lookup for Prompt {
    fn blocks(&self) -> &[u64] {
        &self.0
    }

    fn root(&self) -> u64 {
        0
    }

    fn tail_hash(&self, _: usize, _: u16) -> Option<u64> {
        None
    }
}

fn announcer(started_ms: u64) -> Announcer {
    Announcer::new("a", "http://a", "a:1", Incarnation { started_ms, random: 0 }, 10)
}

fn directory() -> Directory<CompactIndex> {
    Directory::new(CompactIndex::new(1_000_000), Timing::default(), 0)
}

fn holds(directory: &Directory<CompactIndex>, number: u64) -> bool {
    let mut found: Vec<Match> = Vec::new();
    directory.index().find(&Prompt(vec![number]), 10, &mut found);
    !found.is_empty()
}

fn question(directory: &mut Directory<CompactIndex>, now: f64) -> Option<Question> {
    directory.tick(now).into_iter().find_map(|action| match action {
        Action::Ask { question, .. } => Some(question),
        Action::Gone { .. } => None,
    })
}

/// Asks until the node has nothing more. Returns the number of answers.
fn catch_up(directory: &mut Directory<CompactIndex>, announcer: &mut Announcer, now: f64) -> usize {
    let mut answers = 0;
    while let Some(question) = question(directory, now) {
        let answer = announcer.answer(&question, State::Up, Vec::new());
        directory.answered(&answer, now);
        answers += 1;
        assert!(answers < 100, "it never ends");
    }
    answers
}

#[test]
fn a_gap_is_asked_for_and_filled() {
    let (mut node, mut router) = (announcer(1), directory());
    router.beat(node.beat(State::Up, Vec::new()), 0.0);
    router.changes(&node.stored(row(1)));
    let _lost = node.stored(row(2));
    router.changes(&node.stored(row(3)));
    assert!(holds(&router, 1) && !holds(&router, 3), "what comes after a gap waits");
    assert_eq!(catch_up(&mut router, &mut node, 0.1), 1);
    assert!(holds(&router, 2) && holds(&router, 3));
    assert_eq!(question(&mut router, 0.2), None);
}

#[test]
fn the_last_change_of_all_is_noticed_by_the_next_beat() {
    let (mut node, mut router) = (announcer(1), directory());
    router.beat(node.beat(State::Up, Vec::new()), 0.0);
    let _lost = node.stored(row(1));
    assert_eq!(question(&mut router, 1.0), None);
    router.beat(node.beat(State::Up, Vec::new()), 1.0);
    assert_eq!(catch_up(&mut router, &mut node, 1.0), 1);
    assert!(holds(&router, 1));
}

#[test]
fn a_node_that_started_again_has_nothing_of_its_earlier_life() {
    let (mut before, mut after, mut router) = (announcer(1), announcer(2), directory());
    router.beat(before.beat(State::Up, Vec::new()), 0.0);
    router.changes(&before.stored(row(1)));
    let late = before.stored(row(2));
    router.beat(after.beat(State::Up, Vec::new()), 1.0);
    assert!(!holds(&router, 1));
    router.changes(&late);
    router.beat(before.beat(State::Up, Vec::new()), 1.1);
    assert!(!holds(&router, 2), "a message of the earlier life came late");
    assert_eq!(router.node("a").unwrap().beat.incarnation.started_ms, 2);
    router.changes(&after.stored(row(3)));
    assert!(holds(&router, 3));
}

#[test]
fn a_new_router_gets_thousands_of_rows_in_pages() {
    let (mut node, mut router) = (announcer(1), directory());
    for number in 1..=3_500 {
        let _unheard = node.stored(row(number));
    }
    for number in 1..=100 {
        let _unheard = node.removed(&key(number));
    }
    router.beat(node.beat(State::Up, Vec::new()), 0.0);
    assert_eq!(catch_up(&mut router, &mut node, 0.0), 4);
    assert_eq!(router.index().size().rows, 3_400);
    assert!(!holds(&router, 100) && holds(&router, 101) && holds(&router, 3_500));
}

#[test]
fn rows_that_go_between_two_pages_do_not_stay() {
    let (mut node, mut router) = (announcer(1), directory());
    for number in 1..=2_500 {
        let _unheard = node.stored(row(number));
    }
    router.beat(node.beat(State::Up, Vec::new()), 0.0);
    let first = question(&mut router, 0.0).unwrap();
    let answer = node.answer(&first, State::Up, Vec::new());
    router.answered(&answer, 0.0);
    assert!(holds(&router, 5));
    // More removals than the node remembers: the router has to start over.
    for number in 1..=50 {
        let _unheard = node.removed(&key(number));
    }
    catch_up(&mut router, &mut node, 0.1);
    assert!(!holds(&router, 5) && holds(&router, 51));
    assert_eq!(router.index().size().rows, 2_450);
}

#[test]
fn a_repeated_beat_does_not_keep_a_dead_node_alive() {
    let (mut node, mut router) = (announcer(1), directory());
    let recorded = node.beat(State::Up, Vec::new());
    for tenth in 0..99 {
        router.beat(recorded.clone(), f64::from(tenth) / 10.0);
    }
    let gone = router.tick(10.0);
    assert!(matches!(gone.as_slice(), [Action::Gone { .. }]), "{gone:?}");
    assert_eq!(router.nodes().count(), 0);
}

#[test]
fn a_silent_node_is_asked_directly_and_stays() {
    let (mut node, mut router) = (announcer(1), directory());
    router.beat(node.beat(State::Up, Vec::new()), 0.0);
    for second in 1..60 {
        let now = f64::from(second);
        let _bus_is_away = node.stored(row(u64::try_from(second).unwrap()));
        if let Some(question) = question(&mut router, now) {
            router.answered(&node.answer(&question, State::Up, Vec::new()), now);
        }
    }
    assert!(holds(&router, 50), "polled");
    assert_eq!(router.nodes().count(), 1);
}

#[test]
fn an_answer_to_an_earlier_question_is_dropped() {
    let (mut node, mut router) = (announcer(1), directory());
    router.beat(node.beat(State::Up, Vec::new()), 0.0);
    let _unheard = node.stored(row(1));
    router.beat(node.beat(State::Up, Vec::new()), 0.0);
    let early = question(&mut router, 0.0).unwrap();
    let late_answer = node.answer(&early, State::Up, Vec::new());
    let _unheard = node.removed(&key(1));
    let second = question(&mut router, 5.0).unwrap();
    router.answered(&node.answer(&second, State::Up, Vec::new()), 5.0);
    router.answered(&late_answer, 5.1);
    assert!(!holds(&router, 1));
}

#[test]
fn numbers_at_the_end_of_their_range_do_no_harm() {
    let (mut node, mut router) = (announcer(1), directory());
    router.beat(node.beat(State::Up, Vec::new()), 0.0);
    let incarnation = node.incarnation();
    for first in [0, u64::MAX, u64::MAX - 1] {
        let changes = vec![Change::Stored(row(1)), Change::Removed(key(1))];
        router.changes(&Changes { node: "a".to_owned(), incarnation, first, changes });
    }
    let question = Question { incarnation: Some(incarnation), since: u64::MAX, base: u64::MAX, nonce: 1 };
    let answer: Answer = node.answer(&question, State::Up, Vec::new());
    assert!(answer.resets);
    let bytes = encode(&answer).unwrap();
    assert_eq!(decode::<Answer>(&bytes).unwrap(), answer);
    assert!(decode::<Answer>(&bytes[..bytes.len() / 2]).is_err());
}
