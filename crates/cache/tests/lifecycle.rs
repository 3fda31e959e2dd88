//! A row from save to lookup to reopening, in each tier.

mod pins;

use std::path::Path;
use std::sync::Arc;

use poncho_cache::testing::MemoryFs;
use poncho_cache::{
    Cache, CacheConfig, FileTierConfig, Needs, PausedClock, SaveOutcome, SaveReason, SaveRequest, Tier,
};

use crate::support::{check_plan, conversation, namespace, on_disk, reach, request, save, save_to};

#[test]
fn a_row_survives_reopening_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = conversation(1, 700);
    {
        let cache = Cache::open(on_disk(folder.path(), 1 << 30)).unwrap();
        assert_eq!(save(&cache, namespace(1), &tokens).outcome, SaveOutcome::Queued);
        assert_eq!(reach(&cache, namespace(1), &tokens), 700, "readable while it waits for the disk");
    }
    let cache = Cache::open(on_disk(folder.path(), 1 << 30)).unwrap();
    assert_eq!(reach(&cache, namespace(1), &tokens), 700);
    assert_eq!(reach(&cache, namespace(2), &tokens), 0, "another namespace sees nothing");
    let counters = cache.counters();
    assert_eq!((counters.hits_exact, counters.misses), (1, 1));
    assert_eq!(counters.tier_rows, [0, 0, 1]);
}

#[test]
fn a_prompt_that_parts_inside_a_row_reuses_every_token_before_the_parting() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), 1 << 30)).unwrap();
    let tokens = conversation(1, 300);
    save(&cache, namespace(1), &tokens);
    cache.flush();
    for parting in [1, 2, 150, 299] {
        let mut prompt = tokens[..parting].to_vec();
        prompt.extend([7, 8, 9]);
        assert_eq!(reach(&cache, namespace(1), &prompt), parting);
    }
    let mut other = tokens.clone();
    other[0] += 1;
    assert_eq!(reach(&cache, namespace(1), &other), 0);
}

/// A machine that began with a wrong clock filled the cache: until that time came, each new row left for the next one.
#[test]
fn rows_from_a_time_to_come_do_not_outlive_those_that_are_saved_now() {
    let (fs, quota) = (MemoryFs::new(), 24_000);
    let at = |seconds| CacheConfig {
        fs: Arc::new(fs.clone()),
        clock: Arc::new(PausedClock::new(seconds)),
        ..on_disk(Path::new("/cache"), quota)
    };
    let rows: Vec<Vec<u32>> = (1..=8).map(|number| conversation(number, 100)).collect();
    let kept = |cache: &Cache| -> Vec<bool> { rows.iter().map(|row| cache.contains(&namespace(1).key(row))).collect() };
    let cache = Cache::open(at(9_000_000)).unwrap();
    for row in &rows[..4] {
        save(&cache, namespace(1), row);
        cache.flush();
    }
    assert_eq!(kept(&cache)[..4], [true; 4]);
    drop(cache);
    let cache = Cache::open(at(1_000)).unwrap();
    for row in &rows[4..] {
        save(&cache, namespace(1), row);
        cache.flush();
        assert_eq!(reach(&cache, namespace(1), row), 100);
    }
    assert!(cache.counters().evictions > 0, "the tier is full");
    assert_eq!(kept(&cache)[4..], [true; 4], "what is used now stays");
}

#[test]
fn every_tier_serves_the_same_bytes() {
    let (disk, shm) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ram_file = Some(FileTierConfig { folder: shm.path().to_path_buf(), quota: 1 << 30 });
    let config = CacheConfig { ram_file, keep_hot: false, ..CacheConfig::on_disk(disk.path(), 1 << 30) };
    let cache = Cache::open(config).unwrap();
    for (number, tier) in [(1, Tier::Ram), (2, Tier::RamFile), (3, Tier::Disk)] {
        let tokens = conversation(number, 64);
        save_to(&cache, namespace(1), &tokens, Some(tier));
        cache.flush();
        let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
        assert_eq!(plan.rows()[0].tier(), tier);
        assert_eq!(check_plan(&plan, &tokens).unwrap(), 64);
        assert_eq!(plan.rows()[0].bytes(poncho_cache::PartKind::Attention).is_some(), tier == Tier::Ram);
    }
    assert_eq!(cache.counters().tier_rows, [1, 1, 1]);
}

#[test]
fn synchronous_saves_are_published_when_they_return() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), 1 << 30)).unwrap();
    for reason in [SaveReason::Evict, SaveReason::Shutdown] {
        let tokens = conversation(u32::from(reason.byte()), 40);
        let saved = cache.save(SaveRequest { reason, ..request(namespace(1), &tokens, None) }).unwrap();
        assert_eq!(saved.outcome, SaveOutcome::Published);
        assert_eq!(cache.row(&saved.key).unwrap().tiers, [Tier::Disk]);
    }
    let counters = cache.counters();
    assert_eq!((counters.saves_evict, counters.saves_shutdown), (1, 1));
}

#[test]
fn hits_and_last_use_are_in_the_file_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(PausedClock::new(1_000_000));
    let config = || CacheConfig { clock: clock.clone(), ..on_disk(folder.path(), 1 << 30) };
    let tokens = conversation(1, 50);
    let key = {
        let cache = Cache::open(config()).unwrap();
        let key = save(&cache, namespace(1), &tokens).key;
        cache.flush();
        clock.advance(std::time::Duration::from_secs(500));
        for _ in 0..3 {
            reach(&cache, namespace(1), &tokens);
        }
        key
    };
    let row = Cache::open(config()).unwrap().row(&key).unwrap();
    assert_eq!((row.meta.hits, row.meta.last_used, row.meta.created), (3, 1_000_500, 1_000_000));
}

#[test]
fn a_second_save_that_adds_logits_completes_the_row() {
    let fs = MemoryFs::new();
    let config = || CacheConfig { fs: Arc::new(fs.clone()), ram_quota: 0, ..CacheConfig::on_disk("/cache", 1 << 30) };
    let tokens = conversation(1, 60);
    {
        let cache = Cache::open(config()).unwrap();
        let mut without = request(namespace(1), &tokens, None);
        without.parts.truncate(1);
        cache.save(without).unwrap();
        cache.flush();
        assert!(!cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap().has_logits());
        let saved = cache.save(request(namespace(1), &tokens, None)).unwrap();
        assert_eq!(saved.outcome, SaveOutcome::Queued);
        cache.flush();
        assert_eq!(
            save(&cache, namespace(1), &tokens).outcome,
            SaveOutcome::AlreadyPresent,
            "nothing new a third time"
        );
    }
    let cache = Cache::open(config()).unwrap();
    let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
    assert!(plan.has_logits());
    assert_eq!(check_plan(&plan, &tokens).unwrap(), 60);
    assert_eq!(fs.paths().len(), 1);
}

#[test]
fn the_time_of_every_kind_of_lookup_is_counted() {
    let cache = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
    let tokens = conversation(1, 60);
    let key = save(&cache, namespace(1), &tokens).key;
    let counted = |before: u64| {
        let now = cache.counters().lookup_nanos;
        assert!(now > before, "{now} after {before}");
        now
    };
    let wait = std::time::Duration::ZERO;
    assert!(cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).is_some());
    let before = counted(0);
    assert!(cache.resume(&namespace(1), &tokens, &key, Needs::ATTENTION, wait).is_some());
    let before = counted(before);
    assert!(cache.resume(&namespace(2), &tokens, &key, Needs::ATTENTION, wait).is_none());
    counted(before);
}
