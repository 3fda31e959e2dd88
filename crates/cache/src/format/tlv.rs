//! The TLV records of a KVC file: their tags, how they are written, how they are taken apart.
//!
//! Called by the encoder and the decoder. A record is one tag byte, a `u32` length and the value. Records with
//! unknown tags are skipped, so that later releases can add facts. It must never allocate by a length that
//! it has read: values are borrowed from the bytes that are there.

use std::fmt;

use super::error::{FormatError, FormatField};
use super::layout::{VERSION_CHAINED, VERSION_WHOLE};
use super::reader::Reader;

/// The known tags. The discriminant is the byte in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RecordTag {
    /// The effective fingerprint of the model, 32 bytes.
    Fingerprint = 0x01,
    /// How the fingerprint was made, one byte.
    FingerprintMode = 0x02,
    /// The quantisation of the weights, one byte.
    QuantType = 0x03,
    /// The hash of the context settings, 32 bytes.
    ContextHash = 0x04,
    /// The machine that wrote the file, UTF-8.
    Host = 0x05,
    /// The release that wrote the file, UTF-8.
    Writer = 0x06,
    /// More about the save reason, UTF-8.
    ReasonDetail = 0x07,
    /// How many token ids follow in `TokenIds`, `u32`.
    TokenIdCount = 0x08,
    /// The token ids of the covered range, `u32` each.
    TokenIds = 0x09,
    /// Who has sent all tokens of the row, 16 bytes each. Older releases skip it.
    Owners = 0x0a,
    /// The key of the parent row, 32 bytes. Version 2.
    Parent = 0x20,
    /// The first token that the file covers, `u32`. Version 2.
    Start = 0x21,
    /// The table of payload parts. Version 2.
    Parts = 0x22,
    /// How the payload is encoded, one byte. Version 2.
    Codec = 0x23,
}

impl RecordTag {
    /// All known tags, in the order of their bytes.
    pub const ALL: [Self; 14] = [
        Self::Fingerprint,
        Self::FingerprintMode,
        Self::QuantType,
        Self::ContextHash,
        Self::Host,
        Self::Writer,
        Self::ReasonDetail,
        Self::TokenIdCount,
        Self::TokenIds,
        Self::Owners,
        Self::Parent,
        Self::Start,
        Self::Parts,
        Self::Codec,
    ];

    /// The byte in the file.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The tag for a byte, or `None` for one that this release does not know.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|tag| tag.byte() == byte)
    }

    /// The version that brought the tag.
    #[must_use]
    pub const fn first_version(self) -> u8 {
        match self {
            Self::Parent | Self::Start | Self::Parts | Self::Codec => VERSION_CHAINED,
            _ => VERSION_WHOLE,
        }
    }

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fingerprint => "fingerprint",
            Self::FingerprintMode => "fingerprint mode",
            Self::QuantType => "quant type",
            Self::ContextHash => "context hash",
            Self::Host => "host name",
            Self::Writer => "writer version",
            Self::ReasonDetail => "reason detail",
            Self::TokenIdCount => "token id count",
            Self::TokenIds => "token ids",
            Self::Owners => "owners",
            Self::Parent => "parent key",
            Self::Start => "range start",
            Self::Parts => "payload parts",
            Self::Codec => "codec",
        }
    }
}

impl fmt::Display for RecordTag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#04x} ({})", self.byte(), self.as_str())
    }
}

/// Appends one record.
pub(super) fn put_record(out: &mut Vec<u8>, tag: RecordTag, value: &[u8]) -> Result<(), FormatError> {
    let field = FormatField::Record(tag.byte());
    let length = u32::try_from(value.len()).map_err(|_| FormatError::TooLong { field })?;
    out.push(tag.byte());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(value);
    Ok(())
}

/// The known records of a file, each at most once, values borrowed.
#[derive(Debug)]
pub(super) struct Records<'a> {
    known: Vec<(RecordTag, &'a [u8])>,
}

impl<'a> Records<'a> {
    /// Takes a block of records apart, skipping those with unknown tags.
    pub(super) fn parse(block: &'a [u8], version: u8) -> Result<Self, FormatError> {
        let mut known: Vec<(RecordTag, &[u8])> = Vec::with_capacity(RecordTag::ALL.len());
        let mut reader = Reader::new(block);
        while !reader.is_at_end() {
            let byte = reader.u8(FormatField::Records)?;
            let value = reader.sized(FormatField::Record(byte))?;
            let Some(tag) = RecordTag::from_byte(byte) else { continue };
            if tag.first_version() > version {
                return Err(FormatError::ForeignTag { tag, version });
            }
            if known.iter().any(|(other, _)| *other == tag) {
                return Err(FormatError::DuplicateTag { tag });
            }
            known.push((tag, value));
        }
        Ok(Self { known })
    }

