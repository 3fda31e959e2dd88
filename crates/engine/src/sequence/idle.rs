//! Sequences that no request runs on: how long they are carried, and what becomes of them.
//!
//! Part of the worker. What a finished request left behind is worth having, because the next turn of its conversation goes on
//! there at once. It is not for nothing: where sequences share one pool of cells, the attention of every row passes over
//! the cells of all others. A state must never be given up here that could not be stored first, but to make room.

use poncho_cache::{Key, SaveReason};

use crate::backend::{KvLayout, SeqId};
use crate::state::save::Boundary;
use crate::worker::Worker;

/// Rows of other requests after which an idle sequence has cost as much as putting it back does, with some room.
///
/// A row takes some 3 ns for each head, layer and idle cell. Its state is stored already as a rule, so giving it up costs nothing
/// and having it back is a restore: below 1 ns for a byte, of which a cell has some hundred for each head and layer of
/// today's models. Some thirty rows cost as much.
const CARRIED_ROWS: usize = 32;

impl Worker {
    /// Rows were computed: idle sequences that were carried long enough leave the cells, one after each tick.
    pub(crate) fn shed_idle(&mut self, rows: usize) {
        let info = self.context.info();
        if info.kv == KvLayout::Split || !info.memory.has_segments() {
            return;
        }
        self.live.pass(rows);
        let Some(seq) = self.live.passed_by(CARRIED_ROWS, self.admission.free()) else { return };
        // A state too short for a row, or that no tier takes, could not be had back and is carried on.
        if self.save_live(seq, SaveReason::Finish).is_some() {
            self.empty(seq);
        } else {
            self.live.keep(seq);
        }
    }

    /// Empties the free sequence that was left longest ago, or else the idle session that was used longest ago, which is
    /// saved first; `false` if none holds anything.
    pub(crate) fn give_up_idle_cells(&mut self) -> bool {
        let leftover = self.live.oldest(self.admission.free());
        let session = self.admission.lru_idle_session().map(|(seq, _)| seq);
        let Some(seq) = leftover.or(session) else { return false };
        if leftover.is_none() {
            self.release_session(seq);
        }
        self.empty(seq);
        true
    }

    /// Empties a sequence that no request runs on. The next request gets it before one that holds something.
    pub(crate) fn empty(&mut self, seq: SeqId) {
        drop(self.live.take(seq));
        self.context.remove(seq, 0..u32::MAX);
        self.admission.emptied(seq);
    }

    /// An idle session gives up its sequence; its state is saved first.
    pub(crate) fn release_session(&mut self, seq: SeqId) {
        self.save_live(seq, SaveReason::Evict);
        let name = self.admission.release_session(seq);
        tracing::debug!(seq, session = name.as_deref().unwrap_or(""), "idle session released");
    }

    /// Saves what an idle sequence holds. Returns the row's name if the cache has all of it that may be used again.
    pub(crate) fn save_live(&mut self, seq: SeqId, reason: SaveReason) -> Option<Key> {
        let live = self.live.get(seq).filter(|live| live.n_past > 0)?;
        let namespace = live.namespace?;
        let grid = self.shared.config.grid().filter(|_| live.on_grid > 0);
        // On a grid, only what was read may be kept.
        let count = match grid.filter(|_| live.on_grid < live.n_past) {
            Some(_) if !self.context.info().memory.can_cut() => return None,
            Some(grid) => grid.floor(live.on_grid),
            None => live.n_past,
        };
        // Asked again and again of a short state, so before anything is copied.
        if !self.policy.should_save(reason, count) {
            return None;
        }
        let tokens = live.committed().get(..count)?.to_vec();
        let tenant = live.tenant;
        let logits = if count == live.n_past { live.logits.clone() } else { Vec::new() };
        self.saver().save(&Boundary { seq, tokens: &tokens, namespace, logits: &logits, reason, grid, tenant })
    }
}
