//! Replies of exact requests that are computed again on the grid when there is nothing else to do.
//!
//! Noted at the end of a request, started by an idle worker. The state of generated tokens must never be saved as exact
//! before they were computed on the grid.

use std::sync::Arc;
use std::time::Instant;

use poncho_cache::SaveReason;

use crate::calls::request::{Mode, Request, RequestId};
use crate::calls::stream::EventSender;
use crate::schedule::admission::{Place, Submitted, Ticket};
use crate::sequence::slots::Slots;
use crate::sequence::task::{Task, Waiting};
use crate::sequence::tasks::{Reread, Tasks};
use crate::shared::Shared;

/// An exact request is over: its reply is worth computing again, for the turn that will follow.
pub(crate) fn note_reread(slots: &Slots, tasks: &mut Tasks, shared: &Shared, task: &Task) {
    let Some(grid) = shared.grid_of(&task.request).filter(|_| !task.is_background()) else { return };
    let end = grid.floor(task.tokens.len());
    let is_more = end > grid.floor(task.prompt_len) && slots.policy().should_save(SaveReason::Finish, end);
    // It will be computed with the adapters of that time: those must still be the request's own.
    if !is_more || !Arc::ptr_eq(&task.adapters, slots.adapters()) {
        return;
    }
    let tokens = task.tokens.iter().take(end).copied().collect();
    tasks.rereads.push_back(Reread { tokens, tenant: task.request.tenant });
    // One conversation for each sequence: older ones have most likely gone on.
    while tasks.rereads.len() > slots.info().n_seq_max as usize {
        tasks.rereads.pop_front();
    }
}

/// A request that computes a reply again on the grid, and its place, if a free sequence is there for it. No caller waits
/// for it.
pub(crate) fn next_reread(slots: &mut Slots, tasks: &mut Tasks) -> Option<(RequestId, Waiting, Place)> {
    let Reread { tokens, tenant } = tasks.rereads.pop_front()?;
    let id = RequestId::next();
    let ticket = Ticket { request: id, session: None, needs_session: false, owner: None };
    match slots.submit(ticket) {
        Submitted::Admitted(place @ Place::Fresh(_)) => {
            let request = Request { mode: Mode::PrefillOnly, exact: true, tenant, ..Request::new(tokens) };
            let events = EventSender::detached();
            Some((
                id,
                Waiting { request: Box::new(request), grammar: None, events, submitted: Instant::now(), fetched: None },
                place,
            ))
        }
        Submitted::Queued(_) => {
            slots.cancel_queued(id);
            None
        }
        Submitted::Admitted(Place::Session(_)) | Submitted::Refused(_) => None,
    }
}
