//! A writer that takes too long: its key is taken over before its check, and never after it.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use poncho_cache::row_path;
use poncho_cache::{Cache, CacheConfig, DropReason, Key, SaveOutcome, Stage, StageObserver};

use super::{Faulty, NO_FILES, files, save_now, temporaries};
use crate::support::{conversation, namespace, reach, save};

/// Holds one writer at a stage; all others pass.
#[derive(Debug, Default)]
struct HoldOne(Mutex<Option<Hold>>);

#[derive(Debug)]
struct Hold {
    stage: Stage,
    reached: SyncSender<()>,
    go_on: Receiver<()>,
}

impl StageObserver for HoldOne {
    fn reached(&self, stage: Stage, _key: &Key) {
        let hold = self.0.lock().unwrap().take_if(|hold| hold.stage == stage);
        if let Some(hold) = hold {
            hold.reached.send(()).unwrap();
            // Ends with the test at the latest, which drops the sender.
            let _ = hold.go_on.recv();
        }
    }
}

/// Holds the writer of a row at a stage while the parent of that row vanishes. The row then leaves the index, and its
/// key can be saved again once the reservation has expired. Dropping the sender releases the writer.
fn stuck(faulty: &Faulty, tokens: &[u32], stage: Stage) -> (Cache, SyncSender<()>) {
    let observer = Arc::new(HoldOne::default());
    let config = CacheConfig { observer: Some(Arc::<HoldOne>::clone(&observer)), writers: 2, ..faulty.config() };
    let cache = Cache::open(config).unwrap();
    let parent = &tokens[..30];
    assert_eq!(save_now(&cache, parent), SaveOutcome::Published);
    let (reached, is_stuck) = sync_channel(1);
    let (release, go_on) = sync_channel(1);
    *observer.0.lock().unwrap() = Some(Hold { stage, reached, go_on });
    assert_eq!(save(&cache, namespace(1), tokens).outcome, SaveOutcome::Queued);
    is_stuck.recv().unwrap();
    std::fs::remove_file(row_path(faulty.folder.path(), &namespace(1).key(parent))).unwrap();
    assert_eq!(reach(&cache, namespace(1), parent), 0);
    assert_eq!(cache.len(), 0, "the row that is being written left with the one it builds on");
    assert_eq!(save_now(&cache, tokens), SaveOutcome::Dropped(DropReason::Conflict), "{stage:?}: not yet");
    faulty.clock.advance(Duration::from_millis(cache.config().reservation_ttl_ms));
    (cache, release)
}

#[test]
fn a_writer_whose_reservation_was_taken_over_gives_up_and_the_other_one_s_row_stays() {
    for stage in [Stage::Reserved, Stage::TmpWritten] {
        let faulty = Faulty::new();
        let tokens = conversation(1, 60);
        let (cache, release) = stuck(&faulty, &tokens, stage);
        assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published, "{stage:?}: the key is taken over");
        let published = std::fs::read(row_path(faulty.folder.path(), &namespace(1).key(&tokens))).unwrap();
        drop(release);
        cache.flush();
        assert_eq!(cache.counters().save_failures, 1, "{stage:?}: the first writer gave up");
        assert_eq!(reach(&cache, namespace(1), &tokens), 60, "{stage:?}");
        assert_eq!(temporaries(faulty.folder.path()), NO_FILES, "{stage:?}");
        let files = files(faulty.folder.path());
        assert_eq!(files.len(), 1, "{stage:?}");
        cache.flush();
        drop(cache);
        let left = std::fs::read(&files[0]).unwrap();
        assert_eq!(left.len(), published.len(), "{stage:?}: the first writer's file is a shorter one");
        let cache = faulty.open();
        assert_eq!(reach(&cache, namespace(1), &tokens), 60, "{stage:?}");
        assert_eq!((cache.counters().corrupt_files, cache.counters().orphans_dropped), (0, 0), "{stage:?}");
    }
}

#[test]
fn a_writer_that_is_past_its_check_keeps_its_key_however_long_it_takes() {
    for stage in [Stage::Checked, Stage::Linked, Stage::TmpRemoved, Stage::FolderSynced] {
        let faulty = Faulty::new();
        let tokens = conversation(1, 60);
        let (cache, release) = stuck(&faulty, &tokens, stage);
        assert_eq!(save_now(&cache, &tokens), SaveOutcome::Dropped(DropReason::Conflict), "{stage:?}");
        drop(release);
        cache.flush();
        assert_eq!(files(faulty.folder.path()), NO_FILES, "{stage:?}: a row that was dropped leaves no file");
        assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published, "{stage:?}: the key is free again");
        assert_eq!(reach(&cache, namespace(1), &tokens), 60, "{stage:?}");
    }
}
