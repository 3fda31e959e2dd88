//! Packing a sequence's state and putting it back.
//!
//! The worker calls it between ticks. The bytes may come from a damaged or crafted file: `segment.rs` checks them
//! before llama.cpp sees them, and a refusal leaves the sequence empty, never half filled. Packing never changes the
//! sequence it packs.

use std::ops::Range;

use llama_cpp_sys_4 as sys;

use super::buffer;
use super::context::LlamaContext;
use super::layout::{STATE_HEADER, StateShape};
use super::log;
use super::partial;
use super::segment::{self, Frame, FrameSpec, Packed, SEGMENT_HEADER, Segment};
use crate::backend::{Context, HostBuffer, MemoryKind, SegmentJoiner, SeqId, StateError, StatePart};

/// A staging buffer larger than this is given back after use; the common saves stay below it.
const STAGING_KEPT: usize = 256 << 20;

/// A sequence that is being put back.
pub(super) struct RestoreInProgress {
    seq: SeqId,
    n_tokens: u32,
    /// Tokens covered by the segments so far.
    covered: u32,
    /// Whether rows were collected in the staging buffer and are still to be set.
    joined: bool,
    /// The recurrent part, or the whole of an opaque state, to be set at the end.
    last: Option<Vec<u8>>,
}

impl LlamaContext {
    pub(super) fn size_of_state(&mut self, seq: SeqId, part: StatePart) -> Result<usize, StateError> {
        let seq = self.known_seq(seq)?;
        let flags = self.flags(part)?;
        // SAFETY: the sequence exists; exceptions are caught inside and yield 0.
        Ok(unsafe { sys::llama_state_seq_get_size_ext(self.context.as_ptr(), seq, flags) })
    }

    pub(super) fn read_state(&mut self, seq: SeqId, part: StatePart, out: &mut [u8]) -> Result<usize, StateError> {
        let needed = self.size_of_state(seq, part)?;
        let known = self.known_seq(seq)?;
        let flags = self.flags(part)?;
        if out.len() < needed {
            return Err(StateError::BufferTooSmall { needed, given: out.len() });
        }
        self.get_data(known, flags, out)
    }

