//! How a model is loaded and served: raw settings, checked once when the model is loaded.
//!
//! Built by the server, the command line or a Rust program, read by the registry, the supervisor and the worker.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use poncho_cache::{Gates, Policy, Tier};

use crate::backend::{ContextOptions, ModelOptions};
use crate::batch::Budget;
use crate::error::EngineError;
use crate::markers::MarkerSet;
use crate::signature::SigningKey;

/// Where the identity of the model file comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FingerprintSource {
    /// Every byte of the file is hashed, once; the result is remembered beside it or in this folder.
    Safe {
        /// Where to remember it if the model's own folder cannot be written.
        memo_folder: Option<PathBuf>,
    },
    /// The metadata block and the first weight tensor are hashed.
    GgufChunked,
    /// The caller knows best.
    FastUnsafe([u8; 32]),
}

/// The most prompt tokens that one request may take in a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefillChunk {
    /// A quarter of the batch, at least 64.
    #[default]
    Default,
    /// So many.
    Tokens(NonZeroUsize),
    /// As many as fit.
    Unlimited,
}

/// Everything about one model.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// The name under which requests find it.
    pub id: String,
    /// The files and where their weights go.
    pub model: ModelOptions,
    /// The context.
    pub context: ContextOptions,
    /// The identity of the files.
    pub fingerprint: FingerprintSource,
    /// When to save.
    pub gates: Gates,
    /// Where saves go; `None` for the cache's own choice.
    pub tier: Option<Tier>,
    /// Requests that may wait for a sequence.
    pub queue_limit: usize,
    /// How prompts are sliced.
    pub prefill_chunk: PrefillChunk,
    /// Thinking and tool-call markers.
    pub markers: MarkerSet,
    /// Signs thinking blocks.
    pub signing_key: Option<SigningKey>,
    /// A tick that takes longer is aborted, and after the same time again the worker is given up.
    pub watchdog: Duration,
    /// Pause before a worker that ended is started again; doubled each time it ends again soon.
    pub restart_pause: Duration,
    /// The longest such pause.
    pub restart_pause_limit: Duration,
}

impl ModelConfig {
    /// A model with everything else at its default.
    #[must_use]
    pub fn new(id: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            id: id.into(),
            model: ModelOptions::new(path),
            context: ContextOptions::default(),
            fingerprint: FingerprintSource::Safe { memo_folder: None },
            gates: Gates::default(),
            tier: None,
            queue_limit: 64,
            prefill_chunk: PrefillChunk::Default,
            markers: MarkerSet::default(),
            signing_key: None,
            // Far above any honest tick, also of a large model on a slow machine.
            watchdog: Duration::from_secs(300),
            restart_pause: Duration::from_millis(100),
            restart_pause_limit: Duration::from_secs(10),
        }
    }

    /// The checked save gates.
    pub(crate) fn policy(&self) -> Result<Policy, EngineError> {
        Policy::new(self.gates)
            .map_err(|error| EngineError::Config { setting: "gates".to_owned(), reason: error.to_string() })
    }

    /// The checked row budget of a tick.
    pub(crate) fn budget(&self, n_batch: u32, n_seq: u32) -> Result<Budget, EngineError> {
        let n_batch = n_batch as usize;
        let chunk = match self.prefill_chunk {
            PrefillChunk::Default => Some(Budget::default_chunk(n_batch)),
            PrefillChunk::Tokens(tokens) => Some(tokens),
            PrefillChunk::Unlimited => None,
        };
        Budget::new(n_batch, chunk, n_seq as usize, None)
    }
}
