//! Moving payloads: checksum speed, memory tier against memcpy, load against `pread`, save against `write` + `fdatasync`.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use poncho_cache::{Cache, CacheConfig, Key, Needs, PartKind, RestorePlan, Tier};
use poncho_cache::{crc32c, row_folder, row_path};

use crate::Outcome;
use crate::measure::{duel, repeat, timed};
use crate::report::{Report, Target};
use crate::sample_rows::{NAMESPACE, make_folders, noise, queue as queue_row, save as save_row, tokens};

/// What the ratios have to be.
const LOAD_TARGET: Target = Target::AtLeast(0.8);
const SAVE_TARGET: Target = Target::AtLeast(0.8);
const MEMORY_TARGET: Target = Target::AtLeast(0.9);

/// CRC-32C alone: what no load and no save can do without.
pub(crate) fn checksums(report: &mut Report) -> Outcome<()> {
    for (name, bytes, rounds) in [("CRC-32C of 64 MiB", 64 << 20, 31), ("CRC-32C of 256 KiB, in cache", 256 << 10, 501)]
    {
        let data = noise(bytes);
        let times = repeat(rounds, || {
            let (crc, time) = timed(|| crc32c(black_box(&data)));
            black_box(crc);
            Ok(time)
        })?;
        let speeds = times.map(|seconds| bytes as f64 / seconds / 1e9);
        report.samples(name, "GB/s", &speeds, String::new(), Target::None);
    }
    Ok(())
}

/// A row of the memory tier, copied once out of the reference that is handed out, against the copy alone. Source and
/// destination are the same memory for both, so that neither has the better pages.
pub(crate) fn memory(report: &mut Report) -> Outcome<()> {
    for (name, bytes, rounds) in [("64 MiB", 64 << 20, 45), ("1 MiB", 1 << 20, 1001)] {
        let payload = Bytes::from(noise(bytes));
        let cache = Cache::open(CacheConfig::in_memory(1 << 30))?;
        let prompt = tokens(1, 2000);
        save_row(&cache, &prompt, &payload)?;
        let buffer = RefCell::new(vec![1_u8; bytes]);
        let ours = || {
            let mut buffer = buffer.borrow_mut();
            let (result, time) = timed(|| -> Outcome<()> {
                let plan = cache.lookup(&NAMESPACE, &prompt, Needs::ATTENTION).ok_or("the row is gone")?;
                let segment = plan.rows().first().ok_or("the plan is empty")?;
                let bytes = segment.bytes(PartKind::Attention).ok_or("the row is not in memory")?;
                buffer.copy_from_slice(&bytes);
                Ok(())
            });
            black_box(&buffer);
            result.map(|()| time)
        };
        let theirs = || {
            let mut buffer = buffer.borrow_mut();
            let ((), time) = timed(|| buffer.copy_from_slice(black_box(&payload)));
            black_box(&buffer);
            Ok(time)
        };
        let title = format!("RAM tier, {name}, lookup included, against memcpy");
        report.ratio(&title, bytes, &duel(rounds, ours, theirs)?, MEMORY_TARGET);
    }
    Ok(())
}

/// Rows from the page cache into a buffer that is there, against `pread` of the same bytes of the same files.
pub(crate) fn load(report: &mut Report, folder: &Path) -> Outcome<()> {
    let sizes = [
        Load { name: "64 MiB", bytes: 64 << 20, rows: 1, rounds: 45, target: LOAD_TARGET },
        Load { name: "64 rows of 1 MiB", bytes: 1 << 20, rows: 64, rounds: 45, target: LOAD_TARGET },
        // File and buffer both stay in the processor's cache, where a copy is so fast that the checksum shows. Nobody
        // restores the same row again and again, so this one is shown and not judged.
        Load { name: "one row of 1 MiB again and again", bytes: 1 << 20, rows: 1, rounds: 501, target: Target::None },
    ];
    for size in sizes {
        size.run(report, folder)?;
    }
    Ok(())
}

/// Rows of a size, read one after the other into one buffer.
struct Load {
    name: &'static str,
    bytes: usize,
    rows: u32,
    rounds: usize,
    target: Target,
}

impl Load {
    fn run(&self, report: &mut Report, folder: &Path) -> Outcome<()> {
        let bytes = self.bytes;
        let folder = folder.join("load");
        let cache = Cache::open(CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(&folder, u64::MAX) })?;
        let payload = Bytes::from(noise(bytes));
        let mut plans = Vec::new();
        let mut files = Vec::new();
        for number in 0..self.rows {
            let prompt = tokens(number + 1, 2000);
            let path = row_path(&folder, &save_row(&cache, &prompt, &payload)?);
            let offset = path.metadata()?.len() - bytes as u64;
            files.push((File::open(&path)?, offset));
            plans.push(cache.lookup(&NAMESPACE, &prompt, Needs::ATTENTION).ok_or("the row is gone")?);
        }
        // One buffer for both, so that neither has the better pages.
        let buffer = RefCell::new(vec![1_u8; bytes]);
        let ours = || {
            let mut buffer = buffer.borrow_mut();
            let (result, time) = timed(|| {
                let mut segments = plans.iter().flat_map(RestorePlan::rows);
                segments.try_for_each(|segment| segment.read(PartKind::Attention, &mut buffer))
            });
            Ok(result.map(|()| time)?)
        };
        let theirs = || {
            let mut buffer = buffer.borrow_mut();
            let (result, time) =
                timed(|| files.iter().try_for_each(|(file, offset)| file.read_exact_at(&mut buffer, *offset)));
            Ok(result.map(|()| time)?)
        };
        let outcome = duel(self.rounds, ours, theirs)?;
        let all = bytes * plans.len();
        report.ratio(&format!("load, {}, page cache, against pread", self.name), all, &outcome, self.target);
        drop(plans);
        drop(cache);
        std::fs::remove_dir_all(folder)?;
        Ok(())
    }
}

