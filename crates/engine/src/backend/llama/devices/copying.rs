//! How fast bytes reach the GPU: the limit that a restored state is compared with.
//!
//! Called by benchmarks. The copy is llama.cpp's own, from page-locked memory, into one tensor.

use std::ptr;
use std::time::{Duration, Instant};

use llama_cpp_sys_4 as sys;

use super::start_library;
use crate::backend::llama::buffer::page_locked;

/// The times of `rounds` copies of this many bytes to the first GPU; `None` without one, or without memory on it.
#[must_use]
pub fn copy_times(bytes: usize, rounds: usize) -> Option<Vec<Duration>> {
    start_library();
    let mut from = page_locked(bytes)?;
    from.as_mut().fill(1);
    let length = i64::try_from(bytes).ok()?;
    // SAFETY: every pointer is checked before it is used and freed once, after the last use. The source outlives the copies
    // and has the size of the tensor.
    unsafe {
        let device = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_GPU);
        if device.is_null() {
            return None;
        }
        let size = 2 * sys::ggml_tensor_overhead();
        let params = sys::ggml_init_params { mem_size: size, mem_buffer: ptr::null_mut(), no_alloc: true };
        let context = sys::ggml_init(params);
        if context.is_null() {
            return None;
        }
        let tensor = sys::ggml_new_tensor_1d(context, sys::GGML_TYPE_I8, length);
        let buffer = sys::ggml_backend_alloc_ctx_tensors_from_buft(context, sys::ggml_backend_dev_buffer_type(device));
        let times = (!buffer.is_null()).then(|| {
            let copy = |_| {
                let started = Instant::now();
                sys::ggml_backend_tensor_set(tensor, from.as_ref().as_ptr().cast(), 0, bytes);
                started.elapsed()
            };
            (0..rounds).map(copy).collect()
        });
        sys::ggml_backend_buffer_free(buffer);
        sys::ggml_free(context);
        times
    }
}
