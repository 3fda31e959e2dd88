//! Writes the first inputs of the fuzz targets: `kvc_seeds FOLDER` makes `FOLDER/kvc_prefix` and `FOLDER/kvc_tlv`.
//!
//! The result is committed as `seeds/`. Run it by hand when the format gains a field, without the flags of `run.sh`:
//! `cargo run --release -p poncho-fuzz --features seeds --bin kvc_seeds -- fuzz/seeds`.

use std::path::Path;
use std::{env, fs, io};

use poncho_cache::{Key, Namespace, NewPart, PartKind, PrefixDraft, QuantType, RowMeta, SaveReason, encode_prefix};

/// Every part, and a length that fits the two bytes of `kvc_tlv`.
const PARTS: [NewPart; 3] = [
    NewPart { kind: PartKind::Attention, length: 64, crc: 1 },
    NewPart { kind: PartKind::Partial, length: 32, crc: 2 },
    NewPart { kind: PartKind::Logits, length: 4, crc: 3 },
];

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: kvc_seeds FOLDER"))?;
    let folder = Path::new(&folder);
    let namespace = Namespace { fingerprint: [1; 32], quant: QuantType::Q4_1, context_hash: [2; 32] };
    let meta = RowMeta {
        reason: SaveReason::Cold,
        flags: 1,
        hits: 1,
        context_size: 4096,
        created: 1,
        last_used: 2,
        ..RowMeta::new(namespace, 4)
    };
    let root = PrefixDraft {
        text: "seed",
        host: Some("host"),
        writer: Some("0.1.0"),
        reason_detail: Some("seed"),
        ..PrefixDraft::new(meta, &[1, 2, 3, 4], &PARTS)
    };
    let below = RowMeta { parent: Some(Key::from_bytes([3; 32])), start: 4, token_count: 6, ..meta };
    let child = PrefixDraft { meta: below, tokens: &[5, 6], ..root };
    let bare = PrefixDraft::new(RowMeta { token_count: 0, ..meta }, &[], &[]);
    for (name, row) in [("root", root), ("child", child), ("bare", bare)] {
        write_seeds(folder, name, &row)?;
    }
    Ok(())
}

fn write_seeds(folder: &Path, name: &str, row: &PrefixDraft<'_>) -> io::Result<()> {
    let prefix = encode_prefix(row).map_err(io::Error::other)?;
    let payload_length: u64 = row.parts.iter().map(|part| part.length).sum();

    let whole = folder.join("kvc_prefix");
    fs::create_dir_all(&whole)?;
    fs::write(whole.join(format!("seed-{name}")), &prefix)?;

    let block_start = 72 + 4 + row.text.len() + 4;
    let records = folder.join("kvc_tlv");
    fs::create_dir_all(&records)?;
    let mut seed = vec![0];
    seed.extend_from_slice(&prefix[8..12]);
    seed.extend_from_slice(&payload_length.to_le_bytes()[..2]);
    seed.extend_from_slice(&prefix[block_start..]);
    fs::write(records.join(format!("seed-{name}")), seed)
}
