//! A real object store, and a proxy before it that fails in every way that networks and stores do.

use std::time::{Duration, Instant};

use poncho_cache::{RemoteQuery, RemoteTier};
use poncho_shared::{Settings, SharedStore, SharedTier};

use crate::fixture::proxy::{Fault, Proxy};
use crate::fixture::weed::Weed;
use crate::fixture::{
    ANNA, NAMESPACE, chain, eventually, find, key, offer, open, patience_of, restore, small_segments, upload,
};

#[test]
fn a_chain_travels_through_seaweedfs_and_survives_its_kill() {
    let mut weed = Weed::start();
    let tier = open(&weed.settings());
    let whole = chain(ANNA, 1, &[3 << 20, 1 << 20, 20 << 20, 700_000], 3);
    upload(&tier, whole.clone());
    let other = open(&weed.settings());
    assert_eq!(restore(&other, ANNA, &[key(1, 3)]).as_ref(), Some(&whole));

    let store = SharedStore::open(&weed.settings()).unwrap();
    let measured = store.measure().expect("measured");
    assert!(measured.conditional_put, "SeaweedFS has conditional writes");
    println!("{measured:?}, rates {:?}", other.rates());
    assert_eq!(store.list().unwrap().tenants[0].rows[0].bytes, whole.bytes());

    weed.kill();
    let keys = [key(1, 3)];
    let query = RemoteQuery { owner: ANNA, namespace: &NAMESPACE, keys: &keys };
    let begin = Instant::now();
    assert!(other.find(query, &patience_of(Duration::from_secs(2))).is_err());
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    eventually("the store is left alone", || other.rates().is_none());
    weed.run();
    let back = Instant::now();
    eventually("the store is in use again", || other.rates().is_some());
    println!("in use again {:?} after it answers", back.elapsed());
    eventually("the row is found", || {
        other.find(query, &patience_of(Duration::from_secs(9))).is_ok_and(|row| row.is_some())
    });
    assert_eq!(restore(&other, ANNA, &keys), Some(whole));
}

#[test]
fn wrong_credentials_are_an_error_that_names_the_store() {
    let weed = Weed::start();
    let mut settings = weed.settings();
    settings.options.push(("aws_secret_access_key".to_owned(), "wrong-secret".to_owned()));
    let error = SharedStore::open(&settings).unwrap().measure().expect_err("refused").to_string();
    assert!(error.contains("s3://poncho-kv/team") && !error.contains("wrong-secret"), "{error}");
    let tier = SharedTier::open(&settings).unwrap();
    eventually("the tier gives the reason", || tier.status().last_error.is_some_and(|text| text != "not tried yet"));
    assert!(!tier.status().available);
}

#[test]
fn the_rounds_of_a_restore_do_not_depend_on_the_length_of_the_chain() {
    let weed = Weed::start();
    let proxy = Proxy::start(weed.address());
    let settings = Weed::settings_at(&proxy.endpoint());
    let tier = open(&settings);
    for (conversation, rows) in [(1, 1), (2, 96)] {
        upload(&tier, chain(ANNA, conversation, &vec![40_000; rows], 3));
    }
    let latency = Duration::from_millis(150);
    proxy.set(Fault::Latency(latency));
    let mut rounds = Vec::new();
    for (conversation, rows) in [(1, 1), (2, 96)] {
        let keys: Vec<_> = (0..rows + 4).rev().map(|number| key(conversation, number)).collect();
        let before = proxy.requests();
        let begin = Instant::now();
        assert!(restore(&tier, ANNA, &keys).is_some());
        let took = begin.elapsed();
        rounds.push(took.as_secs_f64() / latency.as_secs_f64());
        println!("{rows} rows: {took:?}, {} requests", proxy.requests() - before);
    }
    assert!(rounds[0] >= 2.0, "a round for manifests, a round for segments: {rounds:?}");
    assert!(rounds[1] <= rounds[0] + 4.0, "{rounds:?}");
}

