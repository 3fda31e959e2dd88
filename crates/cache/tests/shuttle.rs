//! Small scenarios under thousands of schedules: the cache's mutex, condition variables and threads are shuttle's
//! here (feature `shuttle`), and every step of the file system in memory is a point where threads change.
//!
//! A failure prints its schedule; `::shuttle::replay` runs exactly that one again.

use std::path::Path;
use std::sync::Arc;

use ::shuttle::scheduler::{PctScheduler, RandomScheduler};
use ::shuttle::thread::JoinHandle;
use ::shuttle::{Config, Runner, thread};
use poncho_cache::testing::MemoryFs;
use poncho_cache::{Cache, CacheConfig, DropReason, Needs, PausedClock, SaveOutcome, SaveReason, SaveRequest, Tier};

use crate::support::{check_plan, conversation, namespace, on_disk, reach, request, save};

/// Runs a scenario under random schedules and under schedules with few, well-placed changes of threads.
fn explore(schedules: usize, scenario: fn()) {
    let config = || {
        let mut config = Config::new();
        // Opening a folder and hashing need more than shuttle's usual 32 KiB.
        config.stack_size = 1 << 18;
        config
    };
    Runner::new(RandomScheduler::new(schedules), config()).run(scenario);
    Runner::new(PctScheduler::new(3, schedules / 2), config()).run(scenario);
}

fn open(fs: &MemoryFs) -> Arc<Cache> {
    let clock = Arc::new(PausedClock::new(1_000));
    let config = CacheConfig { fs: Arc::new(fs.clone()), clock, ..on_disk(Path::new("/cache"), 1 << 20) };
    Arc::new(Cache::open(config).unwrap())
}

/// Checks a cache that no thread uses: its invariants hold, and the same rows are there when it is opened again.
fn check_at_rest(fs: &MemoryFs, cache: Arc<Cache>) {
    cache.flush();
    assert_eq!((cache.pinned_rows(), cache.queue_depth()), (0, 0));
    let counters = cache.counters();
    assert_eq!((counters.save_failures, counters.corrupt_files, counters.orphans_dropped), (0, 0, 0));
    assert_eq!(counters.tier_bytes, [0, 0, cache.rows().iter().map(|row| row.bytes).sum()]);
    for row in cache.rows() {
        assert!(row.meta.parent.is_none_or(|parent| cache.contains(&parent)) && !row.pending);
        let tokens = cache.tokens_of(&row.key).unwrap();
        assert_eq!(reach(&cache, namespace(1), &tokens), tokens.len());
    }
    let rows = cache.rows();
    assert_eq!(fs.paths().len(), rows.len(), "one file a row, and no temporary");
    drop(cache);
    assert_eq!(open(fs).rows(), rows, "hits and ages too");
}

/// Reads a row; the lease keeps it readable even if another thread evicts or replaces it.
fn look_up(cache: &Cache, tokens: &[u32]) -> usize {
    let plan = cache.lookup(&namespace(1), tokens, Needs::ATTENTION);
    plan.map_or(0, |plan| check_plan(&plan, tokens).expect("a leased row reads right"))
}

/// Uses the cache on another thread.
fn beside<T: Send + 'static>(cache: &Arc<Cache>, work: impl FnOnce(&Cache) -> T + Send + 'static) -> JoinHandle<T> {
    let cache = Arc::clone(cache);
    thread::spawn(move || work(&cache))
}

/// Looks a row up on another thread.
fn reader(cache: &Arc<Cache>, tokens: &[u32]) -> JoinHandle<usize> {
    let tokens = tokens.to_vec();
    beside(cache, move |cache| look_up(cache, &tokens))
}

#[test]
fn shuttle_two_savers_of_one_key_and_a_reader() {
    explore(4_000, || {
        let fs = MemoryFs::new();
        let cache = open(&fs);
        let tokens = conversation(1, 6);
        let savers = [(), ()].map(|()| {
            let tokens = tokens.clone();
            beside(&cache, move |cache| cache.save(request(namespace(1), &tokens, None)).unwrap().outcome)
        });
        let reach = look_up(&cache, &tokens);
        assert!(reach == 0 || reach == 6, "visible whole or not at all");
        let mut outcomes = savers.map(|saver| saver.join().unwrap());
        outcomes.sort_by_key(|outcome| *outcome != SaveOutcome::Queued);
        assert_eq!(outcomes, [SaveOutcome::Queued, SaveOutcome::AlreadyPresent]);
        assert_eq!(look_up(&cache, &tokens), 6);
        check_at_rest(&fs, cache);
    });
}

