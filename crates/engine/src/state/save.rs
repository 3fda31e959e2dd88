//! Saving the state of a sequence as a row of the cache.
//!
//! Called between two ticks, never during one. This file decides whether a state is saved and what of it the cache lacks;
//! `sequence/slots`, which owns the context, packs the bytes. A state that cannot be packed, or that the cache does not
//! take, costs the next request some time and nothing else. Only the end of a model waits until its rows are written.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use poncho_cache::{
    Cache, FLAG_GRID, FingerprintMode, Key, Namespace, PartKind, PayloadPart, Policy, SaveBase, SaveOutcome,
    SaveReason, SaveRequest, Tier,
};

use crate::backend::{MemoryKind, Model, SeqId, SpecialText, StateError};
use crate::calls::tenant::Tenant;
use crate::files::file_watch::FileWatch;
use crate::schedule::grid::Grid;
use crate::state::position::position;

/// Decides what is saved and hands it to the cache. One for each worker.
pub(crate) struct Saver {
    pub(crate) cache: Arc<Cache>,
    pub(crate) watch: Arc<FileWatch>,
    pub(crate) policy: Policy,
    pub(crate) tier: Option<Tier>,
    pub(crate) mode: FingerprintMode,
    pub(crate) memory: MemoryKind,
    /// Tokens that a sequence may hold.
    pub(crate) n_ctx: u32,
    /// Turns the first tokens into text.
    pub(crate) model: Arc<dyn Model>,
}

/// Tokens of a prompt that are stored as text too, for listings of a cache folder.
const TEXT_TOKENS: usize = 40;

/// A boundary to save.
pub(crate) struct Boundary<'a> {
    pub(crate) seq: SeqId,
    /// The tokens up to it. A model that cannot be cut must hold exactly these.
    pub(crate) tokens: &'a [u32],
    pub(crate) namespace: Namespace,
    /// The logits after the last of them, if they are known.
    pub(crate) logits: Option<&'a [f32]>,
    pub(crate) reason: SaveReason,
    /// The grid that every token of it was computed on, for exact requests.
    pub(crate) grid: Option<Grid>,
    /// The tenant that sent the tokens.
    pub(crate) tenant: Option<Tenant>,
}

impl Saver {
    /// Saves a boundary if the gates let it pass; `pack` packs the positions that the row's base lacks. Returns the key of
    /// the row if the cache has it afterwards. All rows that hold a prefix of it are marked as the tenant's, also those that
    /// existed before.
    pub(crate) fn save(
        &self,
        boundary: &Boundary<'_>,
        pack: impl FnOnce(Range<u32>) -> Result<Vec<PayloadPart>, StateError>,
    ) -> Option<Key> {
        let key = self.store(boundary, pack);
        if let Some(tenant) = boundary.tenant {
            self.cache.claim(&boundary.namespace, boundary.tokens, tenant.id);
        }
        key
    }

    /// The beginning of a prompt as text. Informational: nothing but a listing reads it.
    fn first_words(&self, tokens: &[u32]) -> String {
        let mut bytes = Vec::new();
        for token in tokens.iter().take(TEXT_TOKENS) {
            self.model.token_bytes(*token, SpecialText::Hide, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).trim_start().to_owned()
    }

    fn store(
        &self,
        boundary: &Boundary<'_>,
        pack: impl FnOnce(Range<u32>) -> Result<Vec<PayloadPart>, StateError>,
    ) -> Option<Key> {
        let count = boundary.tokens.len();
        if !self.policy.should_save(boundary.reason, count) {
            return None;
        }
        let key = boundary.namespace.key(boundary.tokens);
        if self.is_stored(&key, boundary.logits.is_some()) {
            return Some(key);
        }
        // The weights that made this state may differ from those of its namespace.
        if self.watch.is_changed() || self.watch.look().is_some() {
            return None;
        }
        let started = Instant::now();
        let base = self
            .memory
            .has_segments()
            .then(|| self.cache.base_for(&boundary.namespace, boundary.tokens, self.tier))
            .flatten();
        // A chunk of the grid is stored whole: another row may end inside of it.
        let base = match boundary.grid {
            Some(grid) => base.and_then(|base| {
                let start = grid.floor(base.start() as usize);
                base.starting_at(position(start))
            }),
            None => base,
        };
        let start = base.as_ref().map_or(0, SaveBase::start);
        let parts = match pack(start..position(count)) {
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
            context_size: self.n_ctx,
            text: self.first_words(boundary.tokens),
            tier: self.tier,
            owner: boundary.tenant.map(|tenant| tenant.id),
        };
        // Other requests are served meanwhile, unless the model ends: they must not wait for a disk that does not answer.
        let saved = match boundary.reason {
            SaveReason::Shutdown => self.cache.save(request),
            _ => self.cache.save_later(request),
        };
        match saved {
            Ok(saved) => {
                tracing::debug!(
                    %key, reason = boundary.reason.as_str(), tokens = count, bytes = packed,
                    start, outcome = ?saved.outcome,
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

    fn is_stored(&self, key: &Key, with_logits: bool) -> bool {
        self.cache.row(key).is_some_and(|row| {
            let has = |kind| row.parts.contains(&kind);
            (!with_logits || has(PartKind::Logits)) && (!self.memory.has_partial() || has(PartKind::Partial))
        })
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
