//! From the bytes before a payload to a row.
//!
//! Called by recovery, by the check of a published file and by `poncho cache`. A reader preads the first few
//! kilobytes, asks `prefix_length` how many there are, preads the rest and calls `decode_prefix`. It must accept
//! any bytes: nothing is allocated by a length that was not checked against the bytes that are there.

use poncho_gguf::QuantType;

use super::error::{FormatError, FormatField};
use super::header::{Header, prefix_crc};
use super::layout::{CODEC_RAW, HEADER_LENGTH, VERSION_CHAINED};
use super::parts::{FilePart, parse_parts};
use super::prefix::RowPrefix;
use super::reader::Reader;
use super::row_meta::RowMeta;
use super::tlv::{RecordTag, Records, to_text};
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::{MOST_OWNERS, OwnerId};
use crate::kinds::{FingerprintMode, PartKind, SaveReason};

/// How many bytes are before the payload, from the first bytes of the file (at least `HEADER_LENGTH`, unless the
/// file is shorter) and its length. The answer is at most `MAX_PREFIX` and at most `file_length`, so it is safe to
/// allocate.
///
/// # Errors
/// When the header is not that of a file of this length in a known version.
pub fn prefix_length(first_bytes: &[u8], file_length: u64) -> Result<usize, FormatError> {
    Header::parse(first_bytes)?.prefix_length(file_length)
}

/// The row that a file holds, from all bytes before its payload (more are ignored) and the length of the file.
///
/// # Errors
/// When the bytes are damaged, cut off, or of a version or codec that is not known; see
/// [`FormatError::leave_alone`].
pub fn decode_prefix(bytes: &[u8], file_length: u64) -> Result<RowPrefix, FormatError> {
    let header = Header::parse(bytes)?;
    let length = header.prefix_length(file_length)?;
    let truncated =
        || FormatError::Truncated { field: FormatField::Prefix, needed: length as u64, got: bytes.len() as u64 };
    let prefix = bytes.get(..length).ok_or_else(truncated)?;
    let (header_bytes, rest) = prefix.split_first_chunk::<HEADER_LENGTH>().ok_or_else(truncated)?;
    if header.version >= VERSION_CHAINED {
        let got = prefix_crc(header_bytes, rest);
        if got != header.prefix_crc {
            return Err(FormatError::PrefixCrc { expected: header.prefix_crc, got });
        }
    }
    let mut sections = Reader::new(rest);
    let text = sections.sized(FormatField::Text)?;
    let block = sections.sized(FormatField::Records)?;
    let records = Records::parse(block, header.version)?;
    decode_fields(&header, text, &records)
}

fn decode_fields(header: &Header, text: &[u8], records: &Records<'_>) -> Result<RowPrefix, FormatError> {
    // First of all records: a later codec may give the others another meaning.
    match records.get_array::<1>(RecordTag::Codec)? {
        None | Some([CODEC_RAW]) => {}
        Some([codec]) => return Err(FormatError::UnsupportedCodec { codec }),
    }
    let bad_field = |field, got| FormatError::BadField { field, got };
    let reason =
        SaveReason::from_byte(header.reason).ok_or_else(|| bad_field(FormatField::SaveReason, header.reason))?;
    let [mode_byte] = records.require_array(RecordTag::FingerprintMode)?;
    let mode =
        FingerprintMode::from_byte(mode_byte).ok_or_else(|| bad_field(FormatField::FingerprintMode, mode_byte))?;
    let [quant] = records.require_array(RecordTag::QuantType)?;
    let namespace = Namespace {
        fingerprint: records.require_array(RecordTag::Fingerprint)?,
        quant: QuantType::from_byte(quant),
        context_hash: records.require_array(RecordTag::ContextHash)?,
    };
    let meta = RowMeta {
        version: header.version,
        namespace,
        mode,
        reason,
        flags: header.flags,
        context_size: header.context_size,
        created: header.created,
        last_used: header.last_used,
        hits: header.hits,
        parent: records.get_array(RecordTag::Parent)?.map(Key::from_bytes),
        start: records.get_array(RecordTag::Start)?.map_or(0, u32::from_le_bytes),
        token_count: header.token_count,
    };
    meta.check_parent()?;
    let parts = if header.version >= VERSION_CHAINED {
        parse_parts(records.require(RecordTag::Parts)?, header.payload_length)?
    } else {
        let (length, crc) = (header.payload_length, header.payload_crc);
        vec![FilePart { kind: PartKind::Whole, offset: 0, length, crc }]
    };
    Ok(RowPrefix {
        meta,
        quant_bits: header.quant_bits,
        tokens: decode_tokens(&meta, records)?,
        owners: decode_owners(records)?,
        parts,
        text: to_text(FormatField::Text, text)?,
        host: records.get_text(RecordTag::Host)?,
        writer: records.get_text(RecordTag::Writer)?,
        reason_detail: records.get_text(RecordTag::ReasonDetail)?,
        payload_offset: header.payload_offset,
        payload_length: header.payload_length,
        payload_crc: header.payload_crc,
    })
}

