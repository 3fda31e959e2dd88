//! Settings that documents show: those of Poncho are given to it, those of clients are read in their format.
//!
//! The clients themselves are not run here; that what they call is served is in `guides.rs`.

use std::process::Command;

use super::{ADDRESS_IN_DOCUMENTS, Way, all_blocks, blocks_of};
use crate::support::{poncho, run};

#[test]
fn settings_of_poncho_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    for block in blocks_of(Way::PonchoSettings) {
        let path = folder.path().join("poncho.toml");
        std::fs::write(&path, &block.body).unwrap();
        let report = run(poncho().args(["config", "--json", "--config"]).arg(&path).env("HOME", folder.path())).json();
        let set = report["settings"].as_object().unwrap().values().filter(|setting| setting["layer"] == "file").count();
        // Sections of models are not settings of the server.
        let of_server = block.body.lines().take_while(|line| !line.starts_with('['));
        assert_eq!(set, of_server.filter(|line| line.contains('=')).count(), "{}", block.place());
    }
}

#[test]
fn settings_of_clients_can_be_read() {
    let mut kinds = std::collections::BTreeSet::new();
    for block in blocks_of(Way::ClientSettings) {
        let (place, body) = (block.place(), block.body.as_str());
        match block.kind.as_str() {
            "json" => {
                let read = serde_json::from_str::<serde_json::Value>(body);
                assert!(read.as_ref().is_ok_and(serde_json::Value::is_object), "{place}: {read:?}");
            }
            "toml" => drop(toml::de::DeTable::parse(body).unwrap_or_else(|error| panic!("{place}: {error}"))),
            "yaml" => {
                let read = yaml_rust2::YamlLoader::load_from_str(body);
                assert_eq!(read.unwrap_or_else(|error| panic!("{place}: {error}")).len(), 1, "{place}");
            }
            kind => panic!("{place}: nobody reads {kind}"),
        }
        kinds.insert(block.kind);
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["json", "toml", "yaml"]);
}

#[test]
fn programs_can_be_read_and_every_address_is_the_servers() {
    let folder = tempfile::tempdir().unwrap();
    let mut programs = 0;
    for block in all_blocks().iter().filter(|block| block.document != "docs/benchmarks.md") {
        if block.kind == "python" {
            let path = folder.path().join("snippet.py");
            std::fs::write(&path, &block.body).unwrap();
            let check = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
            let read = Command::new("python3").args(["-c", check]).arg(&path).output().unwrap();
            assert!(read.status.success(), "{}: {}", block.place(), String::from_utf8_lossy(&read.stderr));
            programs += 1;
        }
        for url in block.body.split(['"', '\'', ' ', '=', '\n']).filter(|word| word.starts_with("http://")) {
            // The guide to chat shows what is said about a server that is not there, one page has an object store, and
            // the guide to agents has the port of `poncho mcp`.
            let expected = url.starts_with(&format!("http://{ADDRESS_IN_DOCUMENTS}"))
                || url == "http://127.0.0.1:1"
                || (url == "http://127.0.0.1:8333" && block.document == "docs/shared-cache.md")
                || (url == "http://127.0.0.1:8090/mcp" && block.document == "docs/agents.md");
            assert!(expected, "{}: {url}", block.place());
        }
    }
    assert!(programs >= 3, "{programs} programs");
}
