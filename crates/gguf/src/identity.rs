//! The few facts of a file that the cache's identity of a model is made of.
//!
//! Read by the cache's fingerprints and by the engine before a model is loaded. The ranges decide which bytes are
//! hashed, and the hash is part of every stored key: they must never change for a file that was accepted before.

use std::io::{Read, Seek};
use std::ops::Range;

use crate::error::GgufError;
use crate::header::{Gguf, unusable};
use crate::limits::MAX_ARCHITECTURE_BYTES;
use crate::metadata::Keep;

/// The facts of one GGUF file (one part of a split model).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufIdentity {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `general.file_type`, to be read by `QuantType::from_file_type`.
    pub file_type: Option<u32>,
    /// `split.count`: how many parts the model has.
    pub split_count: Option<u32>,
    /// `split.no`: which part this is, from 0.
    pub split_no: Option<u32>,
    /// `general.alignment` of the tensors' data, or the format's default.
    pub alignment: u64,
    /// Length of header, keys and tensor descriptions, without the padding after them.
    pub metadata_bytes: u64,
    /// How many tensors the file holds; the first part of a split model may hold none.
    pub tensor_count: u64,
    /// Where in the file the first tensor's data lie, up to the next tensor or the end of the file.
    pub first_tensor: Option<Range<u64>>,
}

impl GgufIdentity {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file is not a readable GGUF file, or a key that identity needs has an impossible value.
    pub fn read(reader: impl Read + Seek) -> Result<Self, GgufError> {
        Self::of(&Gguf::read(reader, &Keep::FACTS)?)
    }

    fn of(header: &Gguf) -> Result<Self, GgufError> {
        Ok(Self {
            version: header.version,
            architecture: architecture(header)?,
            file_type: small_integer(header, "general.file_type")?,
            split_count: small_integer(header, "split.count")?,
            split_no: small_integer(header, "split.no")?,
            alignment: header.alignment,
            metadata_bytes: header.header_bytes,
            tensor_count: u64::try_from(header.tensors.len()).unwrap_or(u64::MAX),
            first_tensor: first_tensor(header)?,
        })
    }
}

fn architecture(header: &Gguf) -> Result<Option<String>, GgufError> {
    const KEY: &str = "general.architecture";
    let Some(value) = header.metadata.get(KEY) else { return Ok(None) };
    let text = value.as_text().and_then(|text| text.as_str()).filter(|text| text.len() <= MAX_ARCHITECTURE_BYTES);
    let damaged = || GgufError::Damaged { offset: header.header_bytes, damage: unusable(KEY, value) };
    text.map(|text| Some(text.to_owned())).ok_or_else(damaged)
}

fn small_integer(header: &Gguf, key: &'static str) -> Result<Option<u32>, GgufError> {
    let Some(value) = header.metadata.get(key) else { return Ok(None) };
    let number = value.as_unsigned().and_then(|number| u32::try_from(number).ok());
    let damaged = || GgufError::Damaged { offset: header.header_bytes, damage: unusable(key, value) };
    number.map(Some).ok_or_else(damaged)
}

fn first_tensor(header: &Gguf) -> Result<Option<Range<u64>>, GgufError> {
    let offsets = || header.tensors.iter().map(|tensor| tensor.offset);
    let Some(lowest) = offsets().min() else { return Ok(None) };
    let next = offsets().filter(|offset| *offset > lowest).min();
    let place = |offset: u64| header.data_start().saturating_add(offset);
    let (start, end) = (place(lowest), next.map_or(header.file_bytes, place));
    if start <= end && end <= header.file_bytes {
        return Ok(Some(start..end));
    }
    Err(GgufError::CutShort { needed: start.max(end), bytes: header.file_bytes })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::error::Damage;
    use crate::sample::{Sample, tensor};
    use crate::value::Value;

    /// A small file and the length of its header.
    fn sample() -> (Vec<u8>, u64) {
        let mut sample = Sample::default();
        sample.set("general.architecture", Value::Text("llama".into()));
        sample.set("general.file_type", Value::U32(15));
        sample.set("split.count", Value::U16(3));
        sample.set("split.no", Value::I32(1));
        sample.set("general.alignment", Value::U32(64));
        sample.tensors = [("c", 128), ("a", 64), ("b", 64)].map(|(name, at)| tensor(name, &[8], 0, at)).into();
        (sample.to_bytes(192), sample.header().len() as u64)
    }

    fn read(file: &[u8]) -> Result<GgufIdentity, GgufError> {
        GgufIdentity::read(Cursor::new(file))
    }

    #[test]
    fn facts_are_found_among_the_rest() {
        let (file, metadata_bytes) = sample();
        let data = metadata_bytes.next_multiple_of(64);
        let expected = GgufIdentity {
            version: 3,
            architecture: Some("llama".to_owned()),
            file_type: Some(15),
            split_count: Some(3),
            split_no: Some(1),
            alignment: 64,
            metadata_bytes,
            tensor_count: 3,
            first_tensor: Some(data + 64..data + 128),
        };
        assert_eq!(read(&file).unwrap(), expected);
    }

    #[test]
    fn a_single_tensor_ends_with_the_file_and_none_is_no_error() {
        let mut sample = Sample::default();
        assert_eq!(read(&sample.to_bytes(0)).unwrap().first_tensor, None);
        sample.tensors = vec![tensor("only", &[8], 0, 0)];
        let data = sample.header().len().next_multiple_of(32) as u64;
        assert_eq!(read(&sample.to_bytes(100)).unwrap().first_tensor, Some(data..data + 100));
    }

    #[test]
    fn a_cut_is_reported_until_the_first_tensor_is_whole() {
        let (file, metadata) = sample();
        for length in 4..file.len() {
            let result = read(&file[..length]);
            let cut_off = (length as u64) < metadata.next_multiple_of(64) + 128;
            assert_eq!(matches!(result, Err(GgufError::CutShort { .. })), cut_off, "cut at {length}: {result:?}");
        }
    }

    #[test]
    fn keys_that_identity_needs_must_be_usable() {
        let long = "x".repeat(257);
        for (key, value) in [
            ("general.alignment", Value::U32(3)),
            ("general.alignment", Value::U64(1 << 32)),
            ("general.alignment", Value::Text("32".into())),
            ("split.no", Value::I64(-1)),
            ("split.count", Value::F32(0.0)),
            ("general.file_type", Value::U64(u64::MAX)),
            ("general.architecture", Value::U32(1)),
            ("general.architecture", Value::Text(vec![0xff].into())),
            ("general.architecture", Value::Text(long.as_str().into())),
        ] {
            let mut sample = Sample::default();
            sample.set(key, value);
            let error = read(&sample.to_bytes(0)).unwrap_err();
            let GgufError::Damaged { damage: Damage::UnusableValue { key: named, .. }, .. } = &error else {
                panic!("{key}: {error}");
            };
            assert_eq!(*named, key);
        }
    }
}
