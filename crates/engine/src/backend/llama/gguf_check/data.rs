//! Rules for where the data of the tensors lies.
//!
//! Called by the check of a file. llama.cpp insists on tensors that follow each other without gaps, of whole blocks, at an
//! alignment in 32 bits; a file that is mapped must have them at multiples of 32 bytes for the kernels.

use poncho_gguf::{Gguf, Tensor, TensorType, Value};

/// Where tensors must lie for a file that is mapped.
const MAPPED_ALIGNMENT: u64 = 32;

/// All rules. Whether the file is long enough is another question.
pub(super) fn check(header: &Gguf) -> Result<(), String> {
    let alignment = alignment(header)?;
    let mut end_of_data = 0_u64;
    let mut mappable = true;
    for tensor in &header.tensors {
        let bytes = check_tensor(tensor, end_of_data)?;
        mappable &= end_of_data.is_multiple_of(MAPPED_ALIGNMENT);
        let padded = bytes.checked_next_multiple_of(alignment);
        end_of_data = padded
            .and_then(|padded| end_of_data.checked_add(padded))
            .ok_or_else(|| "the tensors are larger than any file".to_owned())?;
    }
    mappable &= header.data_start().is_multiple_of(MAPPED_ALIGNMENT);
    if !header.tensors.is_empty() && !mappable {
        return Err(format!("general.alignment is {alignment}, and tensors do not lie at multiples of 32 bytes"));
    }
    Ok(())
}

/// llama.cpp takes the alignment as a number of 32 bits without looking at its type.
fn alignment(header: &Gguf) -> Result<u64, String> {
    match header.metadata.get("general.alignment") {
        None | Some(Value::U32(_)) => Ok(header.alignment),
        Some(other) => Err(format!(
            "general.alignment has the type {}, and it must have 32 bits without a sign",
            other.kind().number()
        )),
    }
}

/// Checks one tensor's description and returns the bytes of its data.
fn check_tensor(tensor: &Tensor, expected_offset: u64) -> Result<u64, String> {
    let Tensor { name, dimensions, kind, offset } = tensor;
    let too_large = || format!("tensor {name} is larger than any file");
    if dimensions.contains(&0) {
        return Err(format!("tensor {name} has a dimension of 0"));
    }
    let elements = dimensions.iter().try_fold(1_u64, |product, length| product.checked_mul(*length));
    let elements = elements.ok_or_else(too_large)?;
    let Some(TensorType { block, bytes, .. }) = tensor.tensor_type() else {
        return Err(format!("tensor {name} has the unknown type {kind}"));
    };
    if dimensions.first().unwrap_or(&1) % block != 0 {
        return Err(format!("a row of tensor {name} is not a whole number of blocks"));
    }
    if *offset != expected_offset {
        return Err(format!("tensor {name} is at {offset} instead of {expected_offset}"));
    }
    (elements / block).checked_mul(bytes).ok_or_else(too_large)
}
