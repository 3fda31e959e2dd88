//! Packing a sequence's state and putting it back.
//!
//! The worker calls it between ticks. The bytes may come from a damaged or crafted file: `segment.rs` checks them
//! before llama.cpp sees them, and a refusal leaves the sequence empty, never half filled. Packing never changes the
//! sequence it packs.

use std::io::IoSlice;
use std::ops::Range;

use llama_cpp_sys_4 as sys;

use crate::backend::llama::context::LlamaContext;
use crate::backend::llama::log;
use crate::backend::llama::state::chain::Chain;
use crate::backend::llama::state::io::{self, StateView};
use crate::backend::llama::state::layout::{STATE_HEADER, StateShape};
use crate::backend::llama::state::packed::Packed;
use crate::backend::llama::state::partial;
use crate::backend::llama::state::segment::{self, SEGMENT_HEADER, Segment};
use crate::backend::{Context, MemoryKind, SegmentJoiner, SeqId, StateError, StatePart, StoredSegment};

/// A sequence that is being put back.
pub(in crate::backend::llama) struct RestoreInProgress {
    seq: SeqId,
    n_tokens: u32,
    /// Tokens covered by the segments so far.
    covered: u32,
    /// The recurrent part, or the whole of an opaque state, to be set at the end.
    last: Option<Vec<u8>>,
}

impl LlamaContext {
    pub(in crate::backend::llama) fn size_of_state(
        &mut self,
        seq: SeqId,
        part: StatePart,
    ) -> Result<usize, StateError> {
        let seq = self.known_seq(seq)?;
        let flags = self.flags(part)?;
        // SAFETY: the sequence exists; exceptions are caught inside and yield 0.
        Ok(unsafe { sys::llama_state_seq_get_size_ext(self.context.as_ptr(), seq, flags) })
    }

    pub(in crate::backend::llama) fn read_state(
        &mut self,
        seq: SeqId,
        part: StatePart,
        out: &mut [u8],
    ) -> Result<usize, StateError> {
        let needed = self.size_of_state(seq, part)?;
        let known = self.known_seq(seq)?;
        let flags = self.flags(part)?;
        if out.len() < needed {
            return Err(StateError::BufferTooSmall { needed, given: out.len() });
        }
        self.get_data(known, flags, out)
    }

    pub(in crate::backend::llama) fn write_state(
        &mut self,
        seq: SeqId,
        part: StatePart,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        let known = self.known_seq(seq)?;
        let flags = self.flags(part)?;
        let Some(shape) = &self.shape else {
            segment::check_blob_header(bytes)?;
            return self.set_data(known, flags, bytes);
        };
        if part == StatePart::Whole {
            partial::check_whole(bytes, shape)?;
            self.set_window_floor(seq, 0);
            return self.set_data(known, flags, bytes);
        }
        let reframed = partial::reframe_partial(bytes, shape)?;
        let bytes = reframed.as_deref().unwrap_or(bytes);
        partial::check_partial(bytes, shape, None)?;
        let recurrent = shape.recurrent.as_ref().map(|_| partial::recurrent_only(bytes, shape)).transpose()?;
        let n_tokens = partial::window_length(bytes, shape);
        // Past the first round of the ring a placeholder would have to be removed, and with it a live position of the
        // full layers; there the window is set as it was saved.
        let fits = |ring: &u32| n_tokens.is_some_and(|n| n <= *ring);
        let others = (0..self.info.n_seq_max).any(|other| other != seq && self.pos_max(other).is_some());
        let ring = self.window_ring.filter(fits).filter(|_| self.scratch.is_none() || !others);
        if let (Some(ring), Some(n_tokens)) = (ring, n_tokens) {
            let mirrored = partial::mirror_window(bytes, shape, ring, n_tokens)?;
            self.set_data(known, flags, &mirrored.blob)?;
            self.set_window_floor(seq, mirrored.first_real);
            return recurrent.map_or(Ok(()), |recurrent| self.set_data(known, flags, &recurrent));
        }
        self.set_window_floor(seq, 0);
        self.set_data(known, flags, bytes)
    }

