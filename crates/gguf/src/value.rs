//! The values of metadata, with the types that the file gives them.
//!
//! Made by the reader of metadata, used by all callers. Values are kept as they are in the file: a check sees the bits
//! that llama.cpp would see. Nothing here reads a file.

use std::borrow::Cow;
use std::fmt;

/// A type of values, with the number that GGUF gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// Unsigned, 8 bits.
    U8 = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Unsigned, 16 bits.
    U16 = 2,
    /// Signed, 16 bits.
    I16 = 3,
    /// Unsigned, 32 bits.
    U32 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// Float, 32 bits.
    F32 = 6,
    /// A byte, true unless it is 0.
    Bool = 7,
    /// A text.
    Text = 8,
    /// An array of one other kind, or of arrays.
    Array = 9,
    /// Unsigned, 64 bits.
    U64 = 10,
    /// Signed, 64 bits.
    I64 = 11,
    /// Float, 64 bits.
    F64 = 12,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Text,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The number in files.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The kind with a number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Bytes of a value, if all values of the kind have the same.
    #[must_use]
    pub const fn width(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::Array => None,
        }
    }

    /// The fewest bytes that a value takes in a file.
    pub(crate) const fn least_bytes(self) -> u64 {
        match self {
            Self::Text => 8,
            Self::Array => 12,
            other => match other.width() {
                Some(width) => width,
                None => 1,
            },
        }
    }
}

/// A text as the file has it, which need not be UTF-8.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Text(Box<[u8]>);

impl Text {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if it is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        str::from_utf8(&self.0).ok()
    }

    /// The text, with U+FFFD for bytes that are not UTF-8.
    #[must_use]
    pub fn lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// The bytes before the first zero byte, where a C string ends.
    #[must_use]
    pub fn before_zero(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.lossy(), formatter)
    }
}

/// A value of metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unsigned, 8 bits.
    U8(u8),
    /// Signed, 8 bits.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// Float, 32 bits.
    F32(f32),
    /// Yes or no.
    Bool(bool),
    /// A text.
    Text(Text),
    /// A text that was skipped because it is longer than the caller keeps: its bytes.
    LongText(u64),
    /// An array.
    Array(Box<Array>),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// Float, 64 bits.
    F64(f64),
}

/// An array of values of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// The kind of the elements.
    pub element: Kind,
    /// Elements that the file has.
    pub count: u64,
    /// The elements; none if the array was skipped because it is longer than the caller keeps.
    pub values: Vec<Value>,
}

impl Array {
    /// The elements, or `None` if they were skipped.
    #[must_use]
    pub fn kept(&self) -> Option<&[Value]> {
        (self.count == 0 || !self.values.is_empty()).then_some(self.values.as_slice())
    }
}

impl Value {
    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::U8(_) => Kind::U8,
            Self::I8(_) => Kind::I8,
            Self::U16(_) => Kind::U16,
            Self::I16(_) => Kind::I16,
            Self::U32(_) => Kind::U32,
            Self::I32(_) => Kind::I32,
            Self::F32(_) => Kind::F32,
            Self::Bool(_) => Kind::Bool,
            Self::Text(_) | Self::LongText(_) => Kind::Text,
            Self::Array(_) => Kind::Array,
            Self::U64(_) => Kind::U64,
            Self::I64(_) => Kind::I64,
            Self::F64(_) => Kind::F64,
        }
    }

    /// An integer of any width that is not negative. Writers disagree on the width of small numbers.
    #[must_use]
    pub fn as_unsigned(&self) -> Option<u64> {
        match self {
            Self::U8(value) => Some((*value).into()),
            Self::U16(value) => Some((*value).into()),
            Self::U32(value) => Some((*value).into()),
            Self::U64(value) => Some(*value),
            Self::I8(value) => u64::try_from(*value).ok(),
            Self::I16(value) => u64::try_from(*value).ok(),
            Self::I32(value) => u64::try_from(*value).ok(),
            Self::I64(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A float of either width.
    #[must_use]
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Self::F32(value) => Some((*value).into()),
            Self::F64(value) => Some(*value),
            _ => None,
        }
    }

    /// The bytes of a number or of a yes or no as an unsigned number, whatever they mean: -1 in 32 bits is `u32::MAX`.
    #[must_use]
    pub fn bits(&self) -> Option<u64> {
        match self {
            Self::U8(value) => Some((*value).into()),
            Self::I8(value) => Some(value.cast_unsigned().into()),
            Self::U16(value) => Some((*value).into()),
            Self::I16(value) => Some(value.cast_unsigned().into()),
            Self::U32(value) => Some((*value).into()),
            Self::I32(value) => Some(value.cast_unsigned().into()),
            Self::F32(value) => Some(value.to_bits().into()),
            Self::Bool(value) => Some((*value).into()),
            Self::U64(value) => Some(*value),
            Self::I64(value) => Some(value.cast_unsigned()),
            Self::F64(value) => Some(value.to_bits()),
            Self::Text(_) | Self::LongText(_) | Self::Array(_) => None,
        }
    }

    /// A text that was kept.
    #[must_use]
    pub fn as_text(&self) -> Option<&Text> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// An array.
    #[must_use]
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// The start of a text from a file, for a message.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_numbers_of_the_format() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(Kind::from_number(u32::try_from(number).unwrap()), Some(kind));
        }
        assert_eq!(Kind::from_number(13), None);
        assert_eq!(Kind::from_number(u32::MAX), None);
    }

    #[test]
    fn numbers_are_read_by_value_or_by_their_bits() {
        assert_eq!((Value::I32(-1).as_unsigned(), Value::I32(-1).bits()), (None, Some(u64::from(u32::MAX))));
        assert_eq!((Value::I8(-1).bits(), Value::I16(-1).bits()), (Some(0xff), Some(0xffff)));
        assert_eq!((Value::U16(7).as_unsigned(), Value::I64(7).as_unsigned()), (Some(7), Some(7)));
        assert_eq!((Value::Bool(true).as_unsigned(), Value::Bool(true).bits()), (None, Some(1)));
        assert_eq!((Value::F32(0.5).as_float(), Value::F32(0.5).bits()), (Some(0.5), Some(0x3f00_0000)));
        assert_eq!(Value::LongText(9).bits(), None);
    }

    #[test]
    fn texts_are_bytes_first() {
        let text = Text::from(b"ab\0\xff".to_vec());
        assert_eq!((text.as_str(), text.before_zero()), (None, &b"ab"[..]));
        assert_eq!(text.lossy(), "ab\0\u{fffd}");
        assert_eq!(Text::from("").before_zero(), b"");
    }

    #[test]
    fn a_skipped_array_is_told_from_an_empty_one() {
        let array = |count, values| Array { element: Kind::U8, count, values };
        assert_eq!(array(0, vec![]).kept(), Some(&[][..]));
        assert_eq!(array(2, vec![]).kept(), None);
        assert_eq!(array(1, vec![Value::U8(1)]).kept(), Some(&[Value::U8(1)][..]));
    }
}
