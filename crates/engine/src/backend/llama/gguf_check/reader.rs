//! The GGUF container: every length against the file's size, every count before it drives a loop.
//!
//! Called by the checks of a file. It knows the format and nothing of models; it must never trust a length.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Seek};
use std::path::Path;

use llama_cpp_sys_4 as sys;

use super::metadata::{Metadata, Number, Tokens, Value};
use crate::backend::LoadError;

/// Names and keys longer than this are damage.
const MAX_NAME: u64 = 65_535;
/// Numbers of an array that are kept; llama.cpp has no array for layers that is longer.
const MAX_KEPT: u64 = 4096;
/// Where tensors must lie for a file that is mapped.
const MAPPED_ALIGNMENT: u64 = 32;
/// The key of the vocabulary.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// What stands before the data.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<Tensor>,
}

/// The description of a tensor.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// GGML's number of its type.
    pub(super) kind: u32,
    /// Its dimensions that are not 1.
    pub(super) n_dims: usize,
    bytes: u64,
}

/// A reader that counts.
pub(super) struct Reader<'a, R> {
    reader: R,
    path: &'a Path,
    size: u64,
    at: u64,
}

impl<'a, R: Read + Seek> Reader<'a, R> {
    pub(super) fn new(reader: R, path: &'a Path, size: u64) -> Self {
        Self { reader, path, size, at: 0 }
    }

    /// Reads everything before the data and checks that the data is there.
    pub(super) fn read(&mut self) -> Result<Contents, LoadError> {
        if self.size == 0 {
            return Err(self.not_gguf("the file is empty"));
        }
        let mut magic = [0; 4];
        if self.size < 4 || self.read_exact(&mut magic).is_err() || &magic != b"GGUF" {
            return Err(self.not_gguf("it does not start with the letters GGUF"));
        }
        let version = self.u32()?;
        if !(2..=3).contains(&version) {
            return Err(self.not_gguf(&format!("its version is {version}, and 2 and 3 are known")));
        }
        let n_tensors = self.u64()?;
        let n_values = self.u64()?;
        // A tensor needs at least 24 bytes and a value 13; larger counts are damage and must not drive a loop.
        if n_tensors > self.size / 24 || n_values > self.size / 13 {
            return Err(self.malformed(format!("{n_tensors} tensors and {n_values} values do not fit into the file")));
        }
        let mut metadata = Metadata::default();
        for _ in 0..n_values {
            let key = self.name()?;
            let value = self.value(&key, &mut metadata.tokens)?;
            metadata.insert(key, value);
        }
        let alignment = self.alignment(&metadata)?;
        let tensors = self.tensors(n_tensors, alignment)?;
        Ok(Contents { metadata, tensors })
    }

    fn alignment(&self, metadata: &Metadata) -> Result<u64, LoadError> {
        match metadata.value("general.alignment") {
            None => Ok(32),
            Some(Value::Number(Number { kind: 4, bits })) if bits.is_power_of_two() => Ok(*bits),
            Some(Value::Number(Number { bits, .. })) => {
                Err(self.malformed(format!("general.alignment is {bits}, which is no power of two in 32 bits")))
            }
            Some(_) => Err(self.malformed("general.alignment is no number".to_owned())),
        }
    }

    fn tensors(&mut self, count: u64, alignment: u64) -> Result<Vec<Tensor>, LoadError> {
        let mut tensors = Vec::new();
        // The padding after the last tensor may be missing, so its own end counts.
        let (mut end_of_data, mut last_end) = (0u64, 0u64);
        let mut mappable = true;
        for _ in 0..count {
            let tensor = self.tensor(end_of_data)?;
            mappable &= end_of_data.is_multiple_of(MAPPED_ALIGNMENT);
            last_end = end_of_data.saturating_add(tensor.bytes);
            let padded = tensor.bytes.checked_next_multiple_of(alignment);
            end_of_data = padded
                .and_then(|padded| end_of_data.checked_add(padded))
                .ok_or_else(|| self.malformed("the tensors are larger than any file".to_owned()))?;
            if end_of_data > self.size.saturating_add(alignment) {
                let expected = self.at.saturating_add(end_of_data);
                return Err(LoadError::Truncated { path: self.path.to_path_buf(), expected, actual: self.size });
            }
            tensors.push(tensor);
        }
        let data_start = self.at.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        let expected = data_start.saturating_add(last_end);
        if count > 0 && self.size < expected {
            return Err(LoadError::Truncated { path: self.path.to_path_buf(), expected, actual: self.size });
        }
        if count > 0 && !(mappable && data_start.is_multiple_of(MAPPED_ALIGNMENT)) {
            let reason = format!("general.alignment is {alignment}, and tensors do not lie at multiples of 32 bytes");
            return Err(self.malformed(reason));
        }
        Ok(tensors)
    }

