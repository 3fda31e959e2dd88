//! What a GGUF file says about itself: the few metadata fields that the cache's identity needs.
//!
//! Called by `fingerprint` and by the engine before a model is loaded; `metadata` reads all fields, for people. The file
//! may be anything at all; the cursor in `fields` guards every length read from it. It must never panic, never read past
//! the metadata block and never keep more than the few fields below.

mod fields;
mod metadata;

use std::io::BufRead;
use std::ops::Range;

pub use fields::GgufError;
use fields::{Fields, STRING};
pub use metadata::{GgufValue, gguf_metadata};

/// More keys than any real model has (about a hundred), few enough to be read in no time.
const MAX_KEYS: u64 = 65_536;
/// The format's own bound on a key's length.
const MAX_KEY_BYTES: u64 = 65_535;
/// Architecture names are a word; this is the only string that is kept.
const MAX_ARCHITECTURE_BYTES: u64 = 256;
/// What the format prescribes where `general.alignment` is absent.
const DEFAULT_ALIGNMENT: u64 = 32;

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

/// What stands before the first key.
struct Header {
    version: u32,
    tensor_count: u64,
    key_count: u64,
}

fn read_header(fields: &mut Fields<impl BufRead>) -> Result<Header, GgufError> {
    let magic = fields.take::<4>("magic")?;
    if &magic != b"GGUF" {
        return Err(GgufError::WrongMagic { got: magic });
    }
    let version = fields.u32("version")?;
    if !(2..=3).contains(&version) {
        return Err(GgufError::UnsupportedVersion { got: version });
    }
    let tensor_count = fields.u64("tensor count")?;
    let key_count = fields.u64("key count")?;
    if key_count > MAX_KEYS {
        return Err(GgufError::TooManyKeys { count: key_count, limit: MAX_KEYS });
    }
    Ok(Header { version, tensor_count, key_count })
}

impl GgufIdentity {
    /// Reads the metadata from the start of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// When the file is no readable GGUF; see [`GgufError`].
    pub fn read(reader: impl BufRead, file_bytes: u64) -> Result<Self, GgufError> {
        let mut fields = Fields::new(reader, file_bytes);
        let Header { version, tensor_count, key_count } = read_header(&mut fields)?;
        let mut identity = Self {
            version,
            architecture: None,
            file_type: None,
            split_count: None,
            split_no: None,
            alignment: DEFAULT_ALIGNMENT,
            metadata_bytes: 0,
            tensor_count,
            first_tensor: None,
        };
        for _ in 0..key_count {
            identity.read_pair(&mut fields)?;
        }
        let offsets = fields.two_lowest_tensor_offsets(tensor_count)?;
        identity.metadata_bytes = fields.offset();
        identity.first_tensor = identity.locate_first_tensor(offsets, file_bytes)?;
        Ok(identity)
    }

    fn read_pair(&mut self, fields: &mut Fields<impl BufRead>) -> Result<(), GgufError> {
        let key = fields.string("metadata key", MAX_KEY_BYTES)?;
        match key.as_slice() {
            b"general.architecture" => {
                const KEY: &str = "general.architecture";
                if fields.u32("value type")? != STRING {
                    return Err(GgufError::UnusableValue { key: KEY });
                }
                let name = fields.string(KEY, MAX_ARCHITECTURE_BYTES)?;
                let name = String::from_utf8(name).map_err(|_| GgufError::UnusableValue { key: KEY })?;
                self.architecture = Some(name);
            }
            b"general.file_type" => self.file_type = Some(fields.small_integer("general.file_type")?),
            b"split.count" => self.split_count = Some(fields.small_integer("split.count")?),
            b"split.no" => self.split_no = Some(fields.small_integer("split.no")?),
            b"general.alignment" => {
                const KEY: &str = "general.alignment";
                let alignment = fields.small_integer(KEY)?;
                if !alignment.is_power_of_two() {
                    return Err(GgufError::UnusableValue { key: KEY });
                }
                self.alignment = u64::from(alignment);
            }
            _ => {
                let kind = fields.u32("value type")?;
                fields.skip_value(kind, 0)?;
            }
        }
        Ok(())
    }