/// A synchronous save to the disk tier, all stages, against one file written and synced beside it.
pub(crate) fn save(report: &mut Report, folder: &Path) -> Outcome<()> {
    save_size(report, folder, "64 MiB", 64 << 20, 21, [SAVE_TARGET, Target::None])?;
    // Somebody waits for the name too, which makes a difference beside so few bytes.
    save_size(report, folder, "1 MiB, awaited", 1 << 20, 101, [SAVE_TARGET; 2])?;
    save_many(report, folder)
}

/// Small rows as the engine saves them: handed over one after the other, and nobody waits for a single one.
fn save_many(report: &mut Report, folder: &Path) -> Outcome<()> {
    const ROWS: u32 = 64;
    let folder = folder.join("save");
    make_folders(&folder)?;
    let cache = Cache::open(CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(&folder, u64::MAX) })?;
    let payload = Bytes::from(noise(1 << 20));
    let same_bytes = std::fs::read(row_path(&folder, &save_row(&cache, &tokens(0, 2000), &payload)?))?;
    let number = Cell::new(0_u32);
    let ours = || {
        let prompts: Vec<Vec<u32>> = (1..=ROWS).map(|row| tokens(number.get() + row, 2000)).collect();
        number.set(number.get() + ROWS);
        let (saved, time) = timed(|| -> Outcome<()> {
            prompts.iter().try_for_each(|prompt| queue_row(&cache, prompt, &payload).map(drop))?;
            cache.flush();
            Ok(())
        });
        saved?;
        cache.evict_bytes(u64::MAX, &[Tier::Disk]);
        Ok(time)
    };
    let plainly = || {
        let write = |row: u32| {
            let [first, ..] = row.to_le_bytes();
            write_plainly(&row_folder(&folder, &Key::from_bytes([first; 32])), &same_bytes, Durability::Data)
        };
        (0..ROWS).map(write).sum::<Outcome<Duration>>()
    };
    let outcome = duel(21, ours, plainly)?;
    let title = format!("save, {ROWS} rows of 1 MiB, against write + fdatasync of each");
    report.ratio(&title, (ROWS as usize) << 20, &outcome, SAVE_TARGET);
    drop(cache);
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// With the targets beside a plain write, and beside one that is made as durable.
fn save_size(
    report: &mut Report,
    folder: &Path,
    name: &str,
    bytes: usize,
    rounds: usize,
    targets: [Target; 2],
) -> Outcome<()> {
    let folder = folder.join("save");
    // As in a folder that has been in use for a while: the first row of each sub-folder has to make it.
    make_folders(&folder)?;
    let cache = Cache::open(CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(&folder, u64::MAX) })?;
    let payload = Bytes::from(noise(bytes));
    // The very bytes of a row's file, prefix and all.
    let same_bytes = std::fs::read(row_path(&folder, &save_row(&cache, &tokens(0, 2000), &payload)?))?;
    let number = Cell::new(0_u32);
    let ours = || {
        number.set(number.get() + 1);
        let prompt = tokens(number.get(), 2000);
        let (saved, time) = timed(|| save_row(&cache, &prompt, &payload));
        saved?;
        cache.evict_bytes(u64::MAX, &[Tier::Disk]);
        Ok(time)
    };
    let plainly = |durability| {
        // Spread over the sub-folders as rows are.
        let [first, ..] = number.get().to_le_bytes();
        write_plainly(&row_folder(&folder, &Key::from_bytes([first; 32])), &same_bytes, durability)
    };
    let outcome = duel(rounds, ours, || plainly(Durability::Data))?;
    report.ratio(&format!("save, {name}, against write + fdatasync"), bytes, &outcome, targets[0]);
    let outcome = duel(rounds, ours, || plainly(Durability::Published))?;
    let title = format!("save, {name}, against write + fdatasync + link + fsync of the folder");
    report.ratio(&title, bytes, &outcome, targets[1]);
    drop(cache);
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// How much a plain write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// The data of the file.
    Data,
    /// A new name that survives the machine, as a row has to: linked after the data, then the folder.
    Published,
}

fn write_plainly(folder: &Path, bytes: &[u8], durability: Durability) -> Outcome<Duration> {
    let (new, published) = (folder.join("raw.new"), folder.join("raw"));
    let (written, time) = timed(|| -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&new)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        if durability == Durability::Published {
            std::fs::hard_link(&new, &published)?;
            std::fs::remove_file(&new)?;
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    });
    written?;
    std::fs::remove_file(if durability == Durability::Published { published } else { new })?;
    Ok(time)
}
