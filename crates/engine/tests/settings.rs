//! Which settings share rows: every pair of settings that leave the meaning of a state as it is, and none of the others.
//!
//! The lists and the walk over them are shared with the tests on real llama.cpp (`llama/settings.rs`); here they run on the
//! stub, for every kind of memory.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use poncho_cache::{Cache, HitKind};
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::backend::{FlashAttention, KvLayout, KvType, MemoryKind, RopeScaling};
use poncho_engine::{Completion, Exactness, Model, ModelConfig, PrefillChunk, Request, RestoreRule};

use crate::support::{greedy, memory_cache, prompt, stub_config};

/// A setting: its name, and what it does to a configuration.
pub(crate) type Setting = (&'static str, fn(&mut ModelConfig));

/// Settings that a user may change without changing what a state means: the rows of each must serve all the others.
pub(crate) const SHARED: [Setting; 20] = [
    ("as `poncho run` has it", |config| layout(config, KvLayout::Unified, 1)),
    ("as `poncho serve` has it", |config| layout(config, KvLayout::Split, 4)),
    ("--parallel 1 --kv-layout split", |config| layout(config, KvLayout::Split, 1)),
    ("--parallel 2", |config| layout(config, KvLayout::Split, 2)),
    ("--parallel 3 --kv-layout unified", |config| layout(config, KvLayout::Unified, 3)),
    ("a larger --ctx-size", |config| size(config, 2048)),
    ("a smaller --ctx-size", |config| size(config, 320)),
    ("a larger --ctx-size for several requests", |config| {
        layout(config, KvLayout::Split, 3);
        size(config, 1536);
    }),
    ("--batch-size", |config| (config.context.n_batch, config.context.n_ubatch) = (64, 64)),
    ("--ubatch-size", |config| config.context.n_ubatch = 32),
    ("--threads", |config| config.context.threads = Some(2)),
    ("--threads-batch", |config| config.context.threads_batch = Some(2)),
    ("--poll", |config| config.context.poll = 50),
    ("--no-mmap", |config| config.model.mmap = false),
    ("--check-tensors", |config| config.model.check_tensors = true),
    ("--gpu-layers 0 --no-kv-offload", |config| {
        (config.model.gpu_layers, config.context.offload_kqv) = (Some(0), false);
    }),
    ("--save-min-tokens", |config| (config.gates.min_tokens, config.gates.cold_min_tokens) = (8, 8)),
    ("another slice of prompts", |config| {
        config.prefill_chunk = PrefillChunk::Tokens(NonZeroUsize::new(40).unwrap());
    }),
    // Not the number of partial states: it changes which states are kept.
    ("another queue and other chains", |config| (config.queue_limit, config.chain_limit) = (3, 2)),
    ("another name", |config| config.id.push_str("-2")),
];

/// Settings that change the numbers of a state, or what they mean: no row of one may serve another.
pub(crate) const APART: [Setting; 15] = [
    ("none", |_| {}),
    ("--cache-type-k", |config| config.context.type_k = KvType::F32),
    ("--cache-type-v", |config| config.context.type_v = KvType::F32),
    ("both types", |config| (config.context.type_k, config.context.type_v) = (KvType::Bf16, KvType::Bf16)),
    ("--swa-full", |config| config.context.swa_full = true),
    ("--rope-scaling", |config| config.context.rope_scaling = RopeScaling::Linear),
    ("--rope-freq-base", |config| config.context.rope_freq_base = Some(20_000.0)),
    ("--rope-freq-scale", |config| config.context.rope_freq_scale = Some(0.5)),
    ("--yarn-ext-factor", |config| config.context.yarn_ext_factor = Some(1.0)),
    ("--yarn-attn-factor", |config| config.context.yarn_attn_factor = Some(2.0)),
    ("--yarn-beta-fast", |config| config.context.yarn_beta_fast = Some(16.0)),
    ("--yarn-beta-slow", |config| config.context.yarn_beta_slow = Some(2.0)),
    ("--yarn-orig-ctx", |config| config.context.yarn_orig_ctx = Some(512)),
    ("--flash-attn", |config| config.context.flash_attention = FlashAttention::Off),
    ("--exact", |config| {
        (config.exactness, config.exact_grid) = (Exactness::Always, NonZeroUsize::new(64).unwrap());
    }),
];

fn layout(config: &mut ModelConfig, kv: KvLayout, sequences: u32) {
    let context = &mut config.context;
    (context.kv, context.n_seq_max, context.n_cells) = (kv, sequences, Some(context.n_ctx * sequences));
}

fn size(config: &mut ModelConfig, n_ctx: u32) {
    let context = &mut config.context;
    (context.n_ctx, context.n_cells) = (n_ctx, Some(n_ctx * context.n_seq_max));
}

/// What a setting wrote, and how its own live sequence goes on from there.
pub(crate) struct Written {
    pub(crate) by: &'static str,
    /// The tokens of the row that was saved last.
    pub(crate) tokens: Vec<u32>,
    pub(crate) live: Completion,
}

/// Tokens that are generated after a row.
pub(crate) const AFTER: u32 = 6;

/// A reply with the log probabilities of each token and of five others.
fn traced(tokens: &[u32], max_tokens: u32) -> Request {
    Request { logprobs: Some(5), ..greedy(tokens, max_tokens) }
}

/// Each setting writes a prompt of its own into the cache that all of them share.
pub(crate) fn write_all<'a>(
    settings: &'a [Setting],
    base: &ModelConfig,
    load: impl Fn(ModelConfig) -> Model,
    cache: &Cache,
) -> Vec<(Model, Written)> {
    let write = |(number, (by, change)): (u32, &'a Setting)| {
        // A restore must not depend on which of the two was measured to be faster.
        let mut config = ModelConfig { restore_rule: RestoreRule::Always, ..base.clone() };
        change(&mut config);
        let model = load(config);
        let first = model.complete(traced(&prompt(number, 200), 4)).unwrap();
        let tokens = first.context_tokens[..first.committed_tokens].to_vec();
        let live = model.complete(traced(&tokens, AFTER)).unwrap();
        (model, Written { by, tokens, live })
    };
    let written = (1..).zip(settings).map(write).collect();
    cache.flush();
    written
}

