//! llama.cpp behind the backend traits: the only folder with `unsafe`.
//!
//! `model.rs` loads, `context.rs` computes, `state.rs` packs and restores with the help of `layout.rs`, `segment.rs`,
//! `packed.rs`, `chain.rs` and `partial.rs` (all safe) and of `io.rs`, `matcher.rs` constrains, `grammar.rs` turns
//! schemas into grammars, `chat.rs` renders and parses with the help of `render.rs`, `adapter.rs` holds LoRA adapters,
//! `gguf_check.rs` looks at a file before llama.cpp does, `cpu.rs` at the CPU, `devices.rs` lists devices, `log.rs` keeps
//! its words, `threads.rs` has the threads that compute. `tokenizer.rs`
//! turns texts into tokens with `runs.rs` and `split.rs`; it, schemas and parsers recurse on the stacks of `deep.rs`. No
//! C++ exception and no failed assertion may reach this folder's callers: input is checked
//! before it crosses the line.
//!
//! # What each memory kind needs, and how it is put back
//!
//! | kind | a row's bytes | put back by |
//! | --- | --- | --- |
//! | attention | segments | set each segment; cut with `seq_rm` if the hit ends inside one |
//! | window | segments of the full layers + partial | set the segments (their window sections are empty), then the partial |
//! | recurrent | partial | set the partial |
//! | hybrid | segments of the attention layers + partial | set the segments (no recurrent cell), then the partial |
//! | anything else | partial = the whole state | set it whole |
//!
//! A range is packed by copying its bytes alone out of the sequence's state, and rows that follow each other are set as one state
//! with pieces that lie where the rows do: `io.rs` reads and writes states in pieces. Setting a state empties its sequence.
//! With unified KV what comes later is therefore set through a scratch sequence (`seq_cp` marks cells, it copies nothing); with
//! split KV `seq_cp` between sequences copies a whole stream, so a chain is set at once.
#![expect(unsafe_code, reason = "llama.cpp is a C++ library; every call into it is here and nowhere else")]

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use super::{Backend, ComputingDevices, HostBuffer, LoadError, Model, ModelOptions};

mod adapter;
mod buffer;
pub(crate) mod chat;
mod context;
mod cpu;
mod devices;
mod gguf_check;
mod handle;
mod log;
mod model;
mod params;
mod pieces;
pub(crate) mod state;
pub(crate) mod text;
mod threads;

pub use chat::template::check_template;
pub use cpu::{CPU_ADVICE, cpu_has_all, missing_cpu_features, try_cpu, unused_cpu_features};
use devices::start_library;
pub use devices::{
    Device, DeviceKind, DeviceSources, LLAMA_VERSION, SourceError, TrialError, backend_of, backends, copy_times,
    devices, libraries_in, serve_devices, try_added_devices, use_devices,
};
pub use model::measure::{LlamaMeasure, MeasuredMemory, MemoryUse};

/// llama.cpp. It starts at the first load or the first buffer, not before.
#[derive(Clone, Copy, Debug, Default)]
pub struct LlamaBackend;

/// llama.cpp without the look at a file before it is loaded: for processes that are there to die, and for tests of what
/// that look must find. The process of a server must never use it.
#[derive(Clone, Copy, Debug, Default)]
#[doc(hidden)]
pub struct UncheckedLlamaBackend;

impl Backend for UncheckedLlamaBackend {
    fn name(&self) -> &'static str {
        "llama.cpp"
    }

    fn build(&self) -> String {
        LlamaBackend.build()
    }

    fn load_model(&self, options: &ModelOptions) -> Result<Arc<dyn Model>, LoadError> {
        start_library();
        let facts = gguf_check::facts_without_check(&options.path)?;
        Ok(Arc::new(model::LlamaModel::load_checked(options, &facts)?))
    }

    fn computing_devices(&self, options: &ModelOptions) -> Option<ComputingDevices> {
        LlamaBackend.computing_devices(options)
    }

    fn drafts_by_itself(&self) -> bool {
        LlamaBackend.drafts_by_itself()
    }

    fn host_buffer(&self, len: usize) -> HostBuffer {
        LlamaBackend.host_buffer(len)
    }
}

impl Backend for LlamaBackend {
    fn name(&self) -> &'static str {
        "llama.cpp"
    }

    fn build(&self) -> String {
        static BUILD: OnceLock<String> = OnceLock::new();
        let find_out = || {
            start_library();
            // SAFETY: no argument. The text lies in a buffer of the library that the next call writes again: it is called here
            // alone, once, and copied.
            let info = unsafe { CStr::from_ptr(llama_cpp_sys_4::llama_print_system_info()) };
            format!("{}; {}", env!("PONCHO_LLAMA_BUILD"), info.to_string_lossy().trim())
        };
        BUILD.get_or_init(find_out).clone()
    }

    fn load_model(&self, options: &ModelOptions) -> Result<Arc<dyn Model>, LoadError> {
        start_library();
        Ok(Arc::new(model::LlamaModel::load(options)?))
    }

    fn computing_devices(&self, options: &ModelOptions) -> Option<ComputingDevices> {
        let is_used = |device: &Device| options.devices.is_empty() || options.devices.contains(&device.name);
        let others = devices().into_iter().filter(|device| device.kind != DeviceKind::Cpu && is_used(device));
        let named: Vec<String> = others.map(|device| format!("{} {}", device.name, device.description)).collect();
        let ModelOptions { gpu_layers, n_cpu_moe, split_mode, main_gpu, tensor_split, .. } = options;
        (!named.is_empty() && *gpu_layers != Some(0)).then(|| ComputingDevices {
            names: named.join(", "),
            placement: format!("{gpu_layers:?} {n_cpu_moe} {split_mode:?} {main_gpu} {tensor_split:?}"),
        })
    }

    fn drafts_by_itself(&self) -> bool {
        start_library();
        buffer::has_device()
    }

    fn host_buffer(&self, len: usize) -> HostBuffer {
        start_library();
        buffer::host_buffer(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hardening 7: settings that change the arithmetic are reported.
    #[test]
    fn the_build_names_version_compiler_and_kernels() {
        let build = LlamaBackend.build();
        assert!(build.starts_with("llama-cpp-sys-4 ") && build.contains("; CPU : "), "{build}");
        assert!(!build.contains("unknown version") && !build.contains("unknown compiler"), "{build}");
        assert!(build == LlamaBackend.build() && !build.contains('\n'), "{build}");
    }
}