    /// Reads the value of a key.
    fn value(&mut self, key: &str, tokens: &mut Tokens) -> Result<Value, LoadError> {
        match self.u32()? {
            8 => Ok(Value::Text(self.text()?)),
            9 => self.array(key, tokens),
            kind => Ok(Value::Number(self.scalar(kind)?)),
        }
    }

    fn array(&mut self, key: &str, tokens: &mut Tokens) -> Result<Value, LoadError> {
        let kind = self.u32()?;
        let count = self.u64()?;
        if kind == 8 {
            // Every string has at least its length.
            if count > self.size / 8 {
                return Err(self.malformed(format!("the array {key} has {count} strings, more than the file can hold")));
            }
            if key == TOKENS {
                *tokens = self.tokens(count)?;
                return Ok(Value::Array);
            }
            for _ in 0..count {
                let length = self.u64()?;
                self.skip(length)?;
            }
            return Ok(Value::Array);
        }
        let bytes = scalar_size(kind).and_then(|size| count.checked_mul(size));
        let bytes = bytes.ok_or_else(|| self.malformed(format!("the array {key} has no valid type or length")))?;
        if count > MAX_KEPT {
            self.skip(bytes)?;
            return Ok(Value::Array);
        }
        let numbers = (0..count).map(|_| self.scalar(kind)).collect::<Result<_, _>>()?;
        Ok(Value::Numbers(numbers))
    }

    /// Reads the vocabulary as llama.cpp does: a token ends at its first zero byte, an empty one gets a name.
    fn tokens(&mut self, count: u64) -> Result<Tokens, LoadError> {
        let mut tokens = Tokens { count: Some(count), ..Tokens::default() };
        let mut seen = HashSet::new();
        for index in 0..count {
            let mut token = self.bytes(self.size)?;
            if let Some(end) = token.iter().position(|byte| *byte == 0) {
                token.truncate(end);
            }
            if token.is_empty() {
                token = format!("[EMPTY_{index}]").into_bytes();
            }
            if is_byte_token(&token) {
                tokens.bytes += 1;
            }
            if !seen.insert(token) && tokens.twice.is_none() {
                tokens.twice = Some(index);
            }
        }
        Ok(tokens)
    }

    /// Reads one tensor's description.
    fn tensor(&mut self, expected_offset: u64) -> Result<Tensor, LoadError> {
        let name = self.name()?;
        let count = self.u32()?;
        if count > 4 {
            return Err(self.malformed(format!("tensor {name} has {count} dimensions")));
        }
        let mut first = 1;
        let mut elements = 1u64;
        let mut n_dims = 0;
        for dim in 0..count {
            let length = self.u64()?;
            if dim == 0 {
                first = length;
            }
            if length == 0 {
                return Err(self.malformed(format!("tensor {name} has a dimension of 0")));
            }
            n_dims += usize::from(length != 1);
            elements = elements
                .checked_mul(length)
                .ok_or_else(|| self.malformed(format!("tensor {name} is larger than any file")))?;
        }
        let kind = self.u32()?;
        let offset = self.u64()?;
        let (block, bytes_per_block) =
            block_size(kind).ok_or_else(|| self.malformed(format!("tensor {name} has the unknown type {kind}")))?;
        if first % block != 0 {
            return Err(self.malformed(format!("a row of tensor {name} is no whole number of blocks")));
        }
        if offset != expected_offset {
            return Err(self.malformed(format!("tensor {name} is at {offset} instead of {expected_offset}")));
        }
        let bytes = (elements / block).checked_mul(bytes_per_block);
        let bytes = bytes.ok_or_else(|| self.malformed(format!("tensor {name} is larger than any file")))?;
        Ok(Tensor { name, kind, n_dims, bytes })
    }

