//! Where a model's weights go: named devices, experts that stay on the CPU, NUMA nodes.
//!
//! Used when a model is loaded or measured. The tables live until the load is over; llama.cpp copies what it keeps.

use std::ffi::{CString, c_char};
use std::sync::Once;

use llama_cpp_sys_4 as sys;

use crate::backend::llama::devices::devices as all_devices;
use crate::backend::{LoadError, Numa};

/// The tensors of experts, as llama.cpp's own tools name them.
const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";
/// Layers that get a pattern of their own; more means all.
const MOST_LAYERS: u32 = 512;

/// The devices of these names, with the null that ends the list.
pub(super) fn devices(names: &[String]) -> Result<Vec<sys::ggml_backend_dev_t>, LoadError> {
    let mut found = Vec::new();
    for name in names {
        let bad = || LoadError::BadOption {
            option: "device",
            value: format!("{name} (this machine has {})", names_of_all().join(", ")),
            reason: "a device of this name does not exist; `poncho doctor` lists them",
        };
        let text = CString::new(name.as_str()).map_err(|_| bad())?;
        // SAFETY: the text ends with a zero and lives for the call.
        let device = unsafe { sys::ggml_backend_dev_by_name(text.as_ptr()) };
        if device.is_null() {
            return Err(bad());
        }
        found.push(device);
    }
    found.push(std::ptr::null_mut());
    Ok(found)
}

fn names_of_all() -> Vec<String> {
    all_devices().into_iter().map(|device| device.name).collect()
}

/// Patterns of tensors with the memory that they go to.
pub(super) struct Overrides {
    /// The texts that the table points to.
    _patterns: Vec<CString>,
    /// Ends with a row of nulls; empty if nothing is overridden.
    table: Vec<sys::llama_model_tensor_buft_override>,
}

impl Overrides {
    /// The experts of the first layers on the CPU.
    pub(super) fn experts(layers: u32) -> Self {
        let patterns: Vec<String> = match layers {
            0 => Vec::new(),
            1..=MOST_LAYERS => (0..layers).map(|layer| format!(r"blk\.{layer}{EXPERTS}")).collect(),
            _ => vec![EXPERTS.to_owned()],
        };
        let patterns: Vec<CString> = patterns.into_iter().filter_map(|pattern| CString::new(pattern).ok()).collect();
        // SAFETY: a constant of the library.
        let cpu = unsafe { sys::ggml_backend_cpu_buffer_type() };
        let row = |pattern: *const c_char, buft| sys::llama_model_tensor_buft_override { pattern, buft };
        let mut table: Vec<_> = patterns.iter().map(|pattern| row(pattern.as_ptr(), cpu)).collect();
        if !table.is_empty() {
            table.push(row(std::ptr::null(), std::ptr::null_mut()));
        }
        Self { _patterns: patterns, table }
    }

    /// The table for the library; null if nothing is overridden.
    pub(super) fn as_ptr(&self) -> *const sys::llama_model_tensor_buft_override {
        if self.table.is_empty() { std::ptr::null() } else { self.table.as_ptr() }
    }
}

/// Sets the strategy for NUMA nodes, once in a process.
pub(super) fn set_numa(numa: Numa) {
    static SET: Once = Once::new();
    let strategy = match numa {
        Numa::Off => return,
        Numa::Distribute => sys::GGML_NUMA_STRATEGY_DISTRIBUTE,
        Numa::Isolate => sys::GGML_NUMA_STRATEGY_ISOLATE,
        Numa::Numactl => sys::GGML_NUMA_STRATEGY_NUMACTL,
    };
    // SAFETY: plain value; the library was started by the load that calls this.
    SET.call_once(|| unsafe { sys::llama_numa_init(strategy) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_of_the_first_layers_have_a_pattern_each() {
        assert!(Overrides::experts(0).as_ptr().is_null());
        let two = Overrides::experts(2);
        assert_eq!(two.table.len(), 3, "two patterns and the end");
        assert_eq!(two._patterns[1].to_str().unwrap(), r"blk\.1\.ffn_(up|down|gate|gate_up)_(ch|)exps");
        assert_eq!(Overrides::experts(u32::MAX).table.len(), 2, "all of them");
    }

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are() {
        crate::backend::llama::start_library();
        let refused = devices(&["CUDA7".to_owned()]).unwrap_err().to_string();
        assert!(refused.contains("CUDA7") && refused.contains("CPU"), "{refused}");
        assert_eq!(devices(&[]).unwrap().len(), 1);
    }
}
