//! Filling a sequence of the context with stored bytes.
//!
//! Called by `Slots` alone. The backend checks all bytes before it trusts them, because they may come from a damaged file;
//! whatever it refuses is a [`Failure`], never a panic.

use std::time::{Duration, Instant};

use poncho_cache::PartKind;

use crate::backend::{Context, SeqId, StateError, StoredSegment};
use crate::state::chosen::Chosen;
use crate::state::failure::Failure;
use crate::state::position::position;
use crate::state::restore::{Restored, Restorer};
use crate::state::save::logits_from_bytes;
use crate::state::segment_reader::Parts;

/// Fills a sequence with what was chosen. After an error it may hold anything.
pub(super) fn fill(
    context: &mut dyn Context,
    restorer: &mut Restorer,
    seq: SeqId,
    chosen: &Chosen,
    parts: &Parts,
    reading: Duration,
) -> Result<Restored, Failure> {
    let n_past = chosen.n_past;
    if n_past == 0 {
        context.remove(seq, 0..super::TO_END);
        return Ok(Restored::default());
    }
    let partial = chosen.partial.map(|row| chosen.load((row, PartKind::Partial), parts)).transpose()?;
    let refused = |error| match error {
        StateError::NoRoom { .. } => Failure::NoRoom,
        error => {
            tracing::warn!(%error, "a stored state was refused; the prompt is computed instead");
            Failure::Refused
        }
    };
    context.restore_begin(seq, position(n_past), partial.as_deref()).map_err(refused)?;
    if context.info().memory.has_segments() {
        fill_segments(context, restorer, chosen, parts, reading)?;
    }
    context.restore_finish().map_err(refused)?;
    let tier = (n_past > 0).then(|| chosen.hit_tier());
    let Some(row) = chosen.logits else { return Ok(Restored { n_past, logits: None, tier }) };
    // Logits of another vocabulary size cannot be of this model; then nothing else of the row is trusted either.
    let logits = logits_from_bytes(&chosen.load((row, PartKind::Logits), parts)?, restorer.n_vocab);
    Ok(Restored { n_past, logits: Some(logits.ok_or(Failure::Refused)?), tier })
}

/// Copies segments into the context in one call, from where they lie.
fn fill_segments(
    context: &mut dyn Context,
    restorer: &mut Restorer,
    chosen: &Chosen,
    parts: &Parts,
    reading: Duration,
) -> Result<(), Failure> {
    let mut loaded = Vec::with_capacity(chosen.segments.len());
    for place in &chosen.segments {
        let segment = chosen.plan.rows().get(*place).ok_or(Failure::Refused)?;
        loaded.push((segment.range().end, chosen.load((*place, PartKind::Attention), parts)?));
    }
    let started = Instant::now();
    let segments: Vec<StoredSegment<'_>> =
        loaded.iter().map(|(end, bytes)| StoredSegment { bytes, end: *end }).collect();
    context.restore_segments(&segments).map_err(|error| match error {
        StateError::NoRoom { .. } => Failure::NoRoom,
        error => {
            let ends: Vec<u32> = segments.iter().map(|segment| segment.end).collect();
            tracing::warn!(?ends, %error, "stored segments were refused; the prompt is computed instead");
            Failure::Refused
        }
    })?;
    restorer.record(&loaded, reading, started.elapsed());
    Ok(())
}
