//! Packing a sequence into a row and handing it to the cache.
//!
//! Called by the worker between two ticks, never during one. Only what the row's parent lacks is packed. A state that
//! cannot be packed, or that the cache does not take, costs the next request some time and nothing else. Only the end of a
//! model waits until its rows are written.

use std::time::Instant;

use bytes::Bytes;
use poncho_cache::FLAG_GRID;
use poncho_cache::{
    Cache, FingerprintMode, Key, Namespace, PartKind, PayloadPart, Policy, SaveBase, SaveOutcome, SaveReason,
    SaveRequest, Tier,
};

use crate::backend::{Backend, Context, MemoryKind, SeqId, StateError, StatePart};
use crate::calls::tenant::Tenant;
use crate::files::file_watch::FileWatch;
use crate::sequence::exact::Grid;

/// What saving needs of the worker.
pub(crate) struct Saver<'a> {
    pub(crate) context: &'a mut dyn Context,
    pub(crate) backend: &'a dyn Backend,
    pub(crate) cache: &'a Cache,
    pub(crate) policy: &'a Policy,
    pub(crate) tier: Option<Tier>,
    pub(crate) mode: FingerprintMode,
    pub(crate) watch: &'a FileWatch,
}

/// A boundary worth saving.
pub(crate) struct Boundary<'a> {
    pub(crate) seq: SeqId,
    /// The tokens up to it. A model that cannot be cut must hold exactly these.
    pub(crate) tokens: &'a [u32],
    pub(crate) namespace: Namespace,
    /// The logits after the last of them; empty if they are not known.
    pub(crate) logits: &'a [f32],
    pub(crate) reason: SaveReason,
    /// The grid that every token of it was computed on, for exact requests.
    pub(crate) grid: Option<Grid>,
    /// Who sent the tokens.
    pub(crate) tenant: Option<Tenant>,
}

