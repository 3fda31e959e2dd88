//! A cursor over the fields of a GGUF file, and what can be wrong with them.
//!
//! Used by `gguf_identity` and its `metadata`. Every claimed length is checked against the file's size before it is used;
//! nothing is allocated by such a length beyond the caller's limit, and arrays are skipped without being stored.

use std::io::{self, BufRead};

/// The format allows arrays of arrays; nothing written by anyone goes deeper than this.
pub(super) const MAX_ARRAY_DEPTH: u32 = 4;
/// The value type of strings.
pub(super) const STRING: u32 = 8;
/// The value type of arrays.
pub(super) const ARRAY: u32 = 9;

/// Why a file is not a GGUF that can be read. The caller adds the path.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The first four bytes are others.
    #[error("not a GGUF file: it starts with {got:02x?}; give the path of a .gguf model")]
    WrongMagic {
        /// The bytes found.
        got: [u8; 4],
    },
    /// A version that this reader does not know, or a big-endian file.
    #[error("GGUF version {got} is not supported (2 and 3 are, little-endian); convert the model again")]
    UnsupportedVersion {
        /// The version found.
        got: u32,
    },
    /// The file ends inside a field, or a field claims more bytes than the file has.
    #[error("the GGUF file is cut off or damaged: {field} at byte {offset} reaches past its end; download it again")]
    Truncated {
        /// What was being read.
        field: &'static str,
        /// Where it starts.
        offset: u64,
    },
    /// A string longer than its place allows.
    #[error("{field} of {length} bytes is longer than the {limit} allowed; the file is damaged, download it again")]
    OverlongString {
        /// What was being read.
        field: &'static str,
        /// The claimed length.
        length: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// More metadata keys than are plausible.
    #[error("{count} metadata keys are more than the {limit} allowed; the file is damaged, download it again")]
    TooManyKeys {
        /// The claimed count.
        count: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A value type that no version of the format defines.
    #[error("value type {got} at byte {offset} is not known; the file is damaged or newer than this program")]
    UnknownValueType {
        /// The type found.
        got: u32,
        /// Where it stands.
        offset: u64,
    },
    /// Arrays inside arrays, too many of them.
    #[error("arrays are nested deeper than {limit} at byte {offset}; the file is damaged, download it again")]
    NestedTooDeep {
        /// The deepest nesting that is accepted.
        limit: u32,
        /// Where the innermost array stands.
        offset: u64,
    },
    /// A key that the identity needs holds something impossible.
    #[error("metadata key {key} holds no usable value; the file is damaged, convert or download it again")]
    UnusableValue {
        /// The key.
        key: &'static str,
    },
    /// Reading failed.
    #[error("reading failed at byte {offset}; check the disk and the file's permissions")]
    Io {
        /// How far reading had come.
        offset: u64,
        /// The cause.
        source: io::Error,
    },
}

/// A cursor that knows where it is and never goes past the file's end.
pub(super) struct Fields<R> {
    reader: R,
    offset: u64,
    file_bytes: u64,
}

impl<R: BufRead> Fields<R> {
    pub(super) fn new(reader: R, file_bytes: u64) -> Self {
        Self { reader, offset: 0, file_bytes }
    }

    /// How many bytes have been read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Checks a claimed length before anything is done with it.
    fn claim(&self, length: u64, field: &'static str) -> Result<u64, GgufError> {
        match self.offset.checked_add(length) {
            Some(end) if end <= self.file_bytes => Ok(end),
            _ => Err(GgufError::Truncated { field, offset: self.offset }),
        }
    }

    fn fill(&mut self, bytes: &mut [u8], field: &'static str) -> Result<(), GgufError> {
        let offset = self.offset;
        self.offset = self.claim(u64::try_from(bytes.len()).unwrap_or(u64::MAX), field)?;
        self.reader.read_exact(bytes).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => GgufError::Truncated { field, offset },
            _ => GgufError::Io { offset, source },
        })
    }

    pub(super) fn take<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, field)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, GgufError> {
        self.take(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, GgufError> {
        self.take(field).map(u64::from_le_bytes)
    }

    pub(super) fn string(&mut self, field: &'static str, limit: u64) -> Result<Vec<u8>, GgufError> {
        let length = self.u64(field)?;
        let overlong = GgufError::OverlongString { field, length, limit };
        let Some(size) = usize::try_from(length).ok().filter(|_| length <= limit) else { return Err(overlong) };
        self.claim(length, field)?;
        let mut bytes = vec![0; size];
        self.fill(&mut bytes, field)?;
        Ok(bytes)
    }

    /// An integer of any width that fits; writers disagree on the width of small numbers.
    pub(super) fn small_integer(&mut self, key: &'static str) -> Result<u32, GgufError> {
        let unusable = |_| GgufError::UnusableValue { key };
        match self.u32("value type")? {
            0 => self.take(key).map(|bytes| u32::from(u8::from_le_bytes(bytes))),
            1 => u32::try_from(i8::from_le_bytes(self.take(key)?)).map_err(unusable),
            2 => self.take(key).map(|bytes| u32::from(u16::from_le_bytes(bytes))),
            3 => u32::try_from(i16::from_le_bytes(self.take(key)?)).map_err(unusable),
            4 => self.u32(key),
            5 => u32::try_from(i32::from_le_bytes(self.take(key)?)).map_err(unusable),
            10 => u32::try_from(self.u64(key)?).map_err(unusable),
            11 => u32::try_from(i64::from_le_bytes(self.take(key)?)).map_err(unusable),
            _ => Err(GgufError::UnusableValue { key }),
        }
    }

    fn skip(&mut self, length: u64, field: &'static str) -> Result<(), GgufError> {
        let end = self.claim(length, field)?;
        while self.offset < end {
            let offset = self.offset;
            let available = match self.reader.fill_buf() {
                Ok(buffer) => buffer.len(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(GgufError::Io { offset, source }),
            };
            if available == 0 {
                return Err(GgufError::Truncated { field, offset });
            }
            let wanted = usize::try_from(end - offset).unwrap_or(usize::MAX).min(available);
            self.reader.consume(wanted);
            self.offset += u64::try_from(wanted).unwrap_or(0);
        }
        Ok(())
    }

    pub(super) fn skip_value(&mut self, kind: u32, depth: u32) -> Result<(), GgufError> {
        let offset = self.offset;
        if let Some(size) = fixed_size(kind) {
            return self.skip(size, "metadata value");
        }
        match kind {
            STRING => {
                let length = self.u64("metadata string")?;
                self.skip(length, "metadata string")
            }
            ARRAY if depth >= MAX_ARRAY_DEPTH => Err(GgufError::NestedTooDeep { limit: MAX_ARRAY_DEPTH, offset }),
            ARRAY => {
                let element = self.u32("array type")?;
                let count = self.u64("array length")?;
                self.skip_elements(element, count, depth)
            }
            _ => Err(GgufError::UnknownValueType { got: kind, offset }),
        }
    }

    /// Skips the elements of an array that stands at `depth`.
    pub(super) fn skip_elements(&mut self, element: u32, count: u64, depth: u32) -> Result<(), GgufError> {
        if let Some(size) = fixed_size(element) {
            return self.skip(count.saturating_mul(size), "array");
        }
        // Every element takes at least eight bytes of the file, so the file's end bounds this loop.
        for _ in 0..count {
            self.skip_value(element, depth + 1)?;
        }
        Ok(())
    }

    /// The lowest data offset among the tensors and the next one above it, without keeping the list.
    pub(super) fn two_lowest_tensor_offsets(&mut self, count: u64) -> Result<(Option<u64>, Option<u64>), GgufError> {
        let (mut lowest, mut next): (Option<u64>, Option<u64>) = (None, None);
        for _ in 0..count {
            let name_bytes = self.u64("tensor name")?;
            self.skip(name_bytes, "tensor name")?;
            let dimensions = u64::from(self.u32("tensor dimensions")?);
            self.skip(dimensions.saturating_mul(8), "tensor dimensions")?;
            self.skip(4, "tensor type")?;
            let offset = self.u64("tensor offset")?;
            match lowest {
                Some(low) if offset == low => {}
                Some(low) if offset > low => next = Some(next.map_or(offset, |next| next.min(offset))),
                _ => next = lowest.replace(offset),
            }
        }
        Ok((lowest, next))
    }
}

/// Bytes of a value type of fixed size.
fn fixed_size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
