//! A device computes a small product, to see that it works before a model is given to it.
//!
//! Called in a child process of the command line, which may die: some devices are announced and fail on the first
//! instruction. Nothing stays allocated.

use std::ptr;

use llama_cpp_sys_4 as sys;

use super::{Device, device, start_library};
use crate::backend::llama::log;

/// Rows and columns of the matrices: a multiple of every kernel's block.
const SIDE: usize = 256;

/// Why a device cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrialError {
    /// It does not start, or has no memory for the trial.
    #[error("{device} does not start: {reason}")]
    NoStart {
        /// Its name.
        device: String,
        /// In llama.cpp's words.
        reason: String,
    },
    /// It computes, and the result is wrong.
    #[error("{device} computes wrong results")]
    WrongResult {
        /// Its name.
        device: String,
    },
    /// The backend is there, and finds nothing to compute on.
    #[error("it finds no device on this machine")]
    NoDevice,
}

/// Tries every device that this build did not bring itself, and returns them all.
///
/// # Errors
/// With the first device that does not compute, or if there is none.
pub fn try_added_devices() -> Result<Vec<Device>, TrialError> {
    start_library();
    // SAFETY: the registry is filled when the library starts.
    let count = unsafe { sys::ggml_backend_dev_count() };
    let mut tried = Vec::new();
    for index in 0..count {
        // SAFETY: the index is below the count.
        let pointer = unsafe { sys::ggml_backend_dev_get(index) };
        // SAFETY: as above; null is checked first.
        if pointer.is_null() || unsafe { sys::ggml_backend_dev_type(pointer) } == sys::GGML_BACKEND_DEVICE_TYPE_CPU {
            continue;
        }
        let Some(device) = device(index) else { continue };
        let (product, reason) = log::collect(|| {
            // SAFETY: the device is valid, as the registry says.
            unsafe { product_on(pointer) }
        });
        match product {
            Some(true) => tried.push(device),
            Some(false) => return Err(TrialError::WrongResult { device: device.name }),
            None => return Err(TrialError::NoStart { device: device.name, reason }),
        }
    }
    if tried.is_empty() { Err(TrialError::NoDevice) } else { Ok(tried) }
}

/// Whether the device multiplies a matrix with the unit matrix rightly; `None` if it does not get that far.
///
/// # Safety
/// The device is one of the registry's.
unsafe fn product_on(device: sys::ggml_backend_dev_t) -> Option<bool> {
    // SAFETY: every pointer is checked before it is used and freed once, after the last use. The slices outlive the
    // calls that copy them, and have the size of their tensors.
    unsafe {
        let backend = sys::ggml_backend_dev_init(device, ptr::null());
        if backend.is_null() {
            return None;
        }
        let tensors = 8 * sys::ggml_tensor_overhead() + sys::ggml_graph_overhead();
        let params = sys::ggml_init_params { mem_size: tensors, mem_buffer: ptr::null_mut(), no_alloc: true };
        let context = sys::ggml_init(params);
        let verdict = if context.is_null() { None } else { product_in(context, backend) };
        if !context.is_null() {
            sys::ggml_free(context);
        }
        sys::ggml_backend_free(backend);
        verdict
    }
}

/// # Safety
/// Both are valid; the context has room for three tensors and a graph, and allocates nothing itself.
unsafe fn product_in(context: *mut sys::ggml_context, backend: sys::ggml_backend_t) -> Option<bool> {
    let side = i64::try_from(SIDE).ok()?;
    let bytes = SIDE * SIDE * size_of::<f32>();
    let unit: Vec<f32> = (0..SIDE * SIDE).map(|at| if at / SIDE == at % SIDE { 1.0 } else { 0.0 }).collect();
    // Small whole numbers: exact in every format that a kernel may use on the way.
    let other: Vec<f32> = (0..SIDE * SIDE).map(|at| f32::from(u8::try_from(at % 7).unwrap_or(0))).collect();
    let mut result = vec![0.0_f32; SIDE * SIDE];
    // SAFETY: as the caller promises; the slices have the size of their tensors, which are f32.
    unsafe {
        let left = sys::ggml_new_tensor_2d(context, sys::GGML_TYPE_F32, side, side);
        let right = sys::ggml_new_tensor_2d(context, sys::GGML_TYPE_F32, side, side);
        let product = sys::ggml_mul_mat(context, left, right);
        let graph = sys::ggml_new_graph(context);
        sys::ggml_build_forward_expand(graph, product);
        let buffer = sys::ggml_backend_alloc_ctx_tensors(context, backend);
        if buffer.is_null() {
            return None;
        }
        sys::ggml_backend_tensor_set(left, unit.as_ptr().cast(), 0, bytes);
        sys::ggml_backend_tensor_set(right, other.as_ptr().cast(), 0, bytes);
        let computed = sys::ggml_backend_graph_compute(backend, graph) == sys::GGML_STATUS_SUCCESS;
        if computed {
            sys::ggml_backend_tensor_get(product, result.as_mut_ptr().cast(), 0, bytes);
        }
        sys::ggml_backend_buffer_free(buffer);
        computed.then(|| result == other)
    }
}
