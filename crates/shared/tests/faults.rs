//! Stores that lie: changed, truncated and missing objects, and stores that never answer.

use std::time::{Duration, Instant};

use poncho_cache::{RemoteError, RemoteQuery, RemoteTier};
use poncho_shared::{Damage, Settings};

use crate::fixture::{
    ANNA, NAMESPACE, chain, eventually, files_in, find, folder_url, key, open, patience, restore, settings,
    small_segments, upload,
};

fn segment_files(folder: &tempfile::TempDir) -> Vec<std::path::PathBuf> {
    files_in(folder.path()).into_iter().filter(|path| path.display().to_string().contains("/seg/")).collect()
}

#[test]
fn a_damaged_row_is_a_miss_with_its_reason_and_the_next_offer_repairs_it() {
    type Harm = fn(&std::path::Path);
    let change: Harm = |path| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[100] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    let truncate: Harm = |path| {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    };
    let empty: Harm = |path| std::fs::write(path, b"").unwrap();
    let remove: Harm = |path| std::fs::remove_file(path).unwrap();
    let harms = [
        (change, Damage::Content),
        (truncate, Damage::Length),
        (empty, Damage::Length),
        (remove, Damage::MissingSegment),
    ];
    for (harm, damage) in harms {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { sizes: small_segments(), ..settings(&folder_url(&folder)) };
        let tier = open(&settings);
        let whole = chain(ANNA, 1, &[900; 5], 3);
        upload(&tier, whole.clone());
        harm(&segment_files(&folder)[2]);
        let row = find(&tier, ANNA, &[key(1, 4)]).expect("its manifest is whole");
        let error = tier.fetch(&row, &patience()).expect_err("refused");
        let expected = matches!(error, RemoteError::Damaged { .. } | RemoteError::Gone { .. });
        assert!(expected, "{damage:?}: {error}");
        assert_eq!(tier.damaged(damage), 1, "{:?}", tier.status());
        assert_eq!(find(&tier, ANNA, &[key(1, 4)]), None, "it is not offered to a request again");
        assert!(tier.status().available, "one damaged row is not a failing store");
        upload(&tier, whole.clone());
        assert_eq!(restore(&tier, ANNA, &[key(1, 4)]), Some(whole), "{damage:?}");
    }
}

#[test]
fn a_distrusted_row_is_not_returned_again() {
    let folder = tempfile::tempdir().unwrap();
    let tier = open(&settings(&folder_url(&folder)));
    upload(&tier, chain(ANNA, 1, &[500, 500], 3));
    upload(&tier, chain(ANNA, 1, &[500], 3));
    let keys = [key(1, 1), key(1, 0)];
    let row = find(&tier, ANNA, &keys).expect("found");
    tier.distrust(&row);
    assert_eq!(find(&tier, ANNA, &keys).map(|row| row.key), Some(keys[1]), "the shorter one is left");
}

#[test]
fn a_store_that_cannot_be_reached_is_left_alone_and_costs_a_request_nothing() {
    // A port that nobody listens on.
    let port = poncho_testkit::unused_address().port();
    let options = vec![
        ("aws_endpoint".to_owned(), format!("http://127.0.0.1:{port}")),
        ("aws_access_key_id".to_owned(), "a".to_owned()),
        ("aws_secret_access_key".to_owned(), "b".to_owned()),
    ];
    let settings = Settings { options, ..settings("s3://bucket/prefix") };
    let tier = poncho_shared::SharedTier::open(&settings).expect("opened without a request");
    eventually("the first measurement fails", || {
        tier.status().last_error.is_some_and(|error| error != "not tried yet")
    });
    assert!(tier.rates().is_none());
    let query = RemoteQuery { owner: ANNA, namespace: &NAMESPACE, keys: &[key(1, 0)] };
    let error = tier.find(query, &patience()).expect_err("unavailable");
    assert!(matches!(error, RemoteError::Unavailable { .. }), "{error}");
    let error = tier.status().last_error.expect("an error");
    assert!(!error.contains("not tried yet"), "{error}");
}

#[test]
fn an_offer_to_a_store_that_fails_waits_and_never_blocks_its_caller() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&folder_url(&folder));
    settings.sizes.queue = 2;
    let tier = open(&settings);
    // The store turns into a file: nothing can be written below it.
    // The tier measures it meanwhile, which may put a file there.
    eventually("the folder is a file", || {
        std::fs::remove_dir_all(folder.path()).is_ok() && std::fs::write(folder.path(), b"not a folder").is_ok()
    });
    for conversation in 0..20 {
        tier.offer(crate::fixture::offer(chain(ANNA, conversation, &[500], 3)));
    }
    eventually("offers without a place are dropped", || tier.status().counts.dropped_offers >= 17);
    let flushed = tier.flush(Instant::now() + Duration::from_millis(1));
    assert!(!flushed || tier.status().counts.queued_offers == 0);
    assert_eq!(tier.status().counts.uploaded_rows, 0);
    std::fs::remove_file(folder.path()).unwrap();
    std::fs::create_dir(folder.path()).unwrap();
    eventually("the store is in use again", || tier.rates().is_some());
    // The queue is full until the offers in it are uploaded; another one would be dropped.
    assert!(tier.flush(Instant::now() + Duration::from_secs(60)), "{:?}", tier.status());
    upload(&tier, chain(ANNA, 99, &[500], 3));
    assert!(restore(&tier, ANNA, &[key(99, 0)]).is_some());
}
