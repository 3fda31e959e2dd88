//! A server of a stub model for the tests of the console: decode calls take a while, so that progress can be seen moving.
//!
//! Prints its address and serves until SIGTERM. Arguments are API keys; the last one of several is an admin's. Hygiene is
//! off, so that a planted clock is seen as one, a pull of any name takes two seconds and fetches nothing, and devices and
//! plan are invented. Rows are in memory and in a folder that is removed at the end. Run by
//! `crates/console/web/test/run.mjs`. Not part of the binary.

#[path = "shared/until_told.rs"]
mod until_told;

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use poncho_api::ChatSettings;
use poncho_cache::{Cache, CacheConfig, FileTierConfig};
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Engine, FingerprintSource, ModelConfig, RestoreRule};
use poncho_server::{
    LibraryError, LibraryModel, ModelLibrary, PlanLine, PlannedMemory, PullStep, ServerConfig, ShownDevice,
    ShownMachine, ShownPlan, ShownSetting, UnusedDevice,
};

use self::until_told::until_told;

/// The time of a decode call, and the tokens of one.
const DECODE: Duration = Duration::from_millis(12);
const BATCH: u32 = 64;
/// The steps of a pull.
const STEPS: u64 = 20;
const STEP: Duration = Duration::from_millis(100);

/// A folder of models in which every download takes the same time and leaves nothing behind.
struct SlowLibrary;

impl ModelLibrary for SlowLibrary {
    fn find(&self, _: &str) -> Result<Option<LibraryModel>, LibraryError> {
        Ok(None)
    }

    fn list(&self) -> Result<Vec<LibraryModel>, LibraryError> {
        Ok(Vec::new())
    }

    fn pull(&self, _: &str, step: &mut dyn FnMut(PullStep) -> ControlFlow<()>) -> Result<(), LibraryError> {
        for done in 0..=STEPS {
            std::thread::sleep(STEP);
            let _ = step(PullStep::Bytes { digest: "00".repeat(32), total: Some(STEPS << 20), completed: done << 20 });
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut keys: Vec<String> = std::env::args().skip(1).collect();
    let admin_keys = if keys.len() > 1 { keys.split_off(keys.len() - 1) } else { Vec::new() };
    let backend = StubBackend::new(MemoryKind::Attention);
    backend.faults().busy_decodes(DECODE);
    let folder = tempfile::tempdir()?;
    let disk = FileTierConfig { folder: folder.path().to_path_buf(), quota: 20 << 30 };
    let cache = Arc::new(Cache::open(CacheConfig { disk: Some(disk), ..CacheConfig::in_memory(256 << 20) })?);
    let engine = Arc::new(Engine::new(Arc::new(backend), cache));
    let context = ContextOptions {
        n_ctx: 16384,
        n_cells: Some(16384 * 8),
        n_batch: BATCH,
        n_ubatch: BATCH,
        n_seq_max: 8,
        ..ContextOptions::default()
    };
    let gates = poncho_api::Gates { min_tokens: 32, cold_min_tokens: 32, ..poncho_api::Gates::default() };
    let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
    let rule = RestoreRule::Always;
    engine.load(ModelConfig { fingerprint, context, gates, restore_rule: rule, ..ModelConfig::new("stub", "stub") })?;
    let setting = |name: &str, value: &str, origin: &str| ShownSetting {
        name: name.to_owned(),
        value: value.to_owned(),
        origin: origin.to_owned(),
    };
    let config = ServerConfig {
        keys,
        admin_keys,
        library: Some(Arc::new(SlowLibrary)),
        settings: vec![
            setting("api_key", "***", "PONCHO_API_KEY"),
            setting("cache_ram", "256MiB", "--cache-ram"),
            setting("cache_size", "20GiB", "default"),
            setting("ctx_size", "16384", "poncho.toml:3"),
            setting("hygiene", "(all)", "default"),
        ],
        machine: machine(),
        plans: Some(Arc::new(|_, _| Some(plan()))),
        ..ServerConfig::default()
    };
    config.recent_warnings.add("2026-11-16T12:00:00Z  WARN little space for the cache; free some free=\"1.2 GiB\"");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let chat = ChatSettings { hygiene: Vec::new(), ..ChatSettings::default() };
    runtime.block_on(until_told(Arc::clone(&engine), chat, config))?;
    engine.unload("stub")?;
    Ok(())
}

fn machine() -> ShownMachine {
    let device = |name: &str, description: &str, kind, total: u64, free: u64| ShownDevice {
        name: name.to_owned(),
        description: description.to_owned(),
        kind,
        total_bytes: total << 30,
        free_bytes: free << 30,
    };
    ShownMachine {
        devices: vec![
            device("CUDA0", "NVIDIA RTX 4090", "gpu", 24, 22),
            device("CPU", "AMD Ryzen 9 7950X", "cpu", 64, 51),
        ],
        unused: vec![UnusedDevice {
            what: "/usr/lib/poncho/backends/libggml-vulkan.so".to_owned(),
            why: "it was built for another llama.cpp; build it again with `make build BACKEND=vulkan`".to_owned(),
        }],
    }
}

fn plan() -> ShownPlan {
    let line =
        |text: &str, flags: &[&'static str], is_set| PlanLine { text: text.to_owned(), flags: flags.to_vec(), is_set };
    let memory = |device: &str, [weights, context, buffers]: [u64; 3]| PlannedMemory {
        device: device.to_owned(),
        weights_bytes: weights << 20,
        context_bytes: context << 20,
        buffer_bytes: buffers << 20,
    };
    ShownPlan {
        lines: vec![
            line("context 16384 tokens, as set", &["--ctx-size"], true),
            line("4 requests at once", &["--parallel"], false),
            line("KV cache in f16", &["--cache-type-k", "--cache-type-v"], false),
            line("28 of 32 layers on the GPU; more do not fit", &["--gpu-layers"], false),
        ],
        warning: None,
        memory: vec![memory("host", [1800, 260, 96]), memory("CUDA0", [16_400, 1900, 612])],
    }
}