#[test]
fn shuttle_a_child_is_saved_while_its_parent_is_written_and_rows_are_evicted() {
    explore(3_000, || {
        let fs = MemoryFs::new();
        let cache = open(&fs);
        let tokens = conversation(1, 6);
        let [parent, child] = [3, 6].map(|end| {
            let tokens = tokens[..end].to_vec();
            beside(&cache, move |cache| save(cache, namespace(1), &tokens).outcome)
        });
        let evictor = beside(&cache, |cache| cache.evict_bytes(1, &[Tier::Disk]));
        let possible = [SaveOutcome::Queued, SaveOutcome::Dropped(DropReason::Conflict)];
        assert_eq!(parent.join().unwrap(), SaveOutcome::Queued);
        assert!(possible.contains(&child.join().unwrap()));
        evictor.join().unwrap();
        check_at_rest(&fs, cache);
    });
}

#[test]
fn shuttle_a_lease_an_eviction_and_a_save_meet_on_one_key() {
    explore(3_000, || {
        let fs = MemoryFs::new();
        let cache = open(&fs);
        let tokens = conversation(1, 6);
        save(&cache, namespace(1), &tokens);
        cache.flush();
        let (reader, evictor) = (reader(&cache, &tokens), beside(&cache, Cache::clear));
        let outcome = cache.save(request(namespace(1), &tokens, None)).unwrap().outcome;
        // Still there; gone and saved again; or its file is just being removed.
        let possible = [SaveOutcome::AlreadyPresent, SaveOutcome::Queued, SaveOutcome::Dropped(DropReason::Conflict)];
        assert!(possible.contains(&outcome), "{outcome:?}");
        let reach = reader.join().unwrap();
        assert!(reach == 0 || reach == 6);
        evictor.join().unwrap();
        let again = save(&cache, namespace(1), &tokens).outcome;
        assert!(matches!(again, SaveOutcome::Queued | SaveOutcome::AlreadyPresent), "no key stays blocked: {again:?}");
        assert_eq!(look_up(&cache, &tokens), 6);
        check_at_rest(&fs, cache);
    });
}

#[test]
fn shuttle_completing_a_row_meets_a_reader_and_an_eviction() {
    explore(3_000, || {
        let fs = MemoryFs::new();
        let cache = open(&fs);
        let tokens = conversation(1, 6);
        let mut without = request(namespace(1), &tokens, None);
        without.parts.truncate(1);
        cache.save(without).unwrap();
        cache.flush();
        let (reader, evictor) = (reader(&cache, &tokens), beside(&cache, Cache::clear));
        let evict = SaveRequest { reason: SaveReason::Evict, ..request(namespace(1), &tokens, None) };
        let outcome = cache.save(evict).unwrap().outcome;
        let reach = reader.join().unwrap();
        assert!(reach == 0 || reach == 6);
        evictor.join().unwrap();
        let possible =
            [SaveOutcome::AlreadyPresent, SaveOutcome::Published, SaveOutcome::Dropped(DropReason::Conflict)];
        assert!(possible.contains(&outcome), "{outcome:?}");
        check_at_rest(&fs, cache);
    });
}

#[test]
fn shuttle_closing_writes_what_is_queued() {
    explore(3_000, || {
        let fs = MemoryFs::new();
        let cache = open(&fs);
        let (tokens, other) = (conversation(1, 6), conversation(2, 3));
        for end in [2, 4, 6] {
            assert_eq!(save(&cache, namespace(1), &tokens[..end]).outcome, SaveOutcome::Queued);
        }
        assert_eq!(save(&cache, namespace(1), &other).outcome, SaveOutcome::Queued);
        // A lease outlives the cache that gave it.
        let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
        let reader = thread::spawn(move || check_plan(&plan, &tokens).unwrap());
        drop(cache);
        assert_eq!(reader.join().unwrap(), 6);
        let cache = open(&fs);
        assert_eq!(cache.len(), 4);
        check_at_rest(&fs, cache);
    });
}
