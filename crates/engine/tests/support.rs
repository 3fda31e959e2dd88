//! Shared by the integration tests: caches, models on the stub and on llama.cpp, requests.

use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig, Gates};
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Drafts, FingerprintSource, Model, ModelConfig, Request, Sampling};

/// Gates that let short test prompts pass.
pub(crate) fn small_gates() -> Gates {
    Gates {
        min_tokens: 4,
        cold_min_tokens: 4,
        cold_max_tokens: 4096,
        continued_interval: 16,
        boundary_trim_tokens: 2,
        boundary_align_tokens: 8,
        ..Gates::default()
    }
}

pub(crate) fn memory_cache() -> Arc<Cache> {
    Arc::new(Cache::open(CacheConfig::in_memory(1 << 30)).unwrap())
}

pub(crate) fn stub_config(id: &str) -> ModelConfig {
    ModelConfig {
        fingerprint: FingerprintSource::FastUnsafe([7; 32]),
        gates: small_gates(),
        // Which rows a batch has must not depend on measured times.
        drafts: Drafts::Off,
        context: ContextOptions { n_ctx: 512, n_batch: 128, n_ubatch: 128, n_seq_max: 4, ..ContextOptions::default() },
        ..ModelConfig::new(id, "stub")
    }
}

/// A model on the stub with a backend that the test keeps a hand on.
#[cfg_attr(not(feature = "llama"), allow(dead_code, reason = "only tests on real models call it"))]
pub(crate) fn stub_model(memory: MemoryKind, cache: &Arc<Cache>) -> (Model, StubBackend) {
    let backend = StubBackend::new(memory);
    let model = Model::load(stub_config("stub"), Arc::new(backend.clone()), Arc::clone(cache)).unwrap();
    (model, backend)
}

/// A greedy request for up to `max_tokens` tokens.
pub(crate) fn greedy(tokens: &[u32], max_tokens: u32) -> Request {
    Request {
        max_tokens: Some(max_tokens),
        sampling: Sampling::greedy(),
        ignore_eos: true,
        ..Request::new(tokens.to_vec())
    }
}

/// A prompt of `count` byte tokens that differs by number.
pub(crate) fn prompt(number: u32, count: usize) -> Vec<u32> {
    (0..u32::try_from(count).unwrap())
        .map(|position| (position * 31 + number * 101 + position * position) % 250)
        .collect()
}
