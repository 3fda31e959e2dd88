//! Import, list, get, copy, remove, verify and resolve, also from several threads at once.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, symlink};

use poncho_models::{
    Progress, PullError, PullOptions, Reference, RegistryError, Resolved, Sha256, SourceKind, Upload, ignore_progress,
};

use crate::support::{Place, gguf, name};

#[test]
fn an_imported_model_is_listed_with_its_facts() {
    let place = Place::new();
    let before = place.open();
    assert_eq!(before.list().unwrap(), [], "a folder that is not there is an empty registry");
    assert!(!place.root().exists(), "and looking does not make it");
    let installed = place.import("tiny:1", 1);
    let manifest = &installed.manifest;
    assert_eq!(manifest.model.sha256, Sha256::of(&gguf("model", 1)));
    assert_eq!(fs::read(&installed.model).unwrap(), gguf("model", 1));
    assert_eq!((manifest.source.kind, manifest.facts.parameters), (SourceKind::File, 64));
    assert_eq!(manifest.facts.quantization.as_deref(), Some("Q4_1"));
    assert_eq!(before.list().unwrap(), std::slice::from_ref(&installed));
    assert_eq!(before.get(&name("TINY:1")).unwrap(), installed);
    assert_eq!(before.verify(&name("tiny:1"), &mut ignore_progress).unwrap(), installed);
    assert_eq!(place.names_in("manifests"), ["tiny=1.json"]);
    assert_eq!(place.names_in("incoming"), Vec::<String>::new());
}

#[test]
fn an_unknown_name_suggests_installed_and_catalogue_names() {
    let place = Place::new();
    place.import("mine:latest", 1);
    let message = |text: &str| place.open().get(&name(text)).unwrap_err().to_string();
    assert!(message("mien").contains("did you mean `mine:latest`"), "{}", message("mien"));
    assert!(message("smolm2:135m").contains("`smollm2:135m`"), "{}", message("smolm2:135m"));
    assert!(message("smollm2:135m").contains("poncho pull smollm2:135m"), "{}", message("smollm2:135m"));
    assert!(message("something-else").contains("poncho list"), "{}", message("something-else"));
}

#[test]
fn a_blob_goes_with_its_last_name() {
    let place = Place::new();
    let registry = place.open();
    let one = place.import("one", 1);
    registry.copy(&name("one"), &name("owner/two:x")).unwrap();
    place.import("other", 2);
    assert_eq!(place.names_in("blobs").len(), 2);
    assert_eq!(registry.remove(&name("one")).unwrap().files, 0);
    assert_eq!(registry.get(&name("owner/two:x")).unwrap().model, one.model);
    let removed = registry.remove(&name("owner/two:x")).unwrap();
    assert_eq!((removed.files, removed.bytes), (1, gguf("model", 1).len() as u64));
    assert_eq!(place.names_in("blobs").len(), 1);
    assert!(matches!(registry.remove(&name("one")), Err(RegistryError::Unknown { .. })));
    assert!(matches!(registry.copy(&name("one"), &name("two")), Err(RegistryError::Unknown { .. })));
    assert!(place.folder.path().join("model-1.gguf").exists(), "the imported file itself stays");
}

#[test]
fn a_name_that_is_given_again_lets_go_of_its_old_file() {
    let place = Place::new();
    place.import("name", 1);
    let second = place.import("name", 2);
    assert_eq!(place.names_in("blobs"), [format!("sha256-{}", second.manifest.model.sha256)]);
    let registry = place.open();
    place.import("third", 3);
    registry.copy(&name("third"), &name("name")).unwrap();
    assert_eq!(place.names_in("blobs").len(), 1);
    registry.copy(&name("name"), &name("name")).unwrap();
    registry.verify(&name("name"), &mut ignore_progress).unwrap();
}

