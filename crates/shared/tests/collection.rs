//! Quota and collection, alone and beside uploads and reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use poncho_cache::RemoteTier;
use poncho_shared::{Damage, Settings, SharedError, SharedStore, SharedTier};

use crate::fixture::counting_store::CountingStore;
use crate::fixture::{
    ANNA, chain, files_in, find, folder_url, key, offer, open, patience, ready, restore, settings, sizes_in,
    small_segments, upload,
};

/// A sample of one megabyte is part of every store.
const SAMPLE: u64 = 1 << 20;

fn store_settings(folder: &tempfile::TempDir, grace: Duration, quota: Option<u64>) -> Settings {
    let mut settings = Settings { sizes: small_segments(), quota, ..settings(&folder_url(folder)) };
    settings.timing.grace = grace;
    settings
}

fn segments(folder: &tempfile::TempDir) -> usize {
    files_in(folder.path()).iter().filter(|path| path.display().to_string().contains("/seg/")).count()
}

fn rows(folder: &tempfile::TempDir) -> Vec<std::path::PathBuf> {
    files_in(folder.path()).into_iter().filter(|path| path.display().to_string().contains("/row/")).collect()
}

#[test]
fn a_segment_without_a_row_is_kept_for_the_grace_period_and_then_removed() {
    let folder = tempfile::tempdir().unwrap();
    let long = store_settings(&folder, Duration::from_secs(3600), None);
    upload(&open(&long), chain(ANNA, 1, &[500, 500], 3));
    upload(&open(&long), chain(ANNA, 2, &[500, 500], 4));
    std::fs::remove_file(&rows(&folder)[0]).unwrap();
    let collect = |settings: &Settings| SharedStore::open(settings).unwrap().collect().expect("collected");
    for _ in 0..2 {
        let done = collect(&long);
        assert_eq!((done.rows, done.removed_segments, done.condemned_bytes), (1, 0, 1000));
        assert_eq!(segments(&folder), 4);
    }
    thread::sleep(Duration::from_millis(20));
    let short = store_settings(&folder, Duration::from_millis(1), None);
    let done = collect(&short);
    assert_eq!((done.removed_segments, done.removed_bytes, done.condemned_bytes), (2, 1000, 0));
    assert_eq!(segments(&folder), 2);
    let tier = open(&long);
    let left = [1, 2].iter().filter(|number| restore(&tier, ANNA, &[key(**number, 1)]).is_some()).count();
    assert_eq!(left, 1);
}

#[test]
fn an_upload_does_not_rely_on_a_segment_that_is_about_to_go() {
    let folder = tempfile::tempdir().unwrap();
    let long = store_settings(&folder, Duration::from_secs(3600), None);
    upload(&open(&long), chain(ANNA, 1, &[500, 500], 3));
    std::fs::remove_file(&rows(&folder)[0]).unwrap();
    let done = SharedStore::open(&long).unwrap().collect().unwrap();
    assert_eq!(done.condemned_bytes, 1000);
    // The segments are there: the upload could skip them, and the next collection would remove them under its row.
    thread::sleep(Duration::from_millis(20));
    upload(&open(&long), chain(ANNA, 1, &[500, 500], 3));
    std::fs::remove_file(&rows(&folder)[0]).unwrap();
    let short = store_settings(&folder, Duration::from_millis(1), None);
    let done = SharedStore::open(&short).unwrap().collect().unwrap();
    assert_eq!(done.removed_segments, 0, "written again after they were condemned: they are young");
}

#[test]
fn the_rows_that_were_not_used_for_longest_leave_first() {
    let folder = tempfile::tempdir().unwrap();
    let grace = Duration::from_millis(1);
    let tier = open(&store_settings(&folder, Duration::from_secs(3600), None));
    for conversation in 0..10 {
        upload(&tier, chain(ANNA, conversation, &[100_000], 3));
    }
    let small = store_settings(&folder, grace, Some(SAMPLE + 600_000));
    let done = SharedStore::open(&small).unwrap().collect().expect("collected");
    assert!(done.removed_rows >= 5, "{done:?}");
    let tier = open(&store_settings(&folder, Duration::from_secs(3600), None));
    let left: Vec<u32> = (0..10).filter(|number| find(&tier, ANNA, &[key(*number, 0)]).is_some()).collect();
    let first = 10 - left.len() as u32;
    assert_eq!(left, (first..10).collect::<Vec<_>>(), "the newest are left");
}

#[test]
fn what_is_foreseen_is_what_is_removed_and_looking_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tier = open(&store_settings(&folder, Duration::from_secs(3600), None));
    for conversation in 0..10 {
        upload(&tier, chain(ANNA, conversation, &[100_000], 3));
    }
    std::fs::remove_file(&rows(&folder)[0]).unwrap();
    // The first collection condemns the segment of that row, the second one removes it.
    SharedStore::open(&store_settings(&folder, Duration::from_secs(3600), None)).unwrap().collect().unwrap();
    thread::sleep(Duration::from_millis(20));
    let small = store_settings(&folder, Duration::from_millis(1), Some(SAMPLE + 600_000));
    let before = files_in(folder.path()).len();
    let foreseen = SharedStore::open(&small).unwrap().foresee().unwrap();
    assert_eq!(files_in(folder.path()).len(), before);
    let done = SharedStore::open(&small).unwrap().collect().unwrap();
    assert!(foreseen.removed_rows > 0 && foreseen.removed_segments > 0, "{foreseen:?}");
    let removed = |done: poncho_shared::Collection| (done.rows, done.removed_rows, done.removed_segments);
    assert_eq!(removed(foreseen), removed(done));
    assert_eq!((foreseen.removed_bytes, foreseen.condemned_bytes), (done.removed_bytes, done.condemned_bytes));
}

