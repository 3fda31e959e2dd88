//! Rules for the types of tensors, and for what must not be said without one.
//!
//! Called by the check of a file. llama.cpp checks shapes itself and answers with an error; of types it believes that
//! the kernels can take what the file has, and they assert or read a missing function.

use llama_cpp_sys_4 as sys;
use poncho_gguf::Tensor;

use super::families::{Trait, has};
use super::metadata::Metadata;

/// All rules.
pub(super) fn check(metadata: &Metadata, tensors: &[Tensor]) -> Result<(), String> {
    let integers = has(&metadata.architecture, Trait::IntegerTables);
    for tensor in tensors {
        let Tensor { name, kind, .. } = tensor;
        let weight = name.ends_with(".weight") || name.ends_with(".bias");
        if weight && !integers && is_no_weight(*kind) {
            return Err(format!("tensor {name} has the type {kind}, which no weight can have"));
        }
        if *kind != sys::GGML_TYPE_F32 && wants_floats(tensor) {
            return Err(format!("tensor {name} has the type {kind}, and it must have 32-bit floats"));
        }
    }
    vectors(metadata, tensors)
}

/// Vectors of another length than the embeddings need a matrix that makes them so.
fn vectors(metadata: &Metadata, tensors: &[Tensor]) -> Result<(), String> {
    let name = "embedding_length_out";
    let Some(length) = metadata.own_number(name).filter(|length| *length > 0) else { return Ok(()) };
    let made = |tensor: &Tensor| tensor.name.starts_with("dense_") || tensor.name.starts_with("cls");
    let plain = metadata.own_number("embedding_length").is_none_or(|plain| plain == length);
    if plain || has(&metadata.architecture, Trait::OwnVectors) || tensors.iter().any(made) {
        return Ok(());
    }
    Err(format!("{} is {length}, and no tensor makes vectors of that length", metadata.own_key(name)))
}

/// Integers and 64-bit floats: matrices of them cannot be multiplied.
fn is_no_weight(kind: u32) -> bool {
    [sys::GGML_TYPE_I8, sys::GGML_TYPE_I16, sys::GGML_TYPE_I32, sys::GGML_TYPE_I64, sys::GGML_TYPE_F64].contains(&kind)
}

/// Tensors that are added, multiplied one by one, or convolved with 32-bit activations.
fn wants_floats(tensor: &Tensor) -> bool {
    let name = tensor.name.as_str();
    let is_vector = tensor.dimensions.iter().filter(|length| **length != 1).count() <= 1;
    let vector = is_vector && (name.ends_with("norm.weight") || name.ends_with(".bias"));
    let positions = ["rope_freqs", "rope_factors_long", "rope_factors_short"].iter().any(|part| name.contains(part));
    let convolution = name.ends_with("ssm_conv1d.weight") || name.ends_with("shortconv.conv.weight");
    let scan = name.ends_with(".ssm_a") || name.ends_with(".ssm_d");
    vector || positions || convolution || scan
}