#[test]
fn what_is_no_model_is_refused_and_leaves_nothing() {
    let place = Place::new();
    let split = {
        let mut bytes = gguf("model", 1);
        // The context length becomes the number of files.
        let at = bytes.windows(20).position(|window| window == b"llama.context_length").unwrap();
        bytes[at..at + 20].copy_from_slice(b"split.count\0\0\0\0\0\0\0\0\0");
        bytes[at - 8] = 11;
        bytes.drain(at + 11..at + 20);
        // The header is nine bytes shorter; what is aligned stays enough.
        [bytes, vec![0; 64]].concat()
    };
    for (file, bytes, expected) in [
        ("page.gguf", b"<!DOCTYPE html>".to_vec(), "an HTML page"),
        ("pointer.gguf", b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "a Git LFS pointer"),
        ("short.gguf", gguf("model", 1)[..300].to_vec(), "cut short"),
        ("lora.gguf", gguf("adapter", 1), "is a LoRA adapter, not a model"),
        ("split.gguf", split, "files of a split model"),
        ("empty.gguf", Vec::new(), "an empty file"),
    ] {
        let path = place.file(file, &bytes);
        let refused = place.open().import(&path, &name("x"), &mut ignore_progress).unwrap_err().to_string();
        assert!(refused.contains(expected) && refused.contains(file), "{refused}");
    }
    let missing = place.open().import(&place.folder.path().join("none.gguf"), &name("x"), &mut ignore_progress);
    assert!(missing.unwrap_err().to_string().contains("none.gguf"));
    assert_eq!(place.open().list().unwrap(), []);
}

#[test]
fn a_link_to_a_file_is_followed() {
    let place = Place::new();
    let target = place.file("real.gguf", &gguf("model", 7));
    let link = place.folder.path().join("link.gguf");
    symlink(&target, &link).unwrap();
    let installed = place.open().import(&link, &name("linked"), &mut ignore_progress).unwrap();
    fs::remove_file(&target).unwrap();
    assert_eq!(fs::read(&installed.model).unwrap(), gguf("model", 7));
}

#[test]
fn a_damaged_file_is_found() {
    let place = Place::new();
    let installed = place.import("tiny", 1);
    let registry = place.open();
    let mut bytes = gguf("model", 1);
    *bytes.last_mut().unwrap() ^= 1;
    fs::remove_file(&installed.model).unwrap();
    fs::write(&installed.model, &bytes).unwrap();
    assert!(registry.get(&name("tiny")).is_ok(), "its size is right");
    let refused = registry.verify(&name("tiny"), &mut ignore_progress).unwrap_err().to_string();
    assert!(refused.contains("is damaged"), "{refused}");
    fs::write(&installed.model, &bytes[1..]).unwrap();
    assert!(registry.get(&name("tiny")).unwrap_err().to_string().contains("bytes instead of"));
    fs::remove_file(&installed.model).unwrap();
    assert!(registry.get(&name("tiny")).unwrap_err().to_string().contains("it is missing"));
    place.import("tiny", 1);
    registry.verify(&name("tiny"), &mut ignore_progress).unwrap();
}

#[test]
fn texts_resolve_to_names_files_and_advice() {
    let place = Place::new();
    place.import("owner/repo:q4_0", 1);
    let path = place.file("beside.gguf", &gguf("model", 2));
    let registry = place.open();
    let resolved = registry.resolve(path.to_str().unwrap()).unwrap();
    assert_eq!(resolved.model(), path);
    assert!(matches!(registry.resolve("owner/repo:Q4_0"), Ok(Resolved::Installed(_))));
    assert!(matches!(registry.resolve("hf:Owner/Repo:Q4_0"), Ok(Resolved::Installed(_))));
    let advice = registry.resolve("hf:owner/other").unwrap_err().to_string();
    assert!(advice.contains("poncho pull hf:owner/other"), "{advice}");
    for hostile in ["", "../../etc/passwd", "/etc/passwd", "a\0b", "..", "https://", "hf:x"] {
        registry.resolve(hostile).unwrap_err();
    }
}

