//! Any bytes as the TLV block of an otherwise valid KVC file.
//!
//! A checksum stops nearly every mutation of a whole version 2 file; here the header is made around the block,
//! with the right lengths and the right checksum, so that the parsers of the records are reached. Built and run by
//! `run.sh`. Input: one byte for the version, four for the token count, two for the payload length, then the block.
#![no_main]

use libfuzzer_sys::fuzz_target;
use poncho_cache::{FormatError, RecordTag, VERSION_CHAINED, VERSION_WHOLE, crc32c, decode_prefix};

fuzz_target!(|data: &[u8]| {
    let Some((&[choice, t0, t1, t2, t3, p0, p1], block)) = data.split_first_chunk::<7>() else { return };
    let version = if choice & 1 == 0 { VERSION_CHAINED } else { VERSION_WHOLE };
    let token_count = [t0, t1, t2, t3];
    let payload_length = u64::from(u16::from_le_bytes([p0, p1]));
    let prefix = wrap(version, token_count, payload_length, block);

    match decode_prefix(&prefix, prefix.len() as u64 + payload_length) {
        Ok(row) => {
            assert_eq!(row.meta.version, version);
            assert_eq!(row.meta.token_count, u32::from_le_bytes(token_count));
            assert_eq!(u64::from(row.meta.token_count), u64::from(row.meta.start) + row.tokens.len() as u64);
            assert_eq!(row.meta.start > 0, row.meta.parent.is_some());
            assert!(row.tokens.len() * 4 <= block.len());
            assert!(row.parts.iter().all(|part| part.offset + part.length <= payload_length));
        }
        // The frame around the block is right: nothing outside it may be blamed.
        Err(
            error @ (FormatError::WrongMagic { .. }
            | FormatError::UnknownVersion { .. }
            | FormatError::Truncated { .. }
            | FormatError::FileLength { .. }
            | FormatError::PayloadOffset { .. }
            | FormatError::PayloadLengths { .. }
            | FormatError::PrefixCrc { .. }),
        ) => panic!("{error}"),
        Err(FormatError::ForeignTag { tag, version }) => assert!(version < tag.first_version()),
        Err(FormatError::MissingTag { tag }) => assert!(version == VERSION_CHAINED || tag != RecordTag::Parts),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

fn wrap(version: u8, token_count: [u8; 4], payload_length: u64, block: &[u8]) -> Vec<u8> {
    let offset = 72 + 4 + 4 + block.len() as u64;
    let block_length = u32::try_from(block.len()).expect("libFuzzer's inputs are short");
    let fields: [&[u8]; 11] = [
        b"KVC",
        &[version, 4, 1, 0, 0],
        &token_count,
        &[0; 28],
        &payload_length.to_le_bytes(),
        &offset.to_le_bytes(),
        &payload_length.to_le_bytes(),
        &[0; 8],
        &[0; 4],
        &block_length.to_le_bytes(),
        block,
    ];
    let mut prefix = fields.concat();
    // Hits, last use and the CRC itself are zero here already, as the CRC takes them.
    let crc = crc32c(&prefix);
    if version == VERSION_CHAINED {
        prefix[68..72].copy_from_slice(&crc.to_le_bytes());
    }
    prefix
}
