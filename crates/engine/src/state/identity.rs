//! The namespace of a model's rows: its files, their quantisation, its context settings and its adapters.
//!
//! Computed when a model is loaded and again when adapters change. Everything that changes the meaning of a state must be
//! in here. What changes only its last bits (the layout of the cells, batches, threads) is in the namespace of exact rows
//! and not in that of plain ones: the two commands `run` and `serve`, and two values of `--parallel`, share plain rows.

use std::collections::BTreeMap;

use poncho_cache::{
    AdapterIdentity, ContextFacts, FileStamp, Fingerprint, FingerprintMode, Namespace, QuantType,
    effective_fingerprint, identify, to_hex,
};

use crate::backend::{ContextInfo, ContextOptions, KvLayout, ModelInfo, ModelOptions};
use crate::config::FingerprintSource;
use crate::error::EngineError;
use crate::schedule::grid::Grid;

/// The layout in the hash of plain rows, whatever the context has. A row holds the keys and values of its own tokens, in
/// the order of their positions, and a restore frames them for the context at hand. So both layouts read and write the same
/// rows. The value is the one that the rows of `poncho run` always had.
const PLAIN_LAYOUT: KvLayout = KvLayout::Unified;

/// What identifies a model file, adapters left aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// Hash of the files.
    pub fingerprint: [u8; 32],
    /// How it was made.
    pub mode: FingerprintMode,
    /// The quantisation that the file states.
    pub quant: QuantType,
}

impl FileIdentity {
    /// Reads the identity of a model's files, all parts of a split one that the options name.
    ///
    /// # Errors
    /// A file is missing or cannot be read.
    pub fn of(
        options: &ModelOptions,
        source: &FingerprintSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        let load_error = |reason: String| EngineError::Load { path: options.path.clone(), reason };
        if let FingerprintSource::FastUnsafe(bytes) = source {
            // A model without a file of its own (a stub) has no quantisation to read.
            let quant = identify(&options.path)
                .ok()
                .and_then(|identity| identity.file_type)
                .map_or(QuantType::Other, QuantType::from_file_type);
            return Ok(Self { fingerprint: *bytes, mode: FingerprintMode::FastUnsafe, quant });
        }
        let parts: Vec<_> = std::iter::once(&options.path).chain(&options.split_paths).cloned().collect();
        let fingerprint = match source {
            FingerprintSource::Safe { memo_folder } => Fingerprint::safe(&parts, memo_folder.as_deref(), progress),
            FingerprintSource::GgufChunked => Fingerprint::gguf_chunked(&parts),
            FingerprintSource::Hashed { sha256, stamp: Some(stamp) }
                if FileStamp::of(&options.path).is_ok_and(|now| now == *stamp) =>
            {
                Ok(Fingerprint { bytes: *sha256, mode: FingerprintMode::Safe })
            }
            FingerprintSource::Hashed { .. } => Fingerprint::safe(&parts, None, progress),
            FingerprintSource::FastUnsafe(bytes) => Ok(Fingerprint::fast_unsafe(*bytes)),
        }
        .map_err(|error| load_error(error.to_string()))?;
        if let FingerprintSource::Hashed { sha256, .. } = source
            && *sha256 != fingerprint.bytes
        {
            let (now, then) = (to_hex(&fingerprint.bytes), to_hex(sha256));
            return Err(load_error(format!(
                "the file was changed after it was installed: its SHA-256 is {now} instead of {then}; remove the model \
                 with `poncho rm` and pull it again"
            )));
        }
        let identity = identify(&options.path).map_err(|error| load_error(error.to_string()))?;
        let quant = identity.file_type.map_or(QuantType::Other, QuantType::from_file_type);
        Ok(Self { fingerprint: fingerprint.bytes, mode: fingerprint.mode, quant })
    }

    /// The namespace of states made with these context settings and adapters.
    ///
    /// # Errors
    /// An adapter's scale is not a number.
    pub fn namespace(&self, context_hash: [u8; 32], adapters: &[AdapterIdentity]) -> Result<Namespace, EngineError> {
        let fingerprint = effective_fingerprint(&self.fingerprint, adapters)
            .map_err(|error| EngineError::Config { setting: "scale".to_owned(), reason: error.to_string() })?;
        Ok(Namespace { fingerprint, quant: self.quant, context_hash })
    }
}

/// The hash of the context settings that change what a state means.
#[must_use]
pub fn context_hash(options: &ContextOptions, context: &ContextInfo, model: &ModelInfo) -> [u8; 32] {
    hash_with(options, context, model, PLAIN_LAYOUT, BTreeMap::new())
}