/// Hardening 4: a pulled file was a second name of the user's own, and changed with it.
#[test]
fn a_file_that_is_overwritten_after_its_import_leaves_the_model_as_it_was() {
    let place = Place::new();
    let path = place.file("mine.gguf", &gguf("model", 1));
    let registry = place.open();
    let mut copied = Vec::new();
    let installed = registry
        .import(&path, &name("mine"), &mut |step| {
            if let Progress::Copying { done, total } = step {
                copied.push((done, total));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_ne!(fs::metadata(&installed.model).unwrap().ino(), fs::metadata(&path).unwrap().ino());
    let size = gguf("model", 1).len() as u64;
    // A file system that shares blocks copies nothing.
    assert!(copied.is_empty() || copied.last() == Some(&(size, size)), "{copied:?}");
    // In place: the same inode, another content of the same size.
    fs::write(&path, gguf("model", 2)).unwrap();
    assert_eq!(fs::read(&installed.model).unwrap(), gguf("model", 1));
    registry.verify(&name("mine"), &mut ignore_progress).unwrap();
    assert!(registry.linked().unwrap().is_empty());
}

/// Hardening 4: registries of earlier releases hold such second names.
#[test]
fn a_file_with_a_second_name_is_reported_and_verifying_gives_it_its_own() {
    let place = Place::new();
    let installed = place.import("old", 1);
    let outside = place.folder.path().join("outside.gguf");
    fs::hard_link(&installed.model, &outside).unwrap();
    let registry = place.open();
    assert_eq!(registry.linked().unwrap(), std::slice::from_ref(&installed));
    registry.verify(&name("old"), &mut ignore_progress).unwrap();
    assert!(registry.linked().unwrap().is_empty());
    fs::write(&outside, gguf("model", 9)).unwrap();
    assert_eq!(fs::read(&installed.model).unwrap(), gguf("model", 1));
    assert_eq!(place.names_in("incoming"), Vec::<String>::new());
    let stamp = registry.stamp(&installed).unwrap();
    assert_eq!(stamp.inode, fs::metadata(&installed.model).unwrap().ino(), "what is remembered is the new file");
    // One that was changed under its other name is found, and stays as it is.
    fs::hard_link(&installed.model, place.folder.path().join("again.gguf")).unwrap();
    fs::write(place.folder.path().join("again.gguf"), gguf("model", 9)).unwrap();
    let refused = registry.verify(&name("old"), &mut ignore_progress).unwrap_err().to_string();
    assert!(refused.contains("is damaged"), "{refused}");
}

/// Hardening 4: nobody remembered what the file was like when it was hashed.
#[test]
fn what_was_hashed_is_remembered_and_goes_with_the_file() {
    let place = Place::new();
    let installed = place.import("tiny", 1);
    let registry = place.open();
    let metadata = fs::metadata(&installed.model).unwrap();
    let stamp = registry.stamp(&installed).unwrap();
    assert_eq!((stamp.bytes, stamp.inode), (metadata.len(), metadata.ino()));
    assert_eq!((stamp.modified_seconds, stamp.modified_nanos), (metadata.mtime(), metadata.mtime_nsec()));
    assert_eq!((stamp.changed_seconds, stamp.changed_nanos), (metadata.ctime(), metadata.ctime_nsec()));
    assert_eq!(place.names_in("hashed").len(), 1);
    // The engine's memo of a file that it had to hash again.
    let memo = format!("{}.poncho-fingerprint", installed.model.display());
    fs::write(&memo, "x").unwrap();
    registry.remove(&name("tiny")).unwrap();
    assert_eq!((place.names_in("hashed"), place.names_in("blobs")), (vec![], vec![]));
    let installed = place.import("tiny", 1);
    for torn in ["", "{\"bytes\": 1}"] {
        fs::write(place.root().join("hashed").join(installed.model.file_name().unwrap()), torn).unwrap();
        assert_eq!(registry.stamp(&installed), None);
    }
    registry.verify(&name("tiny"), &mut ignore_progress).unwrap();
    assert!(registry.stamp(&installed).is_some(), "verifying writes it again");
}

/// Hardening 4: a file that was written to while it was copied became a model of two halves.
#[test]
fn a_file_that_changes_while_it_is_brought_in_is_refused() {
    let place = Place::new();
    let path = place.file("m.gguf", &gguf("model", 1));
    let longer = [gguf("model", 2), vec![0; 32]].concat();
    let refused = place.open().import(&path, &name("m"), &mut |step| {
        if matches!(step, Progress::Copying { .. }) {
            fs::write(&path, &longer).unwrap();
        }
        ControlFlow::Continue(())
    });
    // A file system that shares blocks takes all of it at one moment.
    match refused {
        Err(error) => assert!(matches!(error, RegistryError::SourceChanged { .. }), "{error}"),
        Ok(installed) => assert_eq!(fs::read(installed.model).unwrap(), gguf("model", 1)),
    }
    assert_eq!(place.names_in("incoming"), Vec::<String>::new());
}

/// Hardening 4: `--sha256` was not looked at for files of this machine.
#[test]
fn a_file_of_this_machine_must_have_the_hash_that_was_asked_for() {
    let place = Place::new();
    let path = place.file("m.gguf", &gguf("model", 1));
    let mut options = PullOptions::default();
    options.sha256 = Some(Sha256::of(&gguf("model", 2)));
    let reference = Reference::Path(path);
    let refused = place.open().pull(&reference, &options, &mut ignore_progress).unwrap_err();
    assert!(matches!(refused, PullError::Registry(RegistryError::WrongHash { .. })), "{refused}");
    options.sha256 = Some(Sha256::of(&gguf("model", 1)));
    place.open().pull(&reference, &options, &mut ignore_progress).unwrap();
}

/// Hardening 10: uploads that no model was made of stayed until the next start.
#[test]
fn an_upload_without_a_model_goes_while_the_registry_is_open() {
    let place = Place::new();
    let registry = place.open();
    let (old, new) = (gguf("model", 1), gguf("model", 2));
    for bytes in [&old, &new] {
        registry.add_blob(&Sha256::of(bytes), &bytes[..], &Upload::default()).unwrap();
    }
    let path = place.root().join(format!("uploads/sha256-{}", Sha256::of(&old)));
    let yesterday = std::time::SystemTime::now() - std::time::Duration::from_secs(25 * 3600);
    fs::File::options().write(true).open(&path).unwrap().set_modified(yesterday).unwrap();
    registry.sweep();
    assert!(!registry.has_blob(&Sha256::of(&old)) && registry.has_blob(&Sha256::of(&new)));
}

#[test]
fn a_caller_can_stop_an_import() {
    let place = Place::new();
    let path = place.file("m.gguf", &gguf("model", 1));
    let mut steps = Vec::new();
    let stopped = place.open().import(&path, &name("m"), &mut |step| {
        steps.push(step);
        ControlFlow::Break(())
    });
    assert!(matches!(stopped, Err(RegistryError::Stopped)));
    assert_eq!(steps.len(), 1, "no progress is reported after the stop");
    assert!(matches!(steps[0], Progress::Verifying { .. } | Progress::Copying { .. }), "{steps:?}");
    assert_eq!((place.names_in("incoming"), place.names_in("blobs")), (vec![], vec![]));
}

#[test]
fn many_threads_at_once_leave_a_whole_registry() {
    let place = Place::new();
    let files: Vec<_> = (0..4).map(|seed| place.file(&format!("{seed}.gguf"), &gguf("model", seed))).collect();
    std::thread::scope(|scope| {
        for (worker, file) in files.iter().enumerate() {
            let place = &place;
            scope.spawn(move || {
                for round in 0..12 {
                    // Each opening cleans up, in the middle of what the others do.
                    let registry = place.open();
                    let own = name(&format!("own-{worker}"));
                    registry.import(file, &own, &mut ignore_progress).unwrap();
                    // A name that all of them fight for.
                    registry.copy(&own, &name("shared")).unwrap();
                    registry.verify(&own, &mut ignore_progress).unwrap();
                    if round % 3 == 2 {
                        registry.remove(&own).unwrap();
                    }
                }
            });
        }
    });
    let registry = place.open();
    assert_eq!(registry.damaged().unwrap(), []);
    let names: Vec<String> = registry.list().unwrap().iter().map(|model| model.name.short()).collect();
    assert_eq!(names, ["shared"]);
    registry.verify(&name("shared"), &mut ignore_progress).unwrap();
    assert_eq!((place.names_in("blobs").len(), place.names_in("incoming").len()), (1, 0));
}
