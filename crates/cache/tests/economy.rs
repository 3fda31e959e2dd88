//! What costs nothing: opening a folder reads no payload, and a payload is neither copied nor joined on its way into
//! memory, out of it, or into a file.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use poncho_cache::testing::{MemoryFs, WatchedFs, Watcher};
use poncho_cache::{Cache, CacheConfig, Needs, NewFile, PartKind, PayloadPart, SaveRequest, Tier};

use crate::support::{conversation, namespace, on_disk, request};

/// The most that opening a folder may read of a row with few tokens: one read of the file's first bytes.
const FIRST_READ: u64 = 4096;

/// Counts what is read, and remembers where the pieces of new files lay.
#[derive(Debug, Default)]
struct Watching {
    opened: AtomicU64,
    bytes: AtomicU64,
    pieces: Mutex<Vec<Vec<(usize, usize)>>>,
}

impl Watcher for Watching {
    fn wrote(&self, file: &NewFile<'_>) {
        self.pieces.lock().unwrap().push(file.body().iter().map(|piece| place(piece)).collect());
    }

    fn before_open(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    fn before_read(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A file system in memory, and what watches it.
fn watched() -> (Arc<WatchedFs<MemoryFs, Watching>>, Arc<Watching>) {
    let watching = Arc::new(Watching::default());
    (Arc::new(WatchedFs::new(MemoryFs::new(), Arc::clone(&watching))), watching)
}

/// Where bytes lie, and how many they are.
fn place(bytes: &[u8]) -> (usize, usize) {
    (bytes.as_ptr().addr(), bytes.len())
}

/// A payload of two parts, `bytes` long together.
fn payload(bytes: usize) -> Vec<PayloadPart> {
    let part = |kind, length: usize| PayloadPart { kind, bytes: Bytes::from(vec![7; length]) };
    vec![part(PartKind::Attention, bytes - 1000), part(PartKind::Logits, 1000)]
}

#[test]
fn opening_a_folder_reads_the_heads_of_its_files_and_no_payload() {
    const ROWS: u64 = 40;
    let (fs, watching) = watched();
    let config = || CacheConfig { fs: fs.clone(), ..on_disk(Path::new("/cache"), 1 << 30) };
    {
        let cache = Cache::open(config()).unwrap();
        for number in 0..u32::try_from(ROWS).unwrap() {
            let tokens = conversation(number, 100);
            let parts = payload(256 << 10);
            cache.save(SaveRequest { parts, ..request(namespace(1), &tokens, None) }).unwrap();
        }
        cache.flush();
    }
    watching.opened.store(0, Ordering::Relaxed);
    watching.bytes.store(0, Ordering::Relaxed);
    let cache = Cache::open(config()).unwrap();
    assert_eq!(cache.counters().tier_rows, [0, 0, ROWS]);
    assert!(cache.counters().tier_bytes[Tier::Disk.index()] > ROWS * (256 << 10));
    assert_eq!(watching.opened.load(Ordering::Relaxed), ROWS, "each file is opened once");
    let read = watching.bytes.load(Ordering::Relaxed);
    assert!(read > 0 && read <= ROWS * FIRST_READ, "{read} bytes were read of {ROWS} rows");
}

#[test]
fn a_row_in_memory_is_handed_out_by_reference() {
    let fs = Arc::new(MemoryFs::new());
    let hot = CacheConfig { fs, ..CacheConfig::on_disk("/cache", 1 << 20) };
    for config in [CacheConfig::in_memory(1 << 20), hot] {
        let cache = Cache::open(config).unwrap();
        let tokens = conversation(1, 100);
        let parts = payload(4000);
        let given = parts[0].bytes.clone();
        cache.save(SaveRequest { parts, ..request(namespace(1), &tokens, None) }).unwrap();
        let look_up = || {
            let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
            plan.rows()[0].bytes(PartKind::Attention).unwrap()
        };
        assert_eq!(place(&look_up()), place(&given), "at once");
        cache.flush();
        assert_eq!(place(&look_up()), place(&given), "and after it was written");
    }
}

#[test]
fn a_save_writes_the_pieces_of_a_payload_from_where_they_lie() {
    let (fs, watching) = watched();
    let cache = Cache::open(CacheConfig { fs, ..on_disk(Path::new("/cache"), 1 << 30) }).unwrap();
    let tokens = conversation(1, 100);
    // A large payload goes to its file in another order than a small one.
    for (number, bytes) in [(1, 4000), (2, 5 << 20)] {
        let parts = payload(bytes);
        let given: Vec<(usize, usize)> = parts.iter().map(|part| place(&part.bytes)).collect();
        cache.save(SaveRequest { parts, ..request(namespace(number), &tokens, None) }).unwrap();
        cache.flush();
        let written = watching.pieces.lock().unwrap().pop();
        assert_eq!(written, Some(given), "{bytes} bytes");
    }
}
