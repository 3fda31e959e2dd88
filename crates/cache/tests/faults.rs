//! Fault injection: whatever the file system refuses, a row is a miss or is served right, the tier switches off and on
//! again, and nothing panics or hangs.
//!
//! Here the faults of a running cache; `damage` holds what is wrong with files, `bad_input` what is refused by name,
//! `published` what a failing save must not take away, `removed_folder` what becomes of a folder that is removed,
//! `slow_removal` what a slow file system must not lead to, `takeover` what becomes of a writer that takes too long.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use poncho_cache::testing::{Fault, FaultFs, Operation};
use poncho_cache::{
    Cache, CacheConfig, CacheError, DropReason, FileTierConfig, Gates, Key, Needs, PausedClock, SaveOutcome,
    SaveReason, SaveRequest, Stage, StageObserver, StdFs, Tier,
};

use crate::support::{conversation, namespace, on_disk, reach, request, save};

mod bad_input;
mod damage;
mod published;
mod removed_folder;
mod slow_removal;
mod takeover;

/// Disk full, device broken, read-only, no permission (as root the real one cannot be had, so it is simulated).
const ERRORS: [(i32, &str); 4] =
    [(28, "No space left"), (5, "Input/output error"), (30, "Read-only file system"), (13, "Permission denied")];

const NO_FILES: [PathBuf; 0] = [];

/// A cache on a real folder, over a file system that fails on command.
struct Faulty {
    folder: tempfile::TempDir,
    fs: FaultFs,
    clock: Arc<PausedClock>,
}

impl Faulty {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, fs: FaultFs::new(Arc::new(StdFs)), clock: Arc::default() }
    }

    /// With four rows in its folder, one on the other, and the tokens of the last.
    fn with_chain() -> (Self, Vec<u32>) {
        let (faulty, tokens) = (Self::new(), conversation(1, 80));
        let cache = faulty.open();
        for end in [20, 40, 60, 80] {
            save_now(&cache, &tokens[..end]);
        }
        drop(cache);
        (faulty, tokens)
    }

    fn config(&self) -> CacheConfig {
        let (fs, clock) = (Arc::new(self.fs.clone()), Arc::clone(&self.clock));
        CacheConfig { fs, clock, writers: 1, ..on_disk(self.folder.path(), 1 << 20) }
    }

    fn open(&self) -> Cache {
        Cache::open(self.config()).unwrap()
    }
}

/// Saves and waits for the file.
fn save_now(cache: &Cache, tokens: &[u32]) -> SaveOutcome {
    let base = cache.base_for(&namespace(1), tokens, None);
    let new = SaveRequest { reason: SaveReason::Evict, ..request(namespace(1), tokens, base.as_ref()) };
    cache.save(new).unwrap().outcome
}

/// Every file in the sub-folders of a cache folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let inside = |path: &Path| path.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let mut files: Vec<PathBuf> =
        inside(folder).iter().filter(|path| path.is_dir()).flat_map(|path| inside(path)).collect();
    files.sort();
    files
}

fn temporaries(folder: &Path) -> Vec<PathBuf> {
    files(folder).into_iter().filter(|path| path.extension().is_some_and(|end| end == "tmp")).collect()
}

