//! A look at a GGUF file before llama.cpp opens it.
//!
//! Used by every load. llama.cpp answers most damage with an error of its own, but a few kinds end the process with a
//! failed assertion (a vocabulary with a token twice, impossible layer or expert counts) or an uncaught exception (a
//! SentencePiece vocabulary without byte tokens); those are refused here, and the common ones (missing, empty,
//! truncated, not a GGUF) get a clear reason. Nothing here allocates more than the file has bytes.

use std::collections::HashSet;
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::path::Path;

use llama_cpp_sys_4 as sys;
use poncho_cache::files::{self, Links};

use crate::backend::LoadError;

/// llama.cpp's own limits; beyond them it asserts.
const MAX_LAYERS: u64 = 512;
const MAX_EXPERTS: u64 = 512;
/// Names and keys longer than this are damage.
const MAX_NAME: u64 = 65_535;

/// What the engine needs to know from the header.
#[derive(Debug, Default)]
pub(super) struct GgufFacts {
    /// `general.architecture`.
    pub(super) architecture: String,
    /// Context length at which long RoPE factors take over, if the file has both sets.
    pub(super) rope_switch_at: Option<u32>,
    /// That length, whether or not the file has the long factors.
    pub(super) rope_original_context: Option<u32>,
    /// Whether the file has the long factors; in a split model they may lie in another part.
    pub(super) has_long_rope: bool,
}

/// Checks that a file is a GGUF that llama.cpp can be trusted with.
pub(super) fn check_file(path: &Path) -> Result<GgufFacts, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_path_buf(), source };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(LoadError::NotAFile { path: path.to_path_buf() });
    }
    let file = files::open_regular(path, Links::Follow).map_err(unreadable)?;
    let reader = BufReader::with_capacity(1 << 16, file);
    let mut header = Header { reader, path, size: metadata.len(), at: 0, values: Values::default() };
    header.check()
}

/// The few values that decide whether llama.cpp may see the file.
#[derive(Default)]
struct Values {
    architecture: String,
    tokenizer: String,
    alignment: u64,
    layers: Option<u64>,
    experts: Option<u64>,
    experts_used: Option<u64>,
    rope_original_context: Option<u64>,
    byte_tokens: usize,
    has_tokens: bool,
}

struct Header<'a, R> {
    reader: R,
    path: &'a Path,
    size: u64,
    at: u64,
    values: Values,
}