#[test]
fn a_store_that_fails_in_any_way_is_a_miss_in_time_and_is_used_again_afterwards() {
    let weed = Weed::start();
    let proxy = Proxy::start(weed.address());
    let mut settings = Settings { sizes: small_segments(), ..Weed::settings_at(&proxy.endpoint()) };
    settings.sizes.joined = 2 << 20;
    settings.sizes.segment = 2 << 20;
    settings.sizes.part = 1 << 20;
    settings.timing.request = Duration::from_secs(2);
    settings.timing.transfer = Duration::from_secs(4);
    let whole = chain(ANNA, 1, &[1 << 20, 1 << 20, 1 << 20], 3);
    upload(&open(&settings), whole.clone());
    let faults = [
        Fault::BlackHole,
        Fault::Slow(100_000),
        Fault::Latency(Duration::from_secs(5)),
        Fault::Status(500),
        Fault::Status(503),
        Fault::Reset,
        Fault::Truncate(100_000),
        Fault::WrongBytes,
    ];
    let deadline = Duration::from_millis(800);
    for fault in faults {
        let tier = open(&settings);
        let keys = [key(1, 2)];
        let query = RemoteQuery { owner: ANNA, namespace: &NAMESPACE, keys: &keys };
        proxy.set(fault);
        let begin = Instant::now();
        let patience = patience_of(deadline);
        let outcome =
            tier.find(query, &patience).and_then(|row| row.map(|row| tier.fetch(&row, &patience)).transpose());
        let took = begin.elapsed();
        if let Ok(Some(seen)) = &outcome {
            assert_eq!(*seen, whole, "{fault:?}: in time and right");
        }
        println!("{fault:?}: {:?} after {took:?}", outcome.as_ref().map(Option::is_some).map_err(ToString::to_string));
        assert!(took < deadline + Duration::from_millis(700), "{fault:?}: {took:?}");
        assert!(!matches!(outcome, Ok(Some(_))), "{fault:?} was not seen");
        proxy.set(Fault::None);
        eventually("the store is in use again", || tier.rates().is_some());
        // A row that arrived damaged is not asked for again; a store that failed has it.
        if fault != Fault::WrongBytes {
            eventually("the row is restored", || {
                let patience = patience_of(Duration::from_secs(20));
                let row = tier.find(query, &patience).ok().flatten();
                row.and_then(|row| tier.fetch(&row, &patience).ok()).is_some_and(|seen| seen == whole)
            });
        }
    }
}

#[test]
fn a_full_bucket_stops_uploads_and_leaves_reads_alone() {
    let weed = Weed::start();
    let proxy = Proxy::start(weed.address());
    let tier = open(&Weed::settings_at(&proxy.endpoint()));
    upload(&tier, chain(ANNA, 1, &[5000, 5000], 3));
    proxy.set(Fault::StatusOnPut(507));
    for conversation in 2..5 {
        tier.offer(offer(chain(ANNA, conversation, &[5000], 3)));
    }
    eventually("the uploads are given up", || tier.status().counts.dropped_offers >= 3);
    assert!(restore(&tier, ANNA, &[key(1, 1)]).is_some(), "reads go on");
    assert!(tier.status().available && tier.status().last_error.is_some(), "{:?}", tier.status());
    proxy.set(Fault::None);
    upload(&tier, chain(ANNA, 9, &[5000], 3));
    assert!(find(&tier, ANNA, &[key(9, 0)]).is_some());
}

#[test]
fn collection_works_in_seaweedfs() {
    let weed = Weed::start();
    let mut settings = Settings { sizes: small_segments(), ..weed.settings() };
    settings.quota = Some((1 << 20) + 60_000);
    settings.timing.grace = Duration::from_secs(1);
    let tier = open(&settings);
    for conversation in 0..12 {
        upload(&tier, chain(ANNA, conversation, &[5000, 5000], 3));
    }
    let store = SharedStore::open(&settings).unwrap();
    eventually("the oldest leave and the newest find room", || {
        let done = store.collect().expect("collected");
        assert!(done.bytes <= (1 << 20) + 60_000, "{done:?}");
        tier.offer(offer(chain(ANNA, 100, &[5000, 5000], 3)));
        assert!(tier.flush(Instant::now() + Duration::from_secs(60)));
        find(&tier, ANNA, &[key(100, 1)]).is_some()
    });
}
