//! Opening a folder of 100,000 rows: time and bytes read for each row, and the memory of the index.
//!
//! The files are written directly, by several threads, with sparse payloads of 64 KiB: opening must not touch those. Rows
//! form chains of ten. Everything is in the page cache; a cold disk is not measured.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use poncho_cache::row_folder;
use poncho_cache::testing::{WatchedFs, Watcher};
use poncho_cache::{Cache, CacheConfig, Key, StdFs};

use crate::Outcome;
use crate::machine::field;
use crate::measure::{Samples, timed};
use crate::report::{Report, Target};
use crate::sample_rows::{make_folders, tokens, write_row};

const ROWS: u32 = 100_000;
const CHAIN: u32 = 10;
/// Tokens of the first row of a chain, and those that each further one adds.
const FIRST_TOKENS: u32 = 512;
const MORE_TOKENS: u32 = 64;
const PAYLOAD: u64 = 64 << 10;
const ROUNDS: usize = 3;
/// Threads that write and remove the files: they wait for the file system more than they compute.
const THREADS: u32 = 8;

pub(crate) fn open_many(report: &mut Report, folder: &Path) -> Outcome<()> {
    let folder = folder.join("open");
    let (written, took) = timed(|| write_rows(&folder));
    written?;
    eprintln!("{ROWS} files written in {:.1} s", took.as_secs_f64());
    let counter = Arc::new(Counting::default());
    let mut times = Vec::new();
    let resident = resident_bytes();
    for round in 0..=ROUNDS {
        counter.bytes.store(0, Ordering::Relaxed);
        counter.opened.store(0, Ordering::Relaxed);
        let fs = Arc::new(WatchedFs::new(StdFs, Arc::clone(&counter)));
        let config = CacheConfig { fs, ram_quota: 0, ..CacheConfig::on_disk(&folder, u64::MAX) };
        let (cache, time) = timed(|| Cache::open(config));
        let cache = cache?;
        eprintln!("opened in {:.1} s", time.as_secs_f64());
        if cache.len() != usize::try_from(ROWS)? {
            return Err(format!("{} rows instead of {ROWS}", cache.len()).into());
        }
        // The first round warms up.
        if round > 0 {
            times.push(time.as_secs_f64() * 1e6 / f64::from(ROWS));
        }
        if round == ROUNDS {
            let index = cache.index_bytes() as f64 / f64::from(ROWS);
            let grown = resident_bytes().saturating_sub(resident) as f64 / f64::from(ROWS);
            let detail = format!("{:.0} bytes of process memory, what the opening left behind included", grown);
            report.value("memory of the index for each of 100,000 rows", "bytes", index, &detail, Target::None);
        }
    }
    let (opened, bytes) = (counter.opened.load(Ordering::Relaxed), counter.bytes.load(Ordering::Relaxed));
    let detail = format!(
        "{opened} files opened, {:.0} bytes read of each, of {} with the payload",
        bytes as f64 / opened as f64,
        PAYLOAD
    );
    report.samples("open a folder of 100,000 rows, for each row", "us", &Samples::new(times), detail, Target::None);
    let (removed, took) = timed(|| remove_rows(&folder));
    eprintln!("and removed in {:.1} s", took.as_secs_f64());
    removed
}

fn write_rows(folder: &Path) -> Outcome<()> {
    make_folders(folder)?;
    in_threads(|thread| {
        let mut chains = (0..ROWS / CHAIN).filter(|chain| chain % THREADS == thread);
        chains.try_for_each(|chain| write_chain(folder, chain))
    })
}

fn remove_rows(folder: &Path) -> Outcome<()> {
    in_threads(|thread| {
        let mut first = (0..=255_u8).filter(|first| u32::from(*first) % THREADS == thread);
        first.try_for_each(|first| std::fs::remove_dir_all(row_folder(folder, &Key::from_bytes([first; 32]))))
    })?;
    Ok(std::fs::remove_dir_all(folder)?)
}

/// Runs the same work in several threads, each with its number.
fn in_threads(work: impl Fn(u32) -> io::Result<()> + Sync) -> Outcome<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        for handle in handles {
            handle.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })
}

fn write_chain(folder: &Path, chain: u32) -> io::Result<()> {
    let mut all = tokens(chain + 1, FIRST_TOKENS + CHAIN * MORE_TOKENS);
    all.insert(0, 1_000_000 + chain);
    let mut parent = None;
    let mut start = 0;
    for number in 0..CHAIN {
        let end = FIRST_TOKENS + number * MORE_TOKENS;
        parent = Some(write_row(folder, &all, parent, start..end, PAYLOAD)?);
        start = end;
    }
    Ok(())
}

fn resident_bytes() -> u64 {
    let text = field("/proc/self/status", "VmRSS").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

/// Counts what is read.
#[derive(Debug, Default)]
struct Counting {
    opened: AtomicU64,
    bytes: AtomicU64,
}

impl Watcher for Counting {
    fn before_open(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    fn before_read(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
