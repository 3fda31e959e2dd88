//! `verify`: damage of any kind is found and named, and nothing else is called damage.

use std::sync::atomic::{AtomicBool, Ordering};

use poncho_cache::Cache;
use serde_json::json;

use crate::support::{CHAT_MODEL, cache, conversation, damage, on_disk, prepare, row_path, save};

#[test]
fn a_whole_folder_passes() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let text = cache(folder.path(), &["verify"]);
    assert_eq!(text.good(), "5 rows checked, 0 damaged\n");
    assert_eq!(
        cache(folder.path(), &["verify", "--json"]).json(),
        json!({"rows": 5, "damaged": [], "open_to_others": 0, "closed": 0})
    );
}

#[test]
fn one_turned_bit_in_a_payload_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let path = row_path(folder.path(), &prepared.branch);
    damage(&path, 1);
    let text = cache(folder.path(), &["verify"]);
    assert_eq!(text.code, Some(1));
    assert!(
        text.stdout.contains(&format!("damaged: {}: part logits has checksum ", path.display())),
        "{}",
        text.stdout
    );
    assert!(text.stdout.ends_with("5 rows checked, 1 damaged\n"));
    assert_eq!(text.stderr, "");

    let json = cache(folder.path(), &["verify", "--json"]);
    assert_eq!(json.code, Some(1));
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["rows"], 5);
    assert_eq!(report["damaged"].as_array().unwrap().len(), 1);
    assert_eq!(report["damaged"][0]["path"], path.to_str().unwrap());
}

#[test]
fn torn_misnamed_and_orphaned_rows_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    // A header that is cut off, a file under another name, and a row without its parent.
    let torn = row_path(folder.path(), &prepared.branch);
    std::fs::OpenOptions::new().write(true).open(&torn).unwrap().set_len(50).unwrap();
    let misnamed = row_path(folder.path(), &poncho_cache::Key::from_bytes([0xee; 32]));
    std::fs::create_dir_all(misnamed.parent().unwrap()).unwrap();
    std::fs::rename(row_path(folder.path(), &prepared.code), &misnamed).unwrap();
    std::fs::remove_file(row_path(folder.path(), &prepared.chain[1])).unwrap();
    let orphan = row_path(folder.path(), &prepared.chain[2]);

    let text = cache(folder.path(), &["verify"]);
    assert_eq!(text.code, Some(1));
    for (path, problem) in [(&torn, ""), (&misnamed, "its name is not the key"), (&orphan, "its chain of parent rows")]
    {
        assert!(text.stdout.contains(&format!("damaged: {}: {problem}", path.display())), "{}", text.stdout);
    }
    assert_eq!(text.stdout.matches("damaged: ").count(), 3, "{}", text.stdout);
}

#[test]
fn leftovers_and_unknown_versions_are_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let path = row_path(folder.path(), &prepared.code);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[3] = 9;
    std::fs::write(&path, bytes).unwrap();
    std::fs::write(path.with_extension("kvc.1-1.tmp"), b"x").unwrap();
    std::fs::write(path.with_extension("kvc.bad"), b"x").unwrap();
    let text = cache(folder.path(), &["verify"]);
    assert!(text.good().contains(&format!("not checked: {}: ", path.display())), "{}", text.stdout);
    assert!(text.stdout.ends_with("4 rows checked, 0 damaged\n"));
}

#[test]
fn rows_that_come_and_go_meanwhile_are_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let cache_handle = Cache::open(on_disk(folder.path())).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                let mut tokens = conversation(700);
                for _ in 0..4 {
                    tokens.extend([turn; 20]);
                    save(&cache_handle, CHAT_MODEL, &tokens, "");
                }
                cache_handle.evict_bytes(u64::MAX, &[poncho_cache::Tier::Disk]);
            }
        });
        let runs: Vec<_> = (0..20).map(|_| cache(folder.path(), &["verify"])).collect();
        stop.store(true, Ordering::Relaxed);
        for run in runs {
            assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
        }
    });
}
