//! States in pieces: the Rust side of `io.cpp`.
//!
//! Used by `state.rs` and `context.rs`. Lengths are checked here before a pointer crosses the line; what the bytes mean was
//! checked before. Nothing here keeps a pointer after its call, but for [`StateView`], which holds on to the context.

use std::ffi::{CStr, c_char};
use std::io::IoSlice;
use std::marker::PhantomData;
use std::ptr::NonNull;

use llama_cpp_sys_4 as sys;

use crate::backend::llama::log;

/// Bytes of a state that are wanted: `size` from `from` on go to `to` of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) struct StateRange {
    /// Offset in the state.
    pub(in crate::backend::llama) from: usize,
    /// Bytes.
    pub(in crate::backend::llama) size: usize,
    /// Offset in the buffer.
    pub(in crate::backend::llama) to: usize,
}

/// A state that the other side looks at.
#[repr(C)]
struct OpenState {
    _opaque: [u8; 0],
}

/// Memory that a device reads and writes by itself: where it begins, and its length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::llama) struct LockedSpan {
    /// Where it begins.
    pub(in crate::backend::llama) from: *const u8,
    /// Bytes.
    pub(in crate::backend::llama) size: usize,
}

/// How bytes reach a context and come back.
pub(in crate::backend::llama) struct Way<'a> {
    /// Small pieces, and plain memory, are copied by way of this; empty for a context in host memory.
    pub(in crate::backend::llama) scratch: &'a mut [u8],
    /// Memory that a device can read and write, in the order of addresses. A piece lies in it wholly or not at all.
    pub(in crate::backend::llama) locked: &'a [LockedSpan],
    /// At most this many threads copy.
    pub(in crate::backend::llama) threads: usize,
}

/// The same for the other side.
#[repr(C)]
struct RawWay {
    scratch: *mut u8,
    scratch_size: usize,
    locked: *const LockedSpan,
    n_locked: usize,
    threads: usize,
}

impl Way<'_> {
    fn raw(&mut self) -> RawWay {
        RawWay {
            scratch: self.scratch.as_mut_ptr(),
            scratch_size: self.scratch.len(),
            locked: self.locked.as_ptr(),
            n_locked: self.locked.len(),
            threads: self.threads,
        }
    }
}

/// Where the other side writes why it refused.
#[repr(C)]
struct Reason {
    text: *mut c_char,
    size: usize,
}

/// Some bytes of the other side's.
#[repr(C)]
struct Bytes {
    data: *const u8,
    size: usize,
}

unsafe extern "C" {
    fn poncho_state_set_pieces(
        context: *mut sys::llama_context,
        seq: sys::llama_seq_id,
        flags: sys::llama_state_seq_flags,
        pieces: *const IoSlice<'_>,
        count: usize,
        way: RawWay,
        reason: Reason,
    ) -> usize;

    fn poncho_state_open(
        context: *mut sys::llama_context,
        seq: sys::llama_seq_id,
        flags: sys::llama_state_seq_flags,
        reason: Reason,
    ) -> *mut OpenState;

    fn poncho_state_frame(state: *const OpenState) -> Bytes;

    fn poncho_state_copy(
        state: *const OpenState,
        ranges: *const StateRange,
        count: usize,
        out: *mut u8,
        way: RawWay,
        reason: Reason,
    ) -> usize;

    fn poncho_state_close(state: *mut OpenState);

    fn poncho_memory_update(context: *mut sys::llama_context, reason: Reason) -> bool;
}

