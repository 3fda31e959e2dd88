//! Packing a sequence of the context into the parts of a row.
//!
//! Called by `Slots` alone, between two ticks. It changes nothing in the context.

use std::ops::Range;

use bytes::Bytes;
use poncho_cache::{PartKind, PayloadPart};

use crate::backend::{Backend, Context, StateError, StatePart};
use crate::state::save::{Boundary, logits_to_bytes};

/// The parts of a boundary's row: the segment of `range`, the partial state and the logits, as far as there are any.
pub(super) fn pack(
    context: &mut dyn Context,
    backend: &dyn Backend,
    boundary: &Boundary<'_>,
    range: Range<u32>,
) -> Result<Vec<PayloadPart>, StateError> {
    let memory = context.info().memory;
    let mut parts = Vec::with_capacity(3);
    if memory.has_segments() && !range.is_empty() {
        let size = context.pack_size(boundary.seq, range.clone())?;
        let mut buffer = backend.host_buffer(size);
        let used = context.pack_range(boundary.seq, range, buffer.as_mut())?;
        buffer.truncate(used);
        parts.push(PayloadPart { kind: PartKind::Attention, bytes: Bytes::from_owner(buffer) });
    }
    if memory.has_partial() {
        let size = context.state_size(boundary.seq, StatePart::Partial)?;
        let mut buffer = backend.host_buffer(size);
        let used = context.state_read(boundary.seq, StatePart::Partial, buffer.as_mut())?;
        buffer.truncate(used);
        parts.push(PayloadPart { kind: PartKind::Partial, bytes: Bytes::from_owner(buffer) });
    }
    if let Some(logits) = boundary.logits {
        parts.push(PayloadPart { kind: PartKind::Logits, bytes: logits_to_bytes(logits).into() });
    }
    Ok(parts)
}
