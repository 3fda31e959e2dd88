//! A look at a GGUF file before llama.cpp opens it.
//!
//! Used by every load. llama.cpp answers most damage with an error of its own, but many values end the process with a
//! failed assertion, a division by zero or an exception that nobody catches. Those are refused here, by the name of the
//! key or the tensor, and the common kinds of damage (missing, empty, truncated, not a GGUF) get a clear reason.
//!
//! `reader.rs` reads the container, `metadata.rs` holds what it found. The rules are in `sizes.rs` (the numbers that
//! shape the model), `vocabulary.rs` and `tensors.rs`; `families.rs` lists the architectures that share a rule. A rule
//! states what llama.cpp itself insists on, so that it never refuses a file which llama.cpp can use. What no rule
//! covers is found by the probe (`crates/engine/src/files/probe.rs`). Nothing here allocates more than the file has bytes.

mod families;
mod metadata;
mod reader;
mod sizes;
mod tensors;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::io::BufReader;
use std::path::Path;

use poncho_cache::files::{self, Links};

use crate::backend::LoadError;
use metadata::{Metadata, Value};
use reader::{Contents, Reader, Tensor};

/// What the engine needs to know from the header.
#[derive(Debug)]
pub(super) struct GgufFacts {
    /// `general.architecture`.
    pub(super) architecture: String,
    /// Context length at which long RoPE factors take over, if the file has both sets.
    pub(super) rope_switch_at: Option<u32>,
    /// That length, whether or not the file has the long factors.
    pub(super) rope_original_context: Option<u32>,
    /// Whether the file has the long factors; in a split model they may lie in another part.
    pub(super) has_long_rope: bool,
    /// Whether a token sees only those before it. Without that, llama.cpp takes all rows of a call at once or asserts.
    pub(super) causal: bool,
}

/// Checks that a file is a GGUF that llama.cpp can be trusted with: a model, or one part of it.
pub(super) fn check_file(path: &Path) -> Result<GgufFacts, LoadError> {
    let Contents { metadata, tensors } = read(path)?;
    let rules = sizes::check(&metadata)
        .and_then(|()| vocabulary::check(&metadata))
        .and_then(|()| tensors::check(&metadata, &tensors))
        .and_then(|()| check_types(&metadata, &[("split.no", 2), ("split.count", 2)]));
    rules.map_err(|reason| LoadError::Malformed { path: path.to_path_buf(), reason })?;
    Ok(facts(metadata, &tensors))
}

/// The facts of a file whose values were not looked at.
pub(super) fn facts_without_check(path: &Path) -> Result<GgufFacts, LoadError> {
    let Contents { metadata, tensors } = read(path)?;
    Ok(facts(metadata, &tensors))
}

fn facts(metadata: Metadata, tensors: &[Tensor]) -> GgufFacts {
    let has_long_rope = tensors.iter().any(|tensor| tensor.name.contains("rope_factors_long"));
    let original = metadata.own_number("rope.scaling.original_context_length");
    let rope_original_context = original.and_then(|length| u32::try_from(length).ok());
    GgufFacts {
        causal: metadata.own_number("attention.causal").is_none_or(|causal| causal != 0),
        architecture: metadata.architecture,
        rope_switch_at: rope_original_context.filter(|_| has_long_rope),
        rope_original_context,
        has_long_rope,
    }
}

/// Checks that a file is a GGUF that llama.cpp can be trusted with as an adapter.
pub(super) fn check_adapter(path: &Path) -> Result<(), LoadError> {
    let Contents { metadata, tensors } = read(path)?;
    // llama.cpp reads these without looking at their type.
    let typed = [("general.type", 8), ("general.architecture", 8), ("adapter.type", 8), ("adapter.lora.alpha", 6)];
    let rules = check_types(&metadata, &typed).and_then(|()| tensors::check(&metadata, &tensors));
    rules.map_err(|reason| LoadError::Malformed { path: path.to_path_buf(), reason })
}

fn read(path: &Path) -> Result<Contents, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_path_buf(), source };
    let found = std::fs::metadata(path).map_err(unreadable)?;
    if !found.is_file() {
        return Err(LoadError::NotAFile { path: path.to_path_buf() });
    }
    let file = files::open_regular(path, Links::Follow).map_err(unreadable)?;
    Reader::new(BufReader::with_capacity(1 << 16, file), path, found.len()).read()
}

/// Values that llama.cpp takes without looking at their type must have the right one.
fn check_types(metadata: &Metadata, expected: &[(&str, u32)]) -> Result<(), String> {
    for (key, kind) in expected {
        let found = match metadata.value(key) {
            None => continue,
            Some(Value::Text(_)) => 8,
            Some(Value::Number(number)) => number.kind,
            Some(Value::Numbers(_) | Value::Array) => 9,
        };
        if found != *kind {
            return Err(format!("{key} has the type {found} instead of {kind}"));
        }
    }
    Ok(())
}
