//! All metadata of a GGUF file, for people who want to look at a model.
//!
//! Called by the server when it describes a model; nothing here is part of any identity. The same cursor guards every
//! length. Long arrays (a vocabulary) come empty unless the caller wants them. It must never allocate by a claimed count.

use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::io::files::{self, Links};

use super::fields::{ARRAY, Fields, GgufError, MAX_ARRAY_DEPTH, STRING};
use super::{MAX_KEY_BYTES, read_header};

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// An integer without a sign.
    Unsigned(u64),
    /// An integer with a sign.
    Signed(i64),
    /// A short float.
    Float(f32),
    /// A long float.
    Double(f64),
    /// Yes or no.
    Bool(bool),
    /// A text; bytes that are no UTF-8 became U+FFFD.
    Text(String),
    /// Some values; empty if there were more than the caller wanted.
    Array(Vec<GgufValue>),
}

/// The metadata of a file in its order. Arrays of more than `longest_array` elements come empty.
///
/// # Errors
/// When the file cannot be read or is no GGUF.
pub fn gguf_metadata(path: &Path, longest_array: usize) -> Result<Vec<(String, GgufValue)>, GgufError> {
    let unreadable = |source| GgufError::Io { offset: 0, source };
    let file = files::open_regular(path, Links::Follow).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    read_metadata(BufReader::new(file), bytes, longest_array)
}

pub(super) fn read_metadata(
    reader: impl BufRead,
    file_bytes: u64,
    longest_array: usize,
) -> Result<Vec<(String, GgufValue)>, GgufError> {
    let mut fields = Fields::new(reader, file_bytes);
    let header = read_header(&mut fields)?;
    let mut all = Vec::new();
    for _ in 0..header.key_count {
        let key = fields.string("metadata key", MAX_KEY_BYTES)?;
        let kind = fields.u32("value type")?;
        let value = read_value(&mut fields, kind, 0, longest_array)?;
        all.push((String::from_utf8_lossy(&key).into_owned(), value));
    }
    Ok(all)
}

fn read_value(
    fields: &mut Fields<impl BufRead>,
    kind: u32,
    depth: u32,
    longest_array: usize,
) -> Result<GgufValue, GgufError> {
    const FIELD: &str = "metadata value";
    let offset = fields.offset();
    Ok(match kind {
        0 => GgufValue::Unsigned(u8::from_le_bytes(fields.take(FIELD)?).into()),
        1 => GgufValue::Signed(i8::from_le_bytes(fields.take(FIELD)?).into()),
        2 => GgufValue::Unsigned(u16::from_le_bytes(fields.take(FIELD)?).into()),
        3 => GgufValue::Signed(i16::from_le_bytes(fields.take(FIELD)?).into()),
        4 => GgufValue::Unsigned(fields.u32(FIELD)?.into()),
        5 => GgufValue::Signed(i32::from_le_bytes(fields.take(FIELD)?).into()),
        6 => GgufValue::Float(f32::from_le_bytes(fields.take(FIELD)?)),
        7 => GgufValue::Bool(u8::from_le_bytes(fields.take(FIELD)?) != 0),
        STRING => GgufValue::Text(String::from_utf8_lossy(&fields.string(FIELD, u64::MAX)?).into_owned()),
        ARRAY if depth >= MAX_ARRAY_DEPTH => {
            return Err(GgufError::NestedTooDeep { limit: MAX_ARRAY_DEPTH, offset });
        }
        ARRAY => {
            let element = fields.u32("array type")?;
            let count = fields.u64("array length")?;
            if usize::try_from(count).is_ok_and(|count| count <= longest_array) {
                // The file's end bounds this loop: every element takes at least a byte.
                let elements = (0..count).map(|_| read_value(fields, element, depth + 1, longest_array));
                return elements.collect::<Result<_, _>>().map(GgufValue::Array);
            }
            fields.skip_elements(element, count, depth)?;
            GgufValue::Array(Vec::new())
        }
        10 => GgufValue::Unsigned(fields.u64(FIELD)?),
        11 => GgufValue::Signed(i64::from_le_bytes(fields.take(FIELD)?)),
        12 => GgufValue::Double(f64::from_le_bytes(fields.take(FIELD)?)),
        got => return Err(GgufError::UnknownValueType { got, offset }),
    })
}
