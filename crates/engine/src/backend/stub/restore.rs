//! Packing and putting back, as the stub's context does it: what `state.rs` encodes, checked against what is held.
//!
//! Called by the context's trait methods only. The rules are those of the llama.cpp backend: a refused state leaves the
//! sequence empty, or untouched where nothing was dropped yet; a chain has no gaps; only plain attention may be cut. It
//! must never put cells back that the pool has no room for.

use std::ops::Range;

use crate::backend::{Context, KvLayout, MemoryKind, SegmentJoiner, SeqId, StateError, StatePart, StoredSegment};

use super::context::StubContext;
use super::faults::StubCall;
use super::memory::{Cell, Layers, Sequence};
use super::state;

/// Joins segments as the context reads them.
pub(super) struct StubJoiner {
    pub(super) layers: Layers,
}

impl SegmentJoiner for StubJoiner {
    fn joined_len(&self, range: &Range<u32>) -> usize {
        let cell = |pos| Cell { pos, token: 0, value: 0 };
        state::write_segment(self.layers, range, 0, &range.clone().map(cell).collect::<Vec<_>>()).len()
    }

    fn join(&self, segments: &[&[u8]], range: Range<u32>, out: &mut [u8]) -> Result<(), StateError> {
        let mut cells = Vec::new();
        let mut before = None;
        for bytes in segments {
            let segment = state::read_segment(bytes, self.layers)?;
            let expected = range.start + u32::try_from(cells.len()).unwrap_or(u32::MAX);
            if segment.range.start > expected || segment.range.start < range.start {
                return Err(StateError::Gap { expected, got: segment.range.start });
            }
            before.get_or_insert(segment.before);
            // A segment counts as far as the next one starts.
            cells.truncate((segment.range.start - range.start) as usize);
            cells.extend(segment.cells);
        }
        cells.truncate((range.end - range.start) as usize);
        if cells.len() != (range.end - range.start) as usize {
            return Err(StateError::Gap { expected: range.end, got: range.start });
        }
        let joined = state::write_segment(self.layers, &range, before.unwrap_or_default(), &cells);
        let wrong_length = StateError::BufferTooSmall { needed: joined.len(), given: out.len() };
        out.get_mut(..).filter(|out| out.len() == joined.len()).ok_or(wrong_length)?.copy_from_slice(&joined);
        Ok(())
    }
}

/// A sequence that is being put back.
pub(super) struct Restoring {
    seq: SeqId,
    n_tokens: u32,
    /// Tokens covered by the segments so far.
    covered: u32,
    /// Checked at the start, put in when the cells it belongs to are there.
    partial: Option<state::Partial>,
}

impl StubContext {
    /// Refuses on demand.
    fn injected(&self, call: StubCall, what: &'static str, seq: SeqId) -> Result<(), StateError> {
        if self.faults.fails(call) {
            return Err(StateError::Refused { what, seq, reason: "the stub was asked to fail".to_owned() });
        }
        Ok(())
    }

    pub(super) fn state_bytes(&self, seq: SeqId, part: StatePart) -> Result<Vec<u8>, StateError> {
        let sequence = self.known(seq)?;
        self.check_part(part)?;
        Ok(match part {
            StatePart::Whole => state::write_whole(sequence, self.layers),
            StatePart::Partial => state::write_partial(sequence, self.layers),
        })
    }

