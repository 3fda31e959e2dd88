//! Many threads on one cache: every byte that comes back is right, and when they are done nothing is held, nothing
//! is over its quota and nothing is left behind. Bounded by a number of operations, never by time.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;

use poncho_cache::testing::MemoryFs;
use poncho_cache::{
    Cache, CacheConfig, DropReason, FileTierConfig, Key, Needs, RestorePlan, RowInfo, SaveOutcome, SaveReason,
    SaveRequest, Tier, inspect_folder,
};

use crate::support::{check_plan, conversation, namespace, on_disk, reach, request, save};

const THREADS: usize = 8;

/// Numbers that look random and are the same in every run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % limit
    }

    /// One of few conversations that share beginnings, cut anywhere.
    fn tokens(&mut self) -> Vec<u32> {
        let mut tokens = conversation(u32::try_from(self.below(3)).unwrap(), 1 + self.below(60));
        for _ in 0..self.below(3) {
            tokens.push(u32::try_from(self.below(2)).unwrap());
        }
        tokens
    }
}

/// What each thread does, again and again. Leases end in whatever thread `elsewhere` hands them to.
fn hammer(cache: &Cache, seed: usize, operations: usize, elsewhere: &Sender<RestorePlan>) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (seed as u64 + 1));
    let mut held = Vec::new();
    for _ in 0..operations {
        let tokens = random.tokens();
        match random.below(100) {
            0..40 => {
                if let Some(plan) = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION) {
                    check_plan(&plan, &tokens).expect("a leased row reads right");
                    match random.below(3) {
                        0 => held.push((plan, tokens)),
                        1 => elsewhere.send(plan).unwrap(),
                        _ => {}
                    }
                }
            }
            40..75 => {
                let base = cache.base_for(&namespace(1), &tokens, None).filter(|_| random.below(8) > 0);
                let reason = if random.below(10) == 0 { SaveReason::Evict } else { SaveReason::Finish };
                let request = SaveRequest { reason, ..request(namespace(1), &tokens, base.as_ref()) };
                let outcome = cache.save(request).unwrap().outcome;
                // Without a fault nothing else can become of a save.
                let drops = [DropReason::NoRoom, DropReason::QueueFull, DropReason::Conflict].map(SaveOutcome::Dropped);
                let goes = [SaveOutcome::Published, SaveOutcome::Queued, SaveOutcome::AlreadyPresent];
                assert!(drops.contains(&outcome) || goes.contains(&outcome), "{outcome:?}");
            }
            75..85 => {
                cache.evict_bytes(random.below(5_000) as u64, &Tier::ALL);
            }
            85..86 => {
                cache.clear();
            }
            86..88 => cache.flush(),
            _ => {
                if !held.is_empty() {
                    let (plan, tokens) = held.swap_remove(random.below(held.len()));
                    check_plan(&plan, &tokens).expect("whatever was evicted meanwhile");
                }
            }
        }
    }
}

/// All threads at once; leases that are given away end in a ninth thread.
fn hammer_from_all_sides(cache: &Cache, operations: usize) {
    let (elsewhere, given_away) = channel::<RestorePlan>();
    thread::scope(|scope| {
        scope.spawn(move || given_away.into_iter().for_each(drop));
        for seed in 0..THREADS {
            let elsewhere = elsewhere.clone();
            scope.spawn(move || hammer(cache, seed, operations, &elsewhere));
        }
        drop(elsewhere);
    });
}

/// Nothing held, nothing over its quota, every row whole. Returns the rows by key.
fn check_at_rest(cache: &Cache) -> BTreeMap<Key, RowInfo> {
    cache.flush();
    assert_eq!((cache.pinned_rows(), cache.queue_depth()), (0, 0));
    let counters = cache.counters();
    for tier in Tier::ALL {
        assert!(counters.tier_bytes[tier.index()] <= cache.config().quota(tier), "{tier} is over its quota");
    }
    assert_eq!((counters.save_failures, counters.corrupt_files, counters.orphans_dropped), (0, 0, 0));
    assert!(counters.evictions > 0 && counters.hits_longest_prefix > 0 && counters.saves_evict > 0, "{counters:?}");
    let rows = cache.rows();
    assert_eq!(counters.tier_bytes.iter().sum::<u64>(), rows.iter().map(|row| row.bytes).sum());
    for row in &rows {
        let tokens = cache.tokens_of(&row.key).unwrap();
        assert_eq!(reach(cache, namespace(1), &tokens), tokens.len());
        assert!(row.meta.parent.is_none_or(|parent| cache.contains(&parent)));
    }
    cache.flush();
    assert_eq!(cache.pinned_rows(), 0);
    cache.rows().into_iter().map(|row| (row.key, row)).collect()
}

