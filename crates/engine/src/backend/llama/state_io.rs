//! States in pieces: the Rust side of `state_io.cpp`.
//!
//! Used by `state.rs` alone. Lengths are checked here before a pointer crosses the line; what the bytes mean was checked
//! before. Nothing here keeps a pointer after its call.

use std::marker::PhantomData;
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

/// A state that the other side looks at.
#[repr(C)]
struct OpenState {
    _opaque: [u8; 0],
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

    fn poncho_state_open(
        context: *mut sys::llama_context,
        seq: sys::llama_seq_id,
        flags: sys::llama_state_seq_flags,
    ) -> *mut OpenState;

    fn poncho_state_frame(state: *const OpenState) -> Piece;

    fn poncho_state_copy(state: *const OpenState, ranges: *const StateRange, count: usize, out: *mut u8) -> usize;

    fn poncho_state_close(state: *mut OpenState);
}

/// Sets a sequence to the state that the pieces are, one after the other. Returns the bytes that were read, 0 after a
/// refusal. A device gets many small pieces by way of `scratch`.
///
/// # Safety
/// The context is alive, nobody else uses it meanwhile, and the sequence exists in it. Every count in the pieces was checked.
pub(super) unsafe fn set_pieces(
    context: NonNull<sys::llama_context>,
    seq: sys::llama_seq_id,
    pieces: &[&[u8]],
    scratch: &mut [u8],
) -> usize {
    let pieces = pieces.iter().filter(|piece| !piece.is_empty());
    let pieces: Vec<Piece> = pieces.map(|piece| Piece { data: piece.as_ptr(), size: piece.len() }).collect();
    let (room, size) = (scratch.as_mut_ptr(), scratch.len());
    // SAFETY: the caller vouches for the context and the sequence; the pieces borrow their bytes for the call, the scratch
    // memory has the given length, and exceptions are caught on the other side.
    unsafe { poncho_state_set_pieces(context.as_ptr(), seq, 0, pieces.as_ptr(), pieces.len(), room, size) }
}

/// The state of a sequence as it stands in its context: what is known of it without copying it.
pub(super) struct StateView<'a> {
    state: NonNull<OpenState>,
    /// Nothing may happen to the context meanwhile.
    _context: PhantomData<&'a mut sys::llama_context>,
}

impl StateView<'_> {
    /// `None` if the library refuses.
    ///
    /// # Safety
    /// The context is alive and unused by anybody else for as long as the view is, and the sequence exists in it.
    pub(super) unsafe fn new(context: NonNull<sys::llama_context>, seq: sys::llama_seq_id) -> Option<Self> {
        // SAFETY: by the caller; exceptions are caught on the other side.
        let state = NonNull::new(unsafe { poncho_state_open(context.as_ptr(), seq, 0) })?;
        Some(Self { state, _context: PhantomData })
    }

    /// The state without the bytes of its tensors.
    pub(super) fn frame(&self) -> &[u8] {
        // SAFETY: the state is open; its frame has a few bytes at least, and lies where it is until the state is closed.
        unsafe {
            let Piece { data, size } = poncho_state_frame(self.state.as_ptr());
            std::slice::from_raw_parts(data, size)
        }
    }

    /// Copies ranges of the tensors' bytes, which must be in order and must not overlap. `false` if one of them is something else, or
    /// lies outside of `out`.
    pub(super) fn copy_ranges(&self, ranges: &[StateRange], out: &mut [u8]) -> bool {
        let mut before = 0;
        for range in ranges {
            let fits = range.to.checked_add(range.size).is_some_and(|end| end <= out.len());
            match range.from.checked_add(range.size) {
                Some(end) if fits && range.from >= before => before = end,
                _ => return false,
            }
        }
        let wanted: usize = ranges.iter().map(|range| range.size).sum();
        // SAFETY: the state is open and its context unchanged since then; every range was found to lie inside `out`, and they are in
        // the order that the other side expects.
        let copied = unsafe { poncho_state_copy(self.state.as_ptr(), ranges.as_ptr(), ranges.len(), out.as_mut_ptr()) };
        copied == wanted
    }
}

impl Drop for StateView<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by `new` and closed once.
        unsafe { poncho_state_close(self.state.as_ptr()) }
    }
}