impl<R: Read + Seek> Header<'_, R> {
    fn check(&mut self) -> Result<GgufFacts, LoadError> {
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
        self.values.alignment = 32;
        for _ in 0..n_values {
            self.value()?;
        }
        self.check_values()?;
        // The padding after the last tensor may be missing, so its own end counts.
        let (mut end_of_data, mut last_end) = (0u64, 0u64);
        let mut long_rope = false;
        for _ in 0..n_tensors {
            let (name, bytes) = self.tensor(&mut end_of_data)?;
            long_rope |= name.contains("rope_factors_long");
            last_end = end_of_data.saturating_add(bytes);
            let padded = bytes.checked_next_multiple_of(self.values.alignment);
            end_of_data = padded
                .and_then(|padded| end_of_data.checked_add(padded))
                .ok_or_else(|| self.malformed("the tensors are larger than any file".to_owned()))?;
            if end_of_data > self.size.saturating_add(self.values.alignment) {
                let expected = self.at.saturating_add(end_of_data);
                return Err(LoadError::Truncated { path: self.path.to_path_buf(), expected, actual: self.size });
            }
        }
        let data_start = self.at.next_multiple_of(self.values.alignment);
        let expected = data_start.saturating_add(last_end);
        if n_tensors > 0 && self.size < expected {
            return Err(LoadError::Truncated { path: self.path.to_path_buf(), expected, actual: self.size });
        }
        let original = self.values.rope_original_context.and_then(|length| u32::try_from(length).ok());
        Ok(GgufFacts {
            architecture: std::mem::take(&mut self.values.architecture),
            rope_switch_at: original.filter(|_| long_rope),
            rope_original_context: original,
            has_long_rope: long_rope,
        })
    }

    fn check_values(&self) -> Result<(), LoadError> {
        let values = &self.values;
        let wrong = |what: &str, value: u64| Err(self.malformed(format!("{what} is {value}, which cannot be")));
        if let Some(layers) = values.layers.filter(|layers| *layers == 0 || *layers > MAX_LAYERS) {
            return wrong("block_count", layers);
        }
        if let Some(experts) = values.experts.filter(|experts| *experts > MAX_EXPERTS) {
            return wrong("expert_count", experts);
        }
        let experts = values.experts.unwrap_or(0);
        if let Some(used) = values.experts_used.filter(|used| *used > experts || (experts > 0 && *used == 0)) {
            return wrong("expert_used_count", used);
        }
        // llama.cpp turns bytes it has no token for into byte tokens and does not survive their absence.
        if values.tokenizer == "llama" && values.has_tokens && values.byte_tokens < 256 {
            let found = values.byte_tokens;
            return Err(self.malformed(format!("its SentencePiece vocabulary has {found} of 256 byte tokens")));
        }
        Ok(())
    }

    /// Reads one key and its value.
    fn value(&mut self) -> Result<(), LoadError> {
        let key = self.string(MAX_NAME)?;
        let kind = self.u32()?;
        match kind {
            8 => {
                let text = self.string(self.size)?;
                match key.as_str() {
                    "general.architecture" => self.values.architecture = text,
                    "tokenizer.ggml.model" => self.values.tokenizer = text,
                    _ => {}
                }
            }
            9 => self.array(&key)?,
            _ => {
                let number = self.scalar(kind)?;
                if key == "general.alignment" {
                    if kind != 4 || number == 0 || !number.is_power_of_two() {
                        return Err(self.malformed(format!("its alignment is {number}, which is no power of two")));
                    }
                    self.values.alignment = number;
                } else if key.ends_with(".block_count") {
                    self.values.layers = Some(number);
                } else if key.ends_with(".expert_count") {
                    self.values.experts = Some(number);
                } else if key.ends_with(".expert_used_count") {
                    self.values.experts_used = Some(number);
                } else if key.ends_with(".rope.scaling.original_context_length") {
                    self.values.rope_original_context = Some(number);
                }
            }
        }
        Ok(())
    }

    fn array(&mut self, key: &str) -> Result<(), LoadError> {
        let kind = self.u32()?;
        let count = self.u64()?;
        if kind != 8 {
            let bytes = scalar_size(kind).and_then(|size| count.checked_mul(size));
            let bytes = bytes.ok_or_else(|| self.malformed(format!("the array {key} has no valid type or length")))?;
            return self.skip(bytes);
        }
        // Every string has at least its length.
        if count > self.size / 8 {
            return Err(self.malformed(format!("the array {key} has {count} strings, more than the file can hold")));
        }
        if key != "tokenizer.ggml.tokens" {
            for _ in 0..count {
                let length = self.u64()?;
                self.skip(length)?;
            }
            return Ok(());
        }
        self.values.has_tokens = true;
        let mut seen = HashSet::new();
        for index in 0..count {
            let token = self.bytes(self.size)?;
            if is_byte_token(&token) {
                self.values.byte_tokens += 1;
            }
            // llama.cpp gives empty tokens a name of their own.
            if !token.is_empty() && !seen.insert(token) {
                return Err(self.malformed(format!("token {index} of its vocabulary appears twice")));
            }
        }
        Ok(())
    }

    /// Reads one tensor's description; returns its name and its bytes.
    fn tensor(&mut self, expected_offset: &mut u64) -> Result<(String, u64), LoadError> {
        let name = self.string(MAX_NAME)?;
        let n_dims = self.u32()?;
        if n_dims > 4 {
            return Err(self.malformed(format!("tensor {name} has {n_dims} dimensions")));
        }
        let mut first = 1;
        let mut elements = 1u64;
        for dim in 0..n_dims {
            let length = self.u64()?;
            if dim == 0 {
                first = length;
            }
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
        if offset != *expected_offset {
            return Err(self.malformed(format!("tensor {name} is at {offset} instead of {expected_offset}")));
        }
        let bytes = (elements / block).checked_mul(bytes_per_block);
        let bytes = bytes.ok_or_else(|| self.malformed(format!("tensor {name} is larger than any file")))?;
        Ok((name, bytes))
    }

    fn scalar(&mut self, kind: u32) -> Result<u64, LoadError> {
        let size = scalar_size(kind).ok_or_else(|| self.malformed(format!("a value has the unknown type {kind}")))?;
        let mut word = [0; 8];
        let bytes = word.get_mut(..usize::try_from(size).unwrap_or(0)).unwrap_or_default();
        // Read through a second buffer, as `self` is borrowed by the reader.
        let mut raw = vec![0; bytes.len()];
        self.fill(&mut raw)?;
        bytes.copy_from_slice(&raw);
        Ok(u64::from_le_bytes(word))
    }

    fn string(&mut self, limit: u64) -> Result<String, LoadError> {
        Ok(String::from_utf8_lossy(&self.bytes(limit)?).into_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn text(out: &mut Vec<u8>, value: &str) {
        out.extend((value.len() as u64).to_le_bytes());
        out.extend(value.as_bytes());
    }

    /// A GGUF with one tensor of eight floats, the given tokens, and one more number.
    fn gguf(tokens: &[&str], key: &str, value: u32) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(1u64.to_le_bytes());
        out.extend(3u64.to_le_bytes());
        text(&mut out, "general.architecture");
        out.extend(8u32.to_le_bytes());
        text(&mut out, "llama");
        text(&mut out, "tokenizer.ggml.tokens");
        out.extend([9u32.to_le_bytes(), 8u32.to_le_bytes()].concat());
        out.extend((tokens.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| text(&mut out, token));
        text(&mut out, key);
        out.extend([4u32.to_le_bytes(), value.to_le_bytes()].concat());
        text(&mut out, "rope_factors_long.weight");
        out.extend(1u32.to_le_bytes());
        out.extend(8u64.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend(0u64.to_le_bytes());
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend([0; 32]);
        out
    }

    fn check(bytes: &[u8]) -> Result<GgufFacts, LoadError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        check_file(file.path())
    }

    #[test]
    fn a_sound_file_yields_its_facts() {
        let facts = check(&gguf(&["a", "b"], "llama.rope.scaling.original_context_length", 4096)).unwrap();
        assert_eq!(facts.architecture, "llama");
        assert_eq!(facts.rope_switch_at, Some(4096));
    }

    #[test]
    fn every_cut_of_a_sound_file_is_refused() {
        let good = gguf(&["a", "b"], "llama.block_count", 4);
        assert!(check(&good).is_ok());
        for length in 0..good.len() {
            assert!(check(&good[..length]).is_err(), "cut at {length} of {}", good.len());
        }
    }

    #[test]
    fn what_llama_would_assert_on_is_refused() {
        let malformed = |bytes: &[u8]| matches!(check(bytes), Err(LoadError::Malformed { .. }));
        assert!(malformed(&gguf(&["a", "b", "a"], "llama.block_count", 4)));
        assert!(malformed(&gguf(&["a"], "llama.block_count", 0)));
        assert!(malformed(&gguf(&["a"], "llama.block_count", 513)));
        assert!(malformed(&gguf(&["a"], "llama.expert_count", 100_000)));
        assert!(malformed(&gguf(&["a"], "llama.expert_used_count", 3)));
        assert!(malformed(&gguf(&["a"], "general.alignment", 48)));
    }

    #[test]
    fn other_things_than_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(check_file(folder.path()), Err(LoadError::NotAFile { .. })));
        assert!(matches!(check_file(&folder.path().join("none")), Err(LoadError::Unreadable { .. })));
        assert!(matches!(check(b""), Err(LoadError::NotGguf { .. })));
        assert!(matches!(check(b"PK\x03\x04 something else"), Err(LoadError::NotGguf { .. })));
    }

    #[test]
    fn a_length_beyond_any_file_does_not_allocate() {
        let mut bytes = gguf(&["a"], "llama.block_count", 4);
        bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(check(&bytes), Err(LoadError::Malformed { .. })));
    }
}
