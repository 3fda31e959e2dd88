//! The header of a GGUF file: everything in front of the tensors' data.
//!
//! The entrance of the crate. It opens regular files only, reads from anything that can be read and seeked, and checks
//! the container: that it is a GGUF file, that nothing reaches past its end, that no limit is exceeded. Values are not
//! judged, except `general.alignment`, which decides where the data starts.

use std::io::{Read, Seek};
use std::path::Path;

use crate::cursor::Cursor;
use crate::error::{Damage, GgufError};
use crate::file::{self, Links};
use crate::limits::DEFAULT_ALIGNMENT;
use crate::metadata::{Keep, Metadata};
use crate::not_gguf::{LOOKED_AT, NotGguf};
use crate::tensors::{Tensor, read_tensors};
use crate::value::{Value, shortened};

/// The header of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// The table of tensors in the order of the file.
    pub tensors: Vec<Tensor>,
    /// `general.alignment`, a power of two, or the format's default.
    pub alignment: u64,
    /// Length of the header, without the padding after it.
    pub header_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
}

impl Gguf {
    /// Reads the header of a file. Symbolic links are followed; a FIFO or a device is refused without waiting.
    ///
    /// # Errors
    /// The file cannot be read, is not a GGUF file or is damaged.
    pub fn open(path: &Path, keep: &Keep<'_>) -> Result<Self, GgufError> {
        Self::read(open(path)?, keep)
    }

    /// Reads a header from the start of a reader, wherever the reader stands.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn read(reader: impl Read + Seek, keep: &Keep<'_>) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(reader)?;
        let counts = Counts::read(&mut cursor)?;
        let metadata = Metadata::read(&mut cursor, counts.keys, keep)?;
        let alignment = alignment(&metadata).map_err(|damage| cursor.damaged(damage))?;
        let tensors = read_tensors(&mut cursor, counts.tensors)?;
        let (header_bytes, file_bytes) = (cursor.offset(), cursor.bytes());
        Ok(Self { version: counts.version, metadata, tensors, alignment, header_bytes, file_bytes })
    }

    /// Where the data of the tensors starts; `u64::MAX` if no file could have it.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.header_bytes.checked_next_multiple_of(self.alignment).unwrap_or(u64::MAX)
    }

    /// Checks that the file reaches to the end of its tensors, as far as their types are known.
    ///
    /// # Errors
    /// [`GgufError::CutShort`].
    pub fn check_complete(&self) -> Result<(), GgufError> {
        let end = |tensor: &Tensor| tensor.offset.saturating_add(tensor.bytes().unwrap_or(0));
        let Some(end) = self.tensors.iter().map(end).max() else { return Ok(()) };
        let (needed, bytes) = (self.data_start().saturating_add(end), self.file_bytes);
        if needed > bytes { Err(GgufError::CutShort { needed, bytes }) } else { Ok(()) }
    }
}

impl Metadata {
    /// Reads the metadata of a file and nothing after it.
    ///
    /// # Errors
    /// As [`Gguf::open`]; damage behind the metadata is not noticed.
    pub fn open(path: &Path, keep: &Keep<'_>) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(open(path)?)?;
        let counts = Counts::read(&mut cursor)?;
        Self::read(&mut cursor, counts.keys, keep)
    }
}

fn open(path: &Path) -> Result<std::fs::File, GgufError> {
    if path.is_dir() {
        return Err(GgufError::NotGguf(NotGguf::Folder));
    }
    Ok(file::open_regular(path, Links::Follow)?)
}

/// What stands before the first key.
struct Counts {
    version: u32,
    tensors: u64,
    keys: u64,
}

impl Counts {
    fn read(cursor: &mut Cursor<impl Read + Seek>) -> Result<Self, GgufError> {
        let start = cursor.peek_start(LOOKED_AT as u64)?;
        if let Some(other) = NotGguf::guess(&start) {
            return Err(GgufError::NotGguf(other));
        }
        cursor.skip(4)?;
        let version = match cursor.u32()? {
            known @ 2..=3 => known,
            other if other != 0 && other.swap_bytes() <= 3 => return Err(GgufError::BigEndian),
            version => return Err(GgufError::Version { version }),
        };
        Ok(Self { version, tensors: cursor.u64()?, keys: cursor.u64()? })
    }
}

/// Alignment is read before the tensors, because a wrong one makes all offsets meaningless.
fn alignment(metadata: &Metadata) -> Result<u64, Damage> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let usable = value.as_unsigned().filter(|number| number.is_power_of_two() && u32::try_from(*number).is_ok());
    usable.ok_or_else(|| unusable(KEY, value))
}

/// The damage of a key that we use and that has an unusable value.
pub(crate) fn unusable(key: &'static str, value: &Value) -> Damage {
    let shown = match value {
        Value::Text(text) => format!("the text {:?}", shortened(&text.lossy())),
        Value::LongText(bytes) => format!("a text of {bytes} bytes"),
        Value::Array(array) => format!("an array of {} elements", array.count),
        Value::F32(number) => number.to_string(),
        Value::F64(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::I8(number) => number.to_string(),
        Value::I16(number) => number.to_string(),
        Value::I32(number) => number.to_string(),
        Value::I64(number) => number.to_string(),
        Value::U8(_) | Value::U16(_) | Value::U32(_) | Value::U64(_) => value.as_unsigned().unwrap_or(0).to_string(),
    };
    Damage::UnusableValue { key, shown }
}

#[cfg(test)]
mod tests;
