//! Sequences that no request runs on: how long they are kept, and how they make room.
//!
//! Called by the worker after a tick and by everything that needs cells. What a finished request left behind is valuable,
//! because the next turn of its conversation resumes there at once. It also has a cost: where sequences share one pool of
//! cells, the attention of every row passes over the cells of all others. Except to make room, a state must never be dropped
//! here that could not be stored first.

use poncho_cache::SaveReason;

use crate::backend::KvLayout;
use crate::config::Checked as _;
use crate::sequence::slots::Slots;
use crate::shared::Shared;

/// Rows of other requests after which keeping an idle sequence has cost as much as restoring it, with a margin.
///
/// A row takes about 3 ns for each head, layer and idle cell. The state is usually stored already, so dropping it costs
/// nothing and getting it back is a restore: below 1 ns a byte, and a cell has about a hundred bytes for each head and layer
/// of current models. About thirty rows cost as much.
const CARRIED_ROWS: usize = 32;

/// Counts the rows of a tick. An idle sequence that was kept long enough leaves the cells, at most one after each tick.
pub(crate) fn shed(slots: &mut Slots, shared: &Shared, rows: usize) {
    let info = slots.info();
    if info.kv == KvLayout::Split || !info.memory.has_segments() {
        return;
    }
    slots.pass_idle(rows);
    let Some(seq) = slots.held().passed_by(CARRIED_ROWS, slots.free()) else { return };
    // A state that is too short for a row, or that no tier takes, cannot be restored later and is kept.
    if slots.save_held(seq, SaveReason::Finish, shared.config.grid()).is_some() {
        slots.empty(seq);
    } else {
        slots.keep_idle(seq);
    }
}

/// Clears the free sequence that was left longest ago, or else the idle session that was used longest ago, which is saved
/// first. Returns false if none holds anything.
pub(crate) fn make_room(slots: &mut Slots, shared: &Shared) -> bool {
    let leftover = slots.held().oldest(slots.free());
    let Some(seq) = leftover.or_else(|| slots.lru_idle_session()) else { return false };
    if leftover.is_none() {
        slots.release_session(seq, shared.config.grid());
    }
    slots.empty(seq);
    true
}