/// The owners that the file names; a reader keeps no more of them than a writer writes.
fn decode_owners(records: &Records<'_>) -> Result<Vec<OwnerId>, FormatError> {
    let value = records.get(RecordTag::Owners).unwrap_or_default();
    let (owners, remainder) = value.as_chunks::<{ OwnerId::LENGTH }>();
    if !remainder.is_empty() {
        return Err(FormatError::TagUnit { tag: RecordTag::Owners, unit: OwnerId::LENGTH, got: value.len() });
    }
    Ok(owners.iter().take(MOST_OWNERS).copied().map(OwnerId::from_bytes).collect())
}

/// The tokens of the row's own segment, once header, count and ids agree on how many there are.
fn decode_tokens(meta: &RowMeta, records: &Records<'_>) -> Result<Vec<u32>, FormatError> {
    let declared = u32::from_le_bytes(records.require_array(RecordTag::TokenIdCount)?);
    let ids = records.require(RecordTag::TokenIds)?;
    let (ids, remainder) = ids.as_chunks::<4>();
    if !remainder.is_empty() {
        let got = ids.len() * 4 + remainder.len();
        return Err(FormatError::TagUnit { tag: RecordTag::TokenIds, unit: 4, got });
    }
    meta.check_tokens(declared, ids.len())?;
    Ok(ids.iter().map(|id| u32::from_le_bytes(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::encode::tests::sample;
    use crate::format::{FLAG_GRID, NewPart, PrefixDraft, crc32c, encode_prefix, encode_v1};

    const PAYLOAD_LENGTH: u64 = 40;

    /// A file written by hand, so that the decoder is not only held against the encoder.
    struct ByHand {
        version: u8,
        reason: u8,
        token_count: u32,
        text: Vec<u8>,
        records: Vec<(u8, Vec<u8>)>,
        gap: usize,
    }

    impl ByHand {
        /// A version 1 row of three tokens.
        fn whole() -> Self {
            let ids = [7_u32, 8, 70_000].iter().flat_map(|id| id.to_le_bytes()).collect();
            let records = vec![
                (0x01, vec![0xaa; 32]),
                (0x02, vec![1]),
                (0x03, vec![7]),
                (0x04, vec![0xbb; 32]),
                (0x08, vec![3, 0, 0, 0]),
                (0x09, ids),
            ];
            Self { version: 1, reason: 3, token_count: 3, text: b"Hi".to_vec(), records, gap: 0 }
        }

        /// A version 2 row of the same tokens with one part.
        fn chained() -> Self {
            let mut file = Self { version: 2, ..Self::whole() };
            file.records.push((0x22, part_entry(1, 0, PAYLOAD_LENGTH)));
            file
        }

        fn with(mut self, tag: u8, value: &[u8]) -> Self {
            self.records.retain(|(other, _)| *other != tag);
            self.records.push((tag, value.to_vec()));
            self
        }

        fn without(mut self, tag: u8) -> Self {
            self.records.retain(|(other, _)| *other != tag);
            self
        }

        fn bytes(&self) -> Vec<u8> {
            let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_le_bytes();
            let mut tail = [&length(&self.text)[..], &self.text].concat();
            let block: Vec<u8> =
                self.records.iter().flat_map(|(tag, value)| [&[*tag][..], &length(value), value].concat()).collect();
            tail.extend(length(&block));
            tail.extend(block);
            tail.extend(vec![0xcc; self.gap]);

            let mut bytes = b"KVC".to_vec();
            bytes.extend([self.version, 4, self.reason, 0, 0]);
            bytes.extend(self.token_count.to_le_bytes());
            bytes.extend(9_u32.to_le_bytes());
            bytes.extend(2048_u32.to_le_bytes());
            bytes.extend([0xee; 4]);
            bytes.extend(1_000_u64.to_le_bytes());
            bytes.extend(2_000_u64.to_le_bytes());
            bytes.extend(PAYLOAD_LENGTH.to_le_bytes());
            bytes.extend((72 + tail.len() as u64).to_le_bytes());
            bytes.extend(PAYLOAD_LENGTH.to_le_bytes());
            bytes.extend(0xdead_beef_u32.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(tail);
            if self.version == 2 { sealed(bytes) } else { bytes }
        }

        fn decode(&self) -> Result<RowPrefix, FormatError> {
            let bytes = self.bytes();
            decode_prefix(&bytes, bytes.len() as u64 + PAYLOAD_LENGTH)
        }
    }

    fn part_entry(kind: u8, offset: u64, length: u64) -> Vec<u8> {
        [&[kind][..], &offset.to_le_bytes(), &length.to_le_bytes(), &5_u32.to_le_bytes()].concat()
    }

    /// Puts the right prefix CRC in, computed as the format page says and not as the code does.
    fn sealed(mut prefix: Vec<u8>) -> Vec<u8> {
        let mut zeroed = prefix.clone();
        for range in [12..16, 32..40, 68..72] {
            zeroed[range].fill(0);
        }
        prefix[68..72].copy_from_slice(&crc32c(&zeroed).to_le_bytes());
        prefix
    }

    #[test]
    fn version_1_file_made_by_hand_is_read() {
        let file = ByHand::whole();
        let offset = file.bytes().len() as u64;
        let meta = RowMeta {
            version: 1,
            namespace: Namespace { fingerprint: [0xaa; 32], quant: QuantType::Q4_K_M, context_hash: [0xbb; 32] },
            mode: FingerprintMode::GgufChunked,
            reason: SaveReason::Evict,
            flags: 0,
            context_size: 2048,
            created: 1_000,
            last_used: 2_000,
            hits: 9,
            parent: None,
            start: 0,
            token_count: 3,
        };
        let expected = RowPrefix {
            meta,
            quant_bits: 4,
            tokens: vec![7, 8, 70_000],
            owners: Vec::new(),
            parts: vec![FilePart { kind: PartKind::Whole, offset: 0, length: PAYLOAD_LENGTH, crc: 0xdead_beef }],
            text: "Hi".to_owned(),
            host: None,
            writer: None,
            reason_detail: None,
            payload_offset: offset,
            payload_length: PAYLOAD_LENGTH,
            payload_crc: 0xdead_beef,
        };
        assert_eq!(file.decode(), Ok(expected.clone()));
        let parts = [NewPart { kind: PartKind::Whole, length: PAYLOAD_LENGTH, crc: 0xdead_beef }];
        let with_flag = RowMeta { flags: FLAG_GRID, ..meta };
        let draft = PrefixDraft { text: "Hi", ..PrefixDraft::new(with_flag, &expected.tokens, &parts) };
        let row = decode_prefix(&encode_v1(&draft).unwrap(), offset + PAYLOAD_LENGTH).unwrap();
        assert!(!row.meta.is_grid(), "the flag has no meaning in version 1");
        assert_eq!(RowPrefix { meta, ..row }, expected);
        assert_eq!(row.meta, with_flag);
    }

    #[test]
    fn version_2_file_made_by_hand_is_read() {
        let row = ByHand::chained().decode().unwrap();
        let RowMeta { version, start, parent, .. } = row.meta;
        assert_eq!((version, start, parent, row.tokens.as_slice()), (2, 0, None, &[7, 8, 70_000][..]));
        assert_eq!(row.parts, [FilePart { kind: PartKind::Attention, offset: 0, length: PAYLOAD_LENGTH, crc: 5 }]);
        let child = ByHand { token_count: 103, ..ByHand::chained() };
        let child = child.with(0x20, &[6; 32]).with(0x21, &[100, 0, 0, 0]).with(0x23, &[0]).with(0x70, b"later");
        let row = child.decode().unwrap();
        let RowMeta { start, parent, token_count, .. } = row.meta;
        assert_eq!((start, parent, token_count), (100, Some(Key::from_bytes([6; 32])), 103));
    }

    #[test]
    fn no_changed_byte_changes_the_meaning_unnoticed() {
        let prefix = encode_prefix(&sample()).unwrap();
        let file_length = prefix.len() as u64 + PAYLOAD_LENGTH;
        let original = decode_prefix(&prefix, file_length).unwrap();
        let mut damaged = prefix.clone();
        for position in 0..prefix.len() {
            let may_change = (12..16).contains(&position) || (32..40).contains(&position);
            for value in (0..=u8::MAX).filter(|value| *value != prefix[position]) {
                damaged[position] = value;
                let result = decode_prefix(&damaged, file_length);
                assert_eq!(result.is_ok(), may_change, "byte {position} = {value}");
                if let Ok(row) = result {
                    let RowMeta { hits, last_used, .. } = original.meta;
                    let meta = RowMeta { hits, last_used, ..row.meta };
                    assert_eq!(RowPrefix { meta, ..row }, original, "byte {position} = {value}");
                }
            }
            damaged[position] = prefix[position];
        }
    }

    #[test]
    fn cut_or_extended_files_are_refused_at_every_length() {
        for prefix in [encode_prefix(&sample()).unwrap(), ByHand::whole().bytes()] {
            let file_length = prefix.len() as u64 + PAYLOAD_LENGTH;
            assert_eq!(prefix_length(&prefix[..HEADER_LENGTH], file_length), Ok(prefix.len()));
            for cut in 0..prefix.len() {
                let got = cut as u64;
                let needed = if cut < HEADER_LENGTH { HEADER_LENGTH } else { prefix.len() } as u64;
                let field = if cut < HEADER_LENGTH { FormatField::Header } else { FormatField::Prefix };
                let short = Err(FormatError::Truncated { field, needed, got });
                assert_eq!(decode_prefix(&prefix[..cut], file_length), short, "{cut} bytes given");
                assert!(decode_prefix(&prefix[..cut], got).is_err(), "file of {cut} bytes");
            }
            for got in (0..file_length).chain([file_length + 1, u64::MAX]) {
                let wrong = Err(FormatError::FileLength { expected: file_length, got });
                assert_eq!(decode_prefix(&prefix, got), wrong);
            }
        }
    }

    #[test]
    fn files_of_later_releases_are_left_alone() {
        for version in (0..=u8::MAX).filter(|version| !matches!(version, 1 | 2)) {
            let error = decode_prefix(&[b'K', b'V', b'C', version], 4).unwrap_err();
            assert_eq!(error, FormatError::UnknownVersion { version });
            assert!(error.leave_alone());
        }
        let later = ByHand::chained().with(0x23, &[1]).without(0x22).decode().unwrap_err();
        assert_eq!(later, FormatError::UnsupportedCodec { codec: 1 });
        assert!(later.leave_alone());
        let damaged = decode_prefix(b"KVX\x02", 4).unwrap_err();
        assert_eq!(damaged, FormatError::WrongMagic { got: *b"KVX" });
        assert!(!damaged.leave_alone());
    }

    #[test]
    fn required_tags_are_required_with_their_length() {
        let tags = [
            RecordTag::Fingerprint,
            RecordTag::FingerprintMode,
            RecordTag::QuantType,
            RecordTag::ContextHash,
            RecordTag::TokenIdCount,
        ];
        for tag in tags.into_iter().chain([RecordTag::TokenIds, RecordTag::Parts]) {
            let missing = Err(FormatError::MissingTag { tag });
            assert_eq!(ByHand::chained().without(tag.byte()).decode(), missing);
            if tag != RecordTag::Parts {
                assert_eq!(ByHand::whole().without(tag.byte()).decode(), missing);
            }
        }
        for tag in tags.into_iter().chain([RecordTag::Parent, RecordTag::Start, RecordTag::Codec]) {
            let result = ByHand::chained().with(tag.byte(), &[1; 33]).decode();
            assert!(matches!(result, Err(FormatError::TagLength { got: 33, .. })), "{tag}: {result:?}");
        }
        for tag in [RecordTag::TokenIds, RecordTag::Parts] {
            let result = ByHand::chained().with(tag.byte(), &[1; 43]).decode();
            assert!(matches!(result, Err(FormatError::TagUnit { got: 43, .. })), "{tag}: {result:?}");
        }
    }

    #[test]
    fn undefined_values_and_wrong_text_are_refused_by_name() {
        let reason = ByHand { reason: 6, ..ByHand::whole() };
        assert_eq!(reason.decode(), Err(FormatError::BadField { field: FormatField::SaveReason, got: 6 }));
        let mode = ByHand::whole().with(0x02, &[3]);
        assert_eq!(mode.decode(), Err(FormatError::BadField { field: FormatField::FingerprintMode, got: 3 }));
        let text = ByHand { text: b"a\x80".to_vec(), ..ByHand::whole() };
        assert_eq!(text.decode(), Err(FormatError::NotUtf8 { field: FormatField::Text, valid: 1 }));
        let quant = ByHand::whole().with(0x03, &[200]).decode().unwrap();
        assert_eq!(quant.meta.namespace.quant, QuantType::Other);
    }

    #[test]
    fn parent_and_start_come_together() {
        let alone = ByHand::chained().with(0x20, &[6; 32]);
        assert!(matches!(alone.decode(), Err(FormatError::Parent { start: 0, parent: Some(_) })));
        let orphan = ByHand { token_count: 4, ..ByHand::chained() }.with(0x21, &[1, 0, 0, 0]);
        assert_eq!(orphan.decode(), Err(FormatError::Parent { start: 1, parent: None }));
        let past = ByHand::chained().with(0x20, &[6; 32]).with(0x21, &[4, 0, 0, 0]);
        assert_eq!(past.decode(), Err(FormatError::TokenCount { header: 3, start: 4, declared: 3, ids: 3 }));
    }

    #[test]
    fn token_counts_must_agree_and_the_largest_costs_nothing() {
        let header = ByHand { token_count: u32::MAX, ..ByHand::whole() };
        assert_eq!(header.decode(), Err(FormatError::TokenCount { header: u32::MAX, start: 0, declared: 3, ids: 3 }));
        let all = header.with(0x08, &[0xff; 4]);
        let expected = FormatError::TokenCount { header: u32::MAX, start: 0, declared: u32::MAX, ids: 3 };
        assert_eq!(all.decode(), Err(expected));
        for offset in [72, 78] {
            let mut bytes = ByHand::whole().bytes();
            bytes[offset..offset + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            let result = decode_prefix(&bytes, bytes.len() as u64 + PAYLOAD_LENGTH);
            assert!(matches!(result, Err(FormatError::Overrun { .. })), "length at {offset}: {result:?}");
        }
    }

    #[test]
    fn gap_before_the_payload_is_allowed_and_summed() {
        let file = ByHand { gap: 11, ..ByHand::chained() };
        assert_eq!(file.decode().unwrap().payload_offset, ByHand::chained().bytes().len() as u64 + 11);
        let mut bytes = file.bytes();
        *bytes.last_mut().unwrap() ^= 1;
        let result = decode_prefix(&bytes, bytes.len() as u64 + PAYLOAD_LENGTH);
        assert!(matches!(result, Err(FormatError::PrefixCrc { .. })));
    }
}
