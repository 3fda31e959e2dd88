//! The fixed 72 bytes at the start of a KVC file, and the checksum that covers them.
//!
//! Called by the encoder and the decoder; the store uses `HITS_OFFSET` and `LAST_USED_OFFSET` through
//! `encode_touch`. It must never be changed for a version that exists: a new layout is a new version.

use std::ops::Range;

use super::crc::Crc32c;
use super::error::{FormatError, FormatField};
use super::layout::{HEADER_LENGTH, HITS_OFFSET, LAST_USED_OFFSET, MAGIC, MAX_PREFIX, VERSION_CHAINED, VERSION_WHOLE};
use super::reader::Reader;

/// The header and the two lengths of the sections behind it: no payload can start earlier.
pub(super) const LEAST_PREFIX: u64 = HEADER_LENGTH as u64 + 8;

/// Where the CRC of the prefix is.
const PREFIX_CRC_OFFSET: usize = 68;

/// What the CRC of the prefix takes as zero: the two fields that are rewritten in place, and itself.
const TAKEN_AS_ZERO: [Range<usize>; 3] =
    [HITS_OFFSET..HITS_OFFSET + 4, LAST_USED_OFFSET..LAST_USED_OFFSET + 8, PREFIX_CRC_OFFSET..PREFIX_CRC_OFFSET + 4];

/// The fields of the header, as they are in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u8,
    pub(super) quant_bits: u8,
    pub(super) reason: u8,
    pub(super) flags: u16,
    pub(super) token_count: u32,
    pub(super) hits: u32,
    pub(super) context_size: u32,
    pub(super) created: u64,
    pub(super) last_used: u64,
    pub(super) payload_count: u64,
    pub(super) payload_offset: u64,
    pub(super) payload_length: u64,
    pub(super) payload_crc: u32,
    pub(super) prefix_crc: u32,
}

impl Header {
    /// Reads the header of a known version. Magic and version are looked at first, because nothing else can be
    /// said about the bytes of another version.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let truncated = FormatError::Truncated {
            field: FormatField::Header,
            needed: HEADER_LENGTH as u64,
            got: bytes.len() as u64,
        };
        let (magic, rest) = bytes.split_first_chunk::<3>().ok_or_else(|| truncated.clone())?;
        if *magic != MAGIC {
            return Err(FormatError::WrongMagic { got: *magic });
        }
        match rest.first() {
            Some(&(VERSION_WHOLE | VERSION_CHAINED)) => {}
            Some(&version) => return Err(FormatError::UnknownVersion { version }),
            None => return Err(truncated),
        }
        let header = bytes.first_chunk::<HEADER_LENGTH>().ok_or(truncated)?;
        Self::parse_fields(header)
    }

    fn parse_fields(header: &[u8; HEADER_LENGTH]) -> Result<Self, FormatError> {
        const FIELD: FormatField = FormatField::Header;
        let mut reader = Reader::new(header);
        reader.take(FIELD, MAGIC.len())?;
        let version = reader.u8(FIELD)?;
        let quant_bits = reader.u8(FIELD)?;
        let reason = reader.u8(FIELD)?;
        let flags = u16::from_le_bytes(reader.array(FIELD)?);
        let token_count = reader.u32(FIELD)?;
        let hits = reader.u32(FIELD)?;
        let context_size = reader.u32(FIELD)?;
        let _reserved = reader.u32(FIELD)?;
        Ok(Self {
            version,
            quant_bits,
            reason,
            flags,
            token_count,
            hits,
            context_size,
            created: reader.u64(FIELD)?,
            last_used: reader.u64(FIELD)?,
            payload_count: reader.u64(FIELD)?,
            payload_offset: reader.u64(FIELD)?,
            payload_length: reader.u64(FIELD)?,
            payload_crc: reader.u32(FIELD)?,
            prefix_crc: reader.u32(FIELD)?,
        })
    }

    /// The header as it is written.
    pub(super) fn to_bytes(&self) -> [u8; HEADER_LENGTH] {
        let fields: [&[u8]; 14] = [
            &MAGIC,
            &[self.version, self.quant_bits, self.reason],
            &self.flags.to_le_bytes(),
            &self.token_count.to_le_bytes(),
            &self.hits.to_le_bytes(),
            &self.context_size.to_le_bytes(),
            &[0; 4],
            &self.created.to_le_bytes(),
            &self.last_used.to_le_bytes(),
            &self.payload_count.to_le_bytes(),
            &self.payload_offset.to_le_bytes(),
            &self.payload_length.to_le_bytes(),
            &self.payload_crc.to_le_bytes(),
            &self.prefix_crc.to_le_bytes(),
        ];
        let mut bytes = [0; HEADER_LENGTH];
        for (slot, byte) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *slot = *byte;
        }
        bytes
    }

    /// How many bytes are before the payload, once the lengths of the header fit each other and the file.
    pub(super) fn prefix_length(&self, file_length: u64) -> Result<usize, FormatError> {
        let (offset, length) = (self.payload_offset, self.payload_length);
        if self.payload_count != length {
            return Err(FormatError::PayloadLengths { count: self.payload_count, length });
        }
        if offset < LEAST_PREFIX {
            return Err(FormatError::PayloadOffset { offset, least: LEAST_PREFIX });
        }
        let end = offset.checked_add(length);
        if end != Some(file_length) {
            return Err(FormatError::FileLength { expected: end.unwrap_or(u64::MAX), got: file_length });
        }
        let too_long = FormatError::PrefixTooLong { length: offset, limit: MAX_PREFIX };
        if offset > MAX_PREFIX {
            return Err(too_long);
        }
        usize::try_from(offset).map_err(|_| too_long)
    }
}

