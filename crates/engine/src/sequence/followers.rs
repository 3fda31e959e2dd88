//! Requests that wait for another one to compute a prefix that they share, and copy it.
//!
//! Called at admission and after every tick; `schedule/prefix_sharing.rs` decides. Whatever happens to the leader, its
//! followers go on in the same tick: a request must never wait for one that does not move.

use poncho_cache::{HitKind, HitTier};

use crate::calls::request::Mode;
use crate::schedule::prefix_sharing::{Verdict, WaitsFor, is_worth_waiting, shared_tokens, verdict};
use crate::sequence::lifecycle::begin;
use crate::sequence::slots::Slots;
use crate::sequence::task::Task;
use crate::sequence::tasks::{TaskId, Tasks};
use crate::shared::Shared;

/// The request in flight that holds, or is about to compute, more of the prompt than this one has.
pub(crate) fn find_leader(slots: &Slots, tasks: &Tasks, shared: &Shared, task: &Task) -> Option<WaitsFor> {
    if task.request.mode == Mode::Continue || task.is_background() {
        return None;
    }
    let grid = shared.grid_of(&task.request);
    let earlier = tasks.iter().map(|(_, other)| other).take_while(|other| other.id != task.id);
    let leaders =
        earlier.filter(|leader| leader.end.is_none() && !leader.is_background() && leader.namespace == task.namespace);
    let shared = leaders.filter_map(|leader| {
        let upto = shared_tokens(task.progress(), leader.progress(), grid, slots.can_cut())?;
        is_worth_waiting(task.progress(), leader.progress(), upto).then_some((upto, leader))
    });
    // Of equals the first: it is the furthest.
    let (upto, leader) = shared.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    Some(WaitsFor { leader: leader.id, upto })
}

/// Makes the leader pause at the end of the shared prefix, if its state cannot be cut there later.
pub(crate) fn arrange_pause(slots: &Slots, tasks: &mut Tasks, waits_for: WaitsFor) {
    if slots.can_cut() {
        return;
    }
    let WaitsFor { leader, upto } = waits_for;
    let Some(leader) = tasks.iter_mut().find(|task| task.id == leader) else { return };
    if upto > leader.n_past() && upto < leader.prompt_len {
        let place = leader.stops.partition_point(|stop| *stop < upto);
        if leader.stops.get(place) != Some(&upto) {
            leader.stops.insert(place, upto);
        }
    }
}

/// Lets followers go on that have nothing to wait for.
pub(crate) fn serve(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
    for place in 0..tasks.len() {
        let id = tasks.nth(place);
        let task = tasks.get(id);
        let Some(waits_for) = task.waits_for.filter(|_| task.end.is_none()) else { continue };
        let leader = tasks.iter().find(|(_, leader)| leader.id == waits_for.leader);
        let verdict = leader.map_or(Verdict::Release, |(_, leader)| {
            verdict(waits_for.upto, leader.leader_state(), leader.n_past(), slots.can_cut())
        });
        match (verdict, leader.map(|(leader, _)| leader)) {
            (Verdict::Wait, _) => continue,
            (Verdict::Copy { upto }, Some(leader)) => copy(slots, tasks, shared, id, leader, upto),
            (Verdict::Copy { .. }, None) | (Verdict::Release, _) => {}
        }
        release(slots, tasks, shared, id);
    }
}

/// Releases all followers: no other task can make progress. Returns whether there was one.
pub(crate) fn release_all(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) -> bool {
    let mut released = false;
    for place in 0..tasks.len() {
        let id = tasks.nth(place);
        let task = tasks.get(id);
        if task.waits_for.is_some() && task.end.is_none() {
            release(slots, tasks, shared, id);
            released = true;
        }
    }
    released
}

/// Copies the first `upto` tokens of the leader's sequence to a follower, if that is more than it has.
fn copy(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, id: TaskId, leader: TaskId, upto: usize) {
    let (task, leader) = (tasks.get(id), tasks.get(leader));
    let (source, held) = (leader.seq(), leader.n_past());
    let is_all = upto == task.prompt_len;
    let logits = leader.logits_at(upto).filter(|_| is_all).map(<[f32]>::to_vec);
    // Without logits the last token is computed again, which needs a model that can be cut.
    let keep = if is_all && logits.is_none() { upto.saturating_sub(1) } else { upto };
    let grid = shared.grid_of(&task.request).filter(|_| !is_all);
    let keep = grid.map_or(keep, |grid| grid.floor(keep));
    if keep <= task.n_past() || (keep < held && !slots.can_cut()) {
        return;
    }
    let task = tasks.get_mut(id);
    let is_copied = slots.copy_prefix(source, held, &mut task.lease, keep);
    (task.read, task.last_save) = (task.n_past(), task.n_past());
    task.hit = match (is_copied, logits.is_some()) {
        (false, _) => HitKind::Cold,
        (true, false) => HitKind::Partial,
        (true, true) => HitKind::Exact,
    };
    task.tier = is_copied.then_some(HitTier::Sequence);
    if let Some(logits) = logits.filter(|_| is_copied) {
        task.keep_logits(logits);
    }
}

/// The request goes on by itself, unless there is another one to follow.
fn release(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, id: TaskId) {
    let task = tasks.get(id);
    let (at_end, n_past) = (task.n_past() == task.prompt_len, task.n_past());
    let next = find_leader(slots, tasks, shared, task).filter(|next| !at_end && next.upto > n_past);
    let known = task.logits_at(n_past).filter(|_| at_end).map(<[f32]>::to_vec);
    tasks.get_mut(id).waits_for = next;
    match next {
        Some(next) => arrange_pause(slots, tasks, next),
        None => begin(slots, tasks, shared, id, known),
    }
}
