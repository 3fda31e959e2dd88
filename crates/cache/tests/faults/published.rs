//! A file that was there before a save stays there, whatever happens to the save.

use std::sync::{Arc, Mutex};

use poncho_cache::testing::{Fault, Operation};
use poncho_cache::{Cache, CacheConfig, Compaction, DropReason, PartKind, PayloadPart, SaveOutcome, Stage};

use super::{Faulty, NO_FILES, PanicAt, files, save_now, temporaries};
use crate::support::{at_end, attention, conversation, namespace, reach, request};

/// The stages at which the final name is there.
const NAMED: [Stage; 4] = [Stage::Linked, Stage::TmpRemoved, Stage::FolderSynced, Stage::Announced];

/// A cache with a writer that panics at the stage that the test sets.
fn armed(faulty: &Faulty) -> (Cache, Arc<PanicAt>) {
    let observer = Arc::new(PanicAt(Mutex::new(None)));
    let config = CacheConfig { observer: Some(Arc::<PanicAt>::clone(&observer)), ..faulty.config() };
    (Cache::open(config).unwrap(), observer)
}

#[test]
fn a_file_that_was_adopted_outlives_a_save_that_fails() {
    for (error, text) in super::ERRORS {
        for operation in [Operation::SyncFolder, Operation::Remove] {
            let faulty = Faulty::new();
            let tokens = conversation(1, 30);
            {
                let cache = faulty.open();
                assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
                let before = files(faulty.folder.path());
                faulty.fs.fail_once(Operation::Read, 0, Fault::Error(5));
                assert_eq!(reach(&cache, namespace(1), &tokens), 0);
                assert_eq!(files(faulty.folder.path()), before, "the row is forgotten, its file is not");
                faulty.fs.fail(operation, Fault::Error(error));
                let outcome = save_now(&cache, &tokens);
                let fails = operation == Operation::SyncFolder;
                assert_eq!(outcome == SaveOutcome::Dropped(DropReason::WriteFailed), fails, "{outcome:?}, {text}");
                faulty.fs.clear();
                assert!(files(faulty.folder.path()).starts_with(&before), "{operation:?}, {text}");
            }
            let cache = faulty.open();
            assert_eq!(reach(&cache, namespace(1), &tokens), 30, "{operation:?}, {text}");
            assert_eq!(temporaries(faulty.folder.path()), NO_FILES);
        }
    }
}

#[test]
fn a_panic_while_an_adopted_file_is_announced_leaves_it() {
    for stage in NAMED {
        let faulty = Faulty::new();
        let tokens = conversation(1, 30);
        {
            let (cache, observer) = armed(&faulty);
            assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
            faulty.fs.fail_once(Operation::Read, 0, Fault::Error(5));
            assert_eq!(reach(&cache, namespace(1), &tokens), 0);
            *observer.0.lock().unwrap() = Some(stage);
            assert_eq!(save_now(&cache, &tokens), SaveOutcome::Dropped(DropReason::WriteFailed), "{stage:?}");
            assert_eq!(files(faulty.folder.path()).len(), 1, "{stage:?}");
        }
        assert_eq!(reach(&faulty.open(), namespace(1), &tokens), 30, "{stage:?}");
    }
}

#[test]
fn a_panic_while_a_row_is_completed_never_loses_the_row() {
    for stage in NAMED {
        let faulty = Faulty::new();
        let tokens = conversation(1, 60);
        {
            let (cache, observer) = armed(&faulty);
            let mut without = request(namespace(1), &tokens[..30], None);
            without.parts.truncate(1);
            cache.save(without).unwrap();
            cache.flush();
            assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
            *observer.0.lock().unwrap() = Some(stage);
            cache.save(request(namespace(1), &tokens[..30], None)).unwrap();
            cache.flush();
            assert_eq!(cache.counters().save_failures, 1, "{stage:?}");
            assert_eq!(reach(&cache, namespace(1), &tokens[..30]), 30, "{stage:?}");
            assert_eq!(reach(&cache, namespace(1), &tokens), 60, "{stage:?}: what builds on it");
            assert_eq!(cache.counters().corrupt_files, 0, "{stage:?}");
        }
        let cache = faulty.open();
        assert_eq!(reach(&cache, namespace(1), &tokens), 60, "{stage:?}");
        assert_eq!((cache.counters().corrupt_files, cache.counters().orphans_dropped), (0, 0), "{stage:?}");
    }
}

#[test]
fn a_panic_while_a_row_is_compacted_never_loses_the_row() {
    for stage in NAMED {
        let faulty = Faulty::new();
        let tokens = conversation(1, 90);
        {
            let (cache, observer) = armed(&faulty);
            for end in [30, 60, 90] {
                assert_eq!(save_now(&cache, &tokens[..end]), SaveOutcome::Published);
            }
            *observer.0.lock().unwrap() = Some(stage);
            let parts = vec![
                PayloadPart { kind: PartKind::Attention, bytes: attention(&tokens, 0).into() },
                PayloadPart { kind: PartKind::Logits, bytes: at_end(&tokens, PartKind::Logits).into() },
            ];
            let key = namespace(1).key(&tokens);
            cache.compact(Compaction { key, start: 0, parts, give_up: &[] });
            cache.flush();
            assert_eq!(cache.counters().save_failures, 1, "{stage:?}");
            assert_eq!(reach(&cache, namespace(1), &tokens), 90, "{stage:?}");
            assert_eq!(cache.counters().corrupt_files, 0, "{stage:?}");
            let row = cache.row(&key).unwrap();
            assert_eq!((row.meta.start, row.meta.parent), (0, None), "{stage:?}: the row is what its file is");
        }
        let cache = faulty.open();
        assert_eq!(reach(&cache, namespace(1), &tokens), 90, "{stage:?}");
        assert_eq!((cache.counters().corrupt_files, cache.counters().orphans_dropped), (0, 0), "{stage:?}");
    }
}