/// The CRC-32C of all bytes before the payload, with the fields that may change taken as zero.
pub(super) fn prefix_crc(header: &[u8; HEADER_LENGTH], rest: &[u8]) -> u32 {
    let mut header = *header;
    for range in TAKEN_AS_ZERO {
        if let Some(bytes) = header.get_mut(range) {
            bytes.fill(0);
        }
    }
    let mut crc = Crc32c::new();
    crc.update(&header);
    crc.update(rest);
    crc.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            version: 2,
            quant_bits: 4,
            reason: 5,
            flags: 0x8001,
            token_count: 0x0102_0304,
            hits: 0x1112_1314,
            context_size: 0x2122_2324,
            created: 0x3132_3334_3536_3738,
            last_used: 0x4142_4344_4546_4748,
            payload_count: 20,
            payload_offset: 80,
            payload_length: 20,
            payload_crc: 0x5152_5354,
            prefix_crc: 0x6162_6364,
        }
    }

    #[test]
    fn every_field_is_where_the_format_page_says() {
        let bytes = header().to_bytes();
        let at = |range: Range<usize>| bytes[range].iter().rev().fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
        assert_eq!(&bytes[..3], b"KVC");
        assert_eq!(bytes[3..6], [2, 4, 5]);
        assert_eq!(at(6..8), 0x8001);
        assert_eq!(at(8..12), 0x0102_0304);
        assert_eq!(at(12..16), 0x1112_1314);
        assert_eq!(at(16..20), 0x2122_2324);
        assert_eq!(at(20..24), 0);
        assert_eq!(at(24..32), 0x3132_3334_3536_3738);
        assert_eq!(at(32..40), 0x4142_4344_4546_4748);
        assert_eq!((at(40..48), at(48..56), at(56..64)), (20, 80, 20));
        assert_eq!(at(64..68), 0x5152_5354);
        assert_eq!(at(68..72), 0x6162_6364);
        assert_eq!(Header::parse(&bytes), Ok(header()));
    }

    #[test]
    fn lengths_must_fit_each_other_and_the_file() {
        assert_eq!(header().prefix_length(100), Ok(80));
        let trailing = FormatError::FileLength { expected: 100, got: 101 };
        assert_eq!(header().prefix_length(101), Err(trailing));
        let low = Header { payload_offset: 79, ..header() };
        assert_eq!(low.prefix_length(99), Err(FormatError::PayloadOffset { offset: 79, least: 80 }));
        let unequal = Header { payload_count: 21, ..header() };
        assert_eq!(unequal.prefix_length(100), Err(FormatError::PayloadLengths { count: 21, length: 20 }));
        let far = Header { payload_offset: MAX_PREFIX + 1, ..header() };
        let too_long = FormatError::PrefixTooLong { length: MAX_PREFIX + 1, limit: MAX_PREFIX };
        assert_eq!(far.prefix_length(MAX_PREFIX + 21), Err(too_long));
        let wrapping = Header { payload_count: u64::MAX, payload_length: u64::MAX, ..header() };
        let overflow = FormatError::FileLength { expected: u64::MAX, got: 79 };
        assert_eq!(wrapping.prefix_length(79), Err(overflow), "the sum must not wrap to 79");
        assert!(wrapping.prefix_length(u64::MAX).is_err());
    }

    #[test]
    fn only_the_changing_fields_are_outside_the_crc() {
        let bytes = header().to_bytes();
        let covered = prefix_crc(&bytes, b"rest");
        for position in 0..HEADER_LENGTH {
            let mut changed = bytes;
            changed[position] ^= 0x40;
            let outside = (12..16).contains(&position) || (32..40).contains(&position) || (68..72).contains(&position);
            assert_eq!(prefix_crc(&changed, b"rest") == covered, outside, "byte {position}");
        }
        assert_ne!(prefix_crc(&bytes, b"resT"), covered);
    }
}
