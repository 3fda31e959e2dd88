//! The settings of a served model, the progress of its load, and the files beside the cache folder.
//!
//! Used by `serve` and by commands that start a server of their own.

use std::path::{Path, PathBuf};

use poncho_api::{ChatSettings, HygieneRule, SigningKey};
use poncho_engine::backend::{ContextOptions, KvLayout};
use poncho_engine::{Drafts, Exactness, ModelConfig, Prober};
use poncho_terminal::{Progress, Unit};

use crate::settings::args::{ExactArg, ServeArgs};
use crate::settings::backend_args::BackendArgs;

/// The resources of a model, and how it is loaded.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelShape {
    /// Maximum tokens of one request.
    pub(crate) ctx_size: u32,
    /// Concurrent requests.
    pub(crate) parallel: u32,
    /// Whether they share their cells.
    pub(crate) kv: KvLayout,
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
            kv: args.kv_layout.layout(args.parallel),
            threads: args.threads,
            exactness,
            drafts: args.drafts.sources(),
            save_min_tokens: args.save_min_tokens,
            prober,
            backend: args.backend.clone(),
            queue_limit: Some(args.limits.queue()),
            signing_key: args.signing_key.as_deref().and_then(|secret| SigningKey::new(secret.as_bytes())),
        }
    }

    /// The configuration of a model with this name.
    pub(crate) fn config(&self, model: &Path, id: &str) -> ModelConfig {
        let mut context = ContextOptions {
            n_ctx: self.ctx_size,
            n_seq_max: self.parallel,
            // Each request may use all of its context, however many others run.
            n_cells: Some(self.ctx_size.saturating_mul(self.parallel)),
            kv: self.kv,
            threads: self.threads,
            ..ContextOptions::default()
        };
        self.backend.set_context(&mut context);
        let (exactness, drafts) = (self.exactness, self.drafts);
        let mut config = ModelConfig { context, exactness, drafts, ..ModelConfig::new(id, model) };
        self.backend.set_model(&mut config.model);
        config.queue_limit = self.queue_limit.unwrap_or(config.queue_limit);
        config.signing_key.clone_from(&self.signing_key);
        config.prober.clone_from(&self.prober);
        if let Some(tokens) = self.save_min_tokens {
            config.gates.min_tokens = tokens;
            config.gates.cold_min_tokens = tokens;
        }
        config
    }
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
