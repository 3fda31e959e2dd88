//! What a crash can leave behind, step by step, and manifests that others damaged or a newer release wrote.

use std::fs;

use poncho_models::{RegistryError, Sha256, ignore_progress};

use crate::support::{Place, gguf, name};

#[test]
fn leftovers_of_every_step_go_at_the_next_opening() {
    let place = Place::new();
    let kept = place.import("kept", 1);
    let root = place.root();
    // While a file arrived; before its lock was made; while a manifest was written; between the two renames.
    fs::create_dir(root.join("incoming/99-0")).unwrap();
    fs::write(root.join("incoming/99-0/lock"), "").unwrap();
    fs::write(root.join("incoming/99-0/data"), "half").unwrap();
    fs::create_dir(root.join("incoming/99-1")).unwrap();
    fs::write(root.join("incoming/manifest.tmp"), "{\"format\":").unwrap();
    fs::write(root.join(format!("blobs/sha256-{}", Sha256::of(b"orphan"))), "orphan").unwrap();
    // Kept: a download to go on with, and a file that is not ours.
    fs::create_dir(root.join("partial/abc")).unwrap();
    fs::write(root.join("partial/abc/data"), "half").unwrap();
    fs::write(root.join("blobs/README"), "mine").unwrap();
    let registry = place.open();
    assert_eq!(place.names_in("incoming"), Vec::<String>::new());
    assert_eq!(place.names_in("blobs"), ["README".to_owned(), format!("sha256-{}", kept.manifest.model.sha256)]);
    assert_eq!(place.names_in("partial"), ["abc"]);
    registry.verify(&name("kept"), &mut ignore_progress).unwrap();
}

#[test]
fn a_manifest_that_cannot_be_read_is_reported_and_nothing_is_thrown_away() {
    let place = Place::new();
    place.import("good", 1);
    let lost = place.import("lost", 2);
    let manifests = place.root().join("manifests");
    let whole = fs::read_to_string(manifests.join("lost=latest.json")).unwrap();
    for (text, expected) in [
        (String::new(), "not a manifest"),
        (whole[..whole.len() / 2].to_owned(), "not a manifest"),
        (whole.replace("\"format\": 1", "\"format\": 2"), "format 2"),
        (whole.replace("lost:latest", "good:latest"), "belongs to good:latest"),
        (whole.replace(&lost.manifest.model.sha256.to_hex(), "../../../etc/passwd"), "64 hexadecimal digits"),
    ] {
        fs::write(manifests.join("lost=latest.json"), &text).unwrap();
        let registry = place.open();
        assert_eq!(registry.list().unwrap().len(), 1, "{text}");
        let damaged = registry.damaged().unwrap();
        assert!(damaged.len() == 1 && damaged[0].reason.contains(expected), "{damaged:?} / {expected}");
        assert_eq!(damaged[0].name, Some(name("lost")));
        assert!(matches!(registry.get(&name("lost")), Err(RegistryError::BadManifest { .. })));
        assert!(lost.model.exists(), "its file may still be needed");
        assert_eq!(registry.remove(&name("good")).unwrap().files, 0, "who knows what the other one needs");
        place.import("good", 1);
    }
    let registry = place.open();
    registry.remove(&name("lost")).unwrap();
    assert_eq!(registry.damaged().unwrap(), []);
    place.open();
    assert!(!lost.model.exists());
    fs::write(manifests.join("..evil.json"), "{}").unwrap();
    assert_eq!(place.open().damaged().unwrap()[0].name, None);
}

#[test]
fn fields_of_later_releases_are_passed_over() {
    let place = Place::new();
    let installed = place.import("tiny", 1);
    let path = place.root().join("manifests/tiny=latest.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen('{', "{\n  \"later\": [1],", 1)).unwrap();
    assert_eq!(place.open().get(&name("tiny")).unwrap(), installed);
}

#[test]
fn a_file_in_place_of_the_folder_is_refused() {
    let place = Place::new();
    let file = place.file("plain", b"x");
    let refused = poncho_models::Registry::open(&file).unwrap_err().to_string();
    assert!(refused.contains("a file, not a folder"), "{refused}");
    assert_eq!(gguf("model", 1).len() % 32, 0);
}