/// A reopened folder holds the rows that were in its files, as they were.
fn check_reopened(before: &BTreeMap<Key, RowInfo>, config: CacheConfig) {
    let cache = Cache::open(config).unwrap();
    let after: BTreeMap<Key, RowInfo> = cache.rows().into_iter().map(|row| (row.key, row)).collect();
    let durable = before.iter().filter(|(_, row)| row.tiers.iter().any(|tier| *tier != Tier::Ram));
    assert!(after.keys().eq(durable.clone().map(|(key, _)| key)));
    for (key, row) in durable {
        let found = &after[key];
        let facts = |row: &RowInfo| (row.meta, row.parts.clone());
        assert_eq!(facts(found), facts(row));
    }
    for key in after.keys() {
        let tokens = cache.tokens_of(key).unwrap();
        assert_eq!(reach(&cache, namespace(1), &tokens), tokens.len());
    }
}

#[test]
fn eight_threads_on_a_real_folder_keep_every_invariant() {
    let folder = tempfile::tempdir().unwrap();
    let config = || on_disk(folder.path(), 40_000);
    let before = {
        let cache = Cache::open(config()).unwrap();
        hammer_from_all_sides(&cache, 250);
        check_at_rest(&cache)
    };
    let report = inspect_folder(folder.path()).unwrap();
    assert_eq!((report.rows.len(), report.findings, report.holder), (before.len(), vec![], None));
    check_reopened(&before, config());
}

#[test]
fn eight_threads_on_files_in_memory_keep_every_invariant() {
    let fs = MemoryFs::new();
    let config = || CacheConfig { fs: Arc::new(fs.clone()), ..on_disk(Path::new("/cache"), 30_000) };
    let before = {
        let cache = Cache::open(config()).unwrap();
        hammer_from_all_sides(&cache, 4_000);
        check_at_rest(&cache)
    };
    assert_eq!(fs.paths().len(), before.len(), "no temporary and no file without a row");
    check_reopened(&before, config());
}

#[test]
fn eight_threads_on_three_tiers_keep_every_invariant() {
    let fs = MemoryFs::new();
    let config = || CacheConfig {
        fs: Arc::new(fs.clone()),
        ram_quota: 8_000,
        ram_file: Some(FileTierConfig { folder: "/shm".into(), quota: 20_000 }),
        ..CacheConfig::on_disk("/cache", 20_000)
    };
    let before = {
        let cache = Cache::open(config()).unwrap();
        hammer_from_all_sides(&cache, 3_000);
        check_at_rest(&cache)
    };
    let files: usize = before.values().map(|row| row.tiers.iter().filter(|tier| **tier != Tier::Ram).count()).sum();
    assert_eq!(fs.paths().len(), files);
    check_reopened(&before, config());
}

#[test]
fn one_of_many_savers_of_a_key_writes_it() {
    for round in 0..20 {
        let fs = MemoryFs::new();
        let config = CacheConfig { fs: Arc::new(fs.clone()), ..on_disk(Path::new("/cache"), 1 << 20) };
        let cache = Cache::open(config).unwrap();
        let tokens = conversation(round, 50);
        let start = Barrier::new(THREADS);
        let saver = || {
            start.wait();
            save(&cache, namespace(1), &tokens).outcome
        };
        let outcomes: Vec<SaveOutcome> = thread::scope(|scope| {
            let savers: Vec<_> = (0..THREADS).map(|_| scope.spawn(saver)).collect();
            savers.into_iter().map(|saver| saver.join().unwrap()).collect()
        });
        let count = |outcome| outcomes.iter().filter(|other| **other == outcome).count();
        assert_eq!((count(SaveOutcome::Queued), count(SaveOutcome::AlreadyPresent)), (1, THREADS - 1));
        cache.flush();
        let counters = cache.counters();
        assert_eq!((counters.saves_finish, counters.duplicate_dropped), (1, THREADS as u64 - 1));
        assert_eq!((fs.paths().len(), reach(&cache, namespace(1), &tokens)), (1, 50));
    }
}

#[test]
fn a_row_is_waited_for_until_it_is_saved() {
    let cache = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
    let tokens = conversation(1, 40);
    let key = namespace(1).key(&tokens);
    let wait = std::time::Duration::from_secs(60);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| cache.resume(&namespace(1), &tokens, &key, Needs::ATTENTION, wait).is_some());
        save(&cache, namespace(1), &tokens);
        assert!(waiter.join().unwrap());
    });
    assert!(!cache.wait_for(&namespace(1).key(&[1]), std::time::Duration::ZERO), "and no longer than asked");
}

#[test]
fn a_holder_that_panics_lets_go() {
    let fs = MemoryFs::new();
    let config = CacheConfig { fs: Arc::new(fs.clone()), ..on_disk(Path::new("/cache"), 1 << 20) };
    let cache = Cache::open(config).unwrap();
    let tokens = conversation(1, 50);
    save(&cache, namespace(1), &tokens[..30]);
    save(&cache, namespace(1), &tokens);
    cache.flush();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let _plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
            let _base = cache.base_for(&namespace(1), &tokens, None).unwrap();
            assert_eq!((cache.pinned_rows(), cache.clear()), (2, 0));
            // As a panic does, but without a message in the output of the tests.
            resume_unwind(Box::new("the holder panics"))
        });
        let result: thread::Result<()> = reader.join();
        assert!(result.is_err());
    });
    assert_eq!(cache.pinned_rows(), 0);
    assert!(cache.clear() > 0);
    assert!(cache.is_empty() && fs.paths().is_empty());
}
