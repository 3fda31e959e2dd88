//! Tests of `admission.rs`: single cases, then random operations against an independent account of who owns what.
//!
//! Run by `cargo test` only. They must never look at the machine's own slots to decide what is right.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn ticket(request: u64, session: Option<&str>) -> Ticket {
    Ticket { request: RequestId(request), session: session.map(str::to_owned), needs_session: false, owner: None }
}

fn admitted(submitted: &Submitted) -> SeqId {
    match submitted {
        Submitted::Admitted(Place::Fresh(seq) | Place::Session(seq)) => *seq,
        other => panic!("not admitted: {other:?}"),
    }
}

#[test]
fn a_session_keeps_its_sequence_and_is_refused_while_busy() {
    let mut admission = Admission::new(2, 4);
    let seq = admitted(&admission.submit(ticket(1, Some("a"))));
    let busy = Submitted::Refused(Refusal::StickyBusy { session: "a".into() });
    assert_eq!(admission.submit(ticket(2, Some("a"))), busy);
    assert_eq!(admission.release(seq, After::Pin), Some(RequestId(1)));
    assert_eq!(admission.submit(ticket(3, Some("a"))), Submitted::Admitted(Place::Session(seq)));
    assert_eq!(admission.release(seq, After::Free), Some(RequestId(3)));
    assert!(matches!(admission.submit(ticket(4, Some("a"))), Submitted::Admitted(Place::Fresh(_))));
}

#[test]
fn an_emptied_sequence_is_taken_before_one_that_holds_something() {
    let mut admission = Admission::new(3, 4);
    let seqs: Vec<SeqId> = (0..3).map(|id| admitted(&admission.submit(ticket(id, None)))).collect();
    for seq in &seqs {
        admission.release(*seq, After::Free);
    }
    admission.emptied(2);
    assert_eq!(admitted(&admission.submit(ticket(4, None))), 2);
    admission.emptied(2);
    assert_eq!(admitted(&admission.submit(ticket(5, None))), 0, "2 is in use: the oldest of the others");
}

#[test]
fn with_neighbours_requests_run_side_by_side() {
    let mut admission = Admission::new(8, 4).with_neighbours(true);
    let first: Vec<SeqId> = (0..6).map(|id| admitted(&admission.submit(ticket(id, None)))).collect();
    assert_eq!(first, [0, 1, 2, 3, 4, 5]);
    for seq in [3, 0, 5, 1] {
        admission.release(seq, After::Free);
    }
    // 2 and 4 run. 3 was left before 1 and 5; 0, 6 and 7 have no neighbour.
    assert_eq!(admitted(&admission.submit(ticket(7, None))), 3);
    assert_eq!(admitted(&admission.submit(ticket(8, None))), 5);
    assert_eq!(admitted(&admission.submit(ticket(9, None))), 6, "never used, and now beside 5");
    let mut apart = Admission::new(8, 4);
    let seq = admitted(&apart.submit(ticket(1, None)));
    apart.submit(ticket(2, None));
    apart.release(seq, After::Free);
    assert_eq!(admitted(&apart.submit(ticket(3, None))), 2, "without them, the one that was left longest ago");
}

#[test]
fn a_session_that_waits_is_busy_too() {
    let mut admission = Admission::new(1, 4);
    admission.submit(ticket(1, None));
    assert_eq!(admission.submit(ticket(2, Some("a"))), Submitted::Queued(0));
    let busy = Submitted::Refused(Refusal::StickyBusy { session: "a".into() });
    assert_eq!(admission.submit(ticket(3, Some("a"))), busy);
    assert!(admission.cancel_queued(RequestId(2)));
    assert!(!admission.cancel_queued(RequestId(2)), "a second cancel finds nothing");
    assert_eq!(admission.submit(ticket(4, Some("a"))), Submitted::Queued(0));
}

#[test]
fn continue_needs_a_session_that_holds_a_sequence() {
    let mut admission = Admission::new(1, 4);
    let next = Ticket { needs_session: true, ..ticket(1, Some("a")) };
    assert_eq!(admission.submit(next.clone()), Submitted::Refused(Refusal::NoSession { session: "a".into() }));
    let seq = admitted(&admission.submit(ticket(2, Some("a"))));
    assert_eq!(admission.submit(next.clone()), Submitted::Refused(Refusal::StickyBusy { session: "a".into() }));
    admission.release(seq, After::Pin);
    assert_eq!(admission.submit(next), Submitted::Admitted(Place::Session(seq)));
}

