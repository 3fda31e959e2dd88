//! Every example of the guide to models is run, in the order of the guide, in a folder with the files that it names.
//!
//! The rules of the examples are those of `documents.rs`. Commands that need the network stand in blocks of another kind.

use std::fs;

use crate::commands::models::{at_home, place};
use crate::documents::cache_guide::{Example, assert_prints, examples};
use crate::documents::snippets::{Way, blocks_of};
use crate::support::run;

const GUIDE: &str = include_str!("../../../../docs/models.md");

#[test]
fn every_example_of_the_guide_to_models_prints_what_it_shows() {
    let place = place();
    let blocks = blocks_of(Way::ModelCommands);
    let mut modelfiles = blocks.iter().filter(|block| block.kind == "modelfile");
    fs::write(place.path().join("Modelfile"), &modelfiles.next().unwrap().body).unwrap();
    assert_eq!(modelfiles.next(), None, "the one that `create` reads");
    let examples = examples(&blocks);
    for word in ["pull", "list", "show", "cp", "create", "rm"] {
        let shown = |example: &Example<'_>| example.command.starts_with(&format!("poncho {word}"));
        assert!(examples.iter().any(shown), "no example of {word}");
    }
    for example in examples {
        let mut words = example.command.split_whitespace();
        assert_eq!(words.next(), Some("poncho"), "only poncho is run: {}", example.command);
        assert_prints(&example, &run(at_home(place.path()).args(words)));
    }
}

#[test]
fn the_guide_names_every_field_of_a_manifest() {
    let place = place();
    fs::write(
        place.path().join("Modelfile"),
        "FROM ./tiny.gguf\nADAPTER ./lora.gguf\nPARAMETER seed 1\nSYSTEM a\nTEMPLATE {{ .Prompt }}\nMESSAGE user c\nLICENSE d\n",
    )
    .unwrap();
    assert_eq!(run(at_home(place.path()).args(["create", "all"])).code, Some(0));
    let manifest = place.path().join("home/.local/share/poncho/models/manifests/all=latest.json");
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
    let facts = manifest["facts"].as_object().unwrap().keys().map(|key| format!("facts.{key}"));
    for field in manifest.as_object().unwrap().keys().cloned().chain(facts) {
        assert!(GUIDE.contains(&format!("| `{field}` |")), "docs/models.md does not name {field}");
    }
}