#[test]
fn one_machine_collects_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let settings = store_settings(&folder, Duration::from_secs(1), None);
    upload(&open(&settings), chain(ANNA, 1, &[500], 3));
    let outcomes: Vec<_> = thread::scope(|scope| {
        let collect = || SharedStore::open(&settings).unwrap().collect();
        let running: Vec<_> = (0..4).map(|_| scope.spawn(collect)).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(outcomes.iter().any(Result::is_ok));
    for outcome in outcomes {
        assert!(matches!(outcome, Ok(_) | Err(SharedError::Leased { .. })), "{outcome:?}");
    }
    assert!(SharedStore::open(&settings).unwrap().collect().is_ok(), "the lease was given back");
}

/// Uploads, reads and collects with several machines at once, and calls `look` again and again meanwhile.
/// `PONCHO_COLLECT_SECONDS` makes it longer.
fn beside(tier: &(dyn Fn() -> SharedTier + Sync), store: &SharedStore, mut look: impl FnMut()) {
    let seconds = std::env::var("PONCHO_COLLECT_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let end = Instant::now() + Duration::from_secs(seconds);
    let running = AtomicBool::new(true);
    let (uploaded, read) = (AtomicU64::new(0), AtomicU64::new(0));
    let (mut collections, mut removed) = (0, 0);
    thread::scope(|scope| {
        for machine in 0..2_u32 {
            let (running, uploaded) = (&running, &uploaded);
            scope.spawn(move || {
                let tier = tier();
                for number in 0.. {
                    if !running.load(Ordering::SeqCst) {
                        break;
                    }
                    let conversation = number % 40 + machine * 20;
                    tier.offer(offer(chain(ANNA, conversation, &[5000; 6], machine as u8)));
                    assert!(tier.flush(Instant::now() + Duration::from_secs(60)));
                }
                assert_eq!(tier.status().counts.failures, 0, "{:?}", tier.status());
                uploaded.fetch_add(tier.status().counts.uploaded_rows, Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            let (running, read) = (&running, &read);
            scope.spawn(move || {
                let tier = tier();
                let mut conversation = 0;
                while running.load(Ordering::SeqCst) {
                    conversation = (conversation + 7) % 60;
                    let Some(row) = find(&tier, ANNA, &[key(conversation, 5)]) else { continue };
                    let Ok(seen) = tier.fetch(&row, &patience()) else { continue };
                    let whole = [0, 1].iter().any(|writer| seen == chain(ANNA, conversation, &[5000; 6], *writer));
                    assert!(whole, "a row of one writer");
                    read.fetch_add(1, Ordering::SeqCst);
                }
                for damage in Damage::ALL.into_iter().filter(|damage| *damage != Damage::MissingSegment) {
                    assert_eq!(tier.damaged(damage), 0, "{damage:?}");
                }
            });
        }
        while Instant::now() < end {
            match store.collect() {
                Ok(done) => {
                    collections += 1;
                    removed += done.removed_segments;
                }
                Err(SharedError::Leased { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            look();
            thread::sleep(Duration::from_millis(5));
        }
        running.store(false, Ordering::SeqCst);
    });
    let (uploaded, read) = (uploaded.into_inner(), read.into_inner());
    println!(
        "{seconds} s: {uploaded} rows uploaded, {read} read, {collections} collections, {removed} segments removed"
    );
    assert!(uploaded > 0 && read > 0 && removed > 0, "{uploaded} uploaded, {read} read, {removed} removed");
}

/// The list of condemned segments had no room of its own: a full store grew by tens of kilobytes when it was collected.
#[test]
fn collection_beside_uploads_and_reads_stays_within_the_quota_and_harms_none() {
    let folder = tempfile::tempdir().unwrap();
    let quota = SAMPLE + 400_000;
    let settings = store_settings(&folder, Duration::from_secs(1), Some(quota));
    let (mut most, mut largest) = (0, 0);
    // Uploads and collections change the ledger under this lock: what is counted meanwhile was there at one time.
    let lock = std::fs::File::create(folder.path().join(".poncho-lock")).unwrap();
    beside(&|| open(&settings), &SharedStore::open(&settings).unwrap(), || {
        lock.lock().unwrap();
        let sizes = sizes_in(&folder.path().join("v1"));
        lock.unlock().unwrap();
        most = most.max(sizes.iter().map(|(_, size)| size).sum());
        let objects = sizes.iter().filter(|(name, _)| !name.contains("/cluster/"));
        largest = objects.map(|(_, size)| *size).fold(largest, u64::max);
    });
    println!("at most {most} bytes of {quota}, the largest row or segment has {largest}");
    assert!(most <= quota + largest, "{most} bytes, {quota} allowed and one object of {largest}");
    assert!(most > quota * 9 / 10, "the quota is used: {most} bytes of {quota}");
}

#[test]
fn no_write_ever_takes_a_store_above_its_quota_and_one_object() {
    let quota = SAMPLE + 400_000;
    let mut settings = Settings { sizes: small_segments(), quota: Some(quota), ..settings("memory://test") };
    settings.timing.grace = Duration::from_secs(1);
    let objects = CountingStore::default();
    let tier = || ready(SharedTier::with_store(&settings, Arc::new(objects.clone())).unwrap());
    let store = SharedStore::with_store(&settings, Arc::new(objects.clone())).unwrap();
    beside(&tier, &store, || {});
    let (most, largest) = (objects.double.most(), objects.double.largest());
    println!("at most {most} bytes of {quota}, the largest row or segment has {largest}");
    assert!(most <= quota + largest, "{most} bytes, {quota} allowed and one object of {largest}");
    assert!(most > quota * 9 / 10, "the quota is used: {most} bytes of {quota}");
}
