//! The settings of a served model, the progress of its load, and the files beside the cache folder.
//!
//! Used by `serve` and by commands that start a server of their own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use poncho_api::{ChatSettings, HygieneRule, Reasoning, SigningKey};
use poncho_engine::backend::{ContextOptions, FlashAttention, KvLayout};
use poncho_engine::fit::{Choice, Given};
use poncho_engine::{Drafts, Exactness, ModelConfig, Prober};
use poncho_server::LoadingParameters;
use poncho_terminal::{Progress, Unit};

use crate::settings::args::{ExactArg, ServeArgs};
use crate::settings::backend_args::BackendArgs;

/// The resources of a model, and how it is loaded.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelShape {
    /// Maximum tokens of one request; `None` for what fits.
    pub(crate) ctx_size: Option<u32>,
    /// Concurrent requests; `None` for what fits.
    pub(crate) parallel: Option<u32>,
    /// Whether they share their cells; `None` for the usual layout.
    pub(crate) kv: Option<KvLayout>,
    /// Compute threads; `None` for the physical cores.
    pub(crate) threads: Option<u32>,
    /// Whether replies are exact.
    pub(crate) exactness: Exactness,
    /// Which tokens replies are guessed from.
    pub(crate) drafts: Drafts,
    /// The shortest state that is saved; `None` for the engine's own gate.
    pub(crate) save_min_tokens: Option<u32>,
    /// Tries models before they are loaded.
    pub(crate) prober: Option<Prober>,
    /// llama.cpp's own options.
    pub(crate) backend: BackendArgs,
    /// Whether and how long it thinks.
    pub(crate) reasoning: Reasoning,
    /// Requests that may wait for their turn; `None` for the engine's default.
    pub(crate) queue_limit: Option<usize>,
    /// Signs thinking.
    pub(crate) signing_key: Option<SigningKey>,
}

impl ModelShape {
    /// The shape that the settings of a server describe.
    pub(crate) fn of(args: &ServeArgs, prober: Option<Prober>) -> Self {
        let exactness = match args.exact {
            None => Exactness::Off,
            Some(ExactArg::Always) => Exactness::Always,
            Some(ExactArg::Request) => Exactness::OnRequest,
        };
        Self {
            ctx_size: args.ctx_size,
            parallel: args.parallel,
            kv: args.kv_layout.asked(),
            threads: args.threads,
            exactness,
            drafts: args.drafts.sources(),
            save_min_tokens: args.save_min_tokens,
            prober,
            backend: args.backend.clone(),
            reasoning: args.thinking.reasoning(),
            queue_limit: Some(args.limits.queue()),
            signing_key: args.signing_key.as_deref().and_then(|secret| SigningKey::new(secret.as_bytes())),
        }
    }

    /// The values that the planner must keep. Those of a Modelfile stand over those of the server.
    pub(crate) fn given(&self, loading: &LoadingParameters) -> Given {
        let BackendArgs { cache_type_k, cache_type_v, flash_attn, .. } = &self.backend;
        let mut config = self.unplanned(Path::new(""));
        loading.set(&mut config);
        let ModelConfig { model, context, .. } = config;
        Given {
            n_ctx: loading.n_ctx.or(self.ctx_size),
            parallel: self.parallel,
            type_k: cache_type_k.map(|_| context.type_k),
            type_v: cache_type_v.map(|_| context.type_v),
            n_cpu_moe: self.backend.experts_on_cpu(),
            gpu_layers: loading.gpu_layers.or(self.backend.layers()),
            // Exact replies are computed without it.
            no_quantised_kv: context.flash_attention == FlashAttention::Off
                || (self.exactness != Exactness::Off && flash_attn.is_none()),
            held_weights: !model.mmap || model.mlock,
        }
    }

    /// The configuration of a model before it is planned.
    pub(crate) fn unplanned(&self, model: &Path) -> ModelConfig {
        let mut context = ContextOptions { threads: self.threads, ..ContextOptions::default() };
        self.backend.set_context(&mut context);
        let (exactness, drafts) = (self.exactness, self.drafts);
        let mut config = ModelConfig { context, exactness, drafts, ..ModelConfig::new("unplanned", model) };
        self.backend.set_model(&mut config.model);
        config
    }

    /// The configuration of a model with this name.
    pub(crate) fn config(&self, model: &Path, id: &str, choice: &Choice) -> ModelConfig {
        let mut config = ModelConfig { id: id.to_owned(), ..self.unplanned(model) };
        config.context.kv = self.kv.unwrap_or_else(|| KvLayout::usual(choice.parallel));
        choice.set(&mut config);
        config.queue_limit = self.queue_limit.unwrap_or(config.queue_limit);
        config.signing_key.clone_from(&self.signing_key);
        config.prober.clone_from(&self.prober);
        config.reasoning = self.reasoning;
        if let Some(tokens) = self.save_min_tokens {
            config.gates.min_tokens = tokens;
            config.gates.cold_min_tokens = tokens;
        }
        config
    }
}

/// The shapes of models that have settings of their own, by name.
pub(crate) fn shapes(models: &[(String, ServeArgs)], prober: Option<&Prober>) -> BTreeMap<String, ModelShape> {
    models.iter().map(|(name, args)| (name.clone(), ModelShape::of(args, prober.cloned()))).collect()
}

/// How a server with these settings processes conversations.
pub(crate) fn chat_settings(args: &ServeArgs, replay_file: Option<PathBuf>) -> ChatSettings {
    ChatSettings {
        hygiene: if args.no_hygiene { Vec::new() } else { HygieneRule::ALL.to_vec() },
        replay: args.replay.scope(),
        replay_file,
    }
}

/// Shows how much of a model file is fingerprinted while it is loaded.
pub(crate) fn show_fingerprint(progress: &Progress) -> impl FnMut(u64, u64) {
    let mut begun = false;
    move |done, total| {
        if !std::mem::replace(&mut begun, true) {
            progress.begin("fingerprinting the model", Unit::Bytes, Some(total));
        }
        progress.set(done);
        if done == total {
            progress.begin("loading the model", Unit::Nothing, None);
        }
    }
}

/// Beside the cache folder, under its name: every file inside the folder belongs to the cache.
pub(crate) fn replay_file(folder: &Path) -> PathBuf {
    beside(folder, ".replay")
}

/// Hashes of requests that ask for cache diagnostics.
pub(crate) fn records_file(folder: &Path) -> PathBuf {
    beside(folder, ".requests")
}

/// The folder's path with an ending.
pub(crate) fn beside(folder: &Path, ending: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
