//! Admission: which request may use which sequence, and which ones wait. A bounded queue over a pool of sequences, some of
//! them pinned by sessions.
//!
//! A pure state machine inside `Slots`: `submit` on arrival, `release` at the end of a request, and `admit_next` after each of
//! them until it returns `Wait`. A sequence has one owner at a time and none is ever lost. A pinned idle session must never
//! keep a new request waiting: `admit_next` names the one to save and release. It must never do I/O.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use poncho_cache::OwnerId;

use crate::backend::SeqId;
use crate::calls::request::RequestId;
use crate::error::EngineError;

/// What admission needs to know of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The request.
    pub request: RequestId,
    /// The session that it belongs to.
    pub session: Option<String>,
    /// Whether it only makes sense on the state that the session holds (`continue`).
    pub needs_session: bool,
    /// Its owner: sequences are taken from the owner that pins most of them.
    pub owner: Option<OwnerId>,
}

/// Where an admitted request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A sequence of the pool; what it held before belongs to nobody.
    Fresh(SeqId),
    /// The session's own sequence, with its state.
    Session(SeqId),
}

/// The answer to `submit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// It runs now.
    Admitted(Place),
    /// It waits; 0 is the head of the queue. Call `admit_next`: it may run as soon as an idle session is released.
    Queued(usize),
    /// It is not taken.
    Refused(Refusal),
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Overloaded {
        /// Requests that wait.
        queued: usize,
        /// Length of the queue.
        limit: usize,
    },
    /// The session has a request in flight or waiting.
    StickyBusy {
        /// The session.
        session: String,
    },
    /// `continue` on a session that holds no sequence.
    NoSession {
        /// The session.
        session: String,
    },
}

impl From<Refusal> for EngineError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Overloaded { queued, limit } => Self::Overloaded { queued, limit },
            Refusal::StickyBusy { session } => Self::StickyBusy { session },
            Refusal::NoSession { session } => Self::NoSession { session },
        }
    }
}

/// What the worker can do for the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The head of the queue runs now.
    Admit(RequestId, SeqId),
    /// Save this idle session's state, call `release_session`, then ask again.
    ReleaseFirst(SeqId),
    /// Nobody waits, or every sequence is in flight.
    Wait,
}

/// What becomes of a sequence when its request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Back to the pool.
    Free,
    /// Kept for the request's session, if it has one that was not ended meanwhile.
    Pin,
}

/// What `end_session` found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedSession {
    /// It was idle; its sequence is free now.
    Freed(SeqId),
    /// It is in flight or waiting; its sequence goes back to the pool at the end of the request.
    Later,
    /// No session of that name.
    Unknown,
}

#[derive(Debug)]
enum Slot {
    /// It has no owner. `since` orders the free ones: the state that was left longest ago is overwritten first.
    Free { since: u64 },
    /// A request runs on it.
    InFlight { request: RequestId, session: Option<String>, owner: Option<OwnerId> },
    /// Pinned between two requests.
    Idle { session: String, owner: Option<OwnerId>, since: u64 },
}

/// Where a session's name leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Queued(RequestId),
    Sequence(SeqId),
}

/// The pool and the queue of one model.
#[derive(Debug)]
pub struct Admission {
    slots: Vec<Slot>,
    sessions: HashMap<String, Holder>,
    queue: VecDeque<Ticket>,
    queue_limit: usize,
    /// Whether requests are put side by side: with split cells llama.cpp computes only neighbours together.
    neighbours: bool,
    clock: u64,
}

impl Admission {
    /// A pool of the sequences `0..n_seq`, all free, and a queue for `queue_limit` requests.
    #[must_use]
    pub fn new(n_seq: u32, queue_limit: usize) -> Self {
        let slots = (0..n_seq).map(|_| Slot::Free { since: 0 }).collect();
        Self { slots, sessions: HashMap::new(), queue: VecDeque::new(), queue_limit, neighbours: false, clock: 0 }
    }

    /// The same, with requests put side by side where that is possible.
    #[must_use]
    pub fn with_neighbours(mut self, neighbours: bool) -> Self {
        self.neighbours = neighbours;
        self
    }

