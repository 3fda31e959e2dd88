//! The start of a request: it got a sequence, and its prompt is resolved and restored.
//!
//! Called by the worker's queue, and by an idle worker for replies that are computed again. A request is either running or
//! waiting for reads afterwards, or it has had its last event.

use std::sync::Arc;
use std::time::Instant;

use crate::calls::event::StreamEvent;
use crate::calls::request::{Mode, RequestId};
use crate::config::Checked as _;
use crate::draft::request::RequestDrafts;
use crate::reply::output::Output;
use crate::reply::sampler::Sampler;
use crate::schedule::admission::Place;
use crate::sequence::lifecycle::{end_all, settle};
use crate::sequence::reading::{self, restore_from};
use crate::sequence::rereads::next_reread;
use crate::sequence::resolve::{Resolved, own_reach, resolve};
use crate::sequence::slots::Slots;
use crate::sequence::task::{End, NewTask, Task, Waiting};
use crate::sequence::tasks::Tasks;
use crate::shared::Shared;

/// A request got its sequence: finds what is known of its prompt and puts it to work.
pub(crate) fn start(
    slots: &mut Slots,
    tasks: &mut Tasks,
    shared: &Shared,
    id: RequestId,
    waiting: Waiting,
    place: Place,
) {
    let Waiting { request, grammar, events, submitted, fetched } = waiting;
    let admitted = Instant::now();
    let seq = match place {
        Place::Fresh(seq) | Place::Session(seq) => seq,
    };
    let held = slots.held().get(seq).filter(|_| request.mode == Mode::Continue).map_or(&[][..], |held| &held.tokens);
    let sampler = Sampler::new(&request.sampling, fresh_seed(), grammar, &[held, &request.tokens].concat());
    let output = Output::new(&request, &shared.config.markers, shared.config.signing_key.clone());
    let namespace = slots.adapters().namespace_of(&request);
    let drafts = RequestDrafts::new(request.drafts.within(shared.config.drafts), namespace, request.tenant);
    let mut task = Task::new(NewTask {
        id,
        lease: slots.lease(seq),
        request: *request,
        events,
        namespace,
        adapters: Arc::clone(slots.adapters()),
        sampler,
        output,
        drafts,
        submitted,
        admitted,
        fetched,
    });
    task.own_reach = own_reach(slots, tasks, shared, &task);
    match resolve(slots, shared, &mut task, place) {
        Ok(Resolved::InPlace(restored)) => settle(slots, tasks, shared, task, restored),
        Ok(Resolved::Stored(plan)) => restore_from(slots, tasks, shared, task, plan),
        Err(error) => {
            slots.release_untouched(task.lease);
            slots.publish_sessions(shared);
            shared.end(id, StreamEvent::Error(error));
        }
    }
}

/// With nothing else to do, computes a reply again on the grid. Returns false if there is none, or no sequence for it.
pub(crate) fn start_reread(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) -> bool {
    let Some((id, waiting, place)) = next_reread(slots, tasks) else { return false };
    start(slots, tasks, shared, id, waiting, place);
    true
}

/// Work came in: background requests make room. Their sequences keep the chunks computed so far.
pub(crate) fn stop_rereads(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
    if shared.config.grid().is_none() {
        return;
    }
    reading::cancel(tasks, Task::is_background);
    for task in tasks.iter_mut().filter(|task| task.is_background()) {
        task.end.get_or_insert(End::CANCELLED);
    }
    end_all(slots, tasks, shared);
}

/// A seed for requests that bring none.
fn fresh_seed() -> u64 {
    // The standard library seeds each of these differently, which is all that is needed.
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
