//! A cache folder that is removed while it is in use: it comes back with its lock, and never has two owners.

use poncho_cache::{Cache, CacheError, DropReason, LOCK_FILE_NAME, SaveOutcome, inspect_folder};

use super::save_now;
use crate::support::{conversation, namespace, on_disk, reach};

/// The folder came back without its lock, and another process took it.
#[test]
fn a_folder_that_was_removed_is_locked_again_before_anything_is_written() {
    for only_lock in [true, false] {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("kv");
        let cache = Cache::open(on_disk(&folder, 1 << 20)).unwrap();
        assert_eq!(save_now(&cache, &conversation(1, 40)), SaveOutcome::Published);
        match only_lock {
            true => std::fs::remove_file(folder.join(LOCK_FILE_NAME)).unwrap(),
            false => std::fs::remove_dir_all(&folder).unwrap(),
        }
        assert_eq!(save_now(&cache, &conversation(2, 40)), SaveOutcome::Published);
        let refused = Cache::open(on_disk(&folder, 1 << 20)).err();
        assert!(matches!(refused, Some(CacheError::Locked { .. })), "{refused:?}");
        assert_eq!(inspect_folder(&folder).unwrap().holder, Some(std::process::id().to_string()));
        assert_eq!(reach(&cache, namespace(1), &conversation(2, 40)), 40);
    }
}

#[test]
fn a_folder_that_another_process_took_meanwhile_is_left_to_it() {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("kv");
    let cache = Cache::open(on_disk(&folder, 1 << 20)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let other = Cache::open(on_disk(&folder, 1 << 20)).unwrap();
    assert_eq!(save_now(&cache, &conversation(1, 40)), SaveOutcome::Dropped(DropReason::WriteFailed));
    let health = cache.health().remove(0);
    assert!(health.off.is_some_and(|reason| reason.contains("is in use by process")));
    assert_eq!(save_now(&other, &conversation(1, 40)), SaveOutcome::Published);
    assert_eq!(reach(&other, namespace(1), &conversation(1, 40)), 40);
}
