//! LoRA adapters: loaded once for a model, attached to contexts.
//!
//! Made by `Model::load_adapter`, attached by `Context::set_adapters`. The context keeps its adapters alive and each
//! adapter keeps its model alive. llama.cpp lists the adapters inside the model without a lock of its own, so loading
//! and freeing take the model's.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_4 as sys;

use super::gguf_check;
use super::handle::ModelHandle;
use super::log;
use crate::backend::{Adapter, AdapterError, LoadError};

/// A loaded adapter.
pub(super) struct LlamaAdapter {
    adapter: NonNull<sys::llama_adapter_lora>,
    model: Arc<ModelHandle>,
}

// SAFETY: an adapter is read-only after loading; contexts on several threads may use it.
unsafe impl Send for LlamaAdapter {}
// SAFETY: as above.
unsafe impl Sync for LlamaAdapter {}

impl LlamaAdapter {
    pub(super) fn load(model: Arc<ModelHandle>, path: &Path) -> Result<Self, AdapterError> {
        gguf_check::check_adapter(path).map_err(|error| match error {
            LoadError::Unreadable { path, source } => AdapterError::Unreadable { path, source },
            other => AdapterError::Malformed { path: path.to_path_buf(), reason: other.to_string() },
        })?;
        let c_path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| AdapterError::Malformed {
            path: path.to_path_buf(),
            reason: "the path has a NUL byte".to_owned(),
        })?;
        let (adapter, reason) = log::collect(|| {
            let _exclusive = model.exclusive();
            // SAFETY: the model is valid and the path NUL-terminated; exceptions are caught inside and yield null.
            unsafe { sys::llama_adapter_lora_init(model.as_ptr(), c_path.as_ptr()) }
        });
        let adapter =
            NonNull::new(adapter).ok_or_else(|| AdapterError::Refused { path: path.to_path_buf(), reason })?;
        Ok(Self { adapter, model })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_adapter_lora {
        self.adapter.as_ptr()
    }

    pub(super) fn belongs_to(&self, model: &Arc<ModelHandle>) -> bool {
        Arc::ptr_eq(&self.model, model)
    }
}

impl Adapter for LlamaAdapter {}

impl Drop for LlamaAdapter {
    fn drop(&mut self) {
        let _exclusive = self.model.exclusive();
        // SAFETY: every context has released the adapter, its model is still alive, and it is freed once.
        unsafe { sys::llama_adapter_lora_free(self.adapter.as_ptr()) }
    }
}