    fn scalar(&mut self, kind: u32) -> Result<Number, LoadError> {
        let size = scalar_size(kind).ok_or_else(|| self.malformed(format!("a value has the unknown type {kind}")))?;
        let mut word = [0; 8];
        if let Some(bytes) = word.get_mut(..usize::try_from(size).unwrap_or(0)) {
            self.fill(bytes)?;
        }
        Ok(Number { kind, bits: u64::from_le_bytes(word) })
    }

    /// A key or the name of a tensor. llama.cpp compares them up to their first zero byte, so none may be inside.
    fn name(&mut self) -> Result<String, LoadError> {
        let bytes = self.bytes(MAX_NAME)?;
        let name = String::from_utf8_lossy(&bytes).into_owned();
        if bytes.contains(&0) {
            return Err(self.malformed(format!("the name {name:?} has a zero byte")));
        }
        Ok(name)
    }

    /// A text up to its first zero byte, as llama.cpp reads it.
    fn text(&mut self) -> Result<String, LoadError> {
        let bytes = self.bytes(self.size)?;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn bytes(&mut self, limit: u64) -> Result<Vec<u8>, LoadError> {
        let length = self.u64()?;
        if length > limit || length > self.size.saturating_sub(self.at) {
            return Err(self.truncated(length));
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, LoadError> {
        let mut word = [0; 4];
        self.fill(&mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    fn u64(&mut self) -> Result<u64, LoadError> {
        let mut word = [0; 8];
        self.fill(&mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), LoadError> {
        if bytes > self.size.saturating_sub(self.at) {
            return Err(self.truncated(bytes));
        }
        let offset = i64::try_from(bytes).unwrap_or(i64::MAX);
        let path = self.path;
        self.reader
            .seek_relative(offset)
            .map_err(|source| LoadError::Unreadable { path: path.to_path_buf(), source })?;
        self.at += bytes;
        Ok(())
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<(), LoadError> {
        let wanted = out.len() as u64;
        self.read_exact(out).map_err(|source| match source.kind() {
            ErrorKind::UnexpectedEof => self.truncated(wanted),
            _ => LoadError::Unreadable { path: self.path.to_path_buf(), source },
        })
    }

    fn read_exact(&mut self, out: &mut [u8]) -> std::io::Result<()> {
        self.reader.read_exact(out)?;
        self.at += out.len() as u64;
        Ok(())
    }

    /// A length that reaches past the end: damage if no file could hold it, a missing tail otherwise.
    fn truncated(&self, wanted: u64) -> LoadError {
        // The longest text in a header is a chat template; a claim beyond this is no length.
        if wanted > 1 << 32 {
            return self.malformed(format!("a length of {wanted} bytes is given at byte {}", self.at));
        }
        let expected = self.at.saturating_add(wanted);
        LoadError::Truncated { path: self.path.to_path_buf(), expected, actual: self.size }
    }

    fn malformed(&self, reason: String) -> LoadError {
        LoadError::Malformed { path: self.path.to_path_buf(), reason }
    }

    fn not_gguf(&self, reason: &str) -> LoadError {
        LoadError::NotGguf { path: self.path.to_path_buf(), reason: reason.to_owned() }
    }
}

/// Bytes of a scalar value type.
fn scalar_size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Elements and bytes of a block of a tensor type.
fn block_size(kind: u32) -> Option<(u64, u64)> {
    if kind >= sys::GGML_TYPE_COUNT {
        return None;
    }
    // SAFETY: the type number is below the count; removed types have no block.
    let (elements, bytes) = unsafe { (sys::ggml_blck_size(kind), sys::ggml_type_size(kind)) };
    let elements = u64::try_from(elements).ok().filter(|elements| *elements > 0)?;
    Some((elements, bytes as u64))
}

/// `<0x00>` to `<0xFF>`.
fn is_byte_token(token: &[u8]) -> bool {
    let digits = token.strip_prefix(b"<0x").and_then(|rest| rest.strip_suffix(b">"));
    digits.is_some_and(|digits| {
        digits.len() == 2 && digits.iter().all(|d| d.is_ascii_digit() || (b'A'..=b'F').contains(d))
    })
}