    pub(in crate::backend::llama) fn size_of_range(&self, seq: SeqId, range: &Range<u32>) -> Result<usize, StateError> {
        self.known_seq(seq)?;
        self.check_range(seq, range)?;
        Ok(Packed::segment_len(self.attention_shape()?, range))
    }

    pub(in crate::backend::llama) fn pack(
        &mut self,
        seq: SeqId,
        range: &Range<u32>,
        out: &mut [u8],
    ) -> Result<usize, StateError> {
        let known = self.known_seq(seq)?;
        let needed = self.size_of_range(seq, range)?;
        let given = out.len();
        let out = out.get_mut(..needed).ok_or(StateError::BufferTooSmall { needed, given })?;
        match self.scratch {
            // The state of the marked cells alone is taken apart.
            Some(scratch) => {
                self.with_range(known, scratch, range, |context| context.pack_from(scratch, seq, range, out))?
            }
            None => self.pack_from(known, seq, range, out)?,
        }
        Ok(needed)
    }

    /// Packs a range of `seq` out of `source`, which is the sequence itself or holds at least the range of it.
    fn pack_from(
        &mut self,
        source: sys::llama_seq_id,
        seq: SeqId,
        range: &Range<u32>,
        out: &mut [u8],
    ) -> Result<(), StateError> {
        let refused = |reason| StateError::Refused { what: "pack", seq, reason };
        let missing = self.range_not_held(seq, range);
        let shape = attention(self.shape.as_ref())?;
        // SAFETY: the context is alive, the sequence exists, and the view keeps the context to itself.
        let view = unsafe { StateView::new(&mut self.context, source) }.map_err(refused)?;
        let packed = Packed::find(view.frame(), shape, range)?.ok_or(missing)?;
        let ranges = packed.write(out)?;
        let mut way = self.passage.way(self.threads.copying(self.info.on_device));
        view.copy_ranges(&ranges, out, &mut way).map_err(refused)
    }

    /// Marks a range of `seq` as the scratch sequence's, runs `call`, and takes the marks away again.
    fn with_range<T>(
        &mut self,
        seq: sys::llama_seq_id,
        scratch: sys::llama_seq_id,
        range: &Range<u32>,
        call: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let start = i32::try_from(range.start).unwrap_or(i32::MAX);
        let end = i32::try_from(range.end).unwrap_or(i32::MAX);
        self.drop_sequence(scratch);
        // SAFETY: both sequences exist; within one stream only marks are copied.
        unsafe { sys::llama_memory_seq_cp(self.memory(), seq, scratch, start, end) }
        let value = call(self);
        self.drop_sequence(scratch);
        value
    }

    pub(in crate::backend::llama) fn begin_restore(
        &mut self,
        seq: SeqId,
        n_tokens: u32,
        partial: Option<&[u8]>,
    ) -> Result<(), StateError> {
        let known = self.known_seq(seq)?;
        if self.restoring.take().is_some() {
            self.drop_scratch();
        }
        self.drop_sequence(known);
        if n_tokens == 0 || n_tokens > self.info.n_ctx {
            return Err(StateError::NoRoom { n_tokens });
        }
        let mut restore = RestoreInProgress { seq, n_tokens, covered: 0, last: None };
        if self.info.memory.has_partial() {
            let bytes = partial.ok_or(StateError::PartialMissing)?;
            if let Err(error) = self.place_partial(&mut restore, bytes) {
                self.drop_restored(&restore);
                return Err(error);
            }
        }
        self.restoring = Some(restore);
        Ok(())
    }

