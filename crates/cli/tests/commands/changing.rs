//! `gc`, `clear` and `evict`: what they remove, what they leave, what a dry run foretells, and who may run them.

use poncho_cache::{Cache, Tier};
use serde_json::json;

use crate::support::{cache, contents, damage, on_disk, poncho, prepare, row_path, run};

#[test]
fn clear_empties_the_folder_and_says_how_much_that_was() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let sub_folder = row_path(folder.path(), &prepared.code).parent().unwrap().to_path_buf();
    let hex = "ab".repeat(32);
    std::fs::write(sub_folder.join(format!("{hex}.kvc.9-9.tmp")), [0; 100]).unwrap();
    std::fs::write(sub_folder.join(format!("{hex}.kvc.bad")), [0; 1000]).unwrap();
    let unknown = sub_folder.join(format!("{hex}.kvc"));
    std::fs::write(&unknown, [b"KVC\x07".as_slice(), &[0; 96]].concat()).unwrap();
    std::fs::write(sub_folder.join("notes.txt"), b"not ours").unwrap();
    let bytes: u64 = prepared.all().iter().map(|key| row_path(folder.path(), key).metadata().unwrap().len()).sum();

    let before = contents(folder.path());
    let expected = json!({
        "dry_run": true, "freed_bytes": bytes + 1100, "freed_rows": 5, "left_bytes": 100, "left_rows": 0
    });
    assert_eq!(cache(folder.path(), &["clear", "--dry-run", "--json"]).json(), expected);
    assert_eq!(contents(folder.path()), before, "a dry run changes nothing");

    let mut done = expected;
    done["dry_run"] = json!(false);
    let refused = cache(folder.path(), &["clear"]);
    assert!(refused.failed().contains("all 5 rows") && refused.stderr.contains("--yes"), "{}", refused.stderr);
    assert_eq!(contents(folder.path()), before, "without a terminal it takes a yes");
    assert_eq!(cache(folder.path(), &["clear", "--yes", "--json"]).json(), done);
    let left: Vec<_> = contents(folder.path()).into_iter().map(|(path, _)| path).collect();
    let noted = folder.path().join("evictions");
    assert_eq!(left, [unknown, sub_folder.join("notes.txt"), noted], "what is not understood is left alone");
    assert_eq!(cache(folder.path(), &["ls", "--json"]).json(), json!([]));
    assert!(cache(folder.path(), &["clear"]).good().starts_with("freed 0 B in 0 rows"), "nothing to ask about");
}

/// Everyday use 8: `gc` emptied the whole cache.
#[test]
fn gc_removes_garbage_and_keeps_every_usable_row() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let usable = contents(folder.path());
    assert_eq!(cache(folder.path(), &["gc", "--json"]).json()["freed_bytes"], 0);
    assert_eq!(contents(folder.path()), usable);

    let sub_folder = row_path(folder.path(), &prepared.code).parent().unwrap().to_path_buf();
    let hex = "ab".repeat(32);
    std::fs::write(sub_folder.join(format!("{hex}.kvc.9-9.tmp")), [0; 100]).unwrap();
    std::fs::write(sub_folder.join(format!("{hex}.kvc.bad")), [0; 1000]).unwrap();
    // In the payload of a row that two others build on.
    let damaged = [prepared.chain[1], prepared.chain[2], prepared.branch].map(|key| row_path(folder.path(), &key));
    damage(&damaged[0], 100);
    let bytes: u64 = damaged.iter().map(|path| path.metadata().unwrap().len()).sum();
    let foretold = cache(folder.path(), &["gc", "--dry-run", "--json"]).json();
    assert_eq!((&foretold["freed_bytes"], &foretold["freed_rows"]), (&json!(bytes + 1100), &json!(3)));
    let mut done = cache(folder.path(), &["gc", "--json"]).json();
    done["dry_run"] = json!(true);
    assert_eq!(done, foretold);
    let kept: Vec<_> = usable.into_iter().filter(|(path, _)| !damaged.contains(path)).collect();
    assert_eq!(contents(folder.path()), kept);
    assert!(cache(folder.path(), &["verify"]).good().contains("2 rows checked, 0 damaged"));
}

#[test]
fn evict_lists_what_it_removes() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let key = prepared.chain[2].to_hex();
    let listed = cache(folder.path(), &["evict", "1", "--dry-run"]);
    assert!(listed.good().contains(&key[..12]) && listed.stdout.contains("1400"), "{}", listed.stdout);
    let json = cache(folder.path(), &["evict", "1", "--json"]).json();
    assert_eq!((&json["rows"][0]["key"], &json["rows"][0]["tokens"]), (&json!(key), &json!(1400)), "{json}");
    let all = cache(folder.path(), &["evict", "1G"]);
    assert_eq!(all.good().lines().count(), 7, "a heading, four rows, the sum, and that there was less: {}", all.stdout);
}

