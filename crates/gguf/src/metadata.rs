//! The metadata of a file: its keys and values in the order of the file, and reading them.
//!
//! Called by `header`. What the caller does not keep is skipped without being stored; the budgets of the cursor bound
//! the rest. It must never allocate by a count that the file states.

use std::io::{Read, Seek};

use crate::cursor::Cursor;
use crate::error::{Damage, GgufError};
use crate::limits::{MAX_DEPTH, MAX_KEPT_BYTES, MAX_KEYS, MAX_TEXT_BYTES, VALUE_COST};
use crate::value::{Array, Kind, Text, Value, shortened};

/// How much of the metadata stays in memory. Longer texts become [`Value::LongText`], longer arrays come without
/// elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep<'a> {
    /// Bytes of the longest text.
    pub text: u64,
    /// Elements of the longest array.
    pub array: u64,
    /// Keys of arrays that are kept at any length, within [`MAX_KEPT_BYTES`].
    pub whole: &'a [&'a str],
}

impl Keep<'static> {
    /// Short texts and no arrays.
    pub const FACTS: Self = Self { text: 4096, array: 0, whole: &[] };

    /// All texts, and arrays of at most `elements` elements.
    #[must_use]
    pub fn arrays_up_to(elements: usize) -> Self {
        Self { text: MAX_TEXT_BYTES, array: u64::try_from(elements).unwrap_or(u64::MAX), whole: &[] }
    }
}

/// Keys and values in the order of the file. A file has no key twice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Positions in `entries`, sorted by key.
    by_key: Vec<usize>,
}

impl Metadata {
    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self.by_key.binary_search_by(|index| self.key_at(*index).cmp(key)).ok()?;
        self.entries.get(*self.by_key.get(found)?).map(|(_, value)| value)
    }

    /// All keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn key_at(&self, index: usize) -> &str {
        self.entries.get(index).map_or("", |(key, _)| key.as_str())
    }

    /// A key that appears twice.
    fn duplicate(&self) -> Option<&str> {
        let mut pairs = self.by_key.iter().zip(self.by_key.iter().skip(1));
        pairs.find(|(one, next)| self.key_at(**one) == self.key_at(**next)).map(|(one, _)| self.key_at(*one))
    }

    pub(crate) fn read(cursor: &mut Cursor<impl Read + Seek>, count: u64, keep: &Keep<'_>) -> Result<Self, GgufError> {
        if count > MAX_KEYS {
            return Err(cursor.damaged(Damage::TooManyKeys { count, limit: MAX_KEYS }));
        }
        let mut entries = Vec::new();
        for _ in 0..count {
            let key = cursor.name()?;
            if !cursor.keep(VALUE_COST) {
                return Err(cursor.damaged(Damage::TooMuchText { limit: MAX_KEPT_BYTES }));
            }
            let kind = read_kind(cursor, &key)?;
            let value = ValueReader { cursor, key: &key, keep }.value(kind, 0)?;
            entries.push((key, value));
        }
        let metadata: Self = entries.into_iter().collect();
        match metadata.duplicate() {
            Some(key) => Err(cursor.damaged(Damage::DuplicateKey { key: shortened(key) })),
            None => Ok(metadata),
        }
    }
}

impl FromIterator<(String, Value)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(entries: I) -> Self {
        let entries: Vec<_> = entries.into_iter().collect();
        let mut metadata = Self { by_key: (0..entries.len()).collect(), entries };
        let mut by_key = std::mem::take(&mut metadata.by_key);
        by_key.sort_by_key(|index| metadata.key_at(*index));
        metadata.by_key = by_key;
        metadata
    }
}

