//! A server of a stub model on a free port: prints its address, serves until SIGTERM, ends with exit code 0.
//!
//! With a number as its argument it has a context of that many tokens, and a model that follows a script; a second one
//! is the seconds that its first prompt takes, a third the seconds after which a quiet stream gets an event, and a
//! fourth a JSON file with pairs of a text in a message and the reply to it. Run by tests/clients/run.py, which checks
//! the OpenAPI document against it and lets many clients stream from it, and by tests/clients/agents.py, with prompts
//! of a hundred thousand bytes, each of them a token. The model computes nothing, so whatever takes time or memory here
//! is the server's. Not part of the binary.

#[path = "shared/until_told.rs"]
mod until_told;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use poncho_api::ChatSettings;
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::stub::{DecodeFault, StubBackend, StubLine};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Engine, FingerprintSource, ModelConfig};
use poncho_models::Registry;
use poncho_server::{RegistryLibrary, ServerConfig};

use self::until_told::until_told;

/// Small, so that a run of some seconds fills it and memory can be seen to stay flat.
const CACHE_BYTES: u64 = 16 << 20;
/// Room for the rows of a few agents.
const ECHO_CACHE_BYTES: u64 = 256 << 20;
/// Longer than a client is installed and asked.
const WHOLE_RUN: Duration = Duration::from_secs(3600);

fn main() -> Result<(), Box<dyn Error>> {
    let echo_context = std::env::args().nth(1).map(|tokens| tokens.parse::<u32>()).transpose()?;
    let seconds = |at: usize| std::env::args().nth(at).map(|text| text.parse().map(Duration::from_secs)).transpose();
    let (prefill, keep_alive) = (seconds(2)?, seconds(3)?);
    let backend = StubBackend::new(MemoryKind::Attention);
    let faults = backend.faults();
    let (backend, n_ctx, cache_bytes) = match echo_context {
        Some(n_ctx) => (backend.with_lines(lines()?), n_ctx, ECHO_CACHE_BYTES),
        None => (backend, 1024, CACHE_BYTES),
    };
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(cache_bytes))?);
    let engine = Arc::new(Engine::new(Arc::new(backend), cache));
    let n_cells = Some(n_ctx.saturating_mul(16));
    let context = ContextOptions { n_ctx, n_cells, n_seq_max: 16, ..ContextOptions::default() };
    let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
    engine.load(ModelConfig { fingerprint, context, queue_limit: 128, ..ModelConfig::new("stub", "stub") })?;
    if let Some(time) = prefill.filter(|time| !time.is_zero()) {
        faults.on_decode(1, DecodeFault::Block);
        std::thread::spawn(move || {
            if faults.wait_until_held(WHOLE_RUN) {
                std::thread::sleep(time);
                faults.release();
            }
        });
    }
    // A folder without models, for the requests that change it.
    let folder = tempfile::tempdir()?;
    let settings = Box::new(|name: &str, path: &std::path::Path| ModelConfig::new(name, path));
    let library = RegistryLibrary::new(Registry::open(folder.path())?, settings);
    // Whatever name a generated request has, it reaches the model.
    let mut config = ServerConfig { any_model: true, library: Some(Arc::new(library)), ..ServerConfig::default() };
    config.stream_keep_alive = keep_alive.unwrap_or(config.stream_keep_alive);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(until_told(Arc::clone(&engine), ChatSettings::default(), config))?;
    engine.unload("stub")?;
    Ok(())
}

/// What the model answers where a message has no script.
fn lines() -> Result<Vec<StubLine>, Box<dyn Error>> {
    let Some(path) = std::env::args().nth(4) else { return Ok(Vec::new()) };
    let pairs: Vec<(String, String)> = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    Ok(pairs.into_iter().map(|(heard, said)| StubLine { heard, said }).collect())
}
