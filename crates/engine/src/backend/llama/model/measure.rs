//! llama.cpp's own measurement of the memory that a model takes, without allocating it.
//!
//! Called in a child process: a crafted file may end it. The model is loaded without its weights and a context is made
//! without its buffers; `measure.cpp` reads how large they would be. Models are kept by their placement, because loading a
//! vocabulary takes longer than making a context.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_4 as sys;

use super::{Weights, load_handle};
use crate::backend::llama::handle::ModelHandle;
use crate::backend::llama::params::context_params;
use crate::backend::llama::{gguf_check, log, start_library};
use crate::backend::{ContextOptions, ModelOptions};

/// Placements that are kept; each one has a vocabulary of its own.
const KEPT: usize = 3;
/// Rows that the other side may write; no machine has more devices.
const MOST_ROWS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct UseRow {
    weights: u64,
    context: u64,
    compute: u64,
}

unsafe extern "C" {
    fn poncho_memory_of(context: *const sys::llama_context, rows: *mut UseRow, count: i32) -> i32;
    fn poncho_device_name(model: *const sys::llama_model, index: i32) -> *const c_char;
}

/// Bytes that a model takes in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Weights.
    pub weights: u64,
    /// Cells of the context.
    pub context: u64,
    /// Buffers of a decode call.
    pub compute: u64,
}

/// Bytes that a model takes on the host, and on each device by its name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeasuredMemory {
    /// The host's.
    pub host: MemoryUse,
    /// Those of the devices.
    pub devices: Vec<(String, MemoryUse)>,
}

/// Measures one model with different settings.
pub struct LlamaMeasure {
    facts: gguf_check::GgufFacts,
    models: Vec<((u32, Option<u32>), ModelHandle)>,
}

impl LlamaMeasure {
    /// Checks the file, so that most crafted ones are an error.
    ///
    /// # Errors
    /// Why the file is refused, as text.
    pub fn new(model: &ModelOptions) -> Result<Self, String> {
        start_library();
        model.check().map_err(|error| error.to_string())?;
        let facts = gguf_check::check_file(&model.path).map_err(|error| error.to_string())?;
        Ok(Self { facts, models: Vec::new() })
    }

    fn model(&mut self, options: &ModelOptions) -> Result<&ModelHandle, String> {
        let key = (options.n_cpu_moe, options.gpu_layers);
        if let Some(at) = self.models.iter().position(|(kept, _)| *kept == key) {
            // The one that was used last is the last one.
            let found = self.models.remove(at);
            self.models.push(found);
        } else {
            let (handle, reason) = log::collect(|| load_handle(options, &self.facts, Weights::Measured));
            let handle = handle.map_err(|error| error.to_string())?.ok_or(reason)?;
            if self.models.len() >= KEPT {
                self.models.remove(0);
            }
            self.models.push((key, handle));
        }
        self.models.last().map(|(_, handle)| handle).ok_or_else(|| "no model is loaded".to_owned())
    }

    /// What the model takes with these options. The file must be the one that was checked.
    ///
    /// # Errors
    /// Why it cannot be measured, as text.
    pub fn measure(&mut self, model: &ModelOptions, context: &ContextOptions) -> Result<MeasuredMemory, String> {
        context.check().map_err(|error| error.to_string())?;
        let model = self.model(model)?;
        let abort = Arc::default();
        let params = context_params(context, context.n_ctx, &abort).map_err(|error| error.to_string())?;
        // SAFETY: the model is loaded and outlives the context, which is freed below; `abort` lives as long.
        let (context, reason) = log::collect(|| unsafe { sys::llama_init_from_model(model.as_ptr(), params) });
        let context = NonNull::new(context).ok_or(reason)?;
        let mut rows = [UseRow::default(); MOST_ROWS];
        let most = i32::try_from(rows.len()).unwrap_or(i32::MAX);
        // SAFETY: the context is valid, `rows` has the given length, and exceptions are caught on the other side.
        let count = unsafe { poncho_memory_of(context.as_ptr(), rows.as_mut_ptr(), most) };
        let count = usize::try_from(count).map_err(|_| "llama.cpp did not say how much memory is needed".to_owned());
        let use_of = |row: UseRow| MemoryUse { weights: row.weights, context: row.context, compute: row.compute };
        let measured = count.map(|count| {
            let devices = rows.iter().take(count).enumerate().map(|(at, row)| (device_name(model, at), use_of(*row)));
            let host = use_of(rows.get(count).copied().unwrap_or_default());
            MeasuredMemory { host, devices: devices.collect() }
        });
        // SAFETY: made above, and nothing else knows it.
        unsafe { sys::llama_free(context.as_ptr()) };
        measured
    }
}

fn device_name(model: &ModelHandle, index: usize) -> String {
    let index = i32::try_from(index).unwrap_or(i32::MAX);
    // SAFETY: the model is valid; a text of the library lives as long as its device, and null is checked.
    unsafe {
        let name = poncho_device_name(model.as_ptr(), index);
        if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}
