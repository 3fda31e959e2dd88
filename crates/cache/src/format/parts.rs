//! The table of payload parts: what is where in the payload, each part with its own checksum.
//!
//! Called by the encoder and the decoder. Parts follow each other in ascending order, so that one part, or the
//! whole payload, can be read and checked alone. It must never accept a part that reaches out of the payload.

use super::crc::crc32c_combine;
use super::error::{FormatError, FormatField};
use super::reader::Reader;
use super::tlv::RecordTag;
use crate::kinds::PartKind;

/// Bytes of one entry: kind, offset, length, CRC.
const ENTRY_LENGTH: usize = 1 + 8 + 8 + 4;

/// A piece of a stored payload that can be read and checked alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePart {
    /// What it is.
    pub kind: PartKind,
    /// Where it starts, from the start of the payload.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// Its CRC-32C.
    pub crc: u32,
}

/// A part of a payload to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewPart {
    /// What it is; never `Whole`.
    pub kind: PartKind,
    /// Its length.
    pub length: u64,
    /// Its CRC-32C.
    pub crc: u32,
}

/// The parts table of a payload to be written, and what the header says about that payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) table: Vec<u8>,
    pub(super) length: u64,
    pub(super) crc: u32,
}

impl Payload {
    /// Lays the parts end to end.
    pub(super) fn lay_out(parts: &[NewPart]) -> Result<Self, FormatError> {
        let mut table = Vec::with_capacity(parts.len().saturating_mul(ENTRY_LENGTH));
        let mut kinds = Vec::with_capacity(PartKind::ALL.len());
        let (mut length, mut crc) = (0_u64, 0);
        for part in parts {
            let kind = part.kind.byte();
            if part.kind == PartKind::Whole {
                return Err(FormatError::BadField { field: FormatField::PartKind, got: kind });
            }
            if kinds.contains(&kind) {
                return Err(FormatError::DuplicatePart { kind });
            }
            kinds.push(kind);
            table.push(kind);
            table.extend_from_slice(&length.to_le_bytes());
            table.extend_from_slice(&part.length.to_le_bytes());
            table.extend_from_slice(&part.crc.to_le_bytes());
            crc = crc32c_combine(crc, part.crc, part.length);
            length = length.checked_add(part.length).ok_or(FormatError::TooLong { field: FormatField::Payload })?;
        }
        Ok(Self { table, length, crc })
    }
}

/// The parts of known kinds. Those of unknown kinds must be in range too, but are left out.
pub(super) fn parse_parts(table: &[u8], payload_length: u64) -> Result<Vec<FilePart>, FormatError> {
    if !table.len().is_multiple_of(ENTRY_LENGTH) {
        return Err(FormatError::TagUnit { tag: RecordTag::Parts, unit: ENTRY_LENGTH, got: table.len() });
    }
    let mut parts: Vec<FilePart> = Vec::with_capacity(PartKind::ALL.len());
    let mut previous_end = 0;
    let mut reader = Reader::new(table);
    while !reader.is_at_end() {
        let kind = reader.u8(FormatField::Part)?;
        let (offset, length, crc) =
            (reader.u64(FormatField::Part)?, reader.u64(FormatField::Part)?, reader.u32(FormatField::Part)?);
        if offset < previous_end {
            return Err(FormatError::PartOrder { offset, previous_end });
        }
        let end = offset.checked_add(length).filter(|end| *end <= payload_length);
        previous_end = end.ok_or(FormatError::Overrun {
            field: FormatField::Part,
            end: offset.saturating_add(length),
            limit: payload_length,
        })?;
        match PartKind::from_byte(kind) {
            None => {}
            Some(PartKind::Whole) => return Err(FormatError::BadField { field: FormatField::PartKind, got: kind }),
            Some(kind) if parts.iter().any(|part| part.kind == kind) => {
                return Err(FormatError::DuplicatePart { kind: kind.byte() });
            }
            Some(kind) => parts.push(FilePart { kind, offset, length, crc }),
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[(u8, u64, u64)]) -> Result<Vec<PartKind>, FormatError> {
        let entry = |(kind, offset, length): &(u8, u64, u64)| {
            [&[*kind][..], &offset.to_le_bytes(), &length.to_le_bytes(), &5_u32.to_le_bytes()].concat()
        };
        let table: Vec<u8> = entries.iter().flat_map(entry).collect();
        parse_parts(&table, 40).map(|parts| parts.iter().map(|part| part.kind).collect())
    }

    #[test]
    fn unknown_kinds_gaps_and_empty_parts_are_allowed() {
        let kinds = parse(&[(3, 0, 4), (99, 4, 0), (99, 6, 1), (1, 9, 31)]);
        assert_eq!(kinds, Ok(vec![PartKind::Logits, PartKind::Attention]));
        assert_eq!(parse(&[]), Ok(vec![]));
    }

    #[test]
    fn order_kind_and_range_are_checked() {
        assert_eq!(parse(&[(3, 0, 4), (1, 3, 1)]), Err(FormatError::PartOrder { offset: 3, previous_end: 4 }));
        assert_eq!(parse(&[(99, 0, 4), (1, 3, 1)]), Err(FormatError::PartOrder { offset: 3, previous_end: 4 }));
        assert_eq!(parse(&[(1, 0, 4), (1, 4, 1)]), Err(FormatError::DuplicatePart { kind: 1 }));
        assert_eq!(parse(&[(0, 0, 40)]), Err(FormatError::BadField { field: FormatField::PartKind, got: 0 }));
        for entry in [(1, 0, 41), (99, 40, 1), (2, 41, 0), (1, 1, u64::MAX), (99, u64::MAX, 1)] {
            let result = parse(&[entry]);
            assert!(
                matches!(result, Err(FormatError::Overrun { field: FormatField::Part, limit: 40, .. })),
                "{result:?}"
            );
        }
        assert!(matches!(parse_parts(&[1; 22], 40), Err(FormatError::TagUnit { unit: 21, got: 22, .. })));
    }

    #[test]
    fn parts_to_be_written_are_known_single_and_summable() {
        let part = |kind, length| NewPart { kind, length, crc: 0 };
        let whole = FormatError::BadField { field: FormatField::PartKind, got: 0 };
        assert_eq!(Payload::lay_out(&[part(PartKind::Whole, 1)]), Err(whole));
        let twice = [part(PartKind::Logits, 1), part(PartKind::Logits, 1)];
        assert_eq!(Payload::lay_out(&twice), Err(FormatError::DuplicatePart { kind: 3 }));
        let huge = [part(PartKind::Attention, u64::MAX), part(PartKind::Logits, 1)];
        assert_eq!(Payload::lay_out(&huge), Err(FormatError::TooLong { field: FormatField::Payload }));
        assert_eq!(Payload::lay_out(&[]), Ok(Payload { table: vec![], length: 0, crc: 0 }));
    }
}
