//! An RPC worker: lends the devices of this process to a llama.cpp on another machine.
//!
//! Called by `poncho rpc-worker`. The protocol is llama.cpp's: it knows no keys, everyone who reaches the port may compute and
//! may end the process, and one client is served at a time. It must never run in the process of a server.

use std::ffi::CString;

use llama_cpp_sys_4 as sys;

use super::{DeviceKind, devices, start_library};
use crate::backend::llama::log;

/// Serves the devices at this address (`host:port`) until the process ends; returns only if that fails.
#[must_use]
pub fn serve_devices(address: &str, threads: usize) -> String {
    start_library();
    let Ok(name) = CString::new(address) else { return "the address has a zero byte".to_owned() };
    // GPUs if there are any: lending the processor beside them would only slow them down.
    let only_gpus = devices().iter().any(|device| device.kind == DeviceKind::Gpu);
    // SAFETY: the registry is filled when the library starts; the index is below the count; null is left out.
    let mut lent: Vec<sys::ggml_backend_dev_t> = unsafe {
        let all = (0..sys::ggml_backend_dev_count()).map(|index| sys::ggml_backend_dev_get(index));
        let wanted = if only_gpus { sys::GGML_BACKEND_DEVICE_TYPE_GPU } else { sys::GGML_BACKEND_DEVICE_TYPE_CPU };
        all.filter(|device| !device.is_null() && sys::ggml_backend_dev_type(*device) == wanted).collect()
    };
    // SAFETY: the address and the devices outlive the call, which does not return while it serves.
    let ((), reason) = log::collect(|| unsafe {
        sys::ggml_backend_rpc_start_server(name.as_ptr(), std::ptr::null(), threads, lent.len(), lent.as_mut_ptr());
    });
    reason
}