/// The same for states that were computed on a grid. They share nothing with others, and everything that could change a
/// bit of them counts: the build of the library with the kernels that it takes on this machine, and the number of threads
/// that really compute, also where it was left to the default.
pub(crate) fn exact_context_hash(
    options: &ContextOptions,
    context: &ContextInfo,
    model: &ModelInfo,
    grid: Grid,
    build: &str,
) -> [u8; 32] {
    let facts = [
        ("build", build.to_owned()),
        ("grid", grid.0.to_string()),
        ("n_batch", context.n_batch.to_string()),
        ("n_ubatch", context.n_ubatch.to_string()),
        ("n_seq_max", context.n_seq_max.to_string()),
        ("n_ctx", context.n_ctx.to_string()),
        ("threads", context.n_threads.to_string()),
        ("threads_batch", context.n_threads_batch.to_string()),
    ];
    hash_with(options, context, model, context.kv, facts.map(|(name, value)| (name.to_owned(), value)).into())
}

fn hash_with(
    options: &ContextOptions,
    context: &ContextInfo,
    model: &ModelInfo,
    kv: KvLayout,
    extra: BTreeMap<String, String>,
) -> [u8; 32] {
    // Zero stands for "as the file says" in llama.cpp too; what the file says is in the fingerprint.
    let or_file = |value: Option<f32>| value.unwrap_or(0.0);
    ContextFacts {
        type_k: options.type_k as u32,
        type_v: options.type_v as u32,
        flash_attention: context.flash_attention.unwrap_or(false),
        unified: kv == KvLayout::Unified,
        rope_scaling_type: options.rope_scaling as i32,
        rope_freq_base: or_file(options.rope_freq_base),
        rope_freq_scale: or_file(options.rope_freq_scale),
        yarn_ext_factor: or_file(options.yarn_ext_factor),
        yarn_attn_factor: or_file(options.yarn_attn_factor),
        yarn_beta_fast: or_file(options.yarn_beta_fast),
        yarn_beta_slow: or_file(options.yarn_beta_slow),
        yarn_orig_ctx: options.yarn_orig_ctx.unwrap_or(0),
        swa_full: options.swa_full,
        state_format: to_hex(&context.state_layout),
        rope_switch_side: model.rope_switch_at.map(|at| context.n_ctx > at),
        extra,
    }
    .hash()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use super::*;
    use crate::backend::stub::StubBackend;
    use crate::backend::{Backend, MemoryKind};

    /// The plain and the exact hash of a context on a build.
    fn hashes(options: &ContextOptions, build: &str) -> (String, String) {
        let backend = StubBackend::new(MemoryKind::Attention).with_build(build);
        let model = backend.load_model(&ModelOptions::new("stub")).unwrap();
        let context = model.new_context(options, Arc::default()).unwrap();
        let grid = Grid(NonZeroUsize::new(128).unwrap());
        let exact = exact_context_hash(options, context.info(), model.info(), grid, &backend.build());
        (to_hex(&context_hash(options, context.info(), model.info())), to_hex(&exact))
    }

    /// Hardening 7: an upgrade of llama.cpp hit old rows, exact ones too.
    #[test]
    fn another_build_finds_plain_rows_and_no_exact_ones() {
        let options = ContextOptions::default();
        let (plain, exact) = hashes(&options, "one");
        assert_eq!((plain.clone(), exact.clone()), hashes(&options, "one"));
        let (other_plain, other_exact) = hashes(&options, "two");
        assert_eq!(plain, other_plain);
        assert_ne!(exact, other_exact);
    }

    /// Hardening 7: the default is another number of threads on another machine.
    #[test]
    fn the_threads_that_compute_count_and_not_whether_they_were_asked_for() {
        let with = |threads, threads_batch| ContextOptions { threads, threads_batch, ..ContextOptions::default() };
        let (plain, exact) = hashes(&with(None, None), "one");
        // The stub's default is one thread.
        assert_eq!(hashes(&with(Some(1), Some(1)), "one"), (plain.clone(), exact.clone()));
        for (few, many) in [(Some(2), None), (None, Some(2))] {
            let other = hashes(&with(few, many), "one");
            assert_eq!(other.0, plain);
            assert_ne!(other.1, exact);
        }
    }

    /// A folder that was written before the build was a part of anything still serves.
    #[test]
    fn plain_rows_keep_their_namespace() {
        let (plain, _) = hashes(&ContextOptions::default(), "any");
        assert_eq!(plain, "125ec6e48a82894d37e73f17b5c88fb583317b6c7ea3660d073192395cf75ca6");
    }
}
