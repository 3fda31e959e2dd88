//! Any bytes as the start of a KVC file.
//!
//! Decoding must never panic, and the length that a reader allocates by must be bounded. Built and run by `run.sh`.
//! When the bytes are a version 2 file, what the encoder can express is written again and must read the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use poncho_cache::{
    MAX_PREFIX, NewPart, PrefixDraft, RowPrefix, VERSION_CHAINED, decode_prefix, encode_prefix, prefix_length,
};

fuzz_target!(|data: &[u8]| {
    // The payload need not be there: the header itself says how long the file would have to be.
    let declared = data.get(48..64).map_or(0, |lengths| {
        let (offset, length) = lengths.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
        number(offset).wrapping_add(number(length))
    });
    for file_length in [data.len() as u64, declared] {
        let length = prefix_length(data, file_length);
        let row = decode_prefix(data, file_length);
        match (length, row) {
            (Ok(length), Ok(row)) => {
                assert!(length as u64 <= MAX_PREFIX && length as u64 <= file_length);
                assert_eq!(length as u64, row.payload_offset);
                check(&row);
            }
            (Ok(length), Err(_)) => assert!(length as u64 <= MAX_PREFIX && length as u64 <= file_length),
            (Err(length_error), row) => assert_eq!(row, Err(length_error)),
        }
    }
});

/// The invariants of every row that decodes.
fn check(row: &RowPrefix) {
    assert_eq!(u64::from(row.meta.token_count), u64::from(row.meta.start) + row.tokens.len() as u64);
    assert_eq!(row.meta.start > 0, row.meta.parent.is_some());
    let mut end = 0;
    for part in &row.parts {
        assert!(part.offset >= end);
        end = part.offset + part.length;
    }
    assert!(end <= row.payload_length);
    if row.meta.version == VERSION_CHAINED {
        check_again(row);
    }
}

fn check_again(row: &RowPrefix) {
    let parts: Vec<NewPart> =
        row.parts.iter().map(|part| NewPart { kind: part.kind, length: part.length, crc: part.crc }).collect();
    let again = encode_prefix(&PrefixDraft {
        owners: &row.owners,
        text: &row.text,
        host: row.host.as_deref(),
        writer: row.writer.as_deref(),
        reason_detail: row.reason_detail.as_deref(),
        ..PrefixDraft::new(row.meta, &row.tokens, &parts)
    });
    // A payload of nearly 2^64 bytes may leave no room for the prefix that the encoder makes.
    let Ok(prefix) = again else {
        assert!(row.payload_length > u64::MAX / 2, "{again:?}");
        return;
    };
    let payload_length: u64 = parts.iter().map(|part| part.length).sum();
    let mut read = decode_prefix(&prefix, prefix.len() as u64 + payload_length).expect("what was written is read");
    assert_eq!(read.payload_offset, prefix.len() as u64);
    // Not expressed by the encoder: other quant bits than the type's, gaps, parts of unknown kinds.
    for (part, original) in read.parts.iter_mut().zip(&row.parts) {
        part.offset = original.offset;
    }
    read.quant_bits = row.quant_bits;
    read.payload_offset = row.payload_offset;
    read.payload_length = row.payload_length;
    read.payload_crc = row.payload_crc;
    assert_eq!(read, *row);
}
