//! Requests that have no sequence yet: those in the queue, and those that wait for their parent row or the shared tier.
//!
//! Owned by the worker. `Admission`, inside the slots, decides who is next; this file keeps the requests themselves and starts
//! them. A request must leave it exactly once: by starting, by a refusal, or by its cancellation.

use std::collections::HashMap;
use std::time::Instant;

use crate::calls::event::StreamEvent;
use crate::calls::request::{Mode, RequestId};
use crate::config::Checked as _;
use crate::schedule::admission::{Next, Place, Submitted, Ticket};
use crate::schedule::awaiting_parent::ParentWaits;
use crate::sequence::lifecycle::never_started;
use crate::sequence::remote::begin_fetch;
use crate::sequence::slots::Slots;
use crate::sequence::start::{start, stop_rereads};
use crate::sequence::task::Waiting;
use crate::sequence::tasks::Tasks;
use crate::shared::Shared;

/// See the module.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: HashMap<RequestId, Waiting>,
    parent_waits: ParentWaits<Waiting>,
    /// Requests that wait a little for the shared tier, in the order of their arrival.
    fetch_waits: Vec<FetchWait>,
}

struct FetchWait {
    id: RequestId,
    waiting: Waiting,
    until: Instant,
}

impl Queue {
    /// All requests that it holds.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.parent_waits.len() + self.fetch_waits.len()
    }

    /// Whether a request waits for a sequence.
    pub(crate) fn waits_for_sequence(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a request waits for its parent row.
    pub(crate) fn waits_for_parent(&self) -> bool {
        !self.parent_waits.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.parent_waits.clear();
        self.fetch_waits.clear();
    }

    /// Takes a request: sets it aside if its parent row may still come, else lets it enter.
    pub(crate) fn submit(
        &mut self,
        slots: &mut Slots,
        tasks: &mut Tasks,
        shared: &Shared,
        id: RequestId,
        waiting: Waiting,
    ) {
        let patience = slots.policy().session_resume_wait();
        let parent = waiting.request.parent_key.filter(|_| waiting.request.mode != Mode::Continue);
        match parent.filter(|parent| !patience.is_zero() && !shared.cache.contains(parent)) {
            // From now, not from its submission: a worker that was busy has not looked yet.
            Some(parent) => self.parent_waits.push(id, waiting, parent, Instant::now() + patience),
            None => self.fetch(slots, tasks, shared, id, waiting),
        }
    }

    /// Lets requests enter with a parent row that exists now, and those that have waited long enough.
    pub(crate) fn look_for_parents(&mut self, slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
        if self.parent_waits.is_empty() {
            return;
        }
        for due in self.parent_waits.take_due(Instant::now(), |parent| shared.cache.contains(parent)) {
            self.fetch(slots, tasks, shared, due.id, due.waiting);
        }
    }

    /// Sets a request aside for a moment if the shared tier may have its prompt, else lets it enter.
    fn fetch(&mut self, slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, id: RequestId, mut waiting: Waiting) {
        match begin_fetch(slots, tasks, shared, &mut waiting) {
            Some(until) => self.fetch_waits.push(FetchWait { id, waiting, until }),
            None => self.enter(slots, tasks, shared, id, waiting),
        }
    }

    /// Lets requests enter with a fetch that is over, and those that have waited long enough: they compute beside it.
    pub(crate) fn look_for_fetched(&mut self, slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
        if self.fetch_waits.is_empty() {
            return;
        }
        let now = Instant::now();
        let is_due = |wait: &mut FetchWait| {
            wait.until <= now || wait.waiting.fetched.as_ref().is_none_or(|fetched| fetched.fetching.is_over())
        };
        let due: Vec<FetchWait> = self.fetch_waits.extract_if(.., is_due).collect();
        for FetchWait { id, waiting, .. } in due {
            // Only these models go back to the state before a call that was ended; others would be restored twice.
            if let Some(fetched) = waiting.fetched.as_ref().filter(|_| slots.can_cut()) {
                fetched.fetching.computes_beside(id);
            }
            self.enter(slots, tasks, shared, id, waiting);
        }
    }

    /// When the next request has waited long enough for the shared tier.
    pub(crate) fn fetch_deadline(&self) -> Option<Instant> {
        self.fetch_waits.iter().map(|wait| wait.until).min()
    }

    /// Admission: a request gets a sequence, waits for one, or is refused.
    fn enter(&mut self, slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, id: RequestId, waiting: Waiting) {
        if waiting.events.is_cancelled() {
            return end_unstarted(shared, id, waiting);
        }
        stop_rereads(slots, tasks, shared);
        let ticket = Ticket {
            request: id,
            session: waiting.request.session_id.clone(),
            needs_session: waiting.request.mode == Mode::Continue,
            owner: waiting.request.tenant.map(|tenant| tenant.id),
        };
        match slots.submit(ticket) {
            Submitted::Admitted(place) => start(slots, tasks, shared, id, waiting, place),
            Submitted::Queued(_) => {
                self.waiting.insert(id, waiting);
                self.admit(slots, tasks, shared);
            }
            Submitted::Refused(refusal) => shared.end(id, StreamEvent::Error(refusal.into())),
        }
    }

    /// Gives sequences to waiting requests, in their order. Idle sessions make room when none is free.
    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    pub(crate) fn admit(&mut self, slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
        loop {
            match slots.admit_next() {
                Next::Admit(id, seq) => {
                    let waiting = self.waiting.remove(&id).expect("invariant: an admitted request was waiting");
                    start(slots, tasks, shared, id, waiting, Place::Fresh(seq));
                }
                Next::ReleaseFirst(seq) => slots.release_session(seq, shared.config.grid()),
                Next::Wait => break,
            }
        }
    }

    /// Ends the requests that were cancelled.
    pub(crate) fn sweep_cancelled(&mut self, slots: &mut Slots, shared: &Shared) {
        for gone in self.parent_waits.take_if(|waiting| waiting.events.is_cancelled()) {
            end_unstarted(shared, gone.id, gone.waiting);
        }
        let gone = self.fetch_waits.extract_if(.., |wait| wait.waiting.events.is_cancelled());
        for FetchWait { id, waiting, .. } in gone.collect::<Vec<_>>() {
            end_unstarted(shared, id, waiting);
        }
        // Checked first: most rounds find none.
        if self.waiting.values().any(|waiting| waiting.events.is_cancelled()) {
            for (id, waiting) in self.waiting.extract_if(|_, waiting| waiting.events.is_cancelled()) {
                let was_queued = slots.cancel_queued(id);
                debug_assert!(was_queued, "invariant: a waiting request is in the queue");
                end_unstarted(shared, id, waiting);
            }
        }
    }
}

/// A request was cancelled before it got a sequence.
fn end_unstarted(shared: &Shared, id: RequestId, waiting: Waiting) {
    let completion = never_started(*waiting.request, waiting.submitted.elapsed());
    shared.end(id, StreamEvent::Done(Box::new(completion)));
}
