//! Import, list, get, copy, remove, verify and resolve, also from several threads at once.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;

use poncho_models::{Progress, RegistryError, Resolved, Sha256, SourceKind, ignore_progress};

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
    assert_eq!(before.list().unwrap(), [installed.clone()]);
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
    assert_eq!(steps.len(), 1, "nothing is told after the stop");
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