#[test]
fn evict_frees_the_oldest_first_and_as_foretold() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let length = |key| row_path(folder.path(), key).metadata().unwrap().len();
    let oldest = length(&prepared.chain[2]);
    let before = contents(folder.path());
    let foretold = cache(folder.path(), &["evict", "1", "--dry-run", "--json"]).json();
    assert_eq!((&foretold["freed_rows"], &foretold["freed_bytes"]), (&json!(1), &json!(oldest)));
    assert_eq!(contents(folder.path()), before, "a dry run changes nothing");

    let done = cache(folder.path(), &["evict", "1", "--json"]).json();
    assert_eq!((&done["freed_rows"], &done["freed_bytes"]), (&json!(1), &json!(oldest)));
    assert!(!row_path(folder.path(), &prepared.chain[2]).exists(), "the end of the chain that was used least recently");
    assert_eq!(done["left_rows"], 4);

    let text = cache(folder.path(), &["evict", "8.5KiB"]);
    assert!(text.good().contains("\nfreed "), "after the list: {}", text.stdout);
    assert!(cache(folder.path(), &["verify"]).good().contains(" 0 damaged"));
    let text = cache(folder.path(), &["evict", "1GiB"]);
    assert!(
        text.good().contains("0 B in 0 rows remain") && text.stdout.contains("less than 1.0 GiB"),
        "{}",
        text.stdout
    );
    let left: Vec<_> = contents(folder.path()).into_iter().map(|(path, _)| path).collect();
    assert_eq!(left, [folder.path().join("evictions")], "what was evicted is noted");
}

#[test]
fn a_dry_run_and_a_real_one_agree_at_every_size() {
    let reference = tempfile::tempdir().unwrap();
    prepare(reference.path());
    let total = cache(reference.path(), &["stat", "--json"]).json()["bytes"].as_u64().unwrap();
    for bytes in (0..=total + 4000).step_by(4000) {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let mut foretold = cache(folder.path(), &["evict", &bytes.to_string(), "--dry-run", "--json"]).json();
        foretold["dry_run"] = json!(false);
        assert_eq!(cache(folder.path(), &["evict", &bytes.to_string(), "--json"]).json(), foretold, "{bytes}");
    }
}

#[test]
fn a_folder_in_use_is_refused_with_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let handle = Cache::open(on_disk(folder.path())).unwrap();
    for words in [&["gc"][..], &["evict", "1K"], &["clear", "--yes"], &["gc", "--json"]] {
        let refused = cache(folder.path(), words);
        assert!(refused.failed().contains(&format!("in use by process {}", std::process::id())), "{}", refused.stderr);
    }
    assert_eq!(handle.len(), prepared.all().len());
    drop(handle);
    cache(folder.path(), &["gc"]).good();
}

#[test]
fn evict_keeps_to_the_tier_it_was_given() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let memory = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let own = on_disk(memory.path());
    let ram_file = own.disk.clone();
    drop(Cache::open(own).unwrap());
    let handle = Cache::open(poncho_cache::CacheConfig { ram_file, ..on_disk(folder.path()) }).unwrap();
    let tokens: Vec<u32> = (50_000..50_600).collect();
    let base = handle.base_for(&crate::support::CHAT_MODEL, &tokens, Some(Tier::RamFile));
    assert!(base.is_none());
    handle
        .save(poncho_cache::SaveRequest {
            namespace: crate::support::CHAT_MODEL,
            mode: poncho_cache::FingerprintMode::Safe,
            tokens: &tokens,
            base: None,
            parts: vec![poncho_cache::PayloadPart {
                kind: poncho_cache::PartKind::Attention,
                bytes: vec![1; 500].into(),
            }],
            reason: poncho_cache::SaveReason::Evict,
            flags: 0,
            context_size: 4096,
            text: String::new(),
            tier: Some(Tier::RamFile),
            owner: None,
        })
        .unwrap();
    drop(handle);
    let both = |words: &[&str]| {
        let command = &mut poncho();
        command.arg("cache").args(words).arg("--cache-dir").arg(folder.path()).arg("--ram-file-dir").arg(memory.path());
        run(command)
    };
    let freed = both(&["evict", "1G", "--tier", "ram_file", "--json"]).json();
    assert_eq!((&freed["freed_rows"], &freed["left_rows"]), (&json!(1), &json!(5)));
    let refused = cache(folder.path(), &["evict", "1G", "--tier", "ram_file"]);
    assert!(refused.failed().contains("no folder of tier ram_file"), "{}", refused.stderr);
}

#[test]
fn gc_removes_what_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    // In the header: found at opening. The row and those that build on it go.
    let path = row_path(folder.path(), &prepared.chain[0]);
    let length = usize::try_from(path.metadata().unwrap().len()).unwrap();
    damage(&path, length - 80);
    assert_eq!(cache(folder.path(), &["stat", "--json"]).json()["damaged_files"], 1);
    let mut foretold = cache(folder.path(), &["gc", "--dry-run", "--json"]).json();
    foretold["dry_run"] = json!(false);
    let freed = cache(folder.path(), &["gc", "--json"]);
    assert_eq!(freed.json(), foretold);
    assert!(freed.stderr.contains("moved aside"), "opening says what it found: {}", freed.stderr);
    let left: Vec<_> = contents(folder.path()).into_iter().map(|(path, _)| path).collect();
    assert_eq!(left, [row_path(folder.path(), &prepared.code)], "nothing of the other model was damaged");
}