    pub(in crate::backend::llama) fn add_segments(&mut self, stored: &[StoredSegment<'_>]) -> Result<(), StateError> {
        let mut restore = self.restoring.take().ok_or(StateError::OutOfOrder)?;
        let added = self.add_checked_segments(&mut restore, stored);
        match added {
            Ok(()) => self.restoring = Some(restore),
            Err(_) => self.drop_restored(&restore),
        }
        added
    }

    pub(in crate::backend::llama) fn finish_restore(&mut self) -> Result<(), StateError> {
        let restore = self.restoring.take().ok_or(StateError::OutOfOrder)?;
        self.drop_scratch();
        let finished = self.finish_checked(&restore);
        if finished.is_err() {
            self.drop_restored(&restore);
        }
        finished
    }

    fn add_checked_segments(
        &mut self,
        restore: &mut RestoreInProgress,
        stored: &[StoredSegment<'_>],
    ) -> Result<(), StateError> {
        let known = self.known_seq(restore.seq)?;
        if stored.is_empty() {
            return Err(StateError::OutOfOrder);
        }
        let start = restore.covered;
        let mut segments = Vec::with_capacity(stored.len());
        for link in stored {
            let segment = Segment::read(link.bytes, self.attention_shape()?)?;
            let wanted = self.wanted_of(restore, &segment, link.end)?;
            restore.covered = wanted.end;
            segments.push((segment, wanted));
        }
        let all = start..restore.covered;
        match self.scratch {
            // The first rows go to their place; setting a state empties its target, so the others take a detour.
            Some(scratch) if start > 0 => {
                self.set_segments(scratch, &segments).map_err(|error| no_room(error, &all))?;
                // The scratch sequence keeps its marks until the next rows or the end: taking them away is a pass over all
                // cells, and setting makes one anyway.
                // SAFETY: both sequences exist; within one stream only marks are copied.
                unsafe { sys::llama_memory_seq_cp(self.memory(), scratch, known, -1, -1) }
                Ok(())
            }
            // A sequence with cells of its own is set as a whole.
            None if all != (0..restore.n_tokens) => Err(StateError::OutOfOrder),
            _ => self.set_segments(known, &segments).map_err(|error| no_room(error, &all)),
        }
    }

    /// The positions that a chain takes of its next segment.
    fn wanted_of(
        &self,
        restore: &RestoreInProgress,
        segment: &Segment<'_>,
        upto: u32,
    ) -> Result<Range<u32>, StateError> {
        let Range { start, end } = segment.range;
        if start != restore.covered || restore.covered >= restore.n_tokens {
            return Err(StateError::Gap { expected: restore.covered, got: start });
        }
        if end > restore.n_tokens && upto > restore.n_tokens && !self.info.memory.can_cut() {
            return Err(StateError::CannotCut { n_tokens: restore.n_tokens, end });
        }
        // Keys and values of plain attention layers may be cut at any token, also beside layers that may not: the state
        // of those was saved at the very end.
        let wanted = start..end.min(restore.n_tokens).min(upto);
        if wanted.is_empty() {
            return Err(StateError::Gap { expected: restore.covered, got: upto });
        }
        Ok(wanted)
    }

    /// Sets a sequence to what is wanted of rows that follow each other.
    fn set_segments(
        &mut self,
        target: sys::llama_seq_id,
        rows: &[(Segment<'_>, Range<u32>)],
    ) -> Result<(), StateError> {
        // One row as it was written is what the library takes.
        let whole = match rows {
            [(segment, wanted)] if segment.range == *wanted && segment.streams == self.attention_shape()?.streams => {
                Some(segment.blob)
            }
            _ => None,
        };
        if let Some(blob) = whole.filter(|blob| blob.is_empty()) {
            return self.set_data(target, 0, blob);
        }
        let chain = Chain::new(attention(self.shape.as_ref())?, rows);
        let pieces = whole.map_or_else(|| chain.pieces(), |blob| Ok(vec![IoSlice::new(blob)]))?;
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut way = self.passage.way(self.threads.copying(self.info.on_device));
        // SAFETY: the context is alive and `&mut self` keeps others away, the sequence exists, and the rows were checked.
        let set = unsafe { io::set_pieces(self.context, target, &pieces, &mut way) };
        match set {
            Ok(read) => self.set_whole(target, read == len, log::NO_REASON.to_owned()),
            Err(reason) => self.set_whole(target, false, reason),
        }
    }

    /// Checks the partial state and sets what must come before the attention segments: the window. Setting a segment
    /// empties the recurrent part, so that one waits for the end.
    fn place_partial(&mut self, restore: &mut RestoreInProgress, bytes: &[u8]) -> Result<(), StateError> {
        let known = self.known_seq(restore.seq)?;
        let Some(shape) = &self.shape else {
            segment::check_blob_header(bytes)?;
            restore.last = Some(bytes.to_vec());
            return Ok(());
        };
        let reframed = partial::reframe_partial(bytes, shape)?;
        let bytes = reframed.as_deref().unwrap_or(bytes);
        partial::check_partial(bytes, shape, Some(restore.n_tokens))?;
        if shape.recurrent.is_some() {
            restore.last = Some(partial::recurrent_only(bytes, shape)?);
        }
        if shape.window.is_empty() {
            return Ok(());
        }
        let flags = sys::LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
        // Among other sequences in one pool nothing has a place of its own, and placeholders would only take room.
        let alone = self.scratch.is_none() || (0..self.info.n_seq_max).all(|seq| self.pos_max(seq).is_none());
        let ring = self.window_ring.filter(|_| alone);
        let mirrored = match ring {
            Some(ring) => partial::mirror_window(bytes, shape, ring, restore.n_tokens).ok(),
            None => None,
        };
        if let Some(mirrored) = mirrored
            && self.set_data(known, flags, &mirrored.blob).is_ok()
        {
            self.set_window_floor(restore.seq, mirrored.first_real);
            if let Some(displaced) = mirrored.displaced.and_then(|position| i32::try_from(position).ok()) {
                // SAFETY: the sequence exists, and its full layers are still empty: only the placeholder goes.
                unsafe { sys::llama_memory_seq_rm(self.memory(), known, displaced, displaced + 1) };
            }
            return Ok(());
        }
        self.set_data(known, flags, bytes).map_err(|error| no_room(error, &(0..restore.n_tokens)))
    }

    fn finish_checked(&mut self, restore: &RestoreInProgress) -> Result<(), StateError> {
        let known = self.known_seq(restore.seq)?;
        let all = 0..restore.n_tokens;
        if self.info.memory.has_segments() && restore.covered != restore.n_tokens {
            return Err(StateError::Gap { expected: restore.n_tokens, got: restore.covered });
        }
        if let Some(last) = &restore.last {
            let flags = self.flags(StatePart::Partial)?;
            self.set_data(known, flags, last).map_err(|error| no_room(error, &all))?;
        }
        let last = self.pos_max(restore.seq);
        if last != Some(restore.n_tokens - 1) {
            let expected = (restore.n_tokens - 1).into();
            let got = last.map_or(u64::MAX, u64::from);
            return Err(StateError::Malformed { reason: "last position after the restore", expected, got });
        }
        Ok(())
    }

    fn get_data(
        &mut self,
        seq: sys::llama_seq_id,
        flags: sys::llama_state_seq_flags,
        out: &mut [u8],
    ) -> Result<usize, StateError> {
        let (written, reason) = log::collect(|| {
            // SAFETY: the sequence exists and the buffer has the given length; exceptions are caught inside.
            unsafe { sys::llama_state_seq_get_data_ext(self.context.as_ptr(), out.as_mut_ptr(), out.len(), seq, flags) }
        });
        if written < STATE_HEADER || written > out.len() {
            let seq = u32::try_from(seq).unwrap_or(u32::MAX);
            return Err(StateError::Refused { what: "pack", seq, reason });
        }
        Ok(written)
    }

    /// Hands checked bytes to llama.cpp; on a refusal the sequence is empty.
    fn set_data(
        &mut self,
        seq: sys::llama_seq_id,
        flags: sys::llama_state_seq_flags,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        let (read, reason) = log::collect(|| {
            // SAFETY: the sequence exists, the bytes have the given length, and every count in them was checked.
            unsafe { sys::llama_state_seq_set_data_ext(self.context.as_ptr(), bytes.as_ptr(), bytes.len(), seq, flags) }
        });
        self.set_whole(seq, read == bytes.len(), reason)
    }

    /// After a state was handed over: an error and an empty sequence if not all of it was taken.
    fn set_whole(&mut self, seq: sys::llama_seq_id, is_set: bool, reason: String) -> Result<(), StateError> {
        if is_set {
            return Ok(());
        }
        self.drop_sequence(seq);
        Err(StateError::Refused { what: "restore", seq: u32::try_from(seq).unwrap_or(u32::MAX), reason })
    }

    fn drop_sequence(&mut self, seq: sys::llama_seq_id) {
        self.set_window_floor(u32::try_from(seq).unwrap_or(u32::MAX), 0);
        // SAFETY: the sequence exists; removing all of it always succeeds.
        unsafe { sys::llama_memory_seq_rm(self.memory(), seq, -1, -1) };
    }

    fn drop_scratch(&mut self) {
        if let Some(scratch) = self.scratch {
            self.drop_sequence(scratch);
        }
    }

    /// Ends a restore of `seq` that was begun and given up; without one nothing happens.
    pub(in crate::backend::llama) fn abandon_restore(&mut self, seq: SeqId) {
        if self.restoring.as_ref().is_some_and(|restore| restore.seq == seq) {
            self.restoring = None;
            self.drop_scratch();
        }
    }

    fn drop_restored(&mut self, restore: &RestoreInProgress) {
        self.drop_scratch();
        if let Some(known) = self.checked_seq(restore.seq) {
            self.drop_sequence(known);
        }
    }

    fn check_range(&self, seq: SeqId, range: &Range<u32>) -> Result<usize, StateError> {
        let held = self.pos_max(seq).map_or(0, |last| last + 1);
        if range.is_empty() || range.end > held {
            return Err(self.range_not_held(seq, range));
        }
        Ok((range.end - range.start) as usize)
    }

    fn range_not_held(&self, seq: SeqId, range: &Range<u32>) -> StateError {
        let held_start = self.pos_min(seq).unwrap_or(0);
        let held_end = self.pos_max(seq).map_or(0, |last| last + 1);
        StateError::RangeNotHeld { seq, start: range.start, end: range.end, held_start, held_end }
    }

    fn attention_shape(&self) -> Result<&StateShape, StateError> {
        attention(self.shape.as_ref())
    }

    fn flags(&self, part: StatePart) -> Result<sys::llama_state_seq_flags, StateError> {
        if self.info.memory == MemoryKind::None {
            return Err(StateError::Unsupported { part: "state" });
        }
        Ok(match (part, &self.shape) {
            (StatePart::Whole, _) | (StatePart::Partial, None) => 0,
            (StatePart::Partial, Some(_)) => sys::LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY,
        })
    }
}

/// The shape of a state that has attention segments.
fn attention(shape: Option<&StateShape>) -> Result<&StateShape, StateError> {
    shape.filter(|shape| !shape.attention.is_empty()).ok_or(StateError::Unsupported { part: "attention segments" })
}

/// See [`SegmentJoiner`]: all that is needed is the shape of the state.
pub(in crate::backend::llama) struct Joiner {
    pub(in crate::backend::llama) shape: StateShape,
}

impl SegmentJoiner for Joiner {
    fn joined_len(&self, range: &Range<u32>) -> usize {
        Packed::segment_len(&self.shape, range)
    }

    fn join(&self, segments: &[&[u8]], range: Range<u32>, out: &mut [u8]) -> Result<(), StateError> {
        let segments: Vec<Segment<'_>> =
            segments.iter().map(|bytes| Segment::read(bytes, &self.shape)).collect::<Result<_, _>>()?;
        let mut covered = range.start;
        let next = segments.iter().skip(1).map(|segment| segment.range.start).chain(std::iter::once(range.end));
        let ends: Vec<u32> = next.collect();
        let mut rows = Vec::with_capacity(segments.len());
        for (segment, end) in segments.into_iter().zip(ends) {
            if segment.range.start > covered || segment.range.end < end || end <= covered {
                return Err(StateError::Gap { expected: covered, got: segment.range.start });
            }
            rows.push((segment, covered..end));
            covered = end;
        }
        if covered != range.end || range.is_empty() {
            return Err(StateError::Gap { expected: range.end, got: covered });
        }
        let chain = Chain::new(&self.shape, &rows);
        let (needed, given) = (self.joined_len(&range), out.len());
        if given != needed {
            return Err(StateError::BufferTooSmall { needed, given });
        }
        let mut rest = out.get_mut(SEGMENT_HEADER..).unwrap_or_default();
        for piece in chain.pieces()? {
            let (place, after) =
                rest.split_at_mut_checked(piece.len()).ok_or(StateError::BufferTooSmall { needed, given })?;
            place.copy_from_slice(&piece);
            rest = after;
        }
        segment::write_header(out, &self.shape, &range, needed - SEGMENT_HEADER);
        Ok(())
    }
}

/// After all checks passed, a refusal to restore means that no cells are free.
fn no_room(error: StateError, range: &Range<u32>) -> StateError {
    match error {
        StateError::Refused { .. } => StateError::NoRoom { n_tokens: range.end - range.start },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use poncho_testkit::{ModelKind, model_path};

    use super::*;
    use crate::backend::llama::context::passage::Passage;
    use crate::backend::llama::model::LlamaModel;
    use crate::backend::llama::state::io::LockedSpan;
    use crate::backend::{
        Batch, BatchRow, ContextOptions, DecodeOutcome, FlashAttention, HostBuffer, KvLayout, ModelOptions, Restore,
    };

    const LENGTH: u32 = 40;
    /// Short and long rows, and a second one that begins in the middle of the first.
    const ROWS: [(Range<u32>, u32); 4] = [(0..12, 9), (9..10, 10), (10..11, 11), (11..LENGTH, LENGTH)];

    fn context(kind: ModelKind, kv: KvLayout, flash_attention: FlashAttention) -> LlamaContext {
        crate::backend::llama::devices::start_library();
        let model = LlamaModel::load(&ModelOptions::new(model_path(kind))).unwrap();
        let options = ContextOptions { n_ctx: 64, n_seq_max: 3, kv, flash_attention, ..ContextOptions::default() };
        model.context(&options, Arc::new(AtomicBool::new(false))).unwrap()
    }

    /// Has a sequence read positions of a text of its own.
    fn go_on(context: &mut LlamaContext, seq: SeqId, range: Range<u32>) {
        let row = |pos| BatchRow { token: 5 + (pos + 17 * seq) % 90, pos, seq, want_logits: false };
        assert_eq!(context.decode(&Batch { rows: range.map(row).collect() }), DecodeOutcome::Done);
    }

    /// A context with some tokens in its first sequence.
    fn read(kv: KvLayout, flash_attention: FlashAttention) -> LlamaContext {
        let mut context = context(ModelKind::Attention, kv, flash_attention);
        go_on(&mut context, 0, 0..LENGTH);
        context
    }

    fn whole(context: &mut LlamaContext, seq: SeqId) -> Vec<u8> {
        let range = 0..LENGTH;
        let mut bytes = vec![0; context.pack_size(seq, range.clone()).unwrap()];
        assert_eq!(context.pack_range(seq, range, &mut bytes), Ok(bytes.len()));
        bytes
    }

    #[test]
    fn a_chain_is_set_from_where_its_rows_lie_also_by_way_of_scratch_memory() {
        for kv in [KvLayout::Unified, KvLayout::Split] {
            for flash_attention in [FlashAttention::On, FlashAttention::Off] {
                let mut context = read(kv, flash_attention);
                let expected = whole(&mut context, 0);
                let packed = ROWS.map(|(range, end)| {
                    let mut bytes = vec![0; context.pack_size(0, range.clone()).unwrap()];
                    context.pack_range(0, range, &mut bytes).unwrap();
                    (bytes, end)
                });
                let rows: Vec<StoredSegment<'_>> =
                    packed.iter().map(|(bytes, end)| StoredSegment { bytes, end: *end }).collect();
                // As if the device could read none of the rows' memory, or all of it.
                let everything = || vec![LockedSpan { from: std::ptr::null(), size: usize::MAX }];
                let spans: [fn() -> Vec<LockedSpan>; 2] = [Vec::new, everything];
                for (scratch, locked) in [0, 100, 1 << 20].into_iter().flat_map(|size| spans.map(|span| (size, span))) {
                    context.passage = Passage::with(HostBuffer::plain(scratch), locked);
                    context.restore_begin(1, LENGTH, None).unwrap();
                    context.restore_segments(&rows).unwrap();
                    context.restore_finish().unwrap();
                    let (same, locked) = (whole(&mut context, 1) == expected, !locked().is_empty());
                    assert!(same, "{kv:?}, {flash_attention:?}, scratch of {scratch}, locked: {locked}");
                    let also = whole(&mut context, 0) == expected;
                    assert!(also, "packed: {kv:?}, {flash_attention:?}, scratch of {scratch}, locked: {locked}");
                }
                context.passage = Passage::new(false);
                let joined = {
                    let mut joined = vec![0; expected.len()];
                    let segments: Vec<&[u8]> = packed.iter().map(|(bytes, _)| bytes.as_slice()).collect();
                    context.joiner().unwrap().join(&segments, 0..LENGTH, &mut joined).unwrap();
                    joined
                };
                assert!(joined == expected, "{kv:?}, {flash_attention:?}");
                context.restore(Restore { seq: 2, n_tokens: LENGTH, segments: &[&joined], partial: None }).unwrap();
                assert!(whole(&mut context, 2) == expected, "{kv:?}, {flash_attention:?}");
            }
        }
    }

    #[test]
    fn what_is_restored_after_a_copy_is_not_overwritten_by_it() {
        for kind in [ModelKind::Attention, ModelKind::Window, ModelKind::Hybrid] {
            for kv in [KvLayout::Unified, KvLayout::Split] {
                let mut context = context(kind, kv, FlashAttention::On);
                go_on(&mut context, 0, 0..LENGTH);
                go_on(&mut context, 2, 0..LENGTH);
                let expected = whole(&mut context, 2);
                let mut state = vec![0; context.state_size(2, StatePart::Whole).unwrap()];
                context.state_read(2, StatePart::Whole, &mut state).unwrap();
                assert!(context.copy(0, 1));
                assert!(whole(&mut context, 1) == whole(&mut context, 0), "{kind:?}, {kv:?}: the copy is there");
                context.state_write(1, StatePart::Whole, &state).unwrap();
                go_on(&mut context, 0, LENGTH..LENGTH + 1);
                assert!(whole(&mut context, 1) == expected, "{kind:?}, {kv:?}");
            }
        }
    }

    /// As `schedule/bridges.rs` relies on it.
    #[test]
    fn rows_that_are_taken_back_leave_a_resting_sequence_as_it_was() {
        let mut context = context(ModelKind::Attention, KvLayout::Split, FlashAttention::On);
        (0..3).for_each(|seq| go_on(&mut context, seq, 0..LENGTH));
        let before = whole(&mut context, 1);
        for count in [1, 4] {
            let row = |seq| {
                let rows = LENGTH..LENGTH + count;
                rows.map(move |pos| BatchRow { token: pos, pos, seq, want_logits: seq != 1 })
            };
            let batch = Batch { rows: (0..3).flat_map(row).collect() };
            assert_eq!(context.decode(&batch), DecodeOutcome::Done);
            assert_eq!(context.pos_max(1), Some(LENGTH + count - 1));
            assert!((0..3).all(|seq| context.remove(seq, LENGTH..u32::MAX)));
            assert_eq!(context.pos_max(1), Some(LENGTH - 1));
            assert!(whole(&mut context, 1) == before, "{count} rows");
        }
        // An empty one too.
        assert!(context.remove(1, 0..u32::MAX));
        let rows =
            [(0, LENGTH), (1, 0), (2, LENGTH)].map(|(seq, pos)| BatchRow { token: 7, pos, seq, want_logits: true });
        assert_eq!(context.decode(&Batch { rows: rows.to_vec() }), DecodeOutcome::Done);
        assert!(context.remove(1, 0..u32::MAX));
        assert_eq!(context.pos_max(1), None);
        go_on(&mut context, 1, 0..LENGTH);
        assert!(whole(&mut context, 1) == before, "it reads its text as before");
    }

    #[test]
    fn a_sequence_with_cells_of_its_own_takes_its_rows_in_one_call() {
        let mut context = read(KvLayout::Split, FlashAttention::On);
        let mut half = vec![0; context.pack_size(0, 0..20).unwrap()];
        context.pack_range(0, 0..20, &mut half).unwrap();
        context.restore_begin(1, LENGTH, None).unwrap();
        assert_eq!(context.restore_segments(&[StoredSegment { bytes: &half, end: 20 }]), Err(StateError::OutOfOrder));
        assert_eq!(context.restore_finish(), Err(StateError::OutOfOrder), "the restore is over");
        assert_eq!(context.pos_max(1), None);
    }
}
