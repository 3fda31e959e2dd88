//! The saves of requests that run: at the end of the prompt, at its boundaries, every now and then, and at the end.
//!
//! Called between two ticks, never during one. A save that fails costs the next request some time and nothing else.

use poncho_cache::{Key, SaveReason};

use crate::schedule::pace::SHORT_TICKS;
use crate::sequence::slots::Slots;
use crate::sequence::task::{End, Task};
use crate::sequence::tasks::{TaskId, Tasks};
use crate::shared::Shared;
use crate::state::save::Boundary;

/// Bytes of a state on a device that are saved at once: one or two milliseconds of copying.
const SLICE: u64 = 32 << 20;

/// Where the prefill of a model that cannot be cut pauses for a save.
pub(crate) fn pauses(slots: &Slots, shared: &Shared, task: &Task) -> Vec<usize> {
    let memory = slots.memory();
    if memory.can_cut() || !memory.has_partial() {
        return Vec::new();
    }
    let prompt = task.prompt_len;
    let mut pauses = slots.policy().resumable_boundaries(prompt, &task.request.boundary_hints);
    if pauses.is_empty() {
        pauses = slots.policy().cold_boundaries(prompt);
    }
    if let Some(grid) = shared.grid_of(&task.request) {
        pauses.push(prompt);
        pauses.iter_mut().for_each(|pause| *pause = grid.floor(*pause));
        pauses.sort_unstable();
        pauses.dedup();
    }
    pauses.retain(|pause| *pause > task.n_past() && *pause < prompt);
    if task.is_short() {
        // A pause ends a tick, and a reader waits; the next turn most likely resumes at the last ones.
        pauses.drain(..pauses.len().saturating_sub(SHORT_TICKS - 1));
    }
    pauses
}

/// Makes the saves that are due between two ticks.
pub(crate) fn save_due(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
    for place in 0..tasks.len() {
        let id = tasks.nth(place);
        let task = tasks.get(id);
        if matches!(task.end, Some(End::Failed(_))) {
            continue;
        }
        let n_past = task.n_past();
        let since = n_past.saturating_sub(task.last_save.max(task.prompt_len));
        if !task.prompt_saved && n_past >= task.prompt_len {
            match next_slice(slots, task) {
                Some(end) => drop(save(slots, tasks.get_mut(id), shared, end, SaveReason::Continued)),
                None => save_prompt(slots, tasks, shared, id),
            }
        } else if task.is_prefilling() && task.stops.contains(&n_past) && task.last_save < n_past {
            save(slots, tasks.get_mut(id), shared, n_past, SaveReason::Cold);
        } else if task.end.is_none()
            && !task.request.exact
            && (slots.policy().continued_due(since)
                || is_slice(slots.growing_bytes_per_token(), n_past.saturating_sub(task.last_save)))
        {
            save(slots, tasks.get_mut(id), shared, n_past, SaveReason::Continued);
        }
    }
}

/// Where the next slice of a computed prompt ends, if more than one slice of it is left to save: the rest is saved after the
/// next ticks, so that no token of the reply waits for all of it.
fn next_slice(slots: &Slots, task: &Task) -> Option<usize> {
    let slice = slice_tokens(slots.growing_bytes_per_token())?;
    let is_wanted = task.prompt_len >= slots.policy().gates().cold_min_tokens as usize;
    if !is_wanted || task.end.is_some() || task.request.exact {
        return None;
    }
    let end = task.last_save.max(task.read) + slice;
    (end < task.prompt_len).then_some(end)
}

/// Tokens of this size that are saved at once; `None` if they may be any number.
fn slice_tokens(bytes_per_token: u64) -> Option<usize> {
    usize::try_from(SLICE.div_ceil(bytes_per_token.max(1))).ok().filter(|_| bytes_per_token > 0)
}

/// Whether tokens of this size are worth a row of their own: what is copied from a device at once delays every reply, so a
/// long prompt is saved while it is read, and a long reply while it is written.
fn is_slice(bytes_per_token: u64, tokens: usize) -> bool {
    slice_tokens(bytes_per_token).is_some_and(|slice| tokens >= slice)
}

/// The prompt is computed: saves its boundaries and its end, with the logits.
fn save_prompt(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, id: TaskId) {
    let task = tasks.get_mut(id);
    task.prompt_saved = true;
    let (prompt, read) = (task.prompt_len, task.read);
    if read >= prompt || slots.policy().gates().cold_min_tokens as usize > prompt {
        return;
    }
    // An exact state can be resumed at every boundary of the grid before its end.
    if slots.can_cut() && !task.request.exact {
        let mut boundaries = slots.policy().cold_boundaries(prompt);
        if slots.has_remote() {
            // Other machines can ask for a prefix only by the name of a row that ends there.
            boundaries.extend(slots.policy().resumable_boundaries(prompt, &task.request.boundary_hints));
            boundaries.sort_unstable();
            boundaries.dedup();
        }
        for boundary in boundaries.into_iter().filter(|boundary| *boundary > read && *boundary < prompt) {
            save(slots, task, shared, boundary, SaveReason::Cold);
        }
    }
    save(slots, task, shared, prompt, SaveReason::Cold);
}

/// Saves the first `count` tokens of a request. Returns the key of the row if the cache has it.
#[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
pub(crate) fn save(
    slots: &mut Slots,
    task: &mut Task,
    shared: &Shared,
    count: usize,
    reason: SaveReason,
) -> Option<Key> {
    let grid = shared.grid_of(&task.request);
    let count = task.savable(count, grid);
    // A state that cannot be cut is saved as it is or not at all.
    if count == 0 || (count != task.n_past() && !slots.can_cut()) {
        return None;
    }
    task.last_save = task.last_save.max(count);
    slots.save(&Boundary {
        seq: task.seq(),
        tokens: task.tokens.get(..count).expect("invariant: a boundary lies within the tokens of its request"),
        namespace: task.namespace,
        logits: task.logits_at(count),
        reason,
        grid,
        tenant: task.request.tenant,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_on_a_device_is_saved_in_slices_and_one_on_the_host_is_not() {
        // A model of 8B: 131,072 bytes a token.
        assert!(!is_slice(131_072, 255));
        assert!(is_slice(131_072, 256));
        assert!(!is_slice(0, usize::MAX));
        assert!(is_slice(u64::MAX, usize::MAX));
        assert_eq!([0, 1, 131_072, u64::MAX].map(slice_tokens), [None, Some(32 << 20), Some(256), Some(1)]);
    }
}
