//! The shared tier over the interface of Azure Blob Storage: another protocol, other conditions of writes.

use std::time::{Duration, Instant};

use poncho_cache::{RemoteQuery, RemoteTier};
use poncho_shared::{Settings, SharedStore, SharedTier};

use crate::fixture::azurite::Azurite;
use crate::fixture::{
    ANNA, BERT, NAMESPACE, chain, eventually, find, key, offer, open, patience_of, restore, small_segments, upload,
};

#[test]
fn a_chain_travels_through_azurite_and_survives_its_kill() {
    let mut azurite = Azurite::start();
    let settings = azurite.settings();
    let whole = chain(ANNA, 1, &[3 << 20, 1 << 20, 9 << 20, 700_000], 3);
    upload(&open(&settings), whole.clone());
    let other = open(&settings);
    assert_eq!(restore(&other, ANNA, &[key(1, 3)]).as_ref(), Some(&whole));
    assert_eq!(find(&other, BERT, &[key(1, 3)]), None);
    let store = SharedStore::open(&settings).unwrap();
    assert_eq!(store.list().unwrap().tenants[0].rows[0].bytes, whole.bytes());

    azurite.kill();
    let keys = [key(1, 3)];
    let query = RemoteQuery { owner: ANNA, namespace: &NAMESPACE, keys: &keys };
    assert!(other.find(query, &patience_of(Duration::from_secs(2))).is_err());
    eventually("the store is left alone", || other.rates().is_none());
    azurite.run();
    eventually("the store is in use again", || other.rates().is_some());
    upload(&other, chain(ANNA, 2, &[5000], 3));
    assert!(restore(&open(&settings), ANNA, &[key(2, 0)]).is_some());
}

#[test]
fn azurite_is_measured_and_refuses_to_create_an_object_twice() {
    let azurite = Azurite::start();
    let measured = SharedStore::open(&azurite.settings()).unwrap().measure().expect("measured");
    println!("{measured:?}");
    assert!(measured.conditional_put, "Azure has conditional writes");
    assert_eq!(azurite.contents().len(), 0, "the measurement removes what it wrote");
    let mut settings = azurite.settings();
    settings.options.push(("azure_storage_account_key".to_owned(), "d3Jvbmcta2V5".to_owned()));
    let error = SharedStore::open(&settings).unwrap().measure().expect_err("refused").to_string();
    assert!(error.contains("az://poncho-kv/team") && !error.contains("d3Jvbmcta2V5"), "{error}");
    let tier = SharedTier::open(&settings).unwrap();
    eventually("the tier gives the reason", || tier.status().last_error.is_some_and(|text| text != "not tried yet"));
    assert!(!tier.status().available);
}

/// Two machines with other bits write the same rows at once; a reader sees the rows of one of them.
#[test]
fn two_writers_are_never_mixed_in_azurite() {
    let azurite = Azurite::start();
    let settings = Settings { sizes: small_segments(), ..azurite.settings() };
    let tiers = [open(&settings), open(&settings)];
    let reader = open(&settings);
    for conversation in 0..12 {
        let whole = [0_u8, 1].map(|writer| chain(ANNA, conversation, &[900; 3], writer));
        for (tier, chain) in tiers.iter().zip(&whole) {
            tier.offer(offer(chain.clone()));
        }
        assert!(tiers.iter().all(|tier| tier.flush(Instant::now() + Duration::from_secs(60))));
        let seen = restore(&reader, ANNA, &[key(conversation, 2)]).expect("one of them is there");
        assert!(whole.contains(&seen), "conversation {conversation}");
    }
}

#[test]
fn collection_works_in_azurite() {
    let azurite = Azurite::start();
    let quota = (1 << 20) + 60_000;
    let mut settings = Settings { sizes: small_segments(), quota: Some(quota), ..azurite.settings() };
    settings.timing.grace = Duration::from_secs(1);
    let tier = open(&settings);
    for conversation in 0..6 {
        upload(&tier, chain(ANNA, conversation, &[5000, 5000], 3));
    }
    let store = SharedStore::open(&settings).unwrap();
    eventually("the oldest leave and the newest find room", || {
        let done = store.collect().expect("collected");
        assert!(done.bytes <= quota, "{done:?}");
        tier.offer(offer(chain(ANNA, 100, &[5000, 5000], 3)));
        assert!(tier.flush(Instant::now() + Duration::from_secs(60)));
        find(&tier, ANNA, &[key(100, 1)]).is_some()
    });
    let held: usize = azurite.contents().iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(held as u64 <= quota, "{held} bytes of {quota}");
}
