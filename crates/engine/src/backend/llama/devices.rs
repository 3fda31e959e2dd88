//! The devices that llama.cpp can compute on, its backends, and its version.
//!
//! Read by the command line for its reports. Nothing is allocated on a device, except by a trial. `sources.rs` adds
//! devices, `trial.rs` tries them, `copying.rs` measures them, `worker.rs` lends them to another machine.

use std::ffi::{CStr, c_char};

use llama_cpp_sys_4 as sys;

mod copying;
mod sources;
mod trial;
mod worker;

pub use copying::copy_times;
pub(super) use sources::start_library;
pub use sources::{DeviceSources, SourceError, backend_of, libraries_in, use_devices};
pub use trial::{TrialError, try_added_devices};
pub use worker::serve_devices;

/// The version of llama.cpp in this build: its commit, and the package that brings it.
pub const LLAMA_VERSION: &str = env!("PONCHO_LLAMA_VERSION");

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor, with the memory of the machine.
    Cpu,
    /// A graphics processor.
    Gpu,
    /// Anything else, such as a library for matrices.
    Accelerator,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name in llama.cpp, such as `CPU` or `CUDA0`.
    pub name: String,
    /// Its product name.
    pub description: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Free bytes of its memory.
    pub free: u64,
    /// All bytes of its memory.
    pub total: u64,
}

/// All devices that this build can use on this machine.
#[must_use]
pub fn devices() -> Vec<Device> {
    start_library();
    // SAFETY: the registry is filled when the library starts.
    let count = unsafe { sys::ggml_backend_dev_count() };
    (0..count).filter_map(device).collect()
}

/// The names of the backends in this build, such as `CPU` and `CUDA`.
#[must_use]
pub fn backends() -> Vec<String> {
    start_library();
    // SAFETY: the registry is filled when the library starts.
    let count = unsafe { sys::ggml_backend_reg_count() };
    let name = |index| {
        // SAFETY: the index is below the count, and a null result is checked before use.
        unsafe {
            let backend = sys::ggml_backend_reg_get(index);
            if backend.is_null() { None } else { text(sys::ggml_backend_reg_name(backend)) }
        }
    };
    (0..count).filter_map(name).collect()
}

fn device(index: usize) -> Option<Device> {
    // SAFETY: the index is below the count, a null result is checked before use, and both numbers are written before the
    // call returns.
    unsafe {
        let device = sys::ggml_backend_dev_get(index);
        if device.is_null() {
            return None;
        }
        let (mut free, mut total) = (0_usize, 0_usize);
        sys::ggml_backend_dev_memory(device, &raw mut free, &raw mut total);
        let kind = match sys::ggml_backend_dev_type(device) {
            sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
            sys::GGML_BACKEND_DEVICE_TYPE_GPU | sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::Gpu,
            _ => DeviceKind::Accelerator,
        };
        Some(Device {
            name: text(sys::ggml_backend_dev_name(device))?,
            description: text(sys::ggml_backend_dev_description(device)).unwrap_or_default(),
            kind,
            free: u64::try_from(free).unwrap_or(u64::MAX),
            total: u64::try_from(total).unwrap_or(u64::MAX),
        })
    }
}

/// A copy of a text of the library.
///
/// # Safety
/// The pointer is null, or points to a text that ends with a zero and lives during the call.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller promises the rest.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everyday use 14: the version names the commit of llama.cpp and the backends.
    #[test]
    fn the_build_has_a_version_and_a_processor() {
        assert!(LLAMA_VERSION.contains("llama-cpp-sys-4 ") && !LLAMA_VERSION.contains("unknown"), "{LLAMA_VERSION}");
        assert!(backends().iter().any(|name| name == "CPU"), "{:?}", backends());
        let devices = devices();
        assert!(devices.iter().any(|device| device.kind == DeviceKind::Cpu && !device.name.is_empty()), "{devices:?}");
    }
}
