//! Rows of sequences at rest that let requests share a pass over the weights.
//!
//! Used by the worker's rows, before and after a decode call. What a sequence holds is the same afterwards: only plain
//! attention, from which any row can be taken back, is used for it.

use crate::backend::{ContextInfo, KvLayout, MemoryKind, SeqId};
use crate::schedule::bridges::{self, Bridge, PassBytes};
use crate::schedule::drafts::LONGEST;
use crate::sequence::slots::{Slots, TO_END};
use crate::shared::Shared;
use crate::state::position::position;

/// What a pass reads, if rows of sequences at rest may join passes: on a device that holds all weights, where a row more costs
/// little. A processor needs nearly as long for a row as for a pass.
pub(super) fn pass_bytes(info: &ContextInfo, shared: &Shared) -> Option<PassBytes> {
    let (options, model) = (&shared.config.model, shared.model.info());
    let is_whole = options.gpu_layers.is_none_or(|layers| layers > model.n_layers) && options.n_cpu_moe == 0;
    let is_possible = info.kv == KvLayout::Split && info.memory == MemoryKind::Attention && info.on_device;
    (is_possible && is_whole).then_some(PassBytes { weights: model.size_bytes, token: info.segment_bytes_per_token })
}

impl Slots {
    /// The most rows that a sequence at rest gets in one call.
    pub(crate) const MOST_BRIDGE_ROWS: usize = 1 + LONGEST;

    /// Finds the sequences at rest that get rows in a call with these requests, which are in the order of their sequences.
    pub(crate) fn find_bridges(&self, running: impl Iterator<Item = Bridge>, found: &mut Vec<Bridge>) {
        found.clear();
        if let Some(bytes) = self.bridging {
            bridges::find(running, |seq| self.resting(seq), bytes, found);
        }
    }

    /// The tokens of a sequence at rest that has room for the rows of a call.
    fn resting(&self, seq: SeqId) -> Option<usize> {
        if !self.admission.is_at_rest(seq) {
            return None;
        }
        let held = self.held.get(seq).map_or(0, |held| held.n_past);
        debug_assert_eq!(
            self.context.pos_max(seq).map_or(0, |last| last as usize + 1),
            held,
            "invariant: the table knows what {seq} holds"
        );
        (held + Self::MOST_BRIDGE_ROWS <= self.info().n_ctx as usize).then_some(held)
    }

    /// The call is over: the sequences hold again what they held before it.
    pub(crate) fn take_back_bridges(&mut self, bridges: &[Bridge]) {
        for Bridge { seq, held } in bridges {
            if !self.context.remove(*seq, position(*held)..TO_END) {
                // Attention gives back any row; if it does not, nothing of the sequence can be trusted.
                debug_assert!(false, "invariant: rows of {seq} after {held} are removed");
                drop(self.held.take(*seq));
                self.context.remove(*seq, 0..TO_END);
            }
        }
    }
}