#[test]
fn every_fault_of_every_operation_costs_a_row_at_most_and_passes() {
    for operation in Operation::ALL {
        for (error, text) in ERRORS {
            let faulty = Faulty::new();
            let case = format!("{operation:?} fails with {text}");
            let before = conversation(1, 60);
            {
                let cache = faulty.open();
                assert_eq!(save_now(&cache, &before[..30]), SaveOutcome::Published);
                assert_eq!(save_now(&cache, &before), SaveOutcome::Published);

                faulty.fs.fail(operation, Fault::Error(error));
                let fails_writes = matches!(
                    operation,
                    Operation::CreateFolder | Operation::WriteNew | Operation::Link | Operation::SyncFolder
                );
                let fails_reads = matches!(operation, Operation::Open | Operation::Read);
                let expected = match fails_writes || fails_reads {
                    true => SaveOutcome::Dropped(DropReason::WriteFailed),
                    false => SaveOutcome::Published,
                };
                let during = conversation(2, 20);
                assert_eq!(save_now(&cache, &during), expected, "{case}");
                let health = cache.health().remove(0);
                assert_eq!(health.off.is_some(), fails_writes, "{case}: {health:?}");
                assert_eq!(cache.counters().tier_off_disk, u64::from(fails_writes), "{case}");
                if let Some(reason) = health.off {
                    assert!(
                        reason.contains(text) && reason.contains(faulty.folder.path().to_str().unwrap()),
                        "{reason}"
                    );
                    assert_eq!(
                        save_now(&cache, &conversation(3, 20)),
                        SaveOutcome::Dropped(DropReason::TierOff),
                        "{case}"
                    );
                }
                let served = if fails_reads { 0 } else { before.len() };
                assert_eq!(reach(&cache, namespace(1), &before), served, "{case}");
                assert_eq!(
                    reach(&cache, namespace(1), &during),
                    if expected == SaveOutcome::Published { 20 } else { 0 }
                );
                cache.flush();

                faulty.fs.clear();
                faulty.clock.advance(Duration::from_secs(1));
                assert_eq!(save_now(&cache, &conversation(4, 20)), SaveOutcome::Published, "{case}");
                assert_eq!(cache.health()[0].off, None, "{case}: it is on again");
                assert_eq!(cache.pinned_rows(), 0, "{case}");
            }
            let cache = faulty.open();
            assert_eq!(temporaries(faulty.folder.path()), NO_FILES, "{case}");
            assert_eq!(reach(&cache, namespace(1), &before), 60, "{case}: back after the fault");
            assert_eq!(reach(&cache, namespace(1), &conversation(4, 20)), 20, "{case}");
            assert_eq!(cache.counters().corrupt_files, 0, "{case}");
        }
    }
}

#[test]
fn evicting_and_collecting_pass_over_what_cannot_be_removed() {
    for (error, _) in ERRORS {
        let faulty = Faulty::new();
        let cache = faulty.open();
        let tokens = conversation(1, 30);
        save_now(&cache, &tokens);
        faulty.fs.fail(Operation::Remove, Fault::Error(error));
        assert!(cache.evict_bytes(1, &[Tier::Disk]) > 0);
        assert_eq!(reach(&cache, namespace(1), &tokens), 0, "evicted all the same");
        faulty.fs.clear();
        assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published, "the file that stayed is taken over");
        assert_eq!(reach(&cache, namespace(1), &tokens), 30);
        let used = cache.counters().tier_bytes[Tier::Disk.index()];
        let on_disk: u64 = files(faulty.folder.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
        assert_eq!(used, on_disk);
        faulty.fs.fail(Operation::List, Fault::Error(error));
        assert!(cache.clear() > 0);
    }
}

#[test]
fn opening_a_failing_folder_says_so_or_does_without_the_rows_and_keeps_every_file() {
    for operation in Operation::ALL {
        for (error, text) in ERRORS {
            let (faulty, tokens) = Faulty::with_chain();
            let stored = files(faulty.folder.path());
            faulty.fs.fail(operation, Fault::Error(error));
            match Cache::open(faulty.config()) {
                Ok(cache) => {
                    let unseen = matches!(operation, Operation::Open | Operation::Read);
                    assert_eq!(reach(&cache, namespace(1), &tokens), if unseen { 0 } else { 80 }, "{operation:?}");
                }
                Err(refused) => {
                    assert!(matches!(operation, Operation::CreateFolder | Operation::List), "{operation:?}: {refused}");
                    assert!(matches!(&refused, CacheError::Folder { path, .. } if path == faulty.folder.path()));
                    assert!(
                        refused.to_string().contains(text) && refused.to_string().contains("check that"),
                        "{refused}"
                    );
                }
            }
            faulty.fs.clear();
            assert_eq!(
                files(faulty.folder.path()),
                stored,
                "{operation:?}: nothing may be deleted for a passing fault"
            );
            assert_eq!(reach(&faulty.open(), namespace(1), &tokens), 80);
        }
    }
}

#[test]
fn one_unreadable_file_or_folder_takes_its_descendants_out_of_use_and_deletes_none() {
    // The first listing is that of the root, then come the sub-folders, each with its files, in any order.
    for (operation, skip) in
        (1..5).map(|skip| (Operation::List, skip)).chain((0..4).map(|skip| (Operation::Open, skip)))
    {
        let (faulty, tokens) = Faulty::with_chain();
        let stored = files(faulty.folder.path());
        faulty.fs.fail_once(operation, skip, Fault::Error(5));
        let served = reach(&faulty.open(), namespace(1), &tokens);
        assert!(served < 80 && served.is_multiple_of(20), "{served}");
        assert_eq!(files(faulty.folder.path()), stored, "{operation:?} {skip}");
        assert_eq!(reach(&faulty.open(), namespace(1), &tokens), 80);
    }
}

