//! Rows for the benchmark: tokens, payloads that do not compress, the save that brings them in, and files written
//! directly where saving a hundred thousand of them would take too long.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use poncho_cache::{
    Cache, FingerprintMode, Key, Namespace, PartKind, PayloadPart, QuantType, SaveOutcome, SaveReason, SaveRequest,
};
use poncho_cache::{NewPart, PrefixDraft, RowMeta, encode_prefix, row_folder, row_path};

use crate::Outcome;

pub(crate) const NAMESPACE: Namespace =
    Namespace { fingerprint: [1; 32], quant: QuantType::Q4_1, context_hash: [2; 32] };

/// Bytes without a pattern, the same every time (xorshift).
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

/// `count` tokens of a vocabulary of 128k, different for each `seed`.
pub(crate) fn tokens(seed: u32, count: u32) -> Vec<u32> {
    let mix = |position: u32| (position ^ seed.wrapping_mul(0x9e37_79b1)).wrapping_mul(0x85eb_ca6b) >> 15;
    (0..count).map(mix).collect()
}

/// Saves a row on top of what is stored, and waits for it. Returns its name.
pub(crate) fn save(cache: &Cache, tokens: &[u32], payload: &bytes::Bytes) -> Outcome<Key> {
    save_for(cache, tokens, payload, SaveReason::Evict, SaveOutcome::Published)
}

/// Hands a row to the writers, as the engine does after a reply.
pub(crate) fn queue(cache: &Cache, tokens: &[u32], payload: &bytes::Bytes) -> Outcome<Key> {
    save_for(cache, tokens, payload, SaveReason::Finish, SaveOutcome::Queued)
}

fn save_for(
    cache: &Cache,
    tokens: &[u32],
    payload: &bytes::Bytes,
    reason: SaveReason,
    expected: SaveOutcome,
) -> Outcome<Key> {
    let base = cache.base_for(&NAMESPACE, tokens, None);
    let saved = cache.save(SaveRequest {
        namespace: NAMESPACE,
        mode: FingerprintMode::Safe,
        tokens,
        base: base.as_ref(),
        parts: vec![PayloadPart { kind: PartKind::Attention, bytes: payload.clone() }],
        reason,
        flags: 0,
        context_size: 131_072,
        text: String::new(),
        tier: None,
        owner: None,
    })?;
    match saved.outcome {
        outcome if outcome == expected => Ok(saved.key),
        other => Err(format!("a row was not saved but {other:?}").into()),
    }
}

/// All sub-folders of a cache folder.
pub(crate) fn make_folders(folder: &Path) -> io::Result<()> {
    (0..=255).try_for_each(|first| std::fs::create_dir_all(row_folder(folder, &Key::from_bytes([first; 32]))))
}

/// Writes the file of the row that ends where `range` does and stores the tokens in it. The payload is a hole.
pub(crate) fn write_row(
    folder: &Path,
    tokens: &[u32],
    parent: Option<Key>,
    range: Range<u32>,
    payload: u64,
) -> io::Result<Key> {
    let (start, end) = (range.start as usize, range.end as usize);
    let all = tokens.get(..end).ok_or(io::ErrorKind::InvalidInput)?;
    let key = NAMESPACE.key(all);
    let meta = RowMeta {
        reason: SaveReason::Finish,
        context_size: 131_072,
        created: 1_700_000_000,
        last_used: 1_700_000_000,
        parent,
        start: range.start,
        ..RowMeta::new(NAMESPACE, range.end)
    };
    let own = all.get(start..).ok_or(io::ErrorKind::InvalidInput)?;
    let parts = [NewPart { kind: PartKind::Attention, length: payload, crc: 0 }];
    let draft = PrefixDraft { host: Some("bench"), writer: Some("bench"), ..PrefixDraft::new(meta, own, &parts) };
    let prefix = encode_prefix(&draft).map_err(io::Error::other)?;
    let mut file = File::create_new(row_path(folder, &key))?;
    file.write_all(&prefix)?;
    file.set_len(prefix.len() as u64 + payload)?;
    Ok(key)
}