impl IntoIterator for Metadata {
    type Item = (String, Value);
    type IntoIter = std::vec::IntoIter<(String, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

fn read_kind(cursor: &mut Cursor<impl Read + Seek>, key: &str) -> Result<Kind, GgufError> {
    let got = cursor.u32()?;
    Kind::from_number(got).ok_or_else(|| cursor.damaged(Damage::UnknownType { key: shortened(key), got }))
}

/// Reads the value of one key.
struct ValueReader<'a, R: Read + Seek> {
    cursor: &'a mut Cursor<R>,
    key: &'a str,
    keep: &'a Keep<'a>,
}

impl<R: Read + Seek> ValueReader<'_, R> {
    fn value(&mut self, kind: Kind, depth: u32) -> Result<Value, GgufError> {
        let cursor = &mut *self.cursor;
        Ok(match kind {
            Kind::U8 => Value::U8(u8::from_le_bytes(cursor.take()?)),
            Kind::I8 => Value::I8(i8::from_le_bytes(cursor.take()?)),
            Kind::U16 => Value::U16(u16::from_le_bytes(cursor.take()?)),
            Kind::I16 => Value::I16(i16::from_le_bytes(cursor.take()?)),
            Kind::U32 => Value::U32(u32::from_le_bytes(cursor.take()?)),
            Kind::I32 => Value::I32(i32::from_le_bytes(cursor.take()?)),
            Kind::F32 => Value::F32(f32::from_le_bytes(cursor.take()?)),
            Kind::Bool => Value::Bool(cursor.take()? != [0]),
            Kind::U64 => Value::U64(u64::from_le_bytes(cursor.take()?)),
            Kind::I64 => Value::I64(i64::from_le_bytes(cursor.take()?)),
            Kind::F64 => Value::F64(f64::from_le_bytes(cursor.take()?)),
            Kind::Text => self.text()?,
            Kind::Array => Value::Array(Box::new(self.array(depth)?)),
        })
    }

    fn text(&mut self) -> Result<Value, GgufError> {
        let length = self.cursor.u64()?;
        self.cursor.require(length)?;
        if length <= self.keep.text.min(MAX_TEXT_BYTES) && self.cursor.keep(length) {
            return self.cursor.run(length).map(|bytes| Value::Text(Text::from(bytes)));
        }
        self.cursor.skip(length)?;
        Ok(Value::LongText(length))
    }

    fn array(&mut self, depth: u32) -> Result<Array, GgufError> {
        let (element, count) = self.array_head(depth)?;
        let wanted = count <= self.keep.array || self.keep.whole.contains(&self.key);
        let mut values = Vec::new();
        if wanted && self.cursor.keep(count.saturating_mul(VALUE_COST)) {
            for _ in 0..count {
                values.push(self.value(element, depth + 1)?);
            }
        } else {
            self.skip_elements(element, count, depth)?;
        }
        Ok(Array { element, count, values })
    }

    /// The kind and the number of elements. The file has room for them, and they may be visited.
    fn array_head(&mut self, depth: u32) -> Result<(Kind, u64), GgufError> {
        if depth >= MAX_DEPTH {
            let key = shortened(self.key);
            return Err(self.cursor.damaged(Damage::NestedTooDeep { key, limit: MAX_DEPTH }));
        }
        let element = read_kind(self.cursor, self.key)?;
        let count = self.cursor.u64()?;
        self.cursor.require(count.saturating_mul(element.least_bytes()))?;
        if element.width().is_none() {
            self.cursor.visit(count)?;
        }
        Ok((element, count))
    }

    fn skip_elements(&mut self, element: Kind, count: u64, depth: u32) -> Result<(), GgufError> {
        if let Some(width) = element.width() {
            return self.cursor.skip(count.saturating_mul(width));
        }
        for _ in 0..count {
            if element == Kind::Text {
                let length = self.cursor.u64()?;
                self.cursor.skip(length)?;
            } else {
                let (element, count) = self.array_head(depth + 1)?;
                self.skip_elements(element, count, depth + 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_any_order() {
        let keys = ["b", "a", "general.architecture", "c"];
        let metadata: Metadata =
            keys.iter().zip(0..).map(|(key, number)| ((*key).to_owned(), Value::U8(number))).collect();
        for (key, number) in keys.iter().zip(0..) {
            assert_eq!(metadata.get(key), Some(&Value::U8(number)));
        }
        assert_eq!(metadata.get("bb"), None);
        assert!(metadata.iter().map(|(key, _)| key).eq(keys));
        assert_eq!(metadata.duplicate(), None);
        let twice: Metadata = ["x", "y", "x"].map(|key| (key.to_owned(), Value::U8(0))).into_iter().collect();
        assert_eq!(twice.duplicate(), Some("x"));
    }
}
