//! Pinned rows stay while others are evicted, a check finds damage, and evictions are counted with their cause.

use std::sync::Arc;

use poncho_cache::{
    Cache, CacheConfig, EvictionCause, Key, OwnerId, PausedClock, Pinned, SaveRequest, Tier, inspect_folder,
};

use crate::support::{conversation, namespace, on_disk, reach, request, save};

const QUOTA: u64 = 200_000;

fn owner(number: u8) -> OwnerId {
    OwnerId::from_bytes([number; 16])
}

fn saved_for(cache: &Cache, number: u32, by: OwnerId) -> Key {
    let tokens = conversation(number, 100);
    cache.save(SaveRequest { owner: Some(by), ..request(namespace(1), &tokens, None) }).unwrap().key
}

#[test]
fn a_pinned_row_and_what_it_builds_on_stay_until_it_is_unpinned() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = conversation(1, 300);
    let (key, below) = {
        let cache = Cache::open(on_disk(folder.path(), QUOTA)).unwrap();
        let below = save(&cache, namespace(1), &tokens[..200]).key;
        let key = save(&cache, namespace(1), &tokens).key;
        save(&cache, namespace(1), &conversation(2, 100));
        cache.flush();
        assert_eq!(cache.pin_row(&key, None), Pinned::Yes);
        assert!(cache.row(&key).unwrap().pinned && !cache.row(&below).unwrap().pinned);
        assert!(!cache.evict_row(&key), "not even when it is asked for");
        cache.clear();
        assert_eq!(cache.len(), 2);
        (key, below)
    };
    // The pin holds after a restart, and against rows that need room.
    let cache = Cache::open(on_disk(folder.path(), QUOTA)).unwrap();
    assert!(cache.row(&key).unwrap().pinned);
    for number in 10..80 {
        save(&cache, namespace(1), &conversation(number, 100));
        cache.flush();
    }
    assert!(cache.counters().evictions > 0);
    assert_eq!(reach(&cache, namespace(1), &tokens), 300);
    assert!(cache.unpin_row(&key, None) && !cache.unpin_row(&key, None));
    cache.clear();
    assert!(cache.is_empty() && !cache.contains(&below));
    drop(cache);
    let cache = Cache::open(on_disk(folder.path(), QUOTA)).unwrap();
    save(&cache, namespace(1), &tokens);
    cache.flush();
    assert!(!cache.row(&key).unwrap().pinned, "a pin that was removed does not come back");
}

/// Everything below lives on what is left.
#[test]
fn pins_take_half_of_a_tier_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), QUOTA)).unwrap();
    let keys: Vec<Key> = (0..30).map(|number| save(&cache, namespace(1), &conversation(number, 100)).key).collect();
    cache.flush();
    let outcomes: Vec<Pinned> = keys.iter().map(|key| cache.pin_row(key, None)).collect();
    let pinned = outcomes.iter().filter(|outcome| **outcome == Pinned::Yes).count();
    assert!((5..30).contains(&pinned), "{outcomes:?}");
    assert!(matches!(outcomes.last(), Some(Pinned::TooLarge { limit, .. }) if *limit == QUOTA / 2), "{outcomes:?}");
    cache.clear();
    assert_eq!(cache.len(), pinned);
    drop(cache);
    let cache = Cache::open(on_disk(folder.path(), QUOTA / 2)).unwrap();
    let kept = cache.rows().iter().filter(|row| row.pinned).count();
    assert!((1..pinned).contains(&kept), "a smaller tier has fewer pins: {kept} of {pinned}");
    assert_eq!(cache.pin_row(&keys[29], None), Pinned::NoRow);
    let more = save(&cache, namespace(1), &conversation(99, 100));
    cache.flush();
    assert!(cache.contains(&more.key), "there is room for new rows");
}

#[test]
fn an_owner_pins_its_own_rows_and_sees_its_own_pins() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), QUOTA)).unwrap();
    let (one, two) = (owner(1), owner(2));
    let key = saved_for(&cache, 1, one);
    cache.flush();
    assert_eq!(cache.pin_row(&key, Some(two)), Pinned::NoRow);
    assert_eq!(cache.verify_row(&key, Some(two)), None);
    assert_eq!(cache.pin_row(&key, Some(one)), Pinned::Yes);
    assert!(!cache.unpin_row(&key, Some(two)));
    assert!(cache.rows_of(one)[0].pinned);
    cache.claim(&namespace(1), &conversation(1, 100), two);
    assert!(!cache.rows_of(two)[0].pinned, "the pin of another owner is not shown");
    assert_eq!(cache.pin_row(&key, Some(two)), Pinned::Yes);
    assert!(cache.unpin_row(&key, Some(one)));
    cache.clear();
    assert!(cache.contains(&key), "the other owner's pin still holds");
    assert!(cache.unpin_row(&key, None));
    cache.clear();
    assert!(cache.is_empty());
}

#[test]
fn a_check_finds_a_damaged_copy_and_moves_it_aside() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), QUOTA)).unwrap();
    let [good, bad] = [1, 2].map(|number| save(&cache, namespace(1), &conversation(number, 100)).key);
    cache.flush();
    let report = inspect_folder(folder.path()).unwrap();
    let file = report.rows.iter().find(|row| row.key == bad).unwrap();
    let mut bytes = std::fs::read(&file.path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file.path, bytes).unwrap();
    let [checked] = &cache.verify_row(&good, None).unwrap()[..] else { panic!("one copy") };
    assert_eq!((checked.tier, &checked.problem), (Tier::Disk, &None));
    assert!(checked.checked_bytes > 4000, "{checked:?}");
    let [checked] = &cache.verify_row(&bad, None).unwrap()[..] else { panic!("one copy") };
    assert!(checked.problem.as_ref().unwrap().contains("checksum"), "{checked:?}");
    assert!(cache.contains(&good) && !cache.contains(&bad));
    assert_eq!(cache.verify_row(&bad, None), None);
}

#[test]
fn evictions_are_counted_by_tier_and_cause_and_kept_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(PausedClock::default());
    let config = || CacheConfig { clock: Arc::clone(&clock) as _, ..on_disk(folder.path(), QUOTA) };
    let sums = |cache: &Cache, cause: EvictionCause| -> (u64, u64) {
        let all = cache.evictions();
        let of = all.iter().filter(|sum| sum.cause == cause && sum.tier == Tier::Disk);
        of.fold((0, 0), |(rows, bytes), sum| (rows + sum.rows, bytes + sum.bytes))
    };
    {
        let cache = Cache::open(config()).unwrap();
        assert_eq!(cache.evictions(), []);
        for number in 0..60 {
            save(&cache, namespace(1), &conversation(number, 100));
            cache.flush();
        }
        let (rows, bytes) = sums(&cache, EvictionCause::Room);
        assert!(rows > 0 && bytes > 4000 * rows, "{rows} {bytes}");
        let key = cache.rows()[0].key;
        assert!(cache.evict_row(&key));
        assert_eq!(sums(&cache, EvictionCause::Asked).0, 1);
        cache.evict_bytes(1, &[Tier::Disk]);
        assert_eq!(sums(&cache, EvictionCause::Asked).0, 2);
        let all: u64 = cache.evictions().iter().map(|sum| sum.rows).sum();
        assert_eq!(all, cache.counters().evictions);
    }
    let small = CacheConfig { disk: on_disk(folder.path(), QUOTA / 2).disk, ..config() };
    let cache = Cache::open(small).unwrap();
    assert_eq!(sums(&cache, EvictionCause::Asked).0, 2);
    assert!(sums(&cache, EvictionCause::Quota).0 > 0, "the folder had to shrink");
}
