//! Models made from Modelfiles: what is inherited, what is replaced, which files may be named.

use std::path::Path;

use poncho_models::{Modelfile, PathRule, RegistryError, Role, Sha256, SourceKind, Upload, ignore_progress};
use serde_json::json;

use crate::support::{Place, gguf, name};

fn create(place: &Place, as_name: &str, text: &str) -> Result<poncho_models::Installed, RegistryError> {
    let modelfile = Modelfile::parse(text).unwrap();
    let paths = PathRule::From(place.folder.path());
    place.open().create(&name(as_name), &modelfile, paths, &mut ignore_progress)
}

#[test]
fn a_model_inherits_what_its_modelfile_does_not_say() {
    let place = Place::new();
    let base = place.import("base", 1);
    place.file("lora.gguf", &gguf("adapter", 2));
    let first = "FROM base\nPARAMETER temperature 0.5\nPARAMETER stop a\nSYSTEM Be kind.\nTEMPLATE {{ .Prompt }}\n\
        ADAPTER lora.gguf\nLICENSE MIT\nMESSAGE user hi";
    let first = create(&place, "first", first).unwrap();
    assert_eq!(first.model, base.model);
    assert_eq!((first.adapters.len(), first.manifest.source.kind), (1, SourceKind::Model));
    assert_eq!(std::fs::read(&first.adapters[0]).unwrap(), gguf("adapter", 2));
    let second = create(&place, "second", "FROM first\nPARAMETER stop b\nSYSTEM \"\"").unwrap();
    let manifest = second.manifest;
    assert_eq!(json!(manifest.parameters), json!({"temperature": 0.5, "stop": ["b"]}));
    assert_eq!((manifest.system, manifest.template.as_deref()), (None, Some("{{ .Prompt }}")));
    assert_eq!((manifest.license, manifest.messages[0].role), (vec!["MIT".to_owned()], Role::User));
    assert_eq!(second.adapters, first.adapters);
    let registry = place.open();
    registry.remove(&name("base")).unwrap();
    registry.remove(&name("first")).unwrap();
    registry.verify(&name("second"), &mut ignore_progress).unwrap();
    registry.remove(&name("second")).unwrap();
    assert_eq!(place.names_in("blobs"), Vec::<String>::new());
}

#[test]
fn from_may_be_a_path_beside_the_modelfile() {
    let place = Place::new();
    place.file("weights.gguf", &gguf("model", 3));
    place.file("odd name.bin", &gguf("model", 4));
    for text in ["FROM ./weights.gguf", "FROM weights.gguf", "FROM odd name.bin"] {
        let made = create(&place, "made", text).unwrap();
        assert_eq!(made.manifest.source.kind, SourceKind::File);
        assert!(Path::new(&made.manifest.source.reference).is_absolute());
    }
}

#[test]
fn what_leads_nowhere_is_refused() {
    let place = Place::new();
    place.import("base", 1);
    place.file("lora.gguf", &gguf("adapter", 2));
    place.file("model.gguf", &gguf("model", 3));
    for (text, expected) in [
        ("FROM bsae", "did you mean `base:latest`"),
        ("FROM ./none.gguf", "none.gguf"),
        ("FROM lora.gguf", "a LoRA adapter, not a model"),
        ("FROM base\nADAPTER model.gguf", "a model, not a LoRA adapter"),
        ("FROM base\nADAPTER none.gguf", "none.gguf"),
        ("FROM hf:owner/repo", "poncho pull hf:owner/repo"),
        ("FROM a b", "not allowed"),
    ] {
        let refused = create(&place, "x", text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
    assert_eq!(place.open().list().unwrap().len(), 1);
    assert_eq!(place.names_in("incoming"), Vec::<String>::new());
}

#[test]
fn a_client_may_not_name_paths() {
    let place = Place::new();
    place.import("base", 1);
    let path = place.file("model.gguf", &gguf("model", 3));
    for text in [
        format!("FROM {}", path.display()),
        format!("FROM base\nADAPTER {}", path.display()),
        "FROM ./model.gguf".to_owned(),
    ] {
        let modelfile = Modelfile::parse(&text).unwrap();
        let refused = place.open().create(&name("x"), &modelfile, PathRule::Refused, &mut ignore_progress).unwrap_err();
        assert!(matches!(refused, RegistryError::PathRefused { .. }), "{text}: {refused}");
    }
}

#[test]
fn files_that_a_client_sent_are_named_by_their_hash() {
    let place = Place::new();
    let registry = place.open();
    let bytes = gguf("model", 5);
    let digest = Sha256::of(&bytes);
    assert!(!registry.has_blob(&digest));
    let wrong = registry.add_blob(&digest, &b"other bytes"[..], &Upload::default()).unwrap_err();
    assert!(matches!(wrong, RegistryError::WrongHash { .. }), "{wrong}");
    assert!(!registry.has_blob(&digest));
    registry.add_blob(&digest, &bytes[..], &Upload::default()).unwrap();
    let modelfile = Modelfile::parse(&format!("FROM @sha256:{digest}")).unwrap();
    // It outlives an opening in between.
    let registry = place.open();
    let made = registry.create(&name("sent"), &modelfile, PathRule::Refused, &mut ignore_progress).unwrap();
    assert_eq!(std::fs::read(made.model).unwrap(), bytes);
    assert!(registry.has_blob(&digest) && place.names_in("uploads").is_empty(), "it is the model's file now");
    registry.create(&name("twice"), &modelfile, PathRule::Refused, &mut ignore_progress).unwrap();
    let unknown = Modelfile::parse(&format!("FROM @sha256:{}", Sha256::of(b"none"))).unwrap();
    let refused = registry.create(&name("x"), &unknown, PathRule::Refused, &mut ignore_progress).unwrap_err();
    assert!(matches!(refused, RegistryError::NoBlob { .. }), "{refused}");
}
