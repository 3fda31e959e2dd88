//! Removing a file takes as long as it likes: a folder still never holds more than its quota.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use poncho_cache::testing::{MemoryFs, WatchedFs, Watcher};
use poncho_cache::{Cache, CacheConfig, Key, SaveOutcome, Stage, StageObserver, Tier};
use poncho_cache::{FileNameKind, classify};

use super::save_now;
use crate::support::{conversation, namespace, on_disk, reach};

/// How long a removal takes, if no writer comes before.
const LONG: Duration = Duration::from_millis(100);

/// Lets the removal of a row wait for a writer to begin, which must not happen.
#[derive(Debug)]
struct SlowRemoval {
    writer_began: Mutex<Receiver<Key>>,
    /// What each removal of a row has seen.
    seen: Mutex<Vec<Result<Key, RecvTimeoutError>>>,
}

impl Watcher for SlowRemoval {
    fn before_remove(&self, path: &Path) {
        if matches!(classify(path.file_name().unwrap()), FileNameKind::Row(_)) {
            let began = self.writer_began.lock().unwrap();
            while began.try_recv().is_ok() {}
            self.seen.lock().unwrap().push(began.recv_timeout(LONG));
        }
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
    let removal = Arc::new(SlowRemoval { writer_began: Mutex::new(writer_began), seen: Mutex::default() });
    let fs = Arc::new(WatchedFs::new(MemoryFs::new(), Arc::clone(&removal)));
    // Room for one row of 100 tokens.
    let config = on_disk(Path::new("/cache"), 7_000);
    let cache = Cache::open(CacheConfig { fs, observer: Some(Arc::new(Began(sender))), ..config }).unwrap();
    for number in 1..4 {
        assert_eq!(save_now(&cache, &conversation(number, 100)), SaveOutcome::Published);
    }
    assert_eq!(*removal.seen.lock().unwrap(), [Err(RecvTimeoutError::Timeout); 2], "no writer began meanwhile");
    assert_eq!(cache.counters().tier_rows[Tier::Disk.index()], 1);
    assert_eq!(reach(&cache, namespace(1), &conversation(3, 100)), 100);
}
