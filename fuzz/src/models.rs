//! Tiny real models for the targets that reach llama.cpp: loaded once, used by every input.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{
    Backend, Batch, BatchRow, Context, ContextOptions, DecodeOutcome, MemoryKind, Model, ModelOptions,
};
use poncho_engine::{FingerprintSource, ModelConfig};
use poncho_testkit::{ModelKind, model_path};

/// The tiny model of a kind.
///
/// # Panics
/// If it cannot be loaded; there is nothing to fuzz then.
#[must_use]
pub fn tiny(kind: ModelKind) -> Arc<dyn Model> {
    match LlamaBackend.load_model(&ModelOptions::new(model_path(kind))) {
        Ok(model) => model,
        Err(error) => panic!("the tiny {} model does not load: {error}", kind.name()),
    }
}

/// A model behind the engine's own checks, as the server has it.
///
/// # Panics
/// If it cannot be loaded.
#[must_use]
pub fn served(path: &Path) -> poncho_engine::Model {
    let load = || {
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20))?);
        let fingerprint = FingerprintSource::FastUnsafe([1; 32]);
        let config = ModelConfig { fingerprint, context: small_options(), ..ModelConfig::new("fuzz", path) };
        Ok::<_, Box<dyn std::error::Error>>(poncho_engine::Model::load(config, Arc::new(LlamaBackend), cache)?)
    };
    match load() {
        Ok(model) => model,
        Err(error) => panic!("{} does not load: {error}", path.display()),
    }
}

/// A small context on one thread.
#[must_use]
pub fn small_options() -> ContextOptions {
    ContextOptions {
        n_ctx: 256,
        n_batch: 64,
        n_ubatch: 64,
        n_seq_max: 2,
        threads: Some(1),
        threads_batch: Some(1),
        ..ContextOptions::default()
    }
}

/// A context and the packed state of a sequence of [`Restorable::TOKENS`] tokens in it.
pub struct Restorable {
    /// Where states are put back.
    pub context: Box<dyn Context>,
    /// The attention segments, in order.
    pub segments: Vec<Vec<u8>>,
    /// The partial state, for the kinds that have one.
    pub partial: Option<Vec<u8>>,
}

impl Restorable {
    /// Tokens of the packed state.
    pub const TOKENS: u32 = 24;

    /// A context of the tiny model of a kind, with a state that can be restored.
    ///
    /// # Panics
    /// If a sound model cannot do it.
    #[must_use]
    pub fn new(kind: ModelKind, options: &ContextOptions) -> Self {
        let model = tiny(kind);
        let abort = Arc::new(AtomicBool::new(false));
        let mut context = match model.new_context(options, abort) {
            Ok(context) => context,
            Err(error) => panic!("no context of the tiny {} model: {error}", kind.name()),
        };
        assert_eq!(read(context.as_mut(), 0, 0..Self::TOKENS), DecodeOutcome::Done);
        let memory = context.info().memory;
        let mut segments = Vec::new();
        if memory.has_segments() {
            for range in [0..Self::TOKENS / 2, Self::TOKENS / 2..Self::TOKENS] {
                let size = or_stop(context.pack_size(0, range.clone()));
                let mut bytes = vec![0; size];
                let written = or_stop(context.pack_range(0, range, &mut bytes));
                bytes.truncate(written);
                segments.push(bytes);
            }
        }
        let partial = memory.has_partial().then(|| partial_of(context.as_mut()));
        Self { context, segments, partial }
    }

    /// The memory kind as the context has it.
    #[must_use]
    pub fn memory(&self) -> MemoryKind {
        self.context.info().memory
    }
}

fn partial_of(context: &mut dyn Context) -> Vec<u8> {
    use poncho_engine::backend::StatePart;
    let mut bytes = vec![0; or_stop(context.state_size(0, StatePart::Partial))];
    let written = or_stop(context.state_read(0, StatePart::Partial, &mut bytes));
    bytes.truncate(written);
    bytes
}

fn or_stop<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("a sound state cannot be packed: {error}"),
    }
}

/// Reads tokens at these positions of a sequence.
pub fn read(context: &mut dyn Context, seq: u32, positions: std::ops::Range<u32>) -> DecodeOutcome {
    let last = positions.end.saturating_sub(1);
    let row = |pos| BatchRow { token: 65 + pos % 26, pos, seq, want_logits: pos == last };
    context.decode(&Batch { rows: positions.map(row).collect() })
}
