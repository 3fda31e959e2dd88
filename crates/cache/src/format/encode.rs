//! From a row to the bytes before its payload.
//!
//! Called by the writer threads, with the parts of the payload already packed and summed. The bytes are returned
//! apart from the payload, so that both are written vectored and never joined. It must never write what the
//! decoder would refuse.

use super::error::{FormatError, FormatField};
use super::header::{Header, prefix_crc};
use super::layout::{CODEC_RAW, HEADER_LENGTH, HITS_OFFSET, LAST_USED_OFFSET, MAX_PREFIX, VERSION_CHAINED};
use super::parts::{NewPart, Payload};
use super::row_meta::RowMeta;
use super::tlv::{RecordTag, put_record};
use crate::identity::owner::OwnerId;

/// A prefix to be written.
#[derive(Debug, Clone, Copy)]
pub struct PrefixDraft<'a> {
    /// The description of the row. The quant bits of the header follow from its namespace.
    pub meta: RowMeta,
    /// The tokens of the row's own segment, from `meta.start` to `meta.token_count`.
    pub tokens: &'a [u32],
    /// The parts of the payload in their order; they follow each other without a gap.
    pub parts: &'a [NewPart],
    /// The owners that sent all tokens of the row; written only if there are any.
    pub owners: &'a [OwnerId],
    /// The prompt, for people.
    pub text: &'a str,
    /// The machine that writes.
    pub host: Option<&'a str>,
    /// The release that writes.
    pub writer: Option<&'a str>,
    /// More about the save reason.
    pub reason_detail: Option<&'a str>,
}

impl<'a> PrefixDraft<'a> {
    /// A prefix without owners and without anything that is for people only.
    #[must_use]
    pub const fn new(meta: RowMeta, tokens: &'a [u32], parts: &'a [NewPart]) -> Self {
        Self { meta, tokens, parts, owners: &[], text: "", host: None, writer: None, reason_detail: None }
    }
}

/// The bytes before the payload of a version 2 file.
///
/// # Errors
/// When the row contradicts itself (parent and start, parts) or is longer than a reader accepts.
pub fn encode_prefix(row: &PrefixDraft<'_>) -> Result<Vec<u8>, FormatError> {
    row.meta.check_parent()?;
    let payload = Payload::lay_out(row.parts)?;
    let mut prefix = Prefix::begin(row)?;
    if let Some(parent) = row.meta.parent {
        prefix.record(RecordTag::Parent, parent.as_bytes())?;
        prefix.record(RecordTag::Start, &row.meta.start.to_le_bytes())?;
    }
    prefix.record(RecordTag::Parts, &payload.table)?;
    prefix.record(RecordTag::Codec, &[CODEC_RAW])?;
    prefix.finish(row, VERSION_CHAINED, &payload)
}

/// The bytes before the payload of a version 1 file, for tests that need an old one. The row starts at 0 and has
/// exactly one part, of kind `Whole`.
///
/// # Errors
/// When the row is not of that shape or is longer than a reader accepts.
#[cfg(any(test, feature = "testing"))]
pub fn encode_v1(row: &PrefixDraft<'_>) -> Result<Vec<u8>, FormatError> {
    use super::layout::VERSION_WHOLE;
    use crate::kinds::PartKind;

    let RowMeta { start, parent, .. } = row.meta;
    if start > 0 || parent.is_some() {
        return Err(FormatError::Parent { start, parent: parent.map(|key| key.to_hex()) });
    }
    let [NewPart { kind: PartKind::Whole, length, crc }] = *row.parts else {
        let got = row.parts.first().map_or(0, |part| part.kind.byte());
        return Err(FormatError::BadField { field: FormatField::PartKind, got });
    };
    Prefix::begin(row)?.finish(row, VERSION_WHOLE, &Payload { table: Vec::new(), length, crc })
}

/// The two fields that are rewritten in place when a row is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    hits: [u8; 4],
    last_used: [u8; 8],
}

impl Touch {
    /// What to write where: offset in the file, bytes.
    #[must_use]
    pub fn writes(&self) -> [(u64, &[u8]); 2] {
        [(HITS_OFFSET as u64, self.hits.as_slice()), (LAST_USED_OFFSET as u64, self.last_used.as_slice())]
    }
}

/// The in-place rewrite for a new hit count and time of last use (unix seconds). No checksum changes.
#[must_use]
pub const fn encode_touch(hits: u32, last_used: u64) -> Touch {
    Touch { hits: hits.to_le_bytes(), last_used: last_used.to_le_bytes() }
}