#[test]
fn a_write_cut_short_at_any_length_leaves_nothing_behind() {
    let faulty = Faulty::new();
    let cache = faulty.open();
    let tokens = conversation(1, 10);
    assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
    let length = usize::try_from(files(faulty.folder.path())[0].metadata().unwrap().len()).unwrap();
    cache.clear();
    for written in (0..length).step_by(7).chain([length - 1]) {
        faulty.fs.fail_once(Operation::WriteNew, 0, Fault::ShortWrite { written, error: 28 });
        assert_eq!(save_now(&cache, &tokens), SaveOutcome::Dropped(DropReason::WriteFailed));
        assert_eq!(files(faulty.folder.path()), NO_FILES, "after {written} bytes");
        assert_eq!(reach(&cache, namespace(1), &tokens), 0);
        assert!(cache.health()[0].off.is_some());
        faulty.clock.advance(Duration::from_secs(60));
    }
    assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
    assert_eq!(reach(&cache, namespace(1), &tokens), 10);
}

#[test]
fn a_panic_in_a_file_operation_costs_that_save_and_nothing_else() {
    for operation in Operation::ALL {
        let faulty = Faulty::new();
        let cache = faulty.open();
        let tokens = conversation(1, 30);
        faulty.fs.fail_once(operation, 0, Fault::Panic);
        let outcome = save_now(&cache, &tokens);
        let published = matches!(operation, Operation::Rename | Operation::WriteAt | Operation::List);
        let expected = if published { SaveOutcome::Published } else { SaveOutcome::Dropped(DropReason::WriteFailed) };
        assert_eq!(outcome, expected, "{operation:?}");
        assert_eq!(cache.counters().save_failures, u64::from(!published), "{operation:?}");
        for number in 2..4 {
            assert_eq!(save_now(&cache, &conversation(number, 30)), SaveOutcome::Published, "{operation:?}");
        }
        faulty.fs.clear();
        save(&cache, namespace(1), &tokens);
        cache.flush();
        assert_eq!(reach(&cache, namespace(1), &tokens), 30, "{operation:?}");
        assert_eq!(cache.pinned_rows(), 0);
        drop(cache);
        let cache = faulty.open();
        assert_eq!((cache.len(), cache.counters().corrupt_files), (3, 0), "{operation:?}");
        assert_eq!(temporaries(faulty.folder.path()), NO_FILES);
    }
}

#[derive(Debug)]
struct PanicAt(Mutex<Option<Stage>>);

impl StageObserver for PanicAt {
    fn reached(&self, stage: Stage, _key: &Key) {
        let strikes = self.0.lock().unwrap().take_if(|at| *at == stage).is_some();
        assert!(!strikes, "the test asked for this panic at {stage:?}");
    }
}

#[test]
fn a_writer_that_panics_at_any_stage_gives_everything_back() {
    for stage in Stage::ALL {
        let faulty = Faulty::new();
        let observer = Arc::new(PanicAt(Mutex::new(Some(stage))));
        let tokens = conversation(1, 30);
        {
            let cache = Cache::open(CacheConfig { observer: Some(observer), ..faulty.config() }).unwrap();
            assert_eq!(save_now(&cache, &tokens), SaveOutcome::Dropped(DropReason::WriteFailed), "{stage:?}");
            let announced = stage == Stage::Announced;
            assert_eq!(reach(&cache, namespace(1), &tokens), if announced { 30 } else { 0 }, "{stage:?}");
            assert_eq!(files(faulty.folder.path()).len(), usize::from(announced), "{stage:?}");
            assert_eq!((cache.pinned_rows(), cache.queue_depth(), cache.counters().save_failures), (0, 0, 1));
            let again = save_now(&cache, &tokens);
            let expected = if announced { SaveOutcome::AlreadyPresent } else { SaveOutcome::Published };
            assert_eq!(again, expected, "{stage:?}: the key and the permit came back");
        }
        assert_eq!(reach(&faulty.open(), namespace(1), &tokens), 30);
    }
}

