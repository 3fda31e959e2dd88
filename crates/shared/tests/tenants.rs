//! Owners see their own rows alone, and machines without the cluster's secret see none.

use poncho_cache::RemoteTier;
use poncho_shared::{Damage, Settings, SharedTier};

use crate::fixture::{ANNA, BERT, chain, files_in, find, folder_url, key, open, restore, settings, upload};

fn with_key(folder: &tempfile::TempDir, digits: &str) -> Settings {
    let path = folder.path().with_extension(format!("key-{digits}"));
    std::fs::write(&path, digits.repeat(32)).unwrap();
    Settings { key_file: Some(path), ..settings(&folder_url(folder)) }
}

#[test]
fn the_same_prompt_of_another_owner_finds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for settings in [settings(&folder_url(&folder)), with_key(&folder, "a1")] {
        let tier = open(&settings);
        upload(&tier, chain(ANNA, 1, &[300, 300], 3));
        assert_eq!(find(&tier, BERT, &[key(1, 1)]), None);
        assert!(restore(&tier, ANNA, &[key(1, 1)]).is_some());
    }
}

#[test]
fn another_cluster_secret_finds_nothing_and_no_secret_neither() {
    let folder = tempfile::tempdir().unwrap();
    upload(&open(&with_key(&folder, "a1")), chain(ANNA, 1, &[300, 300], 3));
    for other in [with_key(&folder, "b2"), settings(&folder_url(&folder))] {
        assert_eq!(find(&open(&other), ANNA, &[key(1, 1)]), None);
    }
    assert!(restore(&open(&with_key(&folder, "a1")), ANNA, &[key(1, 1)]).is_some());
}

#[test]
fn a_manifest_that_was_changed_or_moved_is_a_miss_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let settings = with_key(&folder, "a1");
    let tier = open(&settings);
    upload(&tier, chain(ANNA, 1, &[300], 3));
    upload(&tier, chain(ANNA, 2, &[300], 3));
    let manifests: Vec<_> =
        files_in(folder.path()).into_iter().filter(|path| path.display().to_string().contains("/row/")).collect();
    assert_eq!(manifests.len(), 2);
    std::fs::copy(&manifests[0], &manifests[1]).unwrap();
    let mut found = 0;
    for conversation in [1, 2] {
        found += usize::from(restore(&tier, ANNA, &[key(conversation, 0)]).is_some());
    }
    assert_eq!(found, 1, "the one that lies under its own name");
    assert_eq!(tier.damaged(Damage::Forged), 1);
    let status = tier.status();
    assert!(status.available && status.counts.failures == 1, "{status:?}");
}

#[test]
fn a_key_file_that_is_none_is_refused_as_the_tier_opens() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { key_file: Some(folder.path().join("absent")), ..settings(&folder_url(&folder)) };
    let error = SharedTier::open(&settings).expect_err("refused").to_string();
    assert!(error.contains("absent") && error.contains("openssl rand -hex 32"), "{error}");
}