    fn check_part(&self, part: StatePart) -> Result<(), StateError> {
        match part {
            StatePart::Whole if self.layers.kind == MemoryKind::None => Err(StateError::Unsupported { part: "state" }),
            StatePart::Partial if !self.layers.kind.has_partial() => {
                Err(StateError::Unsupported { part: "partial state" })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn segment_bytes(&self, seq: SeqId, range: &Range<u32>) -> Result<Vec<u8>, StateError> {
        let sequence = self.known(seq)?;
        if !self.layers.kind.has_segments() {
            return Err(StateError::Unsupported { part: "attention segments" });
        }
        let cells = Some(range).filter(|range| !range.is_empty()).and_then(|range| sequence.cells_of(range));
        let held_start = sequence.cells().first().map_or(0, |cell| cell.pos);
        let held_end = sequence.cells().last().map_or(0, |cell| cell.pos + 1);
        let missing = StateError::RangeNotHeld { seq, start: range.start, end: range.end, held_start, held_end };
        Ok(state::write_segment(self.layers, range, sequence.fold_before(range.start), cells.ok_or(missing)?))
    }

    pub(super) fn read_state(&self, seq: SeqId, part: StatePart, out: &mut [u8]) -> Result<usize, StateError> {
        self.injected(StubCall::StateRead, "pack", seq)?;
        fill(out, &self.state_bytes(seq, part)?)
    }

    pub(super) fn write_state(&mut self, seq: SeqId, part: StatePart, bytes: &[u8]) -> Result<(), StateError> {
        self.known(seq)?;
        self.check_part(part)?;
        self.injected(StubCall::StateWrite, "restore", seq)?;
        let layers = self.layers;
        let written = match part {
            StatePart::Partial => {
                let index = usize::try_from(seq).unwrap_or(usize::MAX);
                let partial = state::read_partial(bytes, layers);
                match self.sequences.get_mut(index) {
                    Some(sequence) => partial.and_then(|partial| partial.apply(sequence, layers)),
                    None => partial.map(|_| ()),
                }
            }
            StatePart::Whole => state::read_whole(bytes, layers).and_then(|whole| {
                self.replace(seq, Sequence::default());
                self.check_room(whole.cells.len())?;
                let sequence = whole.build(layers, &self.pool)?;
                self.replace(seq, sequence);
                Ok(())
            }),
        };
        self.counted(written)
    }

    pub(super) fn pack(&self, seq: SeqId, range: &Range<u32>, out: &mut [u8]) -> Result<usize, StateError> {
        self.injected(StubCall::Pack, "pack", seq)?;
        let written = fill(out, &self.segment_bytes(seq, range)?)?;
        self.faults.count(|counts| counts.packs += 1);
        Ok(written)
    }

    pub(super) fn begin_restore(
        &mut self,
        seq: SeqId,
        n_tokens: u32,
        partial: Option<&[u8]>,
    ) -> Result<(), StateError> {
        self.known(seq)?;
        self.restoring = None;
        self.replace(seq, Sequence::default());
        self.injected(StubCall::RestoreBegin, "restore", seq)?;
        if n_tokens == 0 || n_tokens > self.info.n_ctx {
            return Err(StateError::NoRoom { n_tokens });
        }
        let partial = if self.layers.kind.has_partial() {
            let read = partial.ok_or(StateError::PartialMissing).and_then(|bytes| self.read_partial(bytes, n_tokens));
            Some(self.counted(read)?)
        } else {
            None
        };
        self.restoring = Some(Restoring { seq, n_tokens, covered: 0, partial });
        Ok(())
    }

    fn read_partial(&self, bytes: &[u8], n_tokens: u32) -> Result<state::Partial, StateError> {
        let partial = state::read_partial(bytes, self.layers)?;
        if partial.n_tokens != n_tokens {
            let (expected, got) = (n_tokens.into(), partial.n_tokens.into());
            return Err(StateError::Malformed { reason: "tokens of the partial state", expected, got });
        }
        Ok(partial)
    }

    pub(super) fn next_rows(&mut self, rows: &[StoredSegment<'_>]) -> Result<(), StateError> {
        let mut restoring = self.restoring.take().ok_or(StateError::OutOfOrder)?;
        let all = rows.iter().try_for_each(|row| self.add_segment(&mut restoring, row.bytes, row.end));
        let is_whole = restoring.covered == restoring.n_tokens;
        let added =
            all.and(if self.info.kv == KvLayout::Unified || is_whole { Ok(()) } else { Err(StateError::OutOfOrder) });
        match added {
            Ok(()) => self.restoring = Some(restoring),
            Err(_) => self.replace(restoring.seq, Sequence::default()),
        }
        self.counted(added)
    }

    pub(super) fn finish_restore(&mut self) -> Result<(), StateError> {
        let restoring = self.restoring.take().ok_or(StateError::OutOfOrder)?;
        let seq = restoring.seq;
        let finished = self.finish(restoring);
        match finished {
            Ok(()) => self.faults.count(|counts| counts.restores += 1),
            Err(_) => self.replace(seq, Sequence::default()),
        }
        self.counted(finished)
    }

    fn add_segment(&mut self, restoring: &mut Restoring, bytes: &[u8], upto: u32) -> Result<(), StateError> {
        self.injected(StubCall::RestoreSegment, "restore", restoring.seq)?;
        if !self.layers.kind.has_segments() {
            return Err(StateError::Unsupported { part: "attention segments" });
        }
        let segment = state::read_segment(bytes, self.layers)?;
        let Range { start, end } = segment.range;
        if start != restoring.covered || restoring.covered >= restoring.n_tokens {
            return Err(StateError::Gap { expected: restoring.covered, got: start });
        }
        if end > restoring.n_tokens && upto > restoring.n_tokens && !self.layers.kind.can_cut() {
            return Err(StateError::CannotCut { n_tokens: restoring.n_tokens, end });
        }
        let before = self.known(restoring.seq)?.fold_before(start);
        if segment.before != before {
            let reason = "segment of another conversation";
            return Err(StateError::Malformed { reason, expected: before, got: segment.before });
        }
        let wanted = end.min(restoring.n_tokens).min(upto);
        if wanted <= start {
            return Err(StateError::Gap { expected: restoring.covered, got: upto });
        }
        if self.info.kv == KvLayout::Unified {
            self.check_room((wanted - start) as usize)?;
        }
        let index = usize::try_from(restoring.seq).unwrap_or(usize::MAX);
        if let Some(sequence) = self.sequences.get_mut(index) {
            let cells = segment.cells.into_iter().take_while(|cell| cell.pos < wanted);
            cells.for_each(|cell| sequence.push(cell, &self.pool));
        }
        restoring.covered = wanted;
        Ok(())
    }

    fn finish(&mut self, restoring: Restoring) -> Result<(), StateError> {
        let Restoring { seq, n_tokens, covered, partial } = restoring;
        self.injected(StubCall::RestoreFinish, "restore", seq)?;
        let layers = self.layers;
        if layers.kind.has_segments() && covered != n_tokens {
            return Err(StateError::Gap { expected: n_tokens, got: covered });
        }
        if let (Some(partial), Some(sequence)) = (partial, self.sequence_mut(seq)) {
            partial.apply(sequence, layers)?;
        }
        match self.pos_max(seq) {
            Some(last) if last + 1 == n_tokens => Ok(()),
            last => {
                let got = last.map_or(u64::MAX, u64::from);
                let expected = u64::from(n_tokens).saturating_sub(1);
                Err(StateError::Malformed { reason: "last position after the restore", expected, got })
            }
        }
    }

    /// Whether an empty sequence has room for this number of cells.
    fn check_room(&self, cells: usize) -> Result<(), StateError> {
        let free = match self.info.kv {
            KvLayout::Unified => (self.info.n_cells as usize).saturating_sub(self.pool.used()),
            KvLayout::Split => self.info.n_ctx as usize,
        };
        let n_tokens = u32::try_from(cells).unwrap_or(u32::MAX);
        if cells > free { Err(StateError::NoRoom { n_tokens }) } else { Ok(()) }
    }

    /// Counts what was refused for its content, and hands the result on.
    fn counted<T>(&self, result: Result<T, StateError>) -> Result<T, StateError> {
        if matches!(&result, Err(StateError::Malformed { .. } | StateError::Gap { .. } | StateError::CannotCut { .. }))
        {
            self.faults.count(|counts| counts.refused += 1);
        }
        result
    }
}

fn fill(out: &mut [u8], bytes: &[u8]) -> Result<usize, StateError> {
    let (needed, given) = (bytes.len(), out.len());
    out.get_mut(..needed).ok_or(StateError::BufferTooSmall { needed, given })?.copy_from_slice(bytes);
    Ok(needed)
}
