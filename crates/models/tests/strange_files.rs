//! FIFOs and links in the places of files: nothing waits for them, and the error says what is there.

#[path = "../../cache/tests/strange_files/hanging.rs"]
mod hanging;

use std::os::unix::fs::symlink;

use poncho_models::{Registry, ignore_progress, read_facts};

use self::hanging::{bounded, fifo};
use crate::support::{Place, gguf, name};

/// Hardening 16: an import waited forever for a writer of the FIFO.
#[test]
fn a_fifo_is_not_imported_and_a_link_to_a_file_is() {
    let place = Place::new();
    let (pipe, link) = (place.folder.path().join("pipe.gguf"), place.folder.path().join("link-to-pipe.gguf"));
    fifo(&pipe);
    symlink(&pipe, &link).unwrap();
    for path in [pipe, link] {
        let registry = place.open();
        let given = path.clone();
        let import = move || registry.import(&given, &name("m"), &mut ignore_progress).unwrap_err();
        let refused = bounded("importing", import).to_string();
        assert!(refused.contains("it is a FIFO, not a regular file"), "{refused}");
        let facts = bounded("reading", move || read_facts(&path).unwrap_err()).to_string();
        assert!(facts.contains("it is a FIFO"), "{facts}");
    }
    let file = place.file("good.gguf", &gguf("model", 1));
    let link = place.folder.path().join("link-to-file.gguf");
    symlink(&file, &link).unwrap();
    place.open().import(&link, &name("linked"), &mut ignore_progress).unwrap();
}

/// Hardening 16: a FIFO in the registry's own folder hung every command.
#[test]
fn fifos_in_the_registrys_folders_are_reported_and_not_waited_for() {
    let place = Place::new();
    let blob = place.import("good", 1).model;
    place.import("other", 2);
    let manifest = place.names_in("manifests").into_iter().find(|file| file.contains("other")).unwrap();
    let manifest = place.root().join("manifests").join(manifest);
    std::fs::remove_file(&manifest).unwrap();
    fifo(&manifest);
    let root = place.root();
    let (good, damaged) = bounded("listing", move || {
        let registry = Registry::open(root).unwrap();
        (registry.list().unwrap(), registry.damaged().unwrap())
    });
    assert_eq!(good.len(), 1);
    assert!(damaged.len() == 1 && damaged[0].reason.contains("it is a FIFO"), "{damaged:?}");

    std::fs::remove_file(&manifest).unwrap();
    std::fs::remove_file(&blob).unwrap();
    fifo(&blob);
    let root = place.root();
    let verified = bounded("verifying", move || {
        Registry::open(root).unwrap().verify(&name("good"), &mut ignore_progress).map(drop).unwrap_err()
    });
    assert!(!verified.to_string().is_empty());

    std::fs::remove_file(place.root().join("lock")).unwrap();
    fifo(&place.root().join("lock"));
    let refused = bounded("locking", move || {
        let path = place.file("third.gguf", &gguf("model", 3));
        place.open().import(&path, &name("third"), &mut ignore_progress).unwrap_err()
    });
    assert!(refused.to_string().contains("it is a FIFO"), "{refused}");
}
