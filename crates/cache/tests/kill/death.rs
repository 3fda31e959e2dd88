//! How a child process dies: at a publish stage, inside a file operation, or whenever its parent pleases.
//!
//! Both processes work it out from the number of the kill, so nothing has to be passed but that number. Used by the
//! kill tests only; it must never strike a process that was not started as a child.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use poncho_cache::testing::Operation;
use poncho_cache::{Entry, Fs, Key, NewFile, ReadFile, Stage, StageObserver, StdFs, Tier};
use rustix::process::{Signal, getpid, kill_process};

/// A durable file with a body of at least this size is written body first, head last (`write_behind` of `fs.rs`).
pub(crate) const LARGE_BODY: usize = 4 << 20;

/// When a child dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    /// The parent kills it `micros` microseconds after `lines` lines of its report.
    ByParent { lines: usize, micros: u64 },
    /// It kills itself when any row reaches this stage for the n-th time.
    AtStage { stage: Stage, nth: usize },
    /// It kills itself before, within or after the n-th such operation.
    InOperation { operation: Operation, moment: Moment, nth: usize },
}

/// Where in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Before,
    /// Half of the bytes are written; of a large durable file those of its body, with a gap where its head will be. For
    /// operations that write nothing: before.
    Within,
    After,
}

impl Death {
    /// The death of kill `number` in a tier. Every kind comes up in turn.
    pub(crate) fn of(number: usize, tier: Tier) -> Self {
        let (round, random) = (number / 3, scatter(number as u64));
        let nth = 1 + usize::try_from(random % 6).unwrap();
        match number % 3 {
            0 => Self::ByParent { lines: usize::try_from(random % 30).unwrap(), micros: (random >> 8) % 4000 },
            1 => Self::AtStage { stage: Stage::ALL[round % Stage::ALL.len()], nth },
            _ => {
                let operations = operations(tier);
                let operation = operations[round % operations.len()];
                let moments = [Moment::Before, Moment::Within, Moment::After];
                let moment = moments[(round / operations.len()) % moments.len()];
                // Replacing a file is rare, so the first time must do.
                let nth = if operation == Operation::Rename { 1 } else { nth };
                Self::InOperation { operation, moment, nth }
            }
        }
    }
}

impl Death {
    /// Whether the rows of this kill are large: where death lies in the writing of a file, or shortly after a row.
    pub(crate) fn wants_large_rows(self, tier: Tier) -> bool {
        let early = matches!(self, Self::ByParent { lines: 1..3, .. });
        let writing = matches!(self, Self::InOperation { operation: Operation::WriteNew, .. });
        // Memory files are written head first, whatever their size.
        tier == Tier::Disk && (early || writing)
    }
}

/// What a cache does all the time in this tier. Memory files are never synced.
fn operations(tier: Tier) -> &'static [Operation] {
    const ALL: [Operation; 7] = [
        Operation::WriteNew,
        Operation::Link,
        Operation::Remove,
        Operation::Open,
        Operation::WriteAt,
        Operation::Rename,
        Operation::SyncFolder,
    ];
    if tier == Tier::Disk { &ALL } else { &ALL[..6] }
}

/// A number that shares nothing visible with its neighbours (the finaliser of splitmix64).
pub(crate) fn scatter(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    // The signal is on its way; nothing more may happen on this thread.
    loop {
        std::thread::park();
    }
}

/// Reports to the parent what was published, and dies at its stage.
#[derive(Debug)]
pub(crate) struct Witness {
    pub(crate) death: Death,
    pub(crate) reached: AtomicUsize,
}

impl StageObserver for Witness {
    fn reached(&self, stage: Stage, key: &Key) {
        if stage == Stage::Announced {
            super::child::say(&format!("P {key}"));
        }
        if let Death::AtStage { stage: last, nth } = self.death
            && stage == last
            && self.reached.fetch_add(1, Ordering::SeqCst) + 1 == nth
        {
            die();
        }
    }
}

/// The real file system, with death inside one of its operations.
#[derive(Debug)]
pub(crate) struct DeadlyFs {
    pub(crate) death: Death,
    pub(crate) calls: AtomicUsize,
}

impl DeadlyFs {
    fn strikes(&self, operation: Operation) -> Option<Moment> {
        match self.death {
            Death::InOperation { operation: last, moment, nth } if last == operation => {
                (self.calls.fetch_add(1, Ordering::SeqCst) + 1 == nth).then_some(moment)
            }
            _ => None,
        }
    }

    fn around<T>(&self, operation: Operation, act: impl FnOnce() -> T) -> T {
        match self.strikes(operation) {
            None => act(),
            Some(Moment::Before | Moment::Within) => die(),
            Some(Moment::After) => {
                act();
                die()
            }
        }
    }
}

impl Fs for DeadlyFs {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        StdFs.create_folder(path)
    }

    fn write_new(&self, path: &Path, file: &NewFile<'_>, durable: bool) -> io::Result<()> {
        match self.strikes(Operation::WriteNew) {
            None => StdFs.write_new(path, file, durable),
            Some(Moment::Before) => die(),
            Some(Moment::Within) => {
                let mut all = file.bytes().unwrap();
                if durable && all.len() - file.head_length() >= LARGE_BODY {
                    all[..file.head_length()].fill(0);
                }
                let _ = StdFs.write_new(path, &NewFile::of(&[&all[..all.len() / 2]]), false);
                die()
            }
            Some(Moment::After) => {
                let _ = StdFs.write_new(path, file, durable);
                die()
            }
        }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.around(Operation::Link, || StdFs.link(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.around(Operation::Remove, || StdFs.remove(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.around(Operation::Rename, || StdFs.rename(from, to))
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.around(Operation::SyncFolder, || StdFs.sync_folder(path))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.around(Operation::Open, || StdFs.open(path))
    }

    fn write_at(&self, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.strikes(Operation::WriteAt) {
            None => StdFs.write_at(path, bytes, offset),
            Some(Moment::Before) => die(),
            Some(Moment::Within) => {
                let _ = StdFs.write_at(path, &bytes[..bytes.len() / 2], offset);
                die()
            }
            Some(Moment::After) => {
                let _ = StdFs.write_at(path, bytes, offset);
                die()
            }
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        StdFs.list(path)
    }
}