#[test]
fn the_least_recently_used_idle_session_makes_room() {
    let mut admission = Admission::new(2, 0);
    let a = admitted(&admission.submit(ticket(1, Some("a"))));
    let b = admitted(&admission.submit(ticket(2, Some("b"))));
    admission.release(b, After::Pin);
    admission.release(a, After::Pin);
    assert_eq!(admission.submit(ticket(3, None)), Submitted::Queued(0), "a queue without room does not matter");
    assert_eq!(admission.admit_next(), Next::ReleaseFirst(b));
    assert_eq!(admission.release_session(b).as_deref(), Some("b"));
    assert_eq!(admission.admit_next(), Next::Admit(RequestId(3), b));
    assert_eq!(admission.admit_next(), Next::Wait);
    assert_eq!(admission.lru_idle_session(), Some((a, "a")));
}

#[test]
fn a_full_queue_refuses_with_its_numbers() {
    let mut admission = Admission::new(1, 1);
    admission.submit(ticket(1, None));
    assert_eq!(admission.submit(ticket(2, None)), Submitted::Queued(0));
    assert_eq!(admission.submit(ticket(3, None)), Submitted::Refused(Refusal::Overloaded { queued: 1, limit: 1 }));
}

#[test]
fn a_newcomer_does_not_pass_the_queue_when_a_sequence_comes_free() {
    let mut admission = Admission::new(1, 4);
    let seq = admitted(&admission.submit(ticket(1, None)));
    admission.submit(ticket(2, None));
    admission.release(seq, After::Free);
    assert_eq!(admission.submit(ticket(3, None)), Submitted::Queued(1));
    assert_eq!(admission.admit_next(), Next::Admit(RequestId(2), seq));
}

#[test]
fn a_session_ended_in_flight_is_not_pinned_again() {
    let mut admission = Admission::new(1, 4);
    let seq = admitted(&admission.submit(ticket(1, Some("a"))));
    assert_eq!(admission.end_session("a"), EndedSession::Later);
    assert_eq!(admission.end_session("a"), EndedSession::Unknown);
    admission.release(seq, After::Pin);
    assert_eq!(admission.free().collect::<Vec<_>>(), [seq]);
    let seq = admitted(&admission.submit(ticket(2, Some("a"))));
    admission.release(seq, After::Pin);
    assert_eq!(admission.end_session("a"), EndedSession::Freed(seq));
}

#[test]
fn a_request_moves_to_the_free_sequence_that_suits_it() {
    let mut admission = Admission::new(3, 4);
    let seq = admitted(&admission.submit(ticket(1, Some("a"))));
    let other = admitted(&admission.submit(ticket(2, None)));
    assert!(!admission.reassign(seq, other), "it is taken");
    let free = admission.free().next().unwrap();
    assert!(admission.reassign(seq, free));
    admission.release(free, After::Pin);
    assert_eq!(admission.submit(ticket(3, Some("a"))), Submitted::Admitted(Place::Session(free)));
}

#[derive(Debug, Clone)]
enum Operation {
    Submit { session: Option<u8>, needs_session: bool },
    Release { pick: usize, pin: bool },
    EndSession(u8),
    Cancel { pick: usize },
    Reassign { pick: usize },
}

fn operation() -> impl Strategy<Value = Operation> {
    let name = || prop::option::of(0_u8..4);
    prop_oneof![
        4 => (name(), prop::bool::weighted(0.1))
            .prop_map(|(session, needs_session)| Operation::Submit { session, needs_session }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(pick, pin)| Operation::Release { pick, pin }),
        1 => (0_u8..4).prop_map(Operation::EndSession),
        1 => any::<usize>().prop_map(|pick| Operation::Cancel { pick }),
        1 => any::<usize>().prop_map(|pick| Operation::Reassign { pick }),
    ]
}

/// What an outsider knows from the answers alone.
#[derive(Default)]
struct Account {
    running: Vec<(RequestId, SeqId)>,
    waiting: Vec<RequestId>,
}