/// Every setting reads what every other one wrote, and `compare` sees the writer, the reader and the reply.
pub(crate) fn each_pair_shares_rows(written: &[(Model, Written)], compare: impl Fn(&Written, &Written, &Completion)) {
    for (model, reader) in written {
        for (_, writer) in written.iter().filter(|(_, writer)| writer.by != reader.by) {
            let what = format!("written with {}, read with {}", writer.by, reader.by);
            let reply = model.complete(traced(&writer.tokens, AFTER)).unwrap();
            // The logits after the last token may be gone from memory, or joined away: then that token is computed.
            let known = writer.tokens.len();
            let is_found = match reply.hit {
                HitKind::Exact => reply.cached_tokens == known,
                _ => reply.cached_tokens + 1 == known,
            };
            assert!(is_found, "{what}: {:?}, {} of {known}", reply.hit, reply.cached_tokens);
            compare(writer, reader, &reply);
        }
    }
}

/// No setting reads what another one wrote, and the namespaces of their plain rows differ.
pub(crate) fn no_pair_shares_rows(written: &[(Model, Written)]) {
    let mut hashes: BTreeMap<[u8; 32], &str> = BTreeMap::new();
    for (model, reader) in written {
        let exact = model.config().exactness != Exactness::Off;
        if !exact {
            let before = hashes.insert(model.namespace().context_hash, reader.by);
            assert_eq!(before, None, "{} has the namespace of another setting", reader.by);
        }
        for (_, writer) in written.iter().filter(|(_, writer)| writer.by != reader.by) {
            let request = Request { exact, ..traced(&writer.tokens, 1) };
            let reply = model.complete(request).unwrap();
            let what = format!("written with {}, read with {}", writer.by, reader.by);
            assert_eq!((reply.hit, reply.cached_tokens), (HitKind::Cold, 0), "{what}");
        }
    }
}

const KINDS: [MemoryKind; 4] =
    [MemoryKind::Attention, MemoryKind::Window { size: 32 }, MemoryKind::Recurrent, MemoryKind::Hybrid];

fn stub(kind: MemoryKind, cache: &Arc<Cache>) -> impl Fn(ModelConfig) -> Model {
    let (backend, cache) = (Arc::new(StubBackend::new(kind)), Arc::clone(cache));
    move |config| Model::load(config, Arc::<StubBackend>::clone(&backend), Arc::clone(&cache)).unwrap()
}

/// Everyday use 2: `run` and `serve` did not find each other's rows, nor did two values of `--parallel`.
#[test]
fn rows_serve_every_setting_that_leaves_the_numbers_as_they_are() {
    for kind in KINDS {
        let cache = memory_cache();
        let written = write_all(&SHARED, &stub_config("stub"), stub(kind, &cache), &cache);
        each_pair_shares_rows(&written, |writer, reader, reply| {
            let what = format!("{kind:?}, written with {}, read with {}", writer.by, reader.by);
            assert_eq!(reply.generated, writer.live.generated, "{what}");
        });
    }
}

#[test]
fn rows_never_serve_a_setting_that_changes_the_numbers() {
    for kind in KINDS {
        let cache = memory_cache();
        let mut written = write_all(&APART, &stub_config("stub"), stub(kind, &cache), &cache);
        // A recurrent model has no values that lie otherwise without flash attention.
        if kind == MemoryKind::Recurrent {
            written.retain(|(_, written)| written.by != "--flash-attn");
        }
        no_pair_shares_rows(&written);
    }
}

/// The same request before and after an adapter was attached.
#[test]
fn rows_never_serve_a_model_with_another_adapter() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "an adapter").unwrap();
    for kind in KINDS {
        let cache = memory_cache();
        let load = stub(kind, &cache);
        let request = || traced(&prompt(1, 200), 4);
        let written = load(stub_config("stub")).complete(request()).unwrap();
        assert_eq!(written.hit, HitKind::Cold);
        let model = load(stub_config("stub"));
        let adapter = model.load_adapter(file.path()).unwrap();
        for scale in [1.0, 0.5] {
            model.set_adapter_scale(adapter, scale).unwrap();
            let reply = model.complete(request()).unwrap();
            assert_eq!((reply.hit, reply.cached_tokens), (HitKind::Cold, 0), "{kind:?} at {scale}");
        }
    }
}
