//! FIFOs, folders and links under the names of files, and files that promise more than they hold: nothing waits for them, takes
//! memory for them or gives up other rows for them.

mod hanging;

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use poncho_cache::{
    Cache, CacheError, Cut, Fingerprint, FolderIndex, Key, Needs, PartKind, SaveOutcome, SaveReason, SaveRequest, Tier,
    Unusable, inspect_file, inspect_folder,
};
use poncho_cache::{FormatError, LOCK_FILE_NAME, NewPart, PrefixDraft, RowMeta, bad_path, encode_prefix, row_path};

use self::hanging::{bounded, fifo};
use crate::support::{check_plan, conversation, namespace, on_disk, reach, request, save};

/// What may stand under a row's name.
const KINDS: [&str; 5] = ["a FIFO", "a link to a FIFO", "a link to a file", "a socket", "a folder"];

/// Puts something under a name, and takes away what was there.
fn replace(path: &Path, kind: &str) {
    let beside = path.with_extension("beside");
    let _ = std::fs::remove_file(&beside);
    match kind {
        "a link to a file" => std::fs::rename(path, &beside).unwrap(),
        _ => std::fs::remove_file(path).unwrap(),
    }
    match kind {
        "a FIFO" => fifo(path),
        "a link to a FIFO" => {
            fifo(&beside);
            symlink(&beside, path).unwrap();
        }
        "a link to a file" => symlink(&beside, path).unwrap(),
        "a socket" => drop(UnixListener::bind(path).unwrap()),
        "a folder" => std::fs::create_dir(path).unwrap(),
        other => panic!("{other}"),
    }
}

/// A folder with two conversations, and the file of the first.
fn two_rows() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
    save(&cache, namespace(1), &conversation(1, 40));
    save(&cache, namespace(1), &conversation(2, 40));
    let row = row_path(folder.path(), &namespace(1).key(&conversation(1, 40)));
    (folder, row)
}

fn save_now(cache: &Cache, tokens: &[u32]) -> SaveOutcome {
    cache.save(SaveRequest { reason: SaveReason::Evict, ..request(namespace(1), tokens, None) }).unwrap().outcome
}

/// Hardening 16: the start, `cache ls`, `stat` and `verify` waited forever for a writer of the FIFO.
#[test]
fn a_fifo_under_a_rows_name_is_reported_and_moved_aside_and_nothing_waits_for_it() {
    for kind in KINDS {
        let (folder, row) = two_rows();
        replace(&row, kind);
        let root = folder.path().to_path_buf();
        let report = bounded(kind, move || inspect_folder(&root).unwrap());
        assert_eq!(report.rows.len(), 1, "{kind}");
        let finding = &report.findings[0];
        assert!(finding.path == row && finding.damage && finding.problem.contains("not a regular file"), "{finding:?}");
        let damaged = bounded(kind, move || report.verify(|_| {}));
        assert_eq!(damaged.len(), 1, "{kind}: {damaged:?}");
        let path = row.clone();
        let refused = bounded(kind, move || inspect_file(&path).unwrap_err());
        assert!(matches!(refused, CacheError::Unreadable { .. }), "{kind}: {refused}");

        let config = on_disk(folder.path(), 1 << 20);
        let cache = bounded(kind, move || Cache::open(config).unwrap());
        assert_eq!(reach(&cache, namespace(1), &conversation(1, 40)), 0, "{kind}");
        assert_eq!(reach(&cache, namespace(1), &conversation(2, 40)), 40, "{kind}");
        assert!(row.symlink_metadata().is_err() && bad_path(&row).symlink_metadata().is_ok(), "{kind}");
        assert_eq!(save_now(&cache, &conversation(1, 40)), SaveOutcome::Published, "{kind}");
        bounded(kind, move || {
            assert_eq!(reach(&cache, namespace(1), &conversation(1, 40)), 40);
            cache.clear();
        });
    }
}

/// Hardening 16: a request waited forever, and so did all requests after it.
#[test]
fn a_row_that_becomes_a_fifo_under_a_running_cache_is_a_miss_and_is_written_again() {
    for kind in KINDS {
        let (folder, row) = two_rows();
        let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
        replace(&row, kind);
        let cache = bounded(kind, move || {
            let tokens = conversation(1, 40);
            let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
            let unusable = check_plan(&plan, &tokens).unwrap_err();
            assert!(matches!(unusable, Unusable::Unreadable { .. }), "{unusable}");
            drop(plan);
            assert_eq!(reach(&cache, namespace(1), &tokens), 0);
            assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
            assert_eq!(reach(&cache, namespace(1), &tokens), 40);
            cache
        });
        // The counts of uses are written in place, into files only.
        replace(&row, kind);
        bounded(kind, move || drop(cache));
    }
}

/// Hardening 16: the same for a row that another process put there while this one writes it.
#[test]
fn a_fifo_in_the_place_of_a_new_row_is_replaced() {
    for kind in ["a FIFO", "a link to a FIFO", "a link to a file", "a socket"] {
        let (folder, row) = two_rows();
        std::fs::remove_file(&row).unwrap();
        let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
        std::fs::write(&row, b"x").unwrap();
        replace(&row, kind);
        bounded(kind, move || {
            assert_eq!(save_now(&cache, &conversation(1, 40)), SaveOutcome::Published);
            assert_eq!(reach(&cache, namespace(1), &conversation(1, 40)), 40);
        });
        assert!(row.symlink_metadata().unwrap().is_file(), "{kind}");
    }
}