/// A prefix being put together: room for the header, the text, and the records so far.
struct Prefix {
    bytes: Vec<u8>,
    /// Where the length of the record block goes.
    records: usize,
}

impl Prefix {
    /// Text and the records that every version has.
    fn begin(row: &PrefixDraft<'_>) -> Result<Self, FormatError> {
        let text_length =
            u32::try_from(row.text.len()).map_err(|_| FormatError::TooLong { field: FormatField::Text })?;
        let ids: Vec<u8> = row.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();

        let mut bytes = Vec::with_capacity(HEADER_LENGTH + row.text.len() + ids.len() + 512);
        bytes.resize(HEADER_LENGTH, 0);
        bytes.extend_from_slice(&text_length.to_le_bytes());
        bytes.extend_from_slice(row.text.as_bytes());
        let records = bytes.len();
        bytes.extend_from_slice(&[0; 4]);

        let mut prefix = Self { bytes, records };
        let RowMeta { namespace, mode, .. } = row.meta;
        prefix.record(RecordTag::Fingerprint, &namespace.fingerprint)?;
        prefix.record(RecordTag::FingerprintMode, &[mode.byte()])?;
        prefix.record(RecordTag::QuantType, &[namespace.quant.byte()])?;
        prefix.record(RecordTag::ContextHash, &namespace.context_hash)?;
        let texts = [
            (RecordTag::Host, row.host),
            (RecordTag::Writer, row.writer),
            (RecordTag::ReasonDetail, row.reason_detail),
        ];
        for (tag, text) in texts {
            if let Some(text) = text {
                prefix.record(tag, text.as_bytes())?;
            }
        }
        prefix.record(RecordTag::TokenIdCount, &own_token_count(row)?.to_le_bytes())?;
        prefix.record(RecordTag::TokenIds, &ids)?;
        if !row.owners.is_empty() {
            let owners: Vec<u8> = row.owners.iter().flat_map(|owner| *owner.as_bytes()).collect();
            prefix.record(RecordTag::Owners, &owners)?;
        }
        Ok(prefix)
    }

    fn record(&mut self, tag: RecordTag, value: &[u8]) -> Result<(), FormatError> {
        put_record(&mut self.bytes, tag, value)
    }

    /// Fills in the header and the lengths, which are known only now.
    fn finish(mut self, row: &PrefixDraft<'_>, version: u8, payload: &Payload) -> Result<Vec<u8>, FormatError> {
        let prefix_length = self.bytes.len() as u64;
        if prefix_length > MAX_PREFIX {
            return Err(FormatError::PrefixTooLong { length: prefix_length, limit: MAX_PREFIX });
        }
        if payload.length.checked_add(prefix_length).is_none() {
            return Err(FormatError::TooLong { field: FormatField::Payload });
        }
        let meta = &row.meta;
        meta.check_tokens(own_token_count(row)?, row.tokens.len())?;

        let records_length = self.bytes.len().saturating_sub(self.records + 4);
        let records_length =
            u32::try_from(records_length).map_err(|_| FormatError::TooLong { field: FormatField::Records })?;
        if let Some(slot) = self.bytes.get_mut(self.records..self.records + 4) {
            slot.copy_from_slice(&records_length.to_le_bytes());
        }

        let mut header = Header {
            version,
            quant_bits: meta.namespace.quant.bits(),
            reason: meta.reason.byte(),
            flags: meta.flags,
            token_count: meta.token_count,
            hits: meta.hits,
            context_size: meta.context_size,
            created: meta.created,
            last_used: meta.last_used,
            payload_count: payload.length,
            payload_offset: prefix_length,
            payload_length: payload.length,
            payload_crc: payload.crc,
            prefix_crc: 0,
        };
        if let Some((slot, rest)) = self.bytes.split_first_chunk_mut::<HEADER_LENGTH>() {
            if version >= VERSION_CHAINED {
                header.prefix_crc = prefix_crc(&header.to_bytes(), rest);
            }
            *slot = header.to_bytes();
        }
        Ok(self.bytes)
    }
}

/// How many tokens the file itself holds.
fn own_token_count(row: &PrefixDraft<'_>) -> Result<u32, FormatError> {
    u32::try_from(row.tokens.len()).map_err(|_| FormatError::TooLong { field: FormatField::Tokens })
}

