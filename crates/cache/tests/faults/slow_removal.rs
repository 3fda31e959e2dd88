//! Removing a file takes as long as it likes: a folder still never holds more than its quota.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use poncho_cache::testing::MemoryFs;
use poncho_cache::{Cache, CacheConfig, Entry, Fs, Key, NewFile, ReadFile, SaveOutcome, Stage, StageObserver, Tier};
use poncho_cache::{FileNameKind, classify};

use super::save_now;
use crate::support::{conversation, namespace, on_disk, reach};

/// How long a removal takes, if no writer comes before.
const LONG: Duration = Duration::from_millis(100);

/// A file system in memory where the removal of a row waits for a writer to begin, which must not happen.
#[derive(Debug)]
struct SlowRemoval {
    inner: MemoryFs,
    writer_began: Mutex<Receiver<Key>>,
    /// What each removal of a row has seen.
    seen: Mutex<Vec<Result<Key, RecvTimeoutError>>>,
}

impl Fs for SlowRemoval {
    fn remove(&self, path: &Path) -> io::Result<()> {
        if matches!(classify(path.file_name().unwrap()), FileNameKind::Row(_)) {
            let began = self.writer_began.lock().unwrap();
            while began.try_recv().is_ok() {}
            self.seen.lock().unwrap().push(began.recv_timeout(LONG));
        }
        self.inner.remove(path)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.inner.create_folder(path)
    }

    fn write_new(&self, path: &Path, file: &NewFile<'_>, durable: bool) -> io::Result<()> {
        self.inner.write_new(path, file, durable)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_folder(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.inner.open(path)
    }

    fn write_at(&self, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(path, bytes, offset)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.inner.list(path)
    }

    fn has_locks(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Began(SyncSender<Key>);

impl StageObserver for Began {
    fn reached(&self, stage: Stage, key: &Key) {
        if stage == Stage::Reserved {
            self.0.send(*key).unwrap();
        }
    }
}

#[test]
fn a_row_is_written_after_the_files_that_make_room_for_it_are_gone() {
    let (sender, writer_began) = sync_channel(64);
    let inner = MemoryFs::new();
    let fs = Arc::new(SlowRemoval { inner, writer_began: Mutex::new(writer_began), seen: Mutex::default() });
    // Room for one row of 100 tokens.
    let config = on_disk(Path::new("/cache"), 7_000);
    let cache = Cache::open(CacheConfig { fs: fs.clone(), observer: Some(Arc::new(Began(sender))), ..config }).unwrap();
    for number in 1..4 {
        assert_eq!(save_now(&cache, &conversation(number, 100)), SaveOutcome::Published);
    }
    assert_eq!(*fs.seen.lock().unwrap(), [Err(RecvTimeoutError::Timeout); 2], "no writer began meanwhile");
    assert_eq!(cache.counters().tier_rows[Tier::Disk.index()], 1);
    assert_eq!(reach(&cache, namespace(1), &conversation(3, 100)), 100);
}