    pub(super) fn write_state(&mut self, seq: SeqId, part: StatePart, bytes: &[u8]) -> Result<(), StateError> {
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

    pub(super) fn size_of_range(&mut self, seq: SeqId, range: &Range<u32>) -> Result<usize, StateError> {
        let known = self.known_seq(seq)?;
        let cells = self.check_range(seq, range)?;
        let shape = self.attention_shape()?;
        let exact = SEGMENT_HEADER + shape.attention_blob_len(cells);
        // llama.cpp writes the window and recurrent parts after the attention part, before they are cut off again.
        let written = match (self.scratch, shape.window.is_empty()) {
            (Some(_), true) => {
                let recurrent = shape.recurrent.as_ref().map_or(0, |recurrent| recurrent.one_len);
                exact + recurrent
            }
            (Some(scratch), false) => self.with_range(known, scratch, range, |context| {
                // SAFETY: the scratch sequence exists.
                SEGMENT_HEADER + unsafe { sys::llama_state_seq_get_size_ext(context.context.as_ptr(), scratch, 0) }
            }),
            (None, _) if self.is_whole(seq, range) => {
                // SAFETY: the sequence exists.
                SEGMENT_HEADER + unsafe { sys::llama_state_seq_get_size_ext(self.context.as_ptr(), known, 0) }
            }
            (None, _) => exact,
        };
        Ok(written.max(exact))
    }

    pub(super) fn pack(&mut self, seq: SeqId, range: &Range<u32>, out: &mut [u8]) -> Result<usize, StateError> {
        let known = self.known_seq(seq)?;
        let needed = self.size_of_range(seq, range)?;
        let given = out.len();
        let out = out.get_mut(..needed).ok_or(StateError::BufferTooSmall { needed, given })?;
        let missing = self.range_not_held(seq, range);
        let blob_len = match self.scratch {
            Some(scratch) => {
                let blob = out.get_mut(SEGMENT_HEADER..).unwrap_or_default();
                self.with_range(known, scratch, range, |context| context.get_data(scratch, 0, blob))?;
                self.make_exact(range, blob)?.ok_or(missing)?
            }
            None if self.is_whole(seq, range) => {
                let blob = out.get_mut(SEGMENT_HEADER..).unwrap_or_default();
                self.get_data(known, 0, blob)?;
                self.make_exact(range, blob)?.ok_or(missing)?
            }
            None => {
                // SAFETY: the sequence exists.
                let whole = unsafe { sys::llama_state_seq_get_size_ext(self.context.as_ptr(), known, 0) };
                let mut staging = self.take_staging(whole);
                let packed = self.get_data(known, 0, staging.as_mut()).and_then(|_| {
                    let shape = self.attention_shape()?;
                    let packed = Packed::find(staging.as_ref(), shape, range)?.ok_or(missing)?;
                    let blob = out.get_mut(SEGMENT_HEADER..).unwrap_or_default();
                    take_range(&packed, shape, range, blob)
                });
                self.keep_staging(staging);
                packed?
            }
        };
        let shape = self.attention_shape()?;
        segment::write_header(out, shape, range, blob_len);
        Ok(SEGMENT_HEADER + blob_len)
    }

    /// With a pool for each sequence, rows are joined in the staging buffer. A fresh one is slower to fill than to have its
    /// pages made beforehand.
    pub(super) fn touch_staging(&mut self, bytes: usize) {
        if bytes > 0 && self.scratch.is_none() && self.info.memory.has_segments() {
            let mut staging = self.take_staging(bytes);
            staging.as_mut().fill(1);
            self.keep_staging(staging);
        }
    }

    pub(super) fn begin_restore(
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
        let mut restore = RestoreInProgress { seq, n_tokens, covered: 0, joined: false, last: None };
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

    pub(super) fn add_segment(&mut self, bytes: &[u8], end: u32) -> Result<(), StateError> {
        let mut restore = self.restoring.take().ok_or(StateError::OutOfOrder)?;
        let added = self.add_checked_segment(&mut restore, bytes, end);
        match added {
            Ok(()) => self.restoring = Some(restore),
            Err(_) => self.drop_restored(&restore),
        }
        added
    }

    pub(super) fn finish_restore(&mut self) -> Result<(), StateError> {
        let restore = self.restoring.take().ok_or(StateError::OutOfOrder)?;
        self.drop_scratch();
        let finished = self.finish_checked(&restore);
        if finished.is_err() {
            self.drop_restored(&restore);
        }
        finished
    }

    fn add_checked_segment(
        &mut self,
        restore: &mut RestoreInProgress,
        bytes: &[u8],
        upto: u32,
    ) -> Result<(), StateError> {
        let known = self.known_seq(restore.seq)?;
        let segment = Segment::read(bytes, self.attention_shape()?)?;
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
        // A blob framed for another number of streams, longer than the pool, or to be cut where the library cannot is
        // written anew first.
        let direct = segment.streams == self.attention_shape()?.streams
            && end - start <= self.info.n_cells
            && (wanted.end == end || self.info.memory.can_cut());
        match self.scratch {
            Some(scratch) => {
                // The first segment goes to its place; set_data empties its target, so the others take a detour.
                let target = if start == 0 { known } else { scratch };
                let set = if direct {
                    self.set_data(target, 0, segment.blob)
                } else {
                    self.set_reframed(target, &segment, &wanted)
                };
                set.map_err(|error| no_room(error, &wanted))?;
                if target == scratch {
                    // The scratch sequence keeps its marks until the next segment or the end: taking them away is a
                    // pass over all cells, and set_data makes one anyway.
                    // SAFETY: both sequences exist; within one stream only marks are copied.
                    unsafe { sys::llama_memory_seq_cp(self.memory(), scratch, known, -1, -1) }
                }
                if direct {
                    self.cut(known, wanted.end, end);
                }
            }
            None if direct && start == 0 && wanted.end == restore.n_tokens && end <= self.info.n_ctx => {
                self.set_data(known, 0, segment.blob).map_err(|error| no_room(error, &wanted))?;
                self.cut(known, wanted.end, end);
            }
            None => self.join(restore, &segment, &wanted)?,
        }
        restore.covered = wanted.end;
        Ok(())
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
        if restore.joined {
            let staging = self.staging.take().ok_or(StateError::OutOfOrder)?;
            let set = self.set_data(known, 0, staging.as_ref());
            self.keep_staging(staging);
            set.map_err(|error| no_room(error, &all))?;
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

    /// Sets the wanted rows of a segment whose own blob does not suit this context.
    fn set_reframed(
        &mut self,
        target: sys::llama_seq_id,
        segment: &Segment<'_>,
        wanted: &Range<u32>,
    ) -> Result<(), StateError> {
        let len = self.attention_shape()?.attention_blob_len((wanted.end - wanted.start) as usize);
        let mut staging = self.take_staging(len);
        let framed = self.attention_shape().and_then(|shape| {
            fill_attention(staging.as_mut(), shape, wanted, |frame| segment.copy_into(wanted, frame))
        });
        let set = framed.and_then(|()| self.set_data(target, 0, staging.as_ref()));
        self.keep_staging(staging);
        set
    }

    /// Collects a segment's rows in the staging buffer; they are set when the chain is complete.
    fn join(
        &mut self,
        restore: &mut RestoreInProgress,
        segment: &Segment<'_>,
        wanted: &Range<u32>,
    ) -> Result<(), StateError> {
        if restore.covered > 0 && !restore.joined {
            // A chain is either joined from its first segment on or not at all.
            return Err(StateError::OutOfOrder);
        }
        let all = 0..restore.n_tokens;
        let len = self.attention_shape()?.attention_blob_len(restore.n_tokens as usize);
        let mut staging = match (restore.joined, self.staging.take()) {
            (true, Some(staging)) => staging,
            (_, kept) => {
                self.staging = kept;
                self.take_staging(len)
            }
        };
        let joined = self.attention_shape().and_then(|shape| {
            let copy = |frame: &mut Frame<'_>| segment.copy_into(wanted, frame);
            with_frame(staging.as_mut(), shape, &all, restore.joined, |frame| fill_whole(frame, copy))
        });
        self.staging = Some(staging);
        restore.joined = true;
        joined
    }

    /// Makes a blob that llama.cpp just wrote hold exactly `range`, in order, and nothing after the attention part.
    /// Returns its length; `None` if a position is missing.
    fn make_exact(&self, range: &Range<u32>, blob: &mut [u8]) -> Result<Option<usize>, StateError> {
        let shape = self.attention_shape()?;
        let Some(packed) = Packed::find(blob, shape, range)? else { return Ok(None) };
        if packed.is_exact(range) {
            let end = packed.attention_end();
            let tail = shape.empty_tail(shape.streams);
            let needed = end + tail.len();
            let given = blob.len();
            let place = blob.get_mut(end..needed).ok_or(StateError::BufferTooSmall { needed, given })?;
            place.copy_from_slice(&tail);
            return Ok(Some(needed));
        }
        // The cells lie scattered in a shared pool; put them in the order of their positions.
        let mut ordered = vec![0; shape.attention_blob_len((range.end - range.start) as usize)];
        let len = take_range(&packed, shape, range, &mut ordered)?;
        let given = blob.len();
        blob.get_mut(..len).ok_or(StateError::BufferTooSmall { needed: len, given })?.copy_from_slice(&ordered);
        Ok(Some(len))
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
        if read != bytes.len() {
            self.drop_sequence(seq);
            let seq = u32::try_from(seq).unwrap_or(u32::MAX);
            return Err(StateError::Refused { what: "restore", seq, reason });
        }
        Ok(())
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
    pub(super) fn abandon_restore(&mut self, seq: SeqId) {
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

    fn cut(&mut self, seq: sys::llama_seq_id, keep: u32, end: u32) {
        if keep < end {
            let keep = i32::try_from(keep).unwrap_or(i32::MAX);
            // SAFETY: the sequence exists; only plain attention comes here, where any tail can be removed.
            unsafe { sys::llama_memory_seq_rm(self.memory(), seq, keep, -1) };
        }
    }

    /// Whether `range` is all that the sequence holds.
    fn is_whole(&self, seq: SeqId, range: &Range<u32>) -> bool {
        range.start == 0 && self.pos_max(seq) == Some(range.end - 1)
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
        let shape = self.shape.as_ref().filter(|shape| !shape.attention.is_empty());
        shape.ok_or(StateError::Unsupported { part: "attention segments" })
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

    fn take_staging(&mut self, len: usize) -> HostBuffer {
        match self.staging.take() {
            Some(mut kept) if kept.capacity() >= len => {
                kept.set_len(len);
                kept
            }
            _ => buffer::host_buffer(len),
        }
    }

    fn keep_staging(&mut self, staging: HostBuffer) {
        if staging.capacity() <= STAGING_KEPT {
            self.staging = Some(staging);
        }
    }
}

/// Writes the range's rows as a blob of its own; returns the blob's length.
fn take_range(
    packed: &Packed<'_>,
    shape: &StateShape,
    range: &Range<u32>,
    out: &mut [u8],
) -> Result<usize, StateError> {
    let len = shape.attention_blob_len((range.end - range.start) as usize);
    let given = out.len();
    let out = out.get_mut(..len).ok_or(StateError::BufferTooSmall { needed: len, given })?;
    fill_attention(out, shape, range, |frame| packed.copy_into(frame))?;
    Ok(len)
}

/// See [`SegmentJoiner`]: all that is needed is the shape of the state.
pub(super) struct Joiner {
    pub(super) shape: StateShape,
}

impl SegmentJoiner for Joiner {
    fn joined_len(&self, range: &Range<u32>) -> usize {
        SEGMENT_HEADER + self.shape.attention_blob_len(range.len())
    }

    fn join(&self, segments: &[&[u8]], range: Range<u32>, threads: usize, out: &mut [u8]) -> Result<(), StateError> {
        let segments: Vec<Segment<'_>> =
            segments.iter().map(|bytes| Segment::read(bytes, &self.shape)).collect::<Result<_, _>>()?;
        let mut covered = range.start;
        let starts = segments.iter().skip(1).map(|segment| segment.range.start).chain(std::iter::once(range.end));
        let mut wanted = Vec::with_capacity(segments.len());
        for (segment, end) in segments.iter().zip(starts) {
            if segment.range.start > covered || segment.range.end < end || end <= covered {
                return Err(StateError::Gap { expected: covered, got: segment.range.start });
            }
            wanted.push(covered..end);
            covered = end;
        }
        if covered != range.end || range.is_empty() {
            return Err(StateError::Gap { expected: range.end, got: covered });
        }
        let fill = |frame: &mut Frame<'_>| {
            for (segment, wanted) in segments.iter().zip(&wanted) {
                segment.copy_into(wanted, frame);
            }
        };
        let blob = out.get_mut(SEGMENT_HEADER..).unwrap_or_default();
        let blob_len = blob.len();
        with_frame(blob, &self.shape, &range, false, |frame| match threads {
            0 | 1 => fill_whole(frame, fill),
            _ => fill_in_two(frame, fill),
        })?;
        segment::write_header(out, &self.shape, &range, blob_len);
        Ok(())
    }
}

fn fill_whole(mut frame: Frame<'_>, fill: impl FnOnce(&mut Frame<'_>)) -> Result<(), StateError> {
    fill(&mut frame);
    frame.finish()
}

/// Has another thread fill half of a frame.
fn fill_in_two(frame: Frame<'_>, fill: impl Fn(&mut Frame<'_>) + Sync) -> Result<(), StateError> {
    let [left, right] = frame.halves();
    std::thread::scope(|scope| {
        let refused = |reason: String| StateError::Refused { what: "join", seq: 0, reason };
        let other = std::thread::Builder::new().name("poncho-joiner".to_owned());
        let other =
            other.spawn_scoped(scope, || fill_whole(right, &fill)).map_err(|error| refused(error.to_string()))?;
        let ours = fill_whole(left, &fill);
        other.join().map_err(|_| refused("the thread that helped died".to_owned()))??;
        ours
    })
}

/// Frames a blob for the attention cells of a range and has its rows filled.
fn fill_attention(
    out: &mut [u8],
    shape: &StateShape,
    range: &Range<u32>,
    fill: impl FnOnce(&mut Frame<'_>),
) -> Result<(), StateError> {
    with_frame(out, shape, range, false, |frame| fill_whole(frame, fill))
}

/// Hands out the frame of a range's cells in a blob, written now unless it was begun before.
fn with_frame(
    out: &mut [u8],
    shape: &StateShape,
    range: &Range<u32>,
    is_begun: bool,
    fill: impl FnOnce(Frame<'_>) -> Result<(), StateError>,
) -> Result<(), StateError> {
    let positions: Vec<u32> = range.clone().collect();
    let tail = shape.empty_tail(shape.streams);
    let spec = FrameSpec { streams: shape.streams, sections: &shape.attention, positions: &positions, tail: &tail };
    fill(if is_begun { Frame::reopen(out, &spec) } else { Frame::new(out, &spec) }?)
}

/// After all checks passed, a refusal to restore means that no cells are free.
fn no_room(error: StateError, range: &Range<u32>) -> StateError {
    match error {
        StateError::Refused { .. } => StateError::NoRoom { n_tokens: range.end - range.start },
        other => other,
    }
}