#[derive(Debug)]
struct HoldAt {
    stage: Stage,
    reached: SyncSender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl StageObserver for HoldAt {
    fn reached(&self, stage: Stage, _key: &Key) {
        if stage == self.stage {
            self.reached.send(()).unwrap();
            // Ends with the test at the latest, which drops the sender.
            let _ = self.go_on.lock().unwrap().recv();
        }
    }
}

#[test]
fn a_synchronous_save_returns_in_time_and_lookups_go_on_while_a_writer_is_stuck() {
    let faulty = Faulty::new();
    let (reached, is_stuck) = sync_channel(1);
    let (go_on, until) = sync_channel(1);
    let observer = HoldAt { stage: Stage::TmpWritten, reached, go_on: Mutex::new(until) };
    let gates = Gates { evict_save_timeout_ms: 40, ..Gates::default() };
    let config = CacheConfig { observer: Some(Arc::new(observer)), gates, ..faulty.config() };
    let cache = Cache::open(config).unwrap();
    let (stuck, waiting) = (conversation(1, 30), conversation(2, 30));
    for tokens in [&stuck, &waiting] {
        let started = Instant::now();
        assert_eq!(save_now(&cache, tokens), SaveOutcome::Dropped(DropReason::TimedOut));
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(40) && took < Duration::from_secs(20), "{took:?}");
        assert_eq!(reach(&cache, namespace(1), tokens), 30, "readable from memory meanwhile");
    }
    is_stuck.recv().unwrap();
    drop(go_on);
    cache.flush();
    for tokens in [&stuck, &waiting] {
        assert_eq!(cache.row(&namespace(1).key(tokens)).unwrap().tiers, [Tier::Disk], "written after all");
    }
}

#[test]
fn while_its_tier_is_off_a_row_is_kept_in_memory_and_goes_to_disk_later() {
    let faulty = Faulty::new();
    let config = CacheConfig { ram_quota: 1 << 20, ..faulty.config() };
    let cache = Cache::open(config).unwrap();
    faulty.fs.fail(Operation::WriteNew, Fault::Error(28));
    assert_eq!(save(&cache, namespace(1), &conversation(1, 30)).outcome, SaveOutcome::Queued);
    cache.flush();
    assert!(cache.health()[0].off.as_ref().unwrap().contains("No space left"));
    assert_eq!(reach(&cache, namespace(1), &conversation(1, 30)), 30, "its copy in memory serves");

    let tokens = conversation(2, 60);
    assert_eq!(save(&cache, namespace(1), &tokens[..30]).outcome, SaveOutcome::KeptInRam);
    assert_eq!(save(&cache, namespace(1), &tokens).outcome, SaveOutcome::KeptInRam);
    assert_eq!(reach(&cache, namespace(1), &tokens), 60);
    assert_eq!(cache.counters().tier_off_disk, 1, "one switch, whatever the number of saves");

    faulty.clock.advance(Duration::from_secs(1));
    assert_eq!(save(&cache, namespace(1), &conversation(3, 30)).outcome, SaveOutcome::Queued, "it is tried again");
    cache.flush();
    assert_eq!(
        save(&cache, namespace(1), &conversation(4, 30)).outcome,
        SaveOutcome::KeptInRam,
        "and is off for longer"
    );
    faulty.fs.clear();
    faulty.clock.advance(Duration::from_secs(2));
    assert_eq!(save(&cache, namespace(1), &conversation(5, 30)).outcome, SaveOutcome::Queued);
    cache.flush();
    assert_eq!(cache.health()[0].off, None);
    let whole = request(namespace(1), &tokens[..30], None);
    assert_eq!(cache.save(whole).unwrap().outcome, SaveOutcome::Queued, "the row in memory becomes a file");
    cache.flush();
    drop(cache);
    let cache = faulty.open();
    assert_eq!(reach(&cache, namespace(1), &tokens), 30);
    assert_eq!(reach(&cache, namespace(1), &conversation(5, 30)), 30);
    assert_eq!(reach(&cache, namespace(1), &conversation(4, 30)), 0, "what was in memory only is gone");
}

#[test]
fn a_fault_while_a_row_is_completed_never_loses_the_row() {
    for operation in Operation::ALL {
        for (error, text) in ERRORS {
            let faulty = Faulty::new();
            let tokens = conversation(1, 60);
            {
                let cache = faulty.open();
                let mut without = request(namespace(1), &tokens[..30], None);
                without.parts.truncate(1);
                cache.save(without).unwrap();
                cache.flush();
                assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
                faulty.fs.fail(operation, Fault::Error(error));
                cache.save(request(namespace(1), &tokens[..30], None)).unwrap();
                cache.flush();
                faulty.fs.clear();
                assert_eq!(reach(&cache, namespace(1), &tokens[..30]), 30, "{operation:?}, {text}");
                assert_eq!(reach(&cache, namespace(1), &tokens), 60, "{operation:?}, {text}: what builds on it");
            }
            let cache = faulty.open();
            assert_eq!(reach(&cache, namespace(1), &tokens), 60, "{operation:?}, {text}");
            assert_eq!((cache.counters().corrupt_files, cache.counters().orphans_dropped), (0, 0));
        }
    }
}

