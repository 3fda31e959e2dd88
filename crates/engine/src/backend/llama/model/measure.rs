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
use crate::backend::KvLayout;
use crate::backend::llama::handle::ModelHandle;
use crate::backend::llama::params::context_params;
use crate::backend::llama::{gguf_check, log, start_library};
use crate::config::ModelConfig;
use crate::fit::{Choice, Machine, Measure, Needs, Use};

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

/// Measures choices for one model.
pub struct LlamaMeasure {
    config: ModelConfig,
    facts: gguf_check::GgufFacts,
    /// Names of the machine's devices: the order of the needs.
    devices: Vec<String>,
    /// The layout of the cells; `None` for the usual one.
    layout: Option<KvLayout>,
    models: Vec<((u32, Option<u32>), ModelHandle)>,
}

impl LlamaMeasure {
    /// Checks the file, so that most crafted ones are an error.
    ///
    /// # Errors
    /// Why the file is refused, as text.
    pub fn new(config: &ModelConfig, machine: &Machine, layout: Option<KvLayout>) -> Result<Self, String> {
        start_library();
        config.model.check().map_err(|error| error.to_string())?;
        let facts = gguf_check::check_file(&config.model.path).map_err(|error| error.to_string())?;
        let devices = machine.devices.iter().map(|device| device.name.clone()).collect();
        Ok(Self { config: config.clone(), facts, devices, layout, models: Vec::new() })
    }

    fn model(&mut self, choice: &Choice) -> Result<&ModelHandle, String> {
        let key = (choice.n_cpu_moe, choice.gpu_layers);
        if let Some(at) = self.models.iter().position(|(kept, _)| *kept == key) {
            // The one that was used last is the last one.
            let found = self.models.remove(at);
            self.models.push(found);
        } else {
            let mut config = self.config.clone();
            choice.set(&mut config);
            let (handle, reason) = log::collect(|| load_handle(&config.model, &self.facts, Weights::Measured));
            let handle = handle.map_err(|error| error.to_string())?.ok_or(reason)?;
            if self.models.len() >= KEPT {
                self.models.remove(0);
            }
            self.models.push((key, handle));
        }
        self.models.last().map(|(_, handle)| handle).ok_or_else(|| "no model is loaded".to_owned())
    }
}

impl Measure for LlamaMeasure {
    fn needs(&mut self, choice: &Choice) -> Result<Needs, String> {
        let mut options = self.config.context.clone();
        options.kv = self.layout.unwrap_or_else(|| KvLayout::usual(choice.parallel));
        choice.set_context(&mut options);
        options.check().map_err(|error| error.to_string())?;
        let names = self.devices.clone();
        let model = self.model(choice)?;
        let abort = Arc::default();
        let params = context_params(&options, options.n_ctx, &abort).map_err(|error| error.to_string())?;
        // SAFETY: the model is loaded and outlives the context, which is freed below; `abort` lives as long.
        let (context, reason) = log::collect(|| unsafe { sys::llama_init_from_model(model.as_ptr(), params) });
        let context = NonNull::new(context).ok_or(reason)?;
        let mut rows = [UseRow::default(); MOST_ROWS];
        let most = i32::try_from(rows.len()).unwrap_or(i32::MAX);
        // SAFETY: the context is valid, `rows` has the given length, and exceptions are caught on the other side.
        let count = unsafe { poncho_memory_of(context.as_ptr(), rows.as_mut_ptr(), most) };
        let count = usize::try_from(count).map_err(|_| "llama.cpp did not say how much memory is needed".to_owned());
        let named = count.map(|count| {
            let rows = rows.iter().take(count).enumerate().map(|(at, row)| (device_name(model, at), *row));
            (rows.collect::<Vec<_>>(), count)
        });
        // SAFETY: made above, and nothing else knows it.
        unsafe { sys::llama_free(context.as_ptr()) };
        let (on_devices, count) = named?;
        let host = rows.get(count).copied().unwrap_or_default();
        let use_of = |row: UseRow| Use { weights: row.weights, context: row.context, compute: row.compute };
        let mut devices = vec![Use::default(); names.len()];
        for (name, row) in on_devices {
            match names.iter().position(|known| *known == name).and_then(|at| devices.get_mut(at)) {
                Some(place) => *place = use_of(row),
                None if row.weights == 0 && row.context == 0 && row.compute == 0 => {}
                None => return Err(format!("the device {name} appeared while it was measured")),
            }
        }
        Ok(Needs { host: use_of(host), devices })
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

#[cfg(test)]
mod tests {
    use poncho_testkit::{ModelKind, model_path};

    use super::*;
    use crate::backend::KvType;
    use crate::fit::Arithmetic;

    fn choice(n_ctx: u32, parallel: u32, kind: KvType) -> Choice {
        Choice { n_ctx, parallel, type_k: kind, type_v: kind, n_cpu_moe: 0, gpu_layers: None }
    }

    fn machine() -> Machine {
        Machine { host_free: 1 << 40, devices: Vec::new() }
    }

    /// What llama.cpp would allocate, and nothing is: a context of a million tokens is measured in a moment.
    #[test]
    fn llama_measures_what_it_would_allocate() {
        let config = ModelConfig::new("m", model_path(ModelKind::Attention));
        let mut measure = LlamaMeasure::new(&config, &machine(), Some(KvLayout::Split)).unwrap();
        let small = measure.needs(&choice(1024, 1, KvType::F16)).unwrap().host;
        let large = measure.needs(&choice(1 << 20, 4, KvType::F16)).unwrap().host;
        assert!(small.weights > 0 && small.compute > 0, "{small:?}");
        assert_eq!(large.context, small.context * 4096);
        let half = measure.needs(&choice(1024, 1, KvType::Q8_0)).unwrap().host;
        assert!(half.context < small.context && half.context * 2 > small.context, "{half:?}");
    }

    /// The estimate from the head of the file is never less than llama.cpp takes.
    #[test]
    fn the_arithmetic_is_not_below_the_measurement() {
        for kind in ModelKind::ALL {
            let config = ModelConfig::new("m", model_path(kind));
            let mut measure = LlamaMeasure::new(&config, &machine(), Some(KvLayout::Split)).unwrap();
            let mut arithmetic = Arithmetic::of(&config, &machine());
            for choice in [choice(2048, 1, KvType::F16), choice(8192, 4, KvType::F16)] {
                let measured = measure.needs(&choice).unwrap().host;
                let estimated = arithmetic.needs(&choice).unwrap().host;
                assert!(estimated.weights >= measured.weights, "{kind:?} {estimated:?} {measured:?}");
                assert!(estimated.total() * 11 / 10 >= measured.total(), "{kind:?} {estimated:?} {measured:?}");
            }
        }
    }

    #[test]
    fn a_file_that_is_not_a_model_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, b"GGUF\x03\0\0\0junk").unwrap();
        assert!(LlamaMeasure::new(&ModelConfig::new("m", &path), &machine(), Some(KvLayout::Split)).is_err());
    }
}