#[cfg(test)]
pub(super) mod tests {
    use poncho_gguf::QuantType;
    use proptest::prelude::*;

    use super::*;
    use crate::format::{FLAG_GRID, decode_prefix};
    use crate::identity::key::{Key, Namespace};
    use crate::kinds::{FingerprintMode, PartKind, SaveReason};

    const OWNERS: [OwnerId; 2] = [OwnerId::from_bytes([4; 16]), OwnerId::from_bytes([5; 16])];

    pub(in crate::format) const META: RowMeta = RowMeta {
        version: VERSION_CHAINED,
        namespace: Namespace { fingerprint: [1; 32], quant: QuantType::Q4_1, context_hash: [2; 32] },
        mode: FingerprintMode::Safe,
        reason: SaveReason::Finish,
        flags: FLAG_GRID,
        context_size: 4096,
        created: 1_700_000_000,
        last_used: 1_700_000_100,
        hits: 3,
        parent: Some(Key::from_bytes([3; 32])),
        start: 5,
        token_count: 8,
    };

    /// A small row with every record, for the tests of this folder.
    pub(in crate::format) fn sample() -> PrefixDraft<'static> {
        PrefixDraft {
            meta: META,
            tokens: &[11, 22, 33],
            parts: &[
                NewPart { kind: PartKind::Attention, length: 30, crc: 0x1234 },
                NewPart { kind: PartKind::Logits, length: 10, crc: 0x5678 },
            ],
            owners: &OWNERS,
            text: "Hello \u{e9}",
            host: Some("h"),
            writer: Some("w"),
            reason_detail: Some("d"),
        }
    }

    /// The format must not change by a bit: the seed was written by an earlier release.
    #[test]
    fn the_bytes_of_a_row_are_those_of_earlier_releases() {
        let meta = RowMeta {
            reason: SaveReason::Cold,
            flags: 1,
            created: 1,
            last_used: 2,
            hits: 1,
            start: 4,
            token_count: 6,
            ..META
        };
        let kinds = [(PartKind::Attention, 64, 1), (PartKind::Partial, 32, 2), (PartKind::Logits, 4, 3)];
        let parts = kinds.map(|(kind, length, crc)| NewPart { kind, length, crc });
        let draft = PrefixDraft {
            text: "seed",
            host: Some("host"),
            writer: Some("0.1.0"),
            reason_detail: Some("seed"),
            ..PrefixDraft::new(meta, &[5, 6], &parts)
        };
        let seed = include_bytes!("../../../../fuzz/seeds/kvc_prefix/seed-child");
        assert_eq!(encode_prefix(&draft).unwrap(), seed);
    }

    #[test]
    fn payload_crc_is_that_of_the_joined_parts() {
        use crate::format::crc32c;
        let (first, second) = (b"attention state".as_slice(), b"logits".as_slice());
        let part = |kind, bytes: &[u8]| NewPart { kind, length: bytes.len() as u64, crc: crc32c(bytes) };
        let parts = [part(PartKind::Attention, first), part(PartKind::Logits, second)];
        let prefix = encode_prefix(&PrefixDraft { parts: &parts, ..sample() }).unwrap();
        let row = decode_prefix(&prefix, prefix.len() as u64 + 21).unwrap();
        assert_eq!(row.payload_crc, crc32c(&[first, second].concat()));
        assert_eq!(row.part(PartKind::Logits).map(|part| (part.offset, part.length)), Some((15, 6)));
        assert_eq!(row.part(PartKind::Partial), None);
    }

    #[test]
    fn rows_that_contradict_themselves_are_refused() {
        let with = |meta| encode_prefix(&PrefixDraft { meta, ..sample() });
        assert_eq!(with(RowMeta { parent: None, ..META }), Err(FormatError::Parent { start: 5, parent: None }));
        let needless = with(RowMeta { start: 0, token_count: 3, ..META });
        assert!(matches!(needless, Err(FormatError::Parent { start: 0, parent: Some(_) })));
        for (start, header) in [(5, 7), (5, 9), (6, 8), (9, 8), (u32::MAX, 2)] {
            let count = FormatError::TokenCount { header, start, declared: 3, ids: 3 };
            assert_eq!(with(RowMeta { start, token_count: header, ..META }), Err(count));
        }

        let huge = [NewPart { kind: PartKind::Attention, length: u64::MAX, crc: 0 }];
        let no_room = Err(FormatError::TooLong { field: FormatField::Payload });
        assert_eq!(encode_prefix(&PrefixDraft { parts: &huge, ..sample() }), no_room, "no room for the prefix");
    }

    #[test]
    fn prefix_longer_than_a_reader_accepts_is_refused() {
        let text = "a".repeat(usize::try_from(MAX_PREFIX).unwrap());
        assert!(matches!(
            encode_prefix(&PrefixDraft { text: &text, ..sample() }),
            Err(FormatError::PrefixTooLong { limit: MAX_PREFIX, .. })
        ));
    }

    #[test]
    fn touch_changes_hits_and_time_and_nothing_else() {
        let mut prefix = encode_prefix(&sample()).unwrap();
        let length = prefix.len() as u64 + 40;
        let mut expected = decode_prefix(&prefix, length).unwrap();
        for (offset, bytes) in encode_touch(77, 1_800_000_000).writes() {
            let offset = usize::try_from(offset).unwrap();
            prefix[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        (expected.meta.hits, expected.meta.last_used) = (77, 1_800_000_000);
        assert_eq!(decode_prefix(&prefix, length), Ok(expected));
    }

    fn parts() -> impl Strategy<Value = Vec<NewPart>> {
        let kinds = proptest::sample::subsequence(PartKind::ALL[1..].to_vec(), 0..=3).prop_shuffle();
        (kinds, proptest::collection::vec((0..=u64::from(u32::MAX), any::<u32>()), 3)).prop_map(|(kinds, facts)| {
            kinds.into_iter().zip(facts).map(|(kind, (length, crc))| NewPart { kind, length, crc }).collect()
        })
    }

    proptest! {
        #[test]
        fn every_row_round_trips(
            (flags, hits, context_size, created, last_used) in any::<(u16, u32, u32, u64, u64)>(),
            (fingerprint, context_hash) in any::<([u8; 32], [u8; 32])>(),
            quant in proptest::sample::select(QuantType::all().collect::<Vec<_>>()),
            reason in proptest::sample::select(SaveReason::ALL.to_vec()),
            mode in proptest::sample::select(FingerprintMode::ALL.to_vec()),
            parent in proptest::option::of((any::<[u8; 32]>(), 1..u32::MAX - 100)),
            tokens in proptest::collection::vec(any::<u32>(), 0..100),
            parts in parts(),
            text in ".{0,60}",
            owners in proptest::collection::vec(any::<[u8; 16]>().prop_map(OwnerId::from_bytes), 0..4),
            (host, writer, reason_detail) in (
                proptest::option::of(".{0,9}"), proptest::option::of(".{0,9}"), proptest::option::of(".{0,9}"),
            ),
        ) {
            let start = parent.map_or(0, |(_, start)| start);
            let meta = RowMeta {
                version: VERSION_CHAINED,
                namespace: Namespace { fingerprint, quant, context_hash },
                mode, reason, flags, context_size, created, last_used, hits, start,
                parent: parent.map(|(key, _)| Key::from_bytes(key)),
                token_count: start + u32::try_from(tokens.len()).unwrap(),
            };
            let new = PrefixDraft {
                owners: &owners,
                text: &text,
                host: host.as_deref(),
                writer: writer.as_deref(),
                reason_detail: reason_detail.as_deref(),
                ..PrefixDraft::new(meta, &tokens, &parts)
            };
            let prefix = encode_prefix(&new).unwrap();
            let payload_length: u64 = parts.iter().map(|part| part.length).sum();
            let row = decode_prefix(&prefix, prefix.len() as u64 + payload_length).unwrap();
            prop_assert_eq!((row.meta, row.quant_bits), (meta, quant.bits()));
            prop_assert_eq!(&row.owners, &owners);
            prop_assert_eq!(row.meta.is_grid(), flags & 1 == 1);
            prop_assert_eq!((row.payload_offset, row.payload_length), (prefix.len() as u64, payload_length));
            let mut offset = 0;
            prop_assert_eq!(row.parts.len(), parts.len());
            for (read, written) in row.parts.iter().zip(&parts) {
                prop_assert_eq!((read.kind, read.length, read.crc), (written.kind, written.length, written.crc));
                prop_assert_eq!(read.offset, offset);
                offset += written.length;
            }
            prop_assert_eq!((row.tokens, row.text), (tokens, text));
            prop_assert_eq!((row.host, row.writer, row.reason_detail), (host, writer, reason_detail));
        }
    }
}
