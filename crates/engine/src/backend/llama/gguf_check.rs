//! A look at a GGUF file before llama.cpp opens it.
//!
//! Used by every load. llama.cpp answers most damage with an error of its own, but many values end the process with a
//! failed assertion, a division by zero or an exception that nobody catches. Those are refused here, by the name of the
//! key or the tensor, and the common kinds of damage (missing, empty, truncated, not a GGUF) get a clear reason.
//!
//! `poncho-gguf` reads the container, `metadata.rs` asks it for the values. The rules are in `sizes.rs` (the numbers that
//! shape the model), `vocabulary.rs`, `tensors.rs` and `data.rs` (where the tensors lie); `families.rs` lists the
//! architectures that share a rule. A rule states what llama.cpp itself insists on, so that it never refuses a file which
//! llama.cpp can use. What no rule covers is found by the probe (`crates/engine/src/files/probe.rs`). The limits of `poncho-gguf`
//! bound memory and work.

mod data;
mod families;
mod metadata;
mod sizes;
mod tensors;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::path::Path;

use poncho_gguf::limits::MAX_TEXT_BYTES;
use poncho_gguf::{Gguf, GgufError, Keep, Kind, Tensor};

use crate::backend::LoadError;
use metadata::Metadata;

/// All texts; arrays with a number for each layer, and the vocabulary. llama.cpp has no array for layers that is longer.
const KEEP: Keep<'static> = Keep { text: MAX_TEXT_BYTES, array: 4096, whole: &[metadata::TOKENS] };

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
    /// Rows of the table in which positions are looked up; `None` if they are computed. llama.cpp asserts on a position
    /// behind the table.
    pub(super) position_rows: Option<u64>,
}

/// Checks that a file is a GGUF that llama.cpp can be trusted with: a model, or one part of it.
pub(super) fn check_file(path: &Path) -> Result<GgufFacts, LoadError> {
    let Contents { metadata, tensors } = Contents::read(path)?;
    let rules = sizes::check(&metadata)
        .and_then(|()| vocabulary::check(&metadata))
        .and_then(|()| tensors::check(&metadata, &tensors))
        .and_then(|()| check_kinds(&metadata, &[("split.no", Kind::U16), ("split.count", Kind::U16)]));
    rules.map_err(|reason| malformed(path, reason))?;
    Ok(facts(metadata, &tensors))
}

/// The facts of a file, without a check of its values.
pub(super) fn facts_without_check(path: &Path) -> Result<GgufFacts, LoadError> {
    let Contents { metadata, tensors } = Contents::read(path)?;
    Ok(GgufFacts { position_rows: None, ..facts(metadata, &tensors) })
}

fn facts(metadata: Metadata, tensors: &[Tensor]) -> GgufFacts {
    let has_long_rope = tensors.iter().any(|tensor| tensor.name.contains("rope_factors_long"));
    let original = metadata.own_number("rope.scaling.original_context_length");
    let rope_original_context = original.and_then(|length| u32::try_from(length).ok());
    let table = tensors.iter().find(|tensor| tensor.name == "position_embd.weight");
    GgufFacts {
        position_rows: table.and_then(|table| table.dimensions.get(1).copied()),
        causal: metadata.own_number("attention.causal").is_none_or(|causal| causal != 0),
        architecture: metadata.architecture,
        rope_switch_at: rope_original_context.filter(|_| has_long_rope),
        rope_original_context,
        has_long_rope,
    }
}

/// Checks that a file is a GGUF that llama.cpp can be trusted with as an adapter.
pub(super) fn check_adapter(path: &Path) -> Result<(), LoadError> {
    let Contents { metadata, tensors } = Contents::read(path)?;
    // llama.cpp reads these without looking at their type.
    let expected = [
        ("general.type", Kind::Text),
        ("general.architecture", Kind::Text),
        ("adapter.type", Kind::Text),
        ("adapter.lora.alpha", Kind::F32),
    ];
    let rules = check_kinds(&metadata, &expected).and_then(|()| tensors::check(&metadata, &tensors));
    rules.map_err(|reason| malformed(path, reason))
}

/// A header in a container that llama.cpp can read.
struct Contents {
    metadata: Metadata,
    tensors: Vec<Tensor>,
}

impl Contents {
    fn read(path: &Path) -> Result<Self, LoadError> {
        let found = std::fs::metadata(path).map_err(|source| refused(path, source.into()))?;
        if !found.is_file() {
            return Err(LoadError::NotAFile { path: path.to_path_buf() });
        }
        let header = Gguf::open(path, &KEEP).map_err(|error| refused(path, error))?;
        data::check(&header).map_err(|reason| malformed(path, reason))?;
        header.check_complete().map_err(|error| refused(path, error))?;
        let metadata = Metadata::new(header.metadata).map_err(|reason| malformed(path, reason))?;
        Ok(Self { metadata, tensors: header.tensors })
    }
}

fn malformed(path: &Path, reason: String) -> LoadError {
    LoadError::Malformed { path: path.to_path_buf(), reason }
}

fn refused(path: &Path, error: GgufError) -> LoadError {
    let path = path.to_path_buf();
    match error {
        GgufError::NotGguf(other) => LoadError::NotGguf { path, reason: format!("it is {other}") },
        GgufError::Version { version } => {
            LoadError::NotGguf { path, reason: format!("its version is {version}, and 2 and 3 are known") }
        }
        GgufError::BigEndian => LoadError::NotGguf { path, reason: "it is a big-endian GGUF file".to_owned() },
        GgufError::CutShort { needed, bytes } => LoadError::Truncated { path, expected: needed, actual: bytes },
        GgufError::Damaged { damage, .. } => LoadError::Malformed { path, reason: damage.to_string() },
        GgufError::Io(source) => LoadError::Unreadable { path, source },
    }
}

/// Values that llama.cpp takes without looking at their type must have the right one.
fn check_kinds(metadata: &Metadata, expected: &[(&str, Kind)]) -> Result<(), String> {
    for (key, kind) in expected {
        let Some(found) = metadata.value(key).map(poncho_gguf::Value::kind) else { continue };
        if found != *kind {
            return Err(format!("{key} has the type {} instead of {}", found.number(), kind.number()));
        }
    }
    Ok(())
}