/// Hardening 16: relatives of the rows: the lock, and the memo of a fingerprint.
#[test]
fn a_fifo_in_the_place_of_the_lock_or_of_a_memo_is_not_waited_for() {
    let (folder, _) = two_rows();
    let lock = folder.path().join(LOCK_FILE_NAME);
    for kind in ["a FIFO", "a link to a FIFO", "a socket"] {
        replace(&lock, kind);
        let config = on_disk(folder.path(), 1 << 20);
        let refused = bounded(kind, move || Cache::open(config).map(drop).unwrap_err());
        assert!(refused.to_string().contains("not a regular file"), "{kind}: {refused}");
        let root = folder.path().to_path_buf();
        assert_eq!(bounded(kind, move || inspect_folder(&root).unwrap()).rows.len(), 2, "{kind}");
    }
    let model = folder.path().join("model.gguf");
    std::fs::write(&model, b"weights").unwrap();
    fifo(&folder.path().join("model.gguf.poncho-fingerprint"));
    let path = model.clone();
    let fingerprint = bounded("a memo", move || Fingerprint::safe(&[path], None, &mut |_, _| {}).unwrap());
    std::fs::remove_file(folder.path().join("model.gguf.poncho-fingerprint")).unwrap();
    assert_eq!(Fingerprint::safe(&[model], None, &mut |_, _| {}).unwrap(), fingerprint);
    let pipe = folder.path().join("pipe.gguf");
    fifo(&pipe);
    let refused = bounded("a model", move || Fingerprint::safe(&[pipe], None, &mut |_, _| {}).unwrap_err());
    assert!(format!("{:?}", std::error::Error::source(&refused)).contains("FIFO"), "{refused:?}");
}

/// A well-formed row with a payload of `payload` bytes that were never written.
fn hollow_row(folder: &Path, tokens: &[u32], payload: u64) -> (Key, PathBuf) {
    let key = namespace(1).key(tokens);
    let meta = RowMeta::new(namespace(1), u32::try_from(tokens.len()).unwrap());
    let parts = [NewPart { kind: PartKind::Attention, length: payload, crc: 1 }];
    let prefix = encode_prefix(&PrefixDraft::new(meta, tokens, &parts)).unwrap();
    let path = row_path(folder, &key);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, &prefix).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(prefix.len() as u64 + payload).unwrap();
    (key, path)
}

/// Hardening 24: loading the row took a terabyte of memory before its checksum was checked, and `verify` read a
/// terabyte of zeros.
#[test]
fn a_sparse_file_that_promises_a_terabyte_is_refused_by_every_reader() {
    let (folder, _) = two_rows();
    let tokens = conversation(3, 50);
    let (_, path) = hollow_row(folder.path(), &tokens, 1 << 40);
    let refused = inspect_file(&path).unwrap_err();
    assert!(
        matches!(&refused, CacheError::BadFile { source: FormatError::Hollow { length }, .. } if *length > 1 << 40)
    );
    let root = folder.path().to_path_buf();
    let report = bounded("listing", move || inspect_folder(&root).unwrap());
    assert_eq!(report.rows.len(), 2);
    let index = FolderIndex::new(report.rows.iter().map(|row| (Tier::Disk, row)));
    assert_eq!(index.explain(&namespace(1), &tokens, Cut::AnyToken).common, 0);
    let damaged = bounded("verifying", move || report.verify(|_| {}));
    assert!(matches!(damaged.as_slice(), [finding] if finding.path == path), "{damaged:?}");

    let config = on_disk(folder.path(), u64::MAX);
    let cache = bounded("opening", move || Cache::open(config).unwrap());
    assert_eq!(reach(&cache, namespace(1), &tokens), 0);
    assert_eq!(cache.counters().corrupt_files, 1);
    assert!(!path.exists() && bad_path(&path).exists());
    for number in [1, 2] {
        assert_eq!(reach(&cache, namespace(1), &conversation(number, 40)), 40);
    }
}

/// Hardening 24: what is too small to be worth a look is bounded by the caller, and found by its checksum.
#[test]
fn a_part_is_loaded_within_the_callers_limit_and_only_with_its_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = conversation(3, 50);
    let (key, path) = hollow_row(folder.path(), &tokens, 32 << 20);
    let cache = Cache::open(on_disk(folder.path(), 1 << 30)).unwrap();
    let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
    let segment = &plan.rows()[0];
    let refused = segment.load(PartKind::Attention, 1 << 20).unwrap_err();
    assert!(matches!(refused, Unusable::TooLarge { length, limit, .. } if length == 32 << 20 && limit == 1 << 20));
    assert!(path.exists(), "another caller may have use for it");
    let damaged = segment.load(PartKind::Attention, u64::MAX).unwrap_err();
    assert!(matches!(damaged, Unusable::Damaged { key: named, .. } if named == key), "{damaged}");
    assert!(!path.exists());
    let missing = segment.load(PartKind::Logits, u64::MAX).unwrap_err();
    assert!(matches!(missing, Unusable::NoSuchPart { .. }));
    drop(plan);

    save_now(&cache, &tokens);
    let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
    let bytes = plan.rows()[0].load(PartKind::Attention, u64::MAX).unwrap();
    assert_eq!(bytes.len() as u64, plan.rows()[0].length(PartKind::Attention).unwrap());
}

/// Hardening 24: to make room for a row that can never fit, all others left.
#[test]
fn a_row_larger_than_the_quota_does_not_push_the_others_out() {
    let (folder, _) = two_rows();
    let tokens = conversation(3, 50);
    let (_, path) = hollow_row(folder.path(), &tokens, 32 << 20);
    let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
    assert!(!path.exists());
    assert_eq!(reach(&cache, namespace(1), &tokens), 0);
    for number in [1, 2] {
        assert_eq!(reach(&cache, namespace(1), &conversation(number, 40)), 40);
    }
    assert_eq!((cache.counters().evictions, cache.counters().corrupt_files), (1, 0));
}