    /// The value of a record, if it is there.
    pub(super) fn get(&self, tag: RecordTag) -> Option<&'a [u8]> {
        self.known.iter().find(|(other, _)| *other == tag).map(|(_, value)| *value)
    }

    /// The value of a record that must be there.
    pub(super) fn require(&self, tag: RecordTag) -> Result<&'a [u8], FormatError> {
        self.get(tag).ok_or(FormatError::MissingTag { tag })
    }

    /// The value of a record of exactly `N` bytes, if it is there.
    pub(super) fn get_array<const N: usize>(&self, tag: RecordTag) -> Result<Option<[u8; N]>, FormatError> {
        let Some(value) = self.get(tag) else { return Ok(None) };
        match <[u8; N]>::try_from(value) {
            Ok(array) => Ok(Some(array)),
            Err(_) => Err(FormatError::TagLength { tag, expected: N, got: value.len() }),
        }
    }

    /// The value of a record of exactly `N` bytes that must be there.
    pub(super) fn require_array<const N: usize>(&self, tag: RecordTag) -> Result<[u8; N], FormatError> {
        self.get_array(tag)?.ok_or(FormatError::MissingTag { tag })
    }

    /// The text of a record, if it is there.
    pub(super) fn get_text(&self, tag: RecordTag) -> Result<Option<String>, FormatError> {
        self.get(tag).map(|value| to_text(FormatField::Record(tag.byte()), value)).transpose()
    }
}

/// Text from the file, which must be UTF-8.
pub(super) fn to_text(field: FormatField, bytes: &[u8]) -> Result<String, FormatError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(FormatError::NotUtf8 { field, valid: error.valid_up_to() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tag: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend(u32::try_from(value.len()).unwrap().to_le_bytes());
        bytes.extend(value);
        bytes
    }

    #[test]
    fn tag_bytes_round_trip_and_are_those_of_the_format_page() {
        for tag in RecordTag::ALL {
            assert_eq!(RecordTag::from_byte(tag.byte()), Some(tag));
        }
        let bytes = RecordTag::ALL.map(RecordTag::byte);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x0a, 0x20, 0x21, 0x22, 0x23]);
    }

    #[test]
    fn unknown_tags_are_skipped_even_twice() {
        let block = [record(0x77, b"x"), record(0x05, b"host"), record(0x77, b""), record(0x00, b"yy")].concat();
        let records = Records::parse(&block, 2).unwrap();
        assert_eq!(records.get_text(RecordTag::Host).unwrap().as_deref(), Some("host"));
        assert_eq!(records.known.len(), 1);
    }

    #[test]
    fn known_tag_twice_is_refused() {
        let block = [record(0x05, b"a"), record(0x05, b"a")].concat();
        assert_eq!(Records::parse(&block, 2).unwrap_err(), FormatError::DuplicateTag { tag: RecordTag::Host });
    }

    #[test]
    fn tags_of_version_2_are_refused_in_version_1() {
        let block = record(0x22, &[0; 21]);
        let expected = FormatError::ForeignTag { tag: RecordTag::Parts, version: 1 };
        assert_eq!(Records::parse(&block, 1).unwrap_err(), expected);
        assert!(Records::parse(&block, 2).is_ok());
    }

    #[test]
    fn record_past_the_block_is_refused() {
        let mut block = record(0x05, b"host");
        for length in 1..block.len() {
            assert!(matches!(Records::parse(&block[..length], 2), Err(FormatError::Overrun { .. })), "{length}");
        }
        block[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
        let expected = FormatError::Overrun { field: FormatField::Record(5), end: 5 + u64::from(u32::MAX), limit: 9 };
        assert_eq!(Records::parse(&block, 2).unwrap_err(), expected);
    }

    #[test]
    fn wrong_lengths_and_wrong_text_name_the_tag() {
        let block = [record(0x08, &[1, 2, 3]), record(0x06, b"ab\xff")].concat();
        let records = Records::parse(&block, 2).unwrap();
        let expected = FormatError::TagLength { tag: RecordTag::TokenIdCount, expected: 4, got: 3 };
        assert_eq!(records.require_array::<4>(RecordTag::TokenIdCount), Err(expected));
        assert_eq!(
            records.get_text(RecordTag::Writer),
            Err(FormatError::NotUtf8 { field: FormatField::Record(6), valid: 2 })
        );
        assert_eq!(records.require(RecordTag::TokenIds), Err(FormatError::MissingTag { tag: RecordTag::TokenIds }));
    }
}
