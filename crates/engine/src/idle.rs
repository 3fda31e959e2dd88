//! Sequences that no request runs on: how long they are carried, and what becomes of them.
//!
//! Part of the worker. What a finished request left behind is worth having, because the next turn of its conversation goes on
//! there at once. It is not for nothing: where sequences share one pool of cells, the attention of every row passes over
//! the cells of all others. A state must never be given up here that could not be stored first, but to make room.

use poncho_cache::SaveReason;

use crate::backend::{KvLayout, SeqId};
use crate::save::Boundary;
use crate::worker::Worker;

/// Rows of other requests after which an idle sequence has cost as much as putting it back does, with some room.
///
/// A row takes some 3 ns for each head, layer and idle cell; packing and restoring take 1 ns for a byte, of which a cell has
/// four times the size of a head for each layer and each head of K and V. That makes 28 rows with SmolLM2-135M and 43 with an 8B model.
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
        if self.is_kept(seq) {
            self.empty(seq);
        } else {
            self.live.keep(seq);
        }
    }

    /// Whether an idle sequence can be had back: a state too short for a row, or that no tier takes, is carried on.
    fn is_kept(&mut self, seq: SeqId) -> bool {
        let Some(live) = self.live.get(seq) else { return false };
        let Some(namespace) = live.namespace else { return false };
        let (tokens, logits) = (live.committed().to_vec(), live.logits.clone());
        let reason = SaveReason::Finish;
        self.saver().save(&Boundary { seq, tokens: &tokens, namespace, logits: &logits, reason, grid: None }).is_some()
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

    /// Saves what an idle sequence holds.
    pub(crate) fn save_live(&mut self, seq: SeqId, reason: SaveReason) {
        let Some(live) = self.live.get(seq).filter(|live| live.n_past > 0) else { return };
        let Some(namespace) = live.namespace else { return };
        let (mut tokens, mut logits) = (live.committed().to_vec(), live.logits.clone());
        // On a grid, only what was read may be kept.
        let grid = self.shared.config.grid().filter(|_| live.on_grid > 0);
        if let Some(grid) = grid.filter(|_| live.on_grid < tokens.len()) {
            tokens.truncate(grid.floor(live.on_grid));
            logits.clear();
            if tokens.is_empty() || !self.context.info().memory.can_cut() {
                return;
            }
        }
        self.saver().save(&Boundary { seq, tokens: &tokens, namespace, logits: &logits, reason, grid });
    }
}
