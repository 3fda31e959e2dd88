//! A plain folder as the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use poncho_cache::RemoteTier;
use poncho_shared::{Settings, SharedStore, Sizes};

use crate::fixture::{
    ANNA, bytes_in, chain, counted_offer, files_in, find, folder_url, key, open, restore, settings, small_segments,
    upload,
};

#[test]
fn a_second_machine_restores_what_the_first_uploaded() {
    let folder = tempfile::tempdir().unwrap();
    for (conversation, lengths) in [(1, vec![500]), (2, vec![100; 96]), (3, vec![40, 3000, 1, 999, 1001])] {
        let settings = Settings { sizes: small_segments(), ..settings(&folder_url(&folder)) };
        let uploaded = chain(ANNA, conversation, &lengths, 3);
        upload(&open(&settings), uploaded.clone());
        let other = open(&settings);
        let keys = [key(conversation, lengths.len()), key(conversation, lengths.len() - 1)];
        let row = find(&other, ANNA, &keys).expect("found");
        assert_eq!((row.key, row.tokens, row.bytes), (keys[1], lengths.len() as u32 * 100, uploaded.bytes()));
        assert_eq!(restore(&other, ANNA, &keys), Some(uploaded));
        let status = other.status();
        assert_eq!((status.counts.found, status.counts.missed, status.counts.failures), (2, 0, 0), "{status:?}");
    }
}

#[test]
fn the_longest_of_the_candidates_is_found_and_an_unknown_key_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let tier = open(&settings(&folder_url(&folder)));
    for count in [1, 3] {
        upload(&tier, chain(ANNA, 1, &vec![50; count], 3));
    }
    let keys: Vec<_> = (0..6).rev().map(|number| key(1, number)).collect();
    assert_eq!(find(&tier, ANNA, &keys).map(|row| row.tokens), Some(300));
    assert_eq!(find(&tier, ANNA, &[key(1, 1), key(1, 0)]).map(|row| row.tokens), Some(100));
    assert_eq!(find(&tier, ANNA, &[key(2, 0)]), None);
    assert_eq!(find(&tier, ANNA, &[]), None);
}

#[test]
fn a_row_that_the_store_has_is_not_exported_again() {
    let folder = tempfile::tempdir().unwrap();
    let exports = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        let tier = open(&settings(&folder_url(&folder)));
        for _ in 0..2 {
            tier.offer(counted_offer(chain(ANNA, 1, &[50, 50], 3), &exports));
        }
        assert!(tier.flush(Instant::now() + Duration::from_secs(60)));
    }
    assert_eq!(exports.load(Ordering::SeqCst), 1);
}

#[test]
fn a_chain_that_grew_uploads_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        sizes: Sizes { joined: 1000, segment: 10_000, ..Sizes::default() },
        ..settings(&folder_url(&folder))
    };
    let tier = open(&settings);
    upload(&tier, chain(ANNA, 1, &[2000; 20], 3));
    let first = tier.status().counts.uploaded_bytes;
    upload(&tier, chain(ANNA, 1, &[2000; 21], 3));
    let added = tier.status().counts.uploaded_bytes - first;
    assert!(added < 9_000, "one row of 2000 bytes and a manifest: {added}");
}

#[test]
fn a_folder_can_be_listed_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { sizes: small_segments(), ..settings(&folder_url(&folder)) };
    let tier = open(&settings);
    upload(&tier, chain(ANNA, 1, &[300, 300], 3));
    let store = SharedStore::open(&settings).unwrap();
    let before = files_in(folder.path());
    let measured = store.measure().expect("measured");
    assert!(measured.get_bytes_per_second > 1e6 && measured.put_bytes_per_second > 1e5, "{measured:?}");
    assert!(measured.conditional_put);
    assert_eq!(files_in(folder.path()).len(), before.len(), "the measurement removes what it wrote");
    let listing = store.list().expect("listed");
    assert_eq!(listing.tenants.len(), 1);
    let tenant = &listing.tenants[0];
    assert_eq!((tenant.rows.len(), tenant.segments), (1, 2));
    assert_eq!((tenant.rows[0].tokens, tenant.rows[0].rows, tenant.rows[0].bytes), (Some(200), 2, 600));
    assert_eq!(listing.bytes, bytes_in(&folder.path().join("v1")));
}

#[test]
fn a_row_that_is_used_is_refreshed() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&folder_url(&folder));
    settings.timing.refresh_after = Duration::ZERO;
    let tier = open(&settings);
    upload(&tier, chain(ANNA, 1, &[300], 3));
    let store = SharedStore::open(&settings).unwrap();
    let last_used = || store.list().unwrap().tenants[0].rows[0].last_used;
    let before = last_used();
    assert!(restore(&tier, ANNA, &[key(1, 0)]).is_some());
    crate::fixture::eventually("the manifest is written again", || last_used() > before);
}