impl Saver<'_> {
    /// Saves a boundary if the gates let it pass. Returns the row's name if the cache has it then. Rows that hold a
    /// beginning of it belong to the tenant that sent it, also those that were there before.
    pub(crate) fn save(&mut self, boundary: &Boundary<'_>) -> Option<Key> {
        let key = self.store(boundary);
        if let Some(tenant) = boundary.tenant {
            self.cache.claim(&boundary.namespace, boundary.tokens, tenant.id);
        }
        key
    }

    fn store(&mut self, boundary: &Boundary<'_>) -> Option<Key> {
        let count = boundary.tokens.len();
        if !self.policy.should_save(boundary.reason, count) {
            return None;
        }
        let memory = self.context.info().memory;
        let key = boundary.namespace.key(boundary.tokens);
        if self.is_stored(&key, memory, !boundary.logits.is_empty()) {
            return Some(key);
        }
        // The weights that made this state may be others than those of its namespace.
        if self.watch.is_changed() || self.watch.look().is_some() {
            return None;
        }
        let started = Instant::now();
        let base = memory
            .has_segments()
            .then(|| self.cache.base_for(&boundary.namespace, boundary.tokens, self.tier))
            .flatten();
        // A chunk of the grid is stored whole: another row may have ended inside of it.
        let base = match boundary.grid {
            Some(grid) => base.and_then(|base| {
                let start = grid.floor(base.start() as usize);
                base.starting_at(u32::try_from(start).unwrap_or(0))
            }),
            None => base,
        };
        let parts = match self.pack(boundary, memory, base.as_ref()) {
            Ok(parts) if parts.is_empty() => return None,
            Ok(parts) => parts,
            Err(error) => {
                tracing::warn!(%key, %error, "a state could not be packed; it is computed again next time");
                return None;
            }
        };
        let packed = parts.iter().map(|part| part.bytes.len() as u64).sum();
        self.cache.count_pack(packed, started.elapsed());
        let request = SaveRequest {
            namespace: boundary.namespace,
            mode: self.mode,
            tokens: boundary.tokens,
            base: base.as_ref(),
            parts,
            reason: boundary.reason,
            flags: if boundary.grid.is_some() { FLAG_GRID } else { 0 },
            context_size: self.context.info().n_ctx,
            text: String::new(),
            tier: self.tier,
            owner: boundary.tenant.map(|tenant| tenant.id),
        };
        // Others are served meanwhile, unless the model ends: they must not wait for a disk that does not answer.
        let saved = match boundary.reason {
            SaveReason::Shutdown => self.cache.save(request),
            _ => self.cache.save_later(request),
        };
        match saved {
            Ok(saved) => {
                tracing::debug!(
                    %key, reason = boundary.reason.as_str(), tokens = count, bytes = packed,
                    start = base.as_ref().map_or(0, SaveBase::start), outcome = ?saved.outcome,
                    us = started.elapsed().as_micros(), "state saved"
                );
                (!matches!(saved.outcome, SaveOutcome::Dropped(_))).then_some(saved.key)
            }
            Err(error) => {
                tracing::warn!(%key, %error, "a row was not saved");
                None
            }
        }
    }

    fn is_stored(&self, key: &Key, memory: MemoryKind, with_logits: bool) -> bool {
        self.cache.row(key).is_some_and(|row| {
            let has = |kind| row.parts.contains(&kind);
            (!with_logits || has(PartKind::Logits)) && (!memory.has_partial() || has(PartKind::Partial))
        })
    }

    fn pack(
        &mut self,
        boundary: &Boundary<'_>,
        memory: MemoryKind,
        base: Option<&SaveBase>,
    ) -> Result<Vec<PayloadPart>, StateError> {
        let end = u32::try_from(boundary.tokens.len()).unwrap_or(u32::MAX);
        let start = base.map_or(0, SaveBase::start);
        let mut parts = Vec::with_capacity(3);
        if memory.has_segments() && start < end {
            let size = self.context.pack_size(boundary.seq, start..end)?;
            let mut buffer = self.backend.host_buffer(size);
            let used = self.context.pack_range(boundary.seq, start..end, buffer.as_mut())?;
            buffer.truncate(used);
            parts.push(PayloadPart { kind: PartKind::Attention, bytes: Bytes::from_owner(buffer) });
        }
        if memory.has_partial() {
            let size = self.context.state_size(boundary.seq, StatePart::Partial)?;
            let mut buffer = self.backend.host_buffer(size);
            let used = self.context.state_read(boundary.seq, StatePart::Partial, buffer.as_mut())?;
            buffer.truncate(used);
            parts.push(PayloadPart { kind: PartKind::Partial, bytes: Bytes::from_owner(buffer) });
        }
        if !boundary.logits.is_empty() {
            parts.push(PayloadPart { kind: PartKind::Logits, bytes: logits_to_bytes(boundary.logits).into() });
        }
        Ok(parts)
    }
}

/// Logits as they are stored: little-endian `f32`.
pub(crate) fn logits_to_bytes(logits: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; logits.len() * 4];
    for (place, logit) in bytes.chunks_exact_mut(4).zip(logits) {
        place.copy_from_slice(&logit.to_le_bytes());
    }
    bytes
}

/// Stored logits; `None` if they are not those of a vocabulary of this size.
pub(crate) fn logits_from_bytes(bytes: &[u8], n_vocab: u32) -> Option<Vec<f32>> {
    if bytes.len() != n_vocab as usize * 4 {
        return None;
    }
    Some(bytes.chunks_exact(4).filter_map(|place| place.try_into().ok().map(f32::from_le_bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_come_back_bit_for_bit() {
        let logits = [0.0, -0.0, 1.5, f32::MIN_POSITIVE, f32::NEG_INFINITY, f32::NAN];
        let back = logits_from_bytes(&logits_to_bytes(&logits), 6).unwrap();
        assert!(logits.iter().zip(&back).all(|(one, two)| one.to_bits() == two.to_bits()));
        assert_eq!(logits_from_bytes(&logits_to_bytes(&logits), 7), None);
    }
}