    /// Takes, queues or refuses a request. One for a session that is busy is refused, not queued.
    ///
    /// # Panics
    /// If a request needs a session and names none.
    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    pub fn submit(&mut self, ticket: Ticket) -> Submitted {
        let held = ticket.session.as_ref().and_then(|name| self.sessions.get(name)).copied();
        match (held, &ticket.session) {
            (Some(Holder::Sequence(seq)), Some(name)) if self.is_idle(seq) => {
                let (session, owner) = (Some(name.clone()), ticket.owner);
                self.set(seq, Slot::InFlight { request: ticket.request, session, owner });
                return Submitted::Admitted(Place::Session(seq));
            }
            (Some(_), Some(name)) => return Submitted::Refused(Refusal::StickyBusy { session: name.clone() }),
            (_, name) if ticket.needs_session => {
                let session = name.clone().expect("invariant: a request that continues names its session");
                return Submitted::Refused(Refusal::NoSession { session });
            }
            _ => {}
        }
        if self.queue.is_empty()
            && let Some(seq) = self.next_free()
        {
            self.occupy(seq, ticket);
            return Submitted::Admitted(Place::Fresh(seq));
        }
        // Requests that a free or an idle sequence is there for do not count: they wait for the worker only.
        let available = self.slots.iter().filter(|slot| !matches!(slot, Slot::InFlight { .. })).count();
        let queued = self.queue.len();
        if queued >= self.queue_limit.saturating_add(available) {
            return Submitted::Refused(Refusal::Overloaded { queued, limit: self.queue_limit });
        }
        if let Some(name) = &ticket.session {
            self.sessions.insert(name.clone(), Holder::Queued(ticket.request));
        }
        self.queue.push_back(ticket);
        Submitted::Queued(queued)
    }

    /// What can be done for the head of the queue now.
    pub fn admit_next(&mut self) -> Next {
        if self.queue.is_empty() {
            return Next::Wait;
        }
        match (self.next_free(), self.lru_idle_session()) {
            (Some(seq), _) => self.queue.pop_front().map_or(Next::Wait, |ticket| {
                let request = ticket.request;
                self.occupy(seq, ticket);
                Next::Admit(request, seq)
            }),
            (None, Some((seq, _))) => Next::ReleaseFirst(seq),
            (None, None) => Next::Wait,
        }
    }

    /// Moves a request that was just admitted to another free sequence (one with a state that suits it better).
    /// Returns whether it was moved.
    pub fn reassign(&mut self, from: SeqId, to: SeqId) -> bool {
        if !self.is_free(to) {
            return false;
        }
        let since = self.tick();
        let slot = self.slot_mut(from);
        if !matches!(slot, Slot::InFlight { .. }) {
            return false;
        }
        let moved = std::mem::replace(slot, Slot::Free { since });
        if let Slot::InFlight { session: Some(name), .. } = &moved {
            self.sessions.insert(name.clone(), Holder::Sequence(to));
        }
        self.set(to, moved);
        true
    }

    /// A free sequence is empty now: it is taken before those that hold something.
    pub fn emptied(&mut self, seq: SeqId) {
        if let Slot::Free { since } = self.slot_mut(seq) {
            *since = 0;
        }
    }

    /// The request on `seq` is over. Returns which request that was.
    pub fn release(&mut self, seq: SeqId, after: After) -> Option<RequestId> {
        let since = self.tick();
        let slot = self.slot_mut(seq);
        let (request, session, owner) = match std::mem::replace(slot, Slot::Free { since }) {
            Slot::InFlight { request, session, owner } => (request, session, owner),
            other => {
                *slot = other;
                return None;
            }
        };
        match (session, after) {
            (Some(session), After::Pin) => self.set(seq, Slot::Idle { session, owner, since }),
            (Some(session), After::Free) => drop(self.sessions.remove(&session)),
            (None, _) => {}
        }
        Some(request)
    }

    /// Gives an idle session's sequence back to the pool, its state saved or not wanted. Returns its name.
    pub fn release_session(&mut self, seq: SeqId) -> Option<String> {
        let since = self.tick();
        let slot = self.slot_mut(seq);
        let session = match std::mem::replace(slot, Slot::Free { since }) {
            Slot::Idle { session, .. } => session,
            other => {
                *slot = other;
                return None;
            }
        };
        self.sessions.remove(&session);
        Some(session)
    }

    /// Forgets a session; a request of it that runs or waits goes on without it.
    pub fn end_session(&mut self, name: &str) -> EndedSession {
        match self.sessions.get(name).copied() {
            None => EndedSession::Unknown,
            Some(Holder::Sequence(seq)) if self.is_idle(seq) => {
                self.release_session(seq);
                EndedSession::Freed(seq)
            }
            Some(holder) => {
                self.sessions.remove(name);
                match holder {
                    Holder::Queued(request) => {
                        if let Some(ticket) = self.queue.iter_mut().find(|ticket| ticket.request == request) {
                            ticket.session = None;
                        }
                    }
                    Holder::Sequence(seq) => {
                        if let Slot::InFlight { session, .. } = self.slot_mut(seq) {
                            *session = None;
                        }
                    }
                }
                EndedSession::Later
            }
        }
    }

