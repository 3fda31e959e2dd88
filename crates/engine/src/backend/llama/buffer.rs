//! Page-locked memory of a GPU device, for state bytes.
//!
//! Used by `LlamaBackend::host_buffer` and by `state.rs`. A machine without a GPU, or a device that has no such memory left, gives
//! plain memory from `host_buffer`: that one is never refused, and never locks memory while its caller waits.

mod activity;
mod arena;

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use poncho_cache::SystemSource;

use llama_cpp_sys_4 as sys;

use crate::backend::ContextInfo;
use crate::backend::host_buffer::{HostBuffer, HostMemory, PlainMemory};
use crate::backend::llama::state::io::LockedSpan;

use self::arena::{Arena, Source};

pub(super) use self::activity::ACTIVITY;

/// Shorter buffers are not worth a piece: the detour of plain memory takes microseconds.
const SMALLEST: usize = 64 << 10;
/// The share of the available memory that may be locked.
const SHARE: u64 = 4;
/// Tokens for which page-locked memory is ready, if the context holds them: longer prompts are rare.
const LONG_PROMPT: u32 = 32_768;

/// Page-locked if a GPU offers it and some is ready, plain otherwise.
pub(super) fn host_buffer(len: usize) -> HostBuffer {
    let piece = if len >= SMALLEST && has_device() { arena().take(len) } else { None };
    piece.map_or_else(|| HostBuffer::plain(len), |piece| HostBuffer::from_memory(Box::new(piece)))
}

/// Makes page-locked memory ready for the states of a context on a device: for a batch of a long prompt, which is saved at
/// once, and for all of such a prompt.
pub(super) fn prepare(info: &ContextInfo) {
    let bytes = |tokens: u32| {
        let keys_and_values = info.segment_bytes_per_token.saturating_mul(tokens.into());
        // Beside keys and values a cell has a record of its own, some bytes long.
        usize::try_from(keys_and_values.saturating_add(keys_and_values / 32)).unwrap_or(usize::MAX)
    };
    arena().prepare(bytes(info.n_batch.min(info.n_ctx)), bytes(info.n_ctx.min(LONG_PROMPT)));
}

/// The memory that a device can read by itself.
pub(super) fn locked_spans() -> Vec<LockedSpan> {
    if has_device() { arena().spans() } else { Vec::new() }
}

fn arena() -> &'static Arc<Arena> {
    static ARENA: OnceLock<Arc<Arena>> = OnceLock::new();
    ARENA.get_or_init(|| {
        let budget = usize::try_from(available() / SHARE).unwrap_or(usize::MAX);
        Arena::new(budget, Box::new(Driver))
    })
}

/// Bytes of memory that the machine has left.
fn available() -> u64 {
    SystemSource::default().available().unwrap_or(0)
}

/// Memory that the driver of the device locks.
struct Driver;

impl Source for Driver {
    fn lock(&self, len: usize) -> Option<Box<dyn HostMemory>> {
        PageLocked::new(len).map(|memory| Box::new(memory) as Box<dyn HostMemory>)
    }

    fn touch(&self, len: usize) -> Option<Box<dyn HostMemory>> {
        // The budget is of the time when the process started.
        if available() / SHARE < len as u64 {
            return None;
        }
        let mut memory = Box::new(PlainMemory::new(len));
        // A page is made when it is first written to.
        AsMut::<[u8]>::as_mut(&mut *memory).fill(1);
        Some(memory)
    }

    fn is_quiet(&self) -> bool {
        ACTIVITY.is_quiet()
    }

    fn wait(&self) {
        ACTIVITY.wait();
    }
}

/// Page-locked memory; `None` where no GPU offers it.
pub(super) fn page_locked(len: usize) -> Option<HostBuffer> {
    PageLocked::new(len).map(|memory| HostBuffer::from_memory(Box::new(memory)))
}

/// Whether there is a GPU that this build can use.
pub(super) fn has_device() -> bool {
    // SAFETY: the registry is filled when the library starts; nothing is done with the result but a comparison.
    !unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_GPU) }.is_null()
}

struct PageLocked {
    buffer: NonNull<sys::ggml_backend_buffer>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned by this value alone, and freeing it from another thread is allowed by ggml.
unsafe impl Send for PageLocked {}
// SAFETY: shared access only reads the bytes.
unsafe impl Sync for PageLocked {}

impl PageLocked {
    fn new(len: usize) -> Option<Self> {
        if len == 0 {
            return None;
        }
        // SAFETY: the registry is filled when the library starts; null results are checked before use.
        unsafe {
            let device = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_GPU);
            if device.is_null() {
                return None;
            }
            let kind = sys::ggml_backend_dev_host_buffer_type(device);
            if kind.is_null() {
                return None;
            }
            let buffer = NonNull::new(sys::ggml_backend_buft_alloc_buffer(kind, len))?;
            let base = NonNull::new(sys::ggml_backend_buffer_get_base(buffer.as_ptr()).cast::<u8>());
            let usable = sys::ggml_backend_buffer_is_host(buffer.as_ptr())
                && sys::ggml_backend_buffer_get_size(buffer.as_ptr()) >= len;
            match base {
                Some(base) if usable => {
                    // Fresh device memory is not initialised; a slice of it must be.
                    base.as_ptr().write_bytes(0, len);
                    Some(Self { buffer, base, len })
                }
                _ => {
                    sys::ggml_backend_buffer_free(buffer.as_ptr());
                    None
                }
            }
        }
    }
}

impl AsRef<[u8]> for PageLocked {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `base` points to `len` initialised bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for PageLocked {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl HostMemory for PageLocked {
    fn is_page_locked(&self) -> bool {
        true
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        // SAFETY: the buffer was allocated by `new` and is freed once.
        unsafe { sys::ggml_backend_buffer_free(self.buffer.as_ptr()) }
    }
}
