//! Whether compressing stored states pays: size, packing and unpacking speed, and the time of a restore from disk.
//!
//! `make bench` runs it. The bytes are those that the engine stores: a segment of the default model after real text, for
//! three types of the KV cache. Every codec is tried as it is and behind a shuffle that puts the bytes of one place in an
//! element together. Copying, and reading from the disk past the page cache, are measured in the same run;
//! docs/compression.md has the figures and what follows from them.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a benchmark may stop at once")]

use std::borrow::Cow;
use std::fs::File;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{
    Backend as _, Batch, BatchRow, ContextOptions, DecodeOutcome, KvType, ModelOptions, Restore, TokenizeMode,
};
use rustix::fs::{Advice, fadvise};

const TEXT: &str = include_str!("../../../docs/replay.md");
const TOKENS: usize = 1024;
const ROUNDS: usize = 5;

#[derive(Clone, Copy)]
enum Codec {
    Zstd(i32),
    Lz4,
}

impl Codec {
    fn name(self) -> String {
        match self {
            Self::Zstd(level) => format!("zstd {level}"),
            Self::Lz4 => "lz4".to_owned(),
        }
    }

    fn pack(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Zstd(level) => zstd::bulk::compress(bytes, level).unwrap(),
            Self::Lz4 => lz4_flex::block::compress(bytes),
        }
    }

    fn unpack(self, packed: &[u8], into: &mut [u8]) {
        let length = match self {
            Self::Zstd(_) => zstd::bulk::decompress_to_buffer(packed, into).unwrap(),
            Self::Lz4 => lz4_flex::block::decompress_into(packed, into).unwrap(),
        };
        assert_eq!(length, into.len());
    }
}

fn main() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (raw, packed_file) = (folder.path().join("raw"), folder.path().join("packed"));
    for (name, kind, element) in [("f16", KvType::F16, 2), ("bf16", KvType::Bf16, 2), ("q8_0", KvType::Q8_0, 34)] {
        // One type alone: `-- q8_0`.
        let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
        if !wanted.is_empty() && !wanted.iter().any(|word| word == name) {
            continue;
        }
        let (bytes, restore) = segment(kind);
        write(&raw, &bytes);
        let mut target = vec![1_u8; bytes.len()];
        let copy = median((0..ROUNDS).map(|_| {
            let time = cpu_time(|| target.copy_from_slice(&bytes));
            black_box(&target);
            time
        }));
        let speed = |seconds: f64| bytes.len() as f64 / seconds / 1e6;
        let read_time = median((0..ROUNDS).map(|_| disk_read(&raw, &mut target)));
        println!(
            "{name}: {:.1} MB; MB/s: copy {:.0}, disk {:.0}, restore call {:.0}",
            bytes.len() as f64 / 1e6,
            speed(copy),
            speed(read_time),
            speed(restore)
        );
        for codec in [Codec::Zstd(-1), Codec::Zstd(1), Codec::Zstd(3), Codec::Lz4] {
            for planes in [1, element] {
                let packed = codec.pack(&shuffle(&bytes, planes));
                write(&packed_file, &packed);
                let (mut unpacked, mut back) = (vec![1_u8; bytes.len()], vec![1_u8; bytes.len()]);
                let mut read = vec![1_u8; packed.len()];
                let (mut packs, mut unpacks, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
                for round in 0..ROUNDS {
                    packs.push(cpu_time(|| {
                        let source =
                            if planes > 1 { Cow::Owned(shuffle(&bytes, planes)) } else { Cow::Borrowed(&bytes) };
                        black_box(codec.pack(&source));
                    }));
                    let unpack = cpu_time(|| {
                        codec.unpack(&packed, &mut unpacked);
                        if planes > 1 {
                            unshuffle(&unpacked, planes, &mut back);
                        }
                    });
                    unpacks.push(unpack);
                    // Both files in one round, who goes first alternating: the disk's speed changes by the second.
                    let (of_raw, of_packed) = if round % 2 == 0 {
                        let of_raw = disk_read(&raw, &mut target);
                        (of_raw, disk_read(&packed_file, &mut read))
                    } else {
                        let of_packed = disk_read(&packed_file, &mut read);
                        (disk_read(&raw, &mut target), of_packed)
                    };
                    ratios.push((of_packed + unpack + restore) / (of_raw + restore));
                }
                let result = if planes > 1 { &back } else { &unpacked };
                assert!(*result == bytes, "{} is not lossless", codec.name());
                let share = packed.len() as f64 / bytes.len() as f64;
                let [low, middle, high] = quartiles(ratios);
                let unpack = median(unpacks);
                // By arithmetic from the medians: on a busy machine two reads of the same file differ by more than a codec saves.
                let computed = (read_time * share + unpack + restore) / (read_time + restore);
                let verdict = if computed < 1.0 || (share <= 0.5 && computed <= 1.3) { "pays" } else { "does not pay" };
                println!(
                    "  {:<8} {:<8} size {share:.3}, pack {:>5.0} MB/s, unpack {:>5.0} MB/s, restore from disk x {computed:.2} computed, {middle:.2} ({low:.2} to {high:.2}) timed, faster on a disk below {:.0} MB/s: {verdict}",
                    codec.name(),
                    if planes > 1 { "shuffled" } else { "plain" },
                    speed(median(packs)),
                    speed(unpack),
                    // There the time that smaller reads save is what unpacking takes.
                    (speed(unpack) * (1.0 - share)).max(0.0),
                );
            }
        }
    }
}