fn drain(admission: &mut Admission, account: &mut Account) -> Result<(), TestCaseError> {
    loop {
        match admission.admit_next() {
            Next::Admit(request, seq) => {
                prop_assert_eq!(Some(request), account.waiting.first().copied(), "first come, first served");
                account.waiting.remove(0);
                prop_assert!(account.running.iter().all(|&(_, used)| used != seq), "a sequence has one owner");
                account.running.push((request, seq));
            }
            Next::ReleaseFirst(seq) => prop_assert!(admission.release_session(seq).is_some()),
            Next::Wait => return Ok(()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_is_owned_twice_or_lost(
        n_seq in 1_u32..5, limit in 0_usize..4, operations in prop::collection::vec(operation(), 1..120)
    ) {
        let mut admission = Admission::new(n_seq, limit);
        let mut account = Account::default();
        for (number, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Submit { session, needs_session } => {
                    let request = RequestId(number as u64);
                    let session = session.map(|name| name.to_string());
                    let needs_session = needs_session && session.is_some();
                    match admission.submit(Ticket { request, session, needs_session, owner: None }) {
                        Submitted::Admitted(Place::Fresh(seq) | Place::Session(seq)) => {
                            prop_assert!(account.running.iter().all(|&(_, used)| used != seq));
                            account.running.push((request, seq));
                        }
                        Submitted::Queued(position) => {
                            prop_assert_eq!(position, account.waiting.len());
                            account.waiting.push(request);
                        }
                        Submitted::Refused(Refusal::Overloaded { .. }) => {
                            prop_assert_eq!(account.running.len(), n_seq as usize, "idle sessions are not a reason to refuse");
                            prop_assert_eq!(account.waiting.len(), limit);
                        }
                        Submitted::Refused(_) => {}
                    }
                }
                Operation::Release { pick, pin } if !account.running.is_empty() => {
                    let (request, seq) = account.running.remove(pick % account.running.len());
                    let after = if pin { After::Pin } else { After::Free };
                    prop_assert_eq!(admission.release(seq, after), Some(request));
                    prop_assert_eq!(admission.release(seq, after), None, "no request runs there");
                }
                Operation::EndSession(name) => drop(admission.end_session(&name.to_string())),
                Operation::Cancel { pick } if !account.waiting.is_empty() => {
                    let request = account.waiting.remove(pick % account.waiting.len());
                    prop_assert!(admission.cancel_queued(request));
                }
                Operation::Reassign { pick } if !account.running.is_empty() => {
                    let index = pick % account.running.len();
                    let target = admission.free().next();
                    if let Some(to) = target {
                        prop_assert!(admission.reassign(account.running[index].1, to));
                        account.running[index].1 = to;
                    }
                }
                _ => {}
            }
            drain(&mut admission, &mut account)?;

            let running: HashMap<_, _> = admission.in_flight().collect();
            prop_assert_eq!(running, account.running.iter().copied().collect::<HashMap<_, _>>());
            prop_assert_eq!(admission.queued().collect::<Vec<_>>(), account.waiting.clone());
            let (free, idle) = (admission.free().count(), admission.idle_sessions().count());
            prop_assert_eq!(free + idle + account.running.len(), n_seq as usize, "no sequence is lost");
            prop_assert!(account.waiting.is_empty() || free + idle == 0, "nobody waits beside a sequence at rest");
        }
    }
}

/// Hardening 26: one owner opened session after session, and the idle ones of all others gave up their sequences.
#[test]
fn the_owner_that_pins_most_gives_up_a_sequence_first() {
    let mut admission = Admission::new(3, 8);
    let owner = |number: u8| Some(OwnerId::from_bytes([number; 16]));
    let pin = |admission: &mut Admission, request: u64, name: &str, owner: Option<OwnerId>| {
        let seq = match admission.submit(Ticket { owner, ..ticket(request, Some(name)) }) {
            Submitted::Admitted(Place::Fresh(seq)) => seq,
            Submitted::Queued(_) => loop {
                match admission.admit_next() {
                    Next::Admit(_, seq) => break seq,
                    Next::ReleaseFirst(seq) => drop(admission.release_session(seq)),
                    Next::Wait => panic!("nothing to release"),
                }
            },
            other => panic!("{other:?}"),
        };
        admission.release(seq, After::Pin);
    };
    pin(&mut admission, 1, "one's only", owner(1));
    for request in 2..12 {
        pin(&mut admission, request, &format!("two's {request}"), owner(2));
    }
    let mut names: Vec<&str> = admission.idle_sessions().map(|(_, name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(names, ["one's only", "two's 10", "two's 11"]);
}

#[test]
fn a_request_that_continues_without_a_name_and_an_unknown_sequence_are_loud() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let mut admission = Admission::new(1, 4);
    let nameless = Ticket { needs_session: true, ..ticket(1, None) };
    assert!(catch_unwind(AssertUnwindSafe(|| admission.submit(nameless))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| admission.release(1, After::Free))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| admission.emptied(7))).is_err());
}
