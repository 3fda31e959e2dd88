//! The cursor over a GGUF header: little-endian numbers, texts and values, each checked against the end of the file.
//!
//! Used by the reader beside it only. It must never allocate more than `MOST_KEPT` bytes for one text, whatever length
//! the file claims.

use std::io::{BufRead, Read, Seek};

use super::GgufError;

/// A text longer than this is stepped over: no fact that is kept needs more.
const MOST_KEPT: u64 = 4096;
/// Arrays in arrays that are followed.
const MOST_DEPTH: u32 = 4;

const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// A value, as far as facts need it.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    /// A number that is whole and not negative.
    Number(u64),
    /// A text that is kept.
    Text(String),
    /// A text too long to be kept.
    LongText,
    /// Anything else, stepped over.
    Other,
}

/// The cursor.
pub(super) struct Fields<R> {
    reader: R,
    offset: u64,
    bytes: u64,
}

impl<R: BufRead + Seek> Fields<R> {
    pub(super) fn new(reader: R, bytes: u64) -> Self {
        Self { reader, offset: 0, bytes }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    fn claim(&mut self, count: u64) -> Result<(), GgufError> {
        let needed = self.offset.saturating_add(count);
        if needed > self.bytes {
            return Err(GgufError::CutShort { needed, bytes: self.bytes });
        }
        self.offset = needed;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        self.claim(N as u64)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|source| self.shrunk(source))?;
        Ok(bytes)
    }

    /// A file that ends before the size it had when it was opened.
    fn shrunk(&self, source: std::io::Error) -> GgufError {
        match source.kind() {
            std::io::ErrorKind::UnexpectedEof => GgufError::CutShort { needed: self.offset, bytes: self.bytes },
            _ => GgufError::Io(source),
        }
    }

    pub(super) fn skip(&mut self, count: u64) -> Result<(), GgufError> {
        self.claim(count)?;
        if count <= MOST_KEPT {
            // Mostly inside the buffer, where a seek would throw it away.
            std::io::copy(&mut self.reader.by_ref().take(count), &mut std::io::sink())?;
            return Ok(());
        }
        let count = i64::try_from(count).map_err(|_| GgufError::CutShort { needed: count, bytes: self.bytes })?;
        self.reader.seek(std::io::SeekFrom::Current(count))?;
        Ok(())
    }

    pub(super) fn u32(&mut self) -> Result<u32, GgufError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, GgufError> {
        self.take().map(u64::from_le_bytes)
    }

    fn text_length(&mut self, most: u64) -> Result<u64, GgufError> {
        let offset = self.offset;
        let length = self.u64()?;
        if length > most {
            return Err(GgufError::Damaged { offset, what: "a name is longer than any name" });
        }
        Ok(length)
    }

    /// A text of at most `most` bytes; what is beyond the kept length is cut off.
    pub(super) fn text(&mut self, most: u64) -> Result<String, GgufError> {
        let length = self.text_length(most)?;
        self.kept_text(length.min(MOST_KEPT), length)
    }

    fn kept_text(&mut self, kept: u64, length: u64) -> Result<String, GgufError> {
        self.claim(kept)?;
        let mut bytes = Vec::new();
        self.reader.by_ref().take(kept).read_to_end(&mut bytes)?;
        self.skip(length.saturating_sub(kept))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn skip_text(&mut self, most: u64) -> Result<(), GgufError> {
        let length = self.text_length(most)?;
        self.skip(length)
    }

    /// A value with its type before it.
    pub(super) fn value(&mut self) -> Result<Value, GgufError> {
        let kind = self.u32()?;
        Ok(match kind {
            0 => Value::Number(u8::from_le_bytes(self.take()?).into()),
            2 => Value::Number(u16::from_le_bytes(self.take()?).into()),
            4 => Value::Number(self.u32()?.into()),
            5 => u64::try_from(i32::from_le_bytes(self.take()?)).map_or(Value::Other, Value::Number),
            10 => Value::Number(self.u64()?),
            11 => u64::try_from(i64::from_le_bytes(self.take()?)).map_or(Value::Other, Value::Number),
            TEXT => match self.u64()? {
                length if length <= MOST_KEPT => Value::Text(self.kept_text(length, length)?),
                length => {
                    self.skip(length)?;
                    Value::LongText
                }
            },
            ARRAY => {
                self.skip_array(0)?;
                Value::Other
            }
            kind => {
                self.skip(self.width(kind)?)?;
                Value::Other
            }
        })
    }

    fn skip_array(&mut self, depth: u32) -> Result<(), GgufError> {
        if depth >= MOST_DEPTH {
            return Err(GgufError::Damaged { offset: self.offset, what: "arrays are nested too deep" });
        }
        let kind = self.u32()?;
        let count = self.u64()?;
        // The file's end bounds the loops: an element takes at least eight bytes.
        match kind {
            TEXT => (0..count).try_for_each(|_| self.skip_text(u64::MAX)),
            ARRAY => (0..count).try_for_each(|_| self.skip_array(depth + 1)),
            kind => self.skip(self.width(kind)?.saturating_mul(count)),
        }
    }

    fn width(&self, kind: u32) -> Result<u64, GgufError> {
        match kind {
            0 | 1 | 7 => Ok(1),
            2 | 3 => Ok(2),
            4..=6 => Ok(4),
            10..=12 => Ok(8),
            _ => Err(GgufError::Damaged { offset: self.offset, what: "a value has an unknown type" }),
        }
    }
}