/// Sets a sequence to the state that the pieces are, one after the other. Returns the bytes that were read, or why they were
/// refused.
///
/// # Safety
/// The context is alive, nobody else uses it meanwhile, and the sequence exists in it. Every count in the pieces was checked.
pub(in crate::backend::llama) unsafe fn set_pieces(
    context: NonNull<sys::llama_context>,
    seq: sys::llama_seq_id,
    pieces: &[IoSlice<'_>],
    way: &mut Way<'_>,
) -> Result<usize, String> {
    debug_assert!(pieces.iter().all(|piece| !piece.is_empty()), "the other side counts on it");
    let way = way.raw();
    let (read, reason) = with_reason(|reason| {
        // SAFETY: the caller vouches for the context and the sequence; a slice of `IoSlice` is one of `iovec`, the pieces borrow their
        // bytes for the call, the scratch memory and the spans have the given lengths and are borrowed for the call too, and
        // exceptions are caught on the other side.
        unsafe {
            let (all, count) = (pieces.as_ptr(), pieces.len());
            poncho_state_set_pieces(context.as_ptr(), seq, 0, all, count, way, reason)
        }
    });
    if read == 0 { Err(reason) } else { Ok(read) }
}

/// Makes copies between sequences that the library has put off.
///
/// # Safety
/// The context is alive, and nobody else uses it meanwhile.
pub(in crate::backend::llama) unsafe fn update_memory(context: NonNull<sys::llama_context>) -> Result<(), String> {
    // SAFETY: by the caller; exceptions are caught on the other side.
    let (done, reason) = with_reason(|reason| unsafe { poncho_memory_update(context.as_ptr(), reason) });
    if done { Ok(()) } else { Err(reason) }
}

/// The state of a sequence as it stands in its context: what is known of it without copying it.
pub(in crate::backend::llama) struct StateView<'a> {
    state: NonNull<OpenState>,
    /// Nothing may happen to the context meanwhile.
    _context: PhantomData<&'a mut sys::llama_context>,
}

impl<'a> StateView<'a> {
    /// # Errors
    /// Why the library refuses.
    ///
    /// # Safety
    /// The context is alive and unused by anybody else for as long as the view is, and the sequence exists in it.
    pub(in crate::backend::llama) unsafe fn new(
        context: &'a mut NonNull<sys::llama_context>,
        seq: sys::llama_seq_id,
    ) -> Result<Self, String> {
        // SAFETY: by the caller; exceptions are caught on the other side.
        let (state, reason) = with_reason(|reason| unsafe { poncho_state_open(context.as_ptr(), seq, 0, reason) });
        NonNull::new(state).map(|state| Self { state, _context: PhantomData }).ok_or(reason)
    }

    /// The state without the bytes of its tensors.
    pub(in crate::backend::llama) fn frame(&self) -> &[u8] {
        // SAFETY: the state is open; its frame has a few bytes at least, and lies where it is until the state is closed.
        unsafe {
            let Bytes { data, size } = poncho_state_frame(self.state.as_ptr());
            std::slice::from_raw_parts(data, size)
        }
    }

    /// Copies ranges of the tensors' bytes, which must be in order and must not overlap. `out` lies in locked memory wholly or
    /// not at all.
    ///
    /// # Errors
    /// Why not all of them were copied: one is something else than bytes of a tensor, or lies outside of `out`.
    pub(in crate::backend::llama) fn copy_ranges(
        &self,
        ranges: &[StateRange],
        out: &mut [u8],
        way: &mut Way<'_>,
    ) -> Result<(), String> {
        let mut before = 0;
        for range in ranges {
            let fits = range.to.checked_add(range.size).is_some_and(|end| end <= out.len());
            match range.from.checked_add(range.size) {
                Some(end) if fits && range.from >= before => before = end,
                _ => return Err(format!("{range:?} has no place in {} bytes", out.len())),
            }
        }
        let wanted: usize = ranges.iter().map(|range| range.size).sum();
        let way = way.raw();
        let (copied, reason) = with_reason(|reason| {
            let (state, place) = (self.state.as_ptr(), out.as_mut_ptr());
            // SAFETY: the state is open and its context unchanged since then; every range was found to lie inside `out`, and they
            // are in the order that the other side expects. Scratch memory and spans are borrowed for the call.
            unsafe { poncho_state_copy(state, ranges.as_ptr(), ranges.len(), place, way, reason) }
        });
        if copied == wanted { Ok(()) } else { Err(reason) }
    }
}

impl Drop for StateView<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by `new` and closed once.
        unsafe { poncho_state_close(self.state.as_ptr()) }
    }
}

/// Makes a call that may tell why it refused: in the reason it is given, or before in the library's log.
fn with_reason<T>(call: impl FnOnce(Reason) -> T) -> (T, String) {
    let mut text = [0_u8; 256];
    let reason = Reason { text: text.as_mut_ptr().cast(), size: text.len() };
    let (value, logged) = log::collect(|| call(reason));
    let with_reason = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
    let reason = match (logged.as_str(), with_reason.is_empty()) {
        (_, true) => logged,
        (log::NO_REASON, false) => with_reason.into_owned(),
        (_, false) => format!("{logged}; {with_reason}"),
    };
    (value, reason)
}