    /// Takes a waiting request out of the queue. Returns whether it was there.
    pub fn cancel_queued(&mut self, request: RequestId) -> bool {
        let Some(position) = self.queue.iter().position(|ticket| ticket.request == request) else { return false };
        if let Some(Ticket { session: Some(name), .. }) = self.queue.remove(position) {
            self.sessions.remove(&name);
        }
        true
    }

    /// The idle session that gives up its sequence first: of the owner that pins most sequences, the one that was used
    /// longest ago. An owner that opens many sessions does not push out those of others.
    #[must_use]
    pub fn lru_idle_session(&self) -> Option<(SeqId, &str)> {
        let pinned = |owner: &Option<OwnerId>| {
            let is_its = |slot: &&Slot| matches!(slot, Slot::Idle { owner: other, .. } if other == owner);
            self.slots.iter().filter(is_its).count()
        };
        let idle = self.numbered().filter_map(|(seq, slot)| match slot {
            Slot::Idle { session, owner, since } => Some((Reverse(pinned(owner)), *since, seq, session.as_str())),
            _ => None,
        });
        idle.min().map(|(_, _, seq, name)| (seq, name))
    }

    /// Every idle session: its sequence, its name, and when it was last used (in no unit, only ordered).
    pub fn idle_sessions(&self) -> impl Iterator<Item = (SeqId, &str, u64)> {
        self.numbered().filter_map(|(seq, slot)| match slot {
            Slot::Idle { session, since, .. } => Some((seq, session.as_str(), *since)),
            _ => None,
        })
    }

    /// The free sequences, in no order that matters.
    pub fn free(&self) -> impl Iterator<Item = SeqId> {
        self.numbered().filter(|(_, slot)| matches!(slot, Slot::Free { .. })).map(|(seq, _)| seq)
    }

    /// The requests in flight and their sequences.
    pub fn in_flight(&self) -> impl Iterator<Item = (RequestId, SeqId)> {
        self.numbered().filter_map(|(seq, slot)| match slot {
            Slot::InFlight { request, .. } => Some((*request, seq)),
            _ => None,
        })
    }

    /// The waiting requests, head first.
    pub fn queued(&self) -> impl ExactSizeIterator<Item = RequestId> {
        self.queue.iter().map(|ticket| ticket.request)
    }

    fn occupy(&mut self, seq: SeqId, ticket: Ticket) {
        if let Some(name) = &ticket.session {
            self.sessions.insert(name.clone(), Holder::Sequence(seq));
        }
        self.set(seq, Slot::InFlight { request: ticket.request, session: ticket.session, owner: ticket.owner });
    }

    /// The free sequence that a request gets: with `neighbours` one beside a request in flight, and then the one that was left
    /// longest ago.
    fn next_free(&self) -> Option<SeqId> {
        let runs = |seq: Option<SeqId>| matches!(seq.and_then(|seq| self.slot(seq)), Some(Slot::InFlight { .. }));
        let free = self.numbered().filter_map(|(seq, slot)| match slot {
            Slot::Free { since } => {
                let beside = runs(seq.checked_sub(1)) || runs(seq.checked_add(1));
                Some((self.neighbours && !beside, *since, seq))
            }
            _ => None,
        });
        free.min().map(|(_, _, seq)| seq)
    }

    fn numbered(&self) -> impl Iterator<Item = (SeqId, &Slot)> {
        (0..).zip(&self.slots)
    }

    fn is_idle(&self, seq: SeqId) -> bool {
        matches!(self.slot(seq), Some(Slot::Idle { .. }))
    }

    /// Whether no request runs on a sequence of the pool.
    pub fn is_at_rest(&self, seq: SeqId) -> bool {
        self.is_free(seq) || self.is_idle(seq)
    }

    fn is_free(&self, seq: SeqId) -> bool {
        matches!(self.slot(seq), Some(Slot::Free { .. }))
    }

    fn slot(&self, seq: SeqId) -> Option<&Slot> {
        usize::try_from(seq).ok().and_then(|index| self.slots.get(index))
    }

    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    fn slot_mut(&mut self, seq: SeqId) -> &mut Slot {
        self.slots.get_mut(seq as usize).expect("invariant: a sequence is one of the pool")
    }

    fn set(&mut self, seq: SeqId, slot: Slot) {
        *self.slot_mut(seq) = slot;
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

#[cfg(test)]
mod tests;
