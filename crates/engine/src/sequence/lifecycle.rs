//! The life of a request once its prompt is restored: it begins, and it ends with its last event.
//!
//! Called between two ticks. Each request gets exactly one last event here, and its sequence goes back to the slots at the
//! same time: left for its session, left for later requests, or cleared.

use std::time::{Duration, Instant};

use poncho_api::DraftReport;
use poncho_cache::{HitKind, SaveReason};

use crate::backend::SeqId;
use crate::calls::event::{Completion, FinishReason, StreamEvent};
use crate::calls::request::Request;
use crate::config::Checked as _;
use crate::sequence::followers::{self, arrange_pause, find_leader};
use crate::sequence::rereads::note_reread;
use crate::sequence::saves;
use crate::sequence::slots::Slots;
use crate::sequence::task::{End, Task, left_by};
use crate::sequence::tasks::{TaskId, Tasks};
use crate::shared::Shared;
use crate::shared::status::{LastHit, add};
use crate::state::restore::Restored;

/// The saves at the end of a model stop after this time.
const SHUTDOWN_SAVES: Duration = Duration::from_secs(20);

/// The prompt of a request is restored as far as it is known: from here on the request runs.
pub(crate) fn settle(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, mut task: Task, restored: Restored) {
    debug_assert_eq!(task.n_past(), restored.n_past, "invariant: the lease describes the sequence");
    task.restored(&restored);
    task.restore_time = task.admitted().elapsed();
    task.set_generation_limit(task.request.generation_limit(&shared.limits, task.prompt_len));
    task.waits_for = if restored.logits.is_none() { find_leader(slots, tasks, shared, &task) } else { None };
    let waits_for = task.waits_for;
    let id = tasks.push(task);
    match waits_for {
        Some(waits_for) => {
            arrange_pause(slots, tasks, waits_for);
            followers::serve(slots, tasks, shared);
        }
        None => begin(slots, tasks, shared, id, restored.logits),
    }
}

/// A request has everything that it could get without computing. With the logits after its prompt it has its first token
/// already.
pub(crate) fn begin(slots: &Slots, tasks: &mut Tasks, shared: &Shared, id: TaskId, logits: Option<Vec<f32>>) {
    let task = tasks.get_mut(id);
    let mut stops = saves::pauses(slots, shared, task);
    // Others may have asked it to pause for them meanwhile.
    stops.extend(task.stops.iter().filter(|stop| **stop > task.n_past()));
    stops.sort_unstable();
    stops.dedup();
    task.stops = stops;
    shared.status.set_last_hit(LastHit {
        kind: task.hit.reported(task.read, task.prompt_len),
        cached_tokens: task.read as u64,
        prompt: task.prompt_len as u64,
    });
    tracing::debug!(
        request = %task.id, seq = task.seq(), hit = task.hit.as_str(), read = task.read, prompt = task.prompt_len,
        us = task.waited().as_micros(), "request admitted"
    );
    task.events.send(StreamEvent::Started { prompt: task.prompt_len, cached_tokens: task.reported_hit().1 });
    task.replay(&*shared.model);
    draw_known(shared, task, logits);
}

/// With the logits after its prompt, a request has its first token without computing.
pub(crate) fn draw_known(shared: &Shared, task: &mut Task, logits: Option<Vec<f32>>) {
    if let Some(logits) = logits {
        // Where a reply is resumed, they may be those after the prompt.
        if task.end.is_none() && task.n_past() == task.tokens.len() {
            task.draw(&logits, &*shared.model);
            add(&shared.status.generated, 1);
        }
        task.keep_logits(logits);
        task.prompt_saved = true;
    }
}

/// Ends all requests that are over.
pub(crate) fn end_all(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
    // Followers copy what an ending leader has, and none goes on waiting for one that is gone.
    followers::serve(slots, tasks, shared);
    while let Some(id) = tasks.first_ended() {
        end(slots, tasks, shared, id);
        followers::serve(slots, tasks, shared);
    }
}

#[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
fn end(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, id: TaskId) {
    let mut task = tasks.remove(id);
    match task.end.take().expect("invariant: only a request that is over ends") {
        End::Failed(error) => {
            slots.release(task.lease, None);
            slots.publish_sessions(shared);
            shared.end(task.id, StreamEvent::Error(error));
        }
        End::Finished { reason, stop } => {
            let committed = task.n_past();
            let key = saves::save(slots, &mut task, shared, committed, SaveReason::Finish);
            claim(shared, &task);
            if reason != FinishReason::Cancelled {
                note_reread(slots, tasks, shared, &task);
            }
            let completion = task.complete(reason, stop, key, &*shared.model);
            let id = task.id;
            let (lease, left) = left_by(task);
            slots.release(lease, left);
            slots.publish_sessions(shared);
            if let Some(library) = &shared.library {
                library.nudge();
            }
            shared.end(id, StreamEvent::Done(Box::new(completion)));
        }
    }
}

/// Marks the rows that hold a prefix of what a request sent and received as its tenant's.
fn claim(shared: &Shared, task: &Task) {
    if let (Some(tenant), Some(tokens)) = (task.request.tenant, task.tokens.get(..task.n_past())) {
        shared.cache.claim(&task.namespace, tokens, tenant.id);
    }
}

/// Saves the states of all requests and idle sessions, and cancels the requests.
pub(crate) fn save_all_and_cancel(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
    // Each save waits for its disk, up to a bound; all of them together have one too.
    let started = Instant::now();
    let mut skipped = 0;
    for place in 0..tasks.len() {
        let task = tasks.get_mut(tasks.nth(place));
        task.end.get_or_insert(End::CANCELLED);
        if started.elapsed() < SHUTDOWN_SAVES {
            saves::save(slots, task, shared, task.n_past(), SaveReason::Shutdown);
        } else {
            skipped += 1;
        }
    }
    end_all(slots, tasks, shared);
    let idle: Vec<SeqId> = slots.idle_sessions().map(|(seq, _)| seq).collect();
    for seq in idle {
        if started.elapsed() < SHUTDOWN_SAVES {
            slots.save_held(seq, SaveReason::Shutdown, shared.config.grid());
        } else {
            skipped += 1;
        }
    }
    if skipped > 0 {
        let seconds = SHUTDOWN_SAVES.as_secs();
        tracing::warn!(states = skipped, seconds, "saving takes too long; these states are computed again next time");
    }
}

/// The facts of a request that was cancelled before it got a sequence.
pub(crate) fn never_started(request: Request, waited: Duration) -> Completion {
    Completion {
        reply: String::new(),
        generated: Vec::new(),
        prompt_tokens: request.tokens.len(),
        context_tokens: request.tokens,
        committed_tokens: 0,
        finish_key: None,
        hit: HitKind::Cold,
        hit_tier: None,
        cached_tokens: 0,
        new_tokens: 0,
        finish_reason: FinishReason::Cancelled,
        stop_sequence: None,
        queue_time: waited,
        restore_time: Duration::ZERO,
        prefill_time: waited,
        generation_time: Duration::ZERO,
        completion_tokens: 0,
        drafts: DraftReport::default(),
        logprobs: Vec::new(),
    }
}
