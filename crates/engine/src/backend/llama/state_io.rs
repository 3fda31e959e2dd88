//! States in pieces: the Rust side of `state_io.cpp`.
//!
//! Used by `state.rs` alone. Lengths are checked here before a pointer crosses the line; what the bytes mean was checked
//! before. Nothing here keeps a pointer after its call.

use std::ptr::NonNull;

use llama_cpp_sys_4 as sys;

/// See `state_io.cpp`.
#[repr(C)]
struct Piece {
    data: *const u8,
    size: usize,
}

/// Bytes of a state that are wanted: `size` from `from` on go to `to` of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateRange {
    /// Offset in the state.
    pub(super) from: usize,
    /// Bytes.
    pub(super) size: usize,
    /// Offset in the buffer.
    pub(super) to: usize,
}

unsafe extern "C" {
    fn poncho_state_set_pieces(
        context: *mut sys::llama_context,
        seq: sys::llama_seq_id,
        flags: sys::llama_state_seq_flags,
        pieces: *const Piece,
        count: usize,
        scratch: *mut u8,
        scratch_size: usize,
    ) -> usize;

    fn poncho_state_get_frame(
        context: *mut sys::llama_context,
        seq: sys::llama_seq_id,
        flags: sys::llama_state_seq_flags,
        out: *mut u8,
        capacity: usize,
    ) -> usize;

    fn poncho_state_get_ranges(
        context: *mut sys::llama_context,
        seq: sys::llama_seq_id,
        flags: sys::llama_state_seq_flags,
        ranges: *const StateRange,
        count: usize,
        out: *mut u8,
    ) -> usize;
}

/// A sequence of a context that is alive and used by nobody else during the call.
#[derive(Clone, Copy)]
pub(super) struct StateOf {
    context: NonNull<sys::llama_context>,
    seq: sys::llama_seq_id,
}

impl StateOf {
    /// # Safety
    /// The context lives as long as the value, the sequence exists in it, and nobody else uses the context meanwhile.
    pub(super) unsafe fn new(context: NonNull<sys::llama_context>, seq: sys::llama_seq_id) -> Self {
        Self { context, seq }
    }

    /// Sets the sequence to the state that the pieces are, one after the other. Returns the bytes that were read, 0 after a refusal. A
    /// device gets many small pieces by way of `scratch`.
    pub(super) fn set_pieces(self, pieces: &[&[u8]], scratch: &mut [u8]) -> usize {
        let pieces = pieces.iter().filter(|piece| !piece.is_empty());
        let pieces: Vec<Piece> = pieces.map(|piece| Piece { data: piece.as_ptr(), size: piece.len() }).collect();
        // SAFETY: by `new` for the context and the sequence; the pieces borrow their bytes for the call, the scratch memory has the
        // given length, and exceptions are caught on the other side.
        unsafe {
            poncho_state_set_pieces(
                self.context.as_ptr(),
                self.seq,
                0,
                pieces.as_ptr(),
                pieces.len(),
                scratch.as_mut_ptr(),
                scratch.len(),
            )
        }
    }

    /// The state without the bytes of its tensors. Empty after a refusal.
    pub(super) fn frame(self) -> Vec<u8> {
        // A record of every cell: what most states have, so that one pass is enough.
        let mut out = vec![0; 64 << 10];
        loop {
            // SAFETY: as above; no more than the given length is written.
            let needed =
                unsafe { poncho_state_get_frame(self.context.as_ptr(), self.seq, 0, out.as_mut_ptr(), out.len()) };
            let complete = needed <= out.len();
            out.resize(needed, 0);
            if complete {
                return out;
            }
        }
    }

    /// Copies ranges of the state, which must be in order and must not overlap. `false` if one is outside of the state or of `out`.
    pub(super) fn copy_ranges(self, ranges: &[StateRange], out: &mut [u8]) -> bool {
        let mut before = 0;
        for range in ranges {
            let fits = range.to.checked_add(range.size).is_some_and(|end| end <= out.len());
            let end = range.from.checked_add(range.size);
            match end {
                Some(end) if fits && range.from >= before => before = end,
                _ => return false,
            }
        }
        let wanted: usize = ranges.iter().map(|range| range.size).sum();
        // SAFETY: as above; every range was found to lie inside `out`, and they are in the order that the other side expects.
        let copied = unsafe {
            poncho_state_get_ranges(self.context.as_ptr(), self.seq, 0, ranges.as_ptr(), ranges.len(), out.as_mut_ptr())
        };
        copied == wanted
    }
}