#[test]
fn a_folder_removed_underneath_means_misses_and_later_saves_work_again() {
    let faulty = Faulty::new();
    let cache = faulty.open();
    let tokens = conversation(1, 90);
    for end in [30, 60, 90] {
        assert_eq!(save_now(&cache, &tokens[..end]), SaveOutcome::Published);
    }
    std::fs::remove_dir_all(faulty.folder.path()).unwrap();
    assert_eq!(reach(&cache, namespace(1), &tokens), 0);
    assert_eq!(cache.len(), 0, "the rows that built on it left too");
    assert_eq!(cache.counters().tier_bytes, [0; 3]);
    for end in [30, 60, 90] {
        assert_eq!(save_now(&cache, &tokens[..end]), SaveOutcome::Published);
    }
    assert_eq!(cache.health()[0].off, None);
    // One sub-folder only: the part before it is still served.
    let middle = poncho_cache::row_folder(faulty.folder.path(), &namespace(1).key(&tokens[..60]));
    std::fs::remove_dir_all(middle).unwrap();
    assert_eq!(reach(&cache, namespace(1), &tokens), 30);
    assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
    drop(cache);
    assert_eq!(reach(&faulty.open(), namespace(1), &tokens), 90);
}

#[test]
fn a_row_that_failed_to_be_read_is_used_again_after_it_was_saved_again() {
    let faulty = Faulty::new();
    let cache = faulty.open();
    let tokens = conversation(1, 30);
    save_now(&cache, &tokens);
    faulty.fs.fail_once(Operation::Read, 0, Fault::Error(5));
    assert_eq!(reach(&cache, namespace(1), &tokens), 0);
    let longer = SaveRequest {
        reason: SaveReason::Evict,
        text: "another text, longer than the one that the file has".to_owned(),
        ..request(namespace(1), &tokens, None)
    };
    assert_eq!(cache.save(longer).unwrap().outcome, SaveOutcome::Published);
    assert_eq!(cache.counters().duplicate_dropped, 1, "the file was there and is the same row");
    let bytes = files(faulty.folder.path())[0].metadata().unwrap().len();
    assert_eq!(cache.counters().tier_bytes[Tier::Disk.index()], bytes);
    let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
    assert_eq!(crate::support::check_plan(&plan, &tokens).unwrap(), 30);
}

/// Hardening 15: a save removed the files that made room by itself, and hung with the disk.
#[test]
fn a_save_that_needs_room_does_not_wait_for_a_disk_that_removes_nothing() {
    let faulty = Faulty::new();
    let config = faulty.config();
    let disk = config.disk.clone().map(|disk| FileTierConfig { quota: 6_000, ..disk });
    let cache = Cache::open(CacheConfig { disk, ..config }).unwrap();
    let mut number = 0;
    while cache.counters().evictions == 0 {
        number += 1;
        faulty.fs.fail(Operation::Remove, Fault::Stall);
        save(&cache, namespace(1), &conversation(number, 30));
        if cache.counters().evictions == 0 {
            faulty.fs.release();
            cache.flush();
        }
    }
    assert!(faulty.fs.wait_until_stalled(1, Duration::from_secs(60)), "the removal is under way");
    assert_eq!(reach(&cache, namespace(1), &conversation(number, 30)), 30, "and what made it necessary is there");
    assert!(!cache.drain(Duration::from_millis(1)));
    faulty.fs.release();
    assert!(cache.drain(Duration::from_secs(60)));
    assert_eq!(cache.row(&namespace(1).key(&conversation(number, 30))).unwrap().tiers, [Tier::Disk]);
}

/// Hardening 15: closing a cache hung for as long as its disk did.
#[test]
fn closing_a_cache_does_not_wait_for_a_stalled_disk_beyond_its_limit() {
    let faulty = Faulty::new();
    let cache = Cache::open(CacheConfig { drain_limit: Duration::from_millis(10), ..faulty.config() }).unwrap();
    faulty.fs.fail(Operation::WriteNew, Fault::Stall);
    save(&cache, namespace(1), &conversation(1, 30));
    assert!(faulty.fs.wait_until_stalled(1, Duration::from_secs(60)));
    drop(cache);
    assert!(faulty.fs.wait_until_stalled(1, Duration::ZERO), "it still stalls");
    faulty.fs.release();
    assert!(faulty.fs.wait_until_none_stalled(Duration::from_secs(60)));
}