    fn locate_first_tensor(
        &self,
        (lowest, next): (Option<u64>, Option<u64>),
        file_bytes: u64,
    ) -> Result<Option<Range<u64>>, GgufError> {
        let Some(lowest) = lowest else { return Ok(None) };
        let past_end = GgufError::Truncated { field: "first tensor", offset: self.metadata_bytes };
        let place = |offset: u64| self.metadata_bytes.checked_next_multiple_of(self.alignment)?.checked_add(offset);
        let (start, end) = (place(lowest), next.map_or(Some(file_bytes), place));
        match (start, end) {
            (Some(start), Some(end)) if start <= end && end <= file_bytes => Ok(Some(start..end)),
            _ => Err(past_end),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use proptest::prelude::*;

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
        [string(key), kind.to_le_bytes().to_vec(), value.to_vec()].concat()
    }

    fn tensor(name: &str, offset: u64) -> Vec<u8> {
        let dimensions = [1_u32.to_le_bytes().to_vec(), 8_u64.to_le_bytes().to_vec()].concat();
        [string(name), dimensions, 0_u32.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat()
    }

    fn header(tensors: u64, keys: u64) -> Vec<u8> {
        [b"GGUF".to_vec(), 3_u32.to_le_bytes().to_vec(), tensors.to_le_bytes().to_vec(), keys.to_le_bytes().to_vec()]
            .concat()
    }

    /// A small file with every kind of value; returns it and the length of its metadata.
    fn sample() -> (Vec<u8>, u64) {
        let strings = [8_u32.to_le_bytes().to_vec(), 2_u64.to_le_bytes().to_vec(), string("a"), string("")].concat();
        let inner = [9_u32.to_le_bytes().to_vec(), 1_u64.to_le_bytes().to_vec(), strings.clone()].concat();
        let mut file = header(3, 8);
        file.extend(pair("tokenizer.tokens", 9, &strings));
        file.extend(pair("general.architecture", 8, &string("llama")));
        file.extend(pair("nested", 9, &inner));
        file.extend(pair("general.file_type", 4, &15_u32.to_le_bytes()));
        file.extend(pair("split.count", 2, &3_u16.to_le_bytes()));
        file.extend(pair("split.no", 5, &1_i32.to_le_bytes()));
        file.extend(pair("general.alignment", 4, &64_u32.to_le_bytes()));
        file.extend(pair("flag", 7, &[1]));
        file.extend([tensor("c", 128), tensor("a", 64), tensor("b", 64)].concat());
        let metadata = file.len();
        file.resize(metadata.next_multiple_of(64) + 192, 7);
        (file, metadata as u64)
    }

    fn read(file: &[u8]) -> Result<GgufIdentity, GgufError> {
        // A tiny buffer, so that every field crosses a refill.
        GgufIdentity::read(io::BufReader::with_capacity(3, file), file.len() as u64)
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
    fn all_metadata_can_be_read_and_long_arrays_come_empty() {
        let (file, _) = sample();
        let read = |longest| metadata::read_metadata(file.as_slice(), file.len() as u64, longest).unwrap();
        let text = |text: &str| GgufValue::Text(text.to_owned());
        let strings = GgufValue::Array(vec![text("a"), text("")]);
        let expected = [
            ("tokenizer.tokens", strings.clone()),
            ("general.architecture", text("llama")),
            ("nested", GgufValue::Array(vec![strings])),
            ("general.file_type", GgufValue::Unsigned(15)),
            ("split.count", GgufValue::Unsigned(3)),
            ("split.no", GgufValue::Signed(1)),
            ("general.alignment", GgufValue::Unsigned(64)),
            ("flag", GgufValue::Bool(true)),
        ];
        assert_eq!(read(2), expected.clone().map(|(key, value)| (key.to_owned(), value)));
        let short = read(1);
        assert_eq!(short[0].1, GgufValue::Array(vec![]));
        assert_eq!(short[2].1, GgufValue::Array(vec![GgufValue::Array(vec![])]), "the inner one is too long");
        assert_eq!(
            short[3..],
            expected[3..].iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect::<Vec<_>>()
        );
        for length in 0..file.len() {
            // Cut anywhere, it is read or refused.
            let _ = metadata::read_metadata(&file[..length], length as u64, usize::MAX);
        }
    }

    #[test]
    fn single_tensor_ends_with_the_file_and_none_is_no_error() {
        let mut file = [header(1, 0), tensor("only", 0)].concat();
        let data = file.len().next_multiple_of(32);
        file.resize(data + 100, 1);
        assert_eq!(read(&file).unwrap().first_tensor, Some(data as u64..data as u64 + 100));
        assert_eq!(read(&header(0, 0)).unwrap().first_tensor, None);
    }

    #[test]
    fn every_cut_of_the_metadata_is_reported_as_cut() {
        let (file, metadata) = sample();
        for length in 0..file.len() as u64 {
            let result = read(&file[..usize::try_from(length).unwrap()]);
            let cut_off = length < metadata.next_multiple_of(64) + 128;
            assert_eq!(matches!(result, Err(GgufError::Truncated { .. })), cut_off, "cut at {length}: {result:?}");
        }
        // The announced size may also be less or more than what can be read.
        let beyond = GgufIdentity::read(file.as_slice(), metadata - 1);
        assert!(matches!(beyond, Err(GgufError::Truncated { field: "tensor offset", .. })));
        let short = GgufIdentity::read(&file[..100], file.len() as u64);
        assert!(matches!(short, Err(GgufError::Truncated { .. })));
    }

    #[test]
    fn damage_is_named() {
        let broken = |keys: u64, pairs: Vec<u8>| read(&[header(0, keys), pairs, vec![0; 70_000]].concat()).unwrap_err();
        let depth = [9_u32.to_le_bytes().to_vec(), 1_u64.to_le_bytes().to_vec()].concat().repeat(9);
        assert!(matches!(read(b"GGML\0\0\0\0"), Err(GgufError::WrongMagic { got: [b'G', b'G', b'M', b'L'] })));
        assert!(matches!(read(b"GGUF\0\0\0\x03"), Err(GgufError::UnsupportedVersion { got: 0x0300_0000 })));
        assert!(matches!(broken(65_537, vec![]), GgufError::TooManyKeys { count: 65_537, .. }));
        assert!(matches!(broken(1, 65_536_u64.to_le_bytes().to_vec()), GgufError::OverlongString { .. }));
        assert!(matches!(broken(1, pair("x", 13, &[])), GgufError::UnknownValueType { got: 13, .. }));
        assert!(matches!(broken(1, pair("x", 9, &depth)), GgufError::NestedTooDeep { .. }));
        assert!(matches!(broken(1, pair("x", 8, &u64::MAX.to_le_bytes())), GgufError::Truncated { .. }));
        let huge = [10_u32.to_le_bytes().to_vec(), u64::MAX.to_le_bytes().to_vec()].concat();
        assert!(matches!(broken(1, pair("x", 9, &huge)), GgufError::Truncated { field: "array", .. }));
        for (key, kind, value) in [("general.alignment", 4, 3_u64), ("split.no", 11, u64::MAX), ("split.count", 6, 0)] {
            let error = broken(1, pair(key, kind, &value.to_le_bytes()));
            assert!(matches!(error, GgufError::UnusableValue { key: named } if named == key), "{error}");
        }
    }

    proptest! {
        #[test]
        fn damaged_files_are_refused_or_read_never_fatal(at in any::<prop::sample::Index>(), byte: u8, run in 1_usize..9) {
            let (mut file, _) = sample();
            let start = at.index(file.len());
            let end = (start + run).min(file.len());
            file[start..end].fill(byte);
            let _ = metadata::read_metadata(file.as_slice(), file.len() as u64, usize::MAX);
            if let Ok(identity) = read(&file) {
                let data = identity.first_tensor.unwrap_or(0..0);
                prop_assert!(identity.metadata_bytes <= file.len() as u64 && data.end <= file.len() as u64);
            }
        }

        #[test]
        fn arbitrary_bytes_are_never_fatal(tail in prop::collection::vec(any::<u8>(), 0..200), keys in 0_u64..4) {
            let file = [header(u64::MAX, keys), tail].concat();
            prop_assert!(read(&file).is_err(), "so many tensors cannot be in so short a file");
        }
    }
}
