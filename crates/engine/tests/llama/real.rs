//! Models on real llama.cpp for the tests: one tiny generated file of each memory kind.

use std::path::Path;
use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig, FileTierConfig, Tier};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{ContextOptions, KvLayout};
use poncho_engine::{Completion, Drafts, Model, ModelConfig, Request};
use poncho_testkit::{ModelKind, model_path};

use crate::support::{greedy, small_gates};

pub(crate) const KINDS: [ModelKind; 4] =
    [ModelKind::Attention, ModelKind::Window, ModelKind::Recurrent, ModelKind::Hybrid];
pub(crate) const LAYOUTS: [KvLayout; 2] = [KvLayout::Unified, KvLayout::Split];

/// Small, and one thread: llama.cpp's threads spin, and other tests run beside this one.
pub(crate) fn config(kind: ModelKind, kv: KvLayout, n_seq_max: u32) -> ModelConfig {
    ModelConfig {
        gates: small_gates(),
        // Another number of rows may take other kernels, and those tests compare bits.
        drafts: Drafts::Off,
        context: ContextOptions {
            n_ctx: 1024,
            n_cells: Some(4096),
            n_batch: 256,
            n_ubatch: 256,
            n_seq_max,
            kv,
            threads: Some(1),
            threads_batch: Some(1),
            ..ContextOptions::default()
        },
        ..ModelConfig::new("tiny", model_path(kind))
    }
}

pub(crate) fn load(config: ModelConfig, cache: &Arc<Cache>) -> Model {
    Model::load(config, Arc::new(LlamaBackend), Arc::clone(cache)).unwrap()
}

/// A cache that saves to one tier and keeps no copies elsewhere.
pub(crate) fn cache_in(tier: Tier, folder: &Path) -> Arc<Cache> {
    let files = |name: &str| Some(FileTierConfig { folder: folder.join(name), quota: 1 << 30 });
    let config = CacheConfig {
        ram_quota: if tier == Tier::Ram { 1 << 30 } else { 0 },
        ram_file: files("ram_file").filter(|_| tier == Tier::RamFile),
        disk: files("disk").filter(|_| tier == Tier::Disk),
        ..CacheConfig::default()
    };
    Arc::new(Cache::open(config).unwrap())
}

/// A greedy request that reports the log probabilities of each token and of twenty others.
pub(crate) fn traced(tokens: &[u32], max_tokens: u32) -> Request {
    Request { logprobs: Some(20), ..greedy(tokens, max_tokens) }
}

/// Every bit that a reply shows of the logits behind it.
pub(crate) fn trace(completion: &Completion) -> Vec<(u32, u32)> {
    let all = completion.logprobs.iter().flat_map(|entry| std::iter::once(&entry.token).chain(&entry.top));
    all.map(|token| (token.id, token.logprob.to_bits())).collect()
}