/// The state of a real text as the engine packs it, and the seconds that putting it back takes.
fn segment(kind: KvType) -> (Vec<u8>, f64) {
    let model = LlamaBackend.load_model(&ModelOptions::new(model_path())).unwrap();
    let options = ContextOptions { n_ctx: 2048, n_seq_max: 2, type_k: kind, type_v: kind, ..ContextOptions::default() };
    let mut context = model.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap();
    let mode = TokenizeMode { add_special: true, parse_special: false };
    let mut tokens = Vec::new();
    model.tokenize(TEXT, mode, &mut tokens).unwrap();
    tokens.truncate(TOKENS);
    assert_eq!(tokens.len(), TOKENS, "the text is too short");
    let n_batch = context.info().n_batch as usize;
    let rows: Vec<BatchRow> =
        (0..).zip(&tokens).map(|(pos, token)| BatchRow { token: *token, pos, seq: 0, want_logits: false }).collect();
    for rows in rows.chunks(n_batch) {
        assert_eq!(context.decode(&Batch { rows: rows.to_vec() }), DecodeOutcome::Done);
    }
    context.synchronize();
    let end = u32::try_from(TOKENS).unwrap();
    let mut bytes = vec![0; context.pack_size(0, 0..end).unwrap()];
    let length = context.pack_range(0, 0..end, &mut bytes).unwrap();
    bytes.truncate(length);
    let restores = (0..ROUNDS).map(|_| {
        cpu_time(|| {
            let restore = Restore { seq: 1, n_tokens: end, segments: &[&bytes], partial: None };
            context.restore(restore).unwrap();
        })
    });
    let restore = median(restores);
    (bytes, restore)
}

/// All bytes at the first place of an element, then all at the second, and so on; what is left over stays at the end.
fn shuffle(bytes: &[u8], planes: usize) -> Vec<u8> {
    if planes == 1 {
        return bytes.to_vec();
    }
    let whole = bytes.len() / planes * planes;
    let (elements, rest) = bytes.split_at(whole);
    let mut shuffled = Vec::with_capacity(bytes.len());
    for plane in 0..planes {
        shuffled.extend(elements.iter().skip(plane).step_by(planes));
    }
    shuffled.extend_from_slice(rest);
    shuffled
}

fn unshuffle(shuffled: &[u8], planes: usize, into: &mut [u8]) {
    let count = shuffled.len() / planes;
    let (elements, rest) = shuffled.split_at(count * planes);
    let (target, target_rest) = into.split_at_mut(count * planes);
    if let (2, [low, high]) = (planes, elements.chunks_exact(count).collect::<Vec<_>>().as_slice()) {
        // The loop that compilers vectorise.
        for ((pair, low), high) in target.as_chunks_mut::<2>().0.iter_mut().zip(*low).zip(*high) {
            *pair = [*low, *high];
        }
    } else {
        for (plane, bytes) in elements.chunks_exact(count).enumerate() {
            for (place, byte) in target.iter_mut().skip(plane).step_by(planes).zip(bytes) {
                *place = *byte;
            }
        }
    }
    target_rest.copy_from_slice(rest);
}

fn write(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// Seconds to read a file from the disk, past the page cache.
fn disk_read(path: &Path, buffer: &mut [u8]) -> f64 {
    let mut file = File::open(path).unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let began = Instant::now();
    file.read_exact(buffer).unwrap();
    began.elapsed().as_secs_f64()
}

/// Seconds that this thread computed: what other programs take of the processor does not count. Linux counts in steps of
/// some milliseconds, so the work is repeated until a step hardly matters.
fn cpu_time(mut work: impl FnMut()) -> f64 {
    let before = on_processor();
    let mut times = 0.0;
    loop {
        work();
        times += 1.0;
        let spent = on_processor() - before;
        if spent >= 0.06 {
            return spent / times;
        }
    }
}

fn on_processor() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| *values.get((values.len() - 1) * quarter / 4).unwrap())
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let [_, middle, _] = quartiles(values.into_iter().collect());
    middle
}

fn model_path() -> PathBuf {
    let name = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let default = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.tools/models").join(name);
    let path = std::env::var_os("PONCHO_BENCH_MODEL").map_or(default, PathBuf::from);
    if !path.is_file() {
        panic!("{} is not there; run `make model` first", path.display());
    }
    path
}
