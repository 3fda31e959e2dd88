//! What the guides say beyond their blocks: the routes that clients call, and examples in Rust that are files of their own.

use poncho_cache::HitKind;
use poncho_testkit::{ModelKind, model_path};
use serde_json::json;

use crate::documents::snippets::{ADDRESS_IN_DOCUMENTS, Way, blocks_of, root};
use crate::served::{Served, request};

#[path = "../../../engine/examples/embed.rs"]
#[expect(dead_code, reason = "its `main` is for people")]
mod embed;
#[path = "../../../../tests/e2e/examples/own_server.rs"]
#[expect(dead_code, reason = "its `main` is for people")]
mod own_server;

#[test]
fn what_each_client_calls_is_a_route() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path());
    let agents = include_str!("../../../../docs/agents.md");
    let rows = agents.lines().filter(|line| line.starts_with("| ") && line.contains("http://"));
    let mut clients = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [client, base, calls] = cells.as_slice() else { panic!("{row}") };
        let prefix = base.trim_matches('`').strip_prefix(&format!("http://{ADDRESS_IN_DOCUMENTS}")).unwrap();
        for call in calls.split(", ") {
            let path = format!("{prefix}{}", call.trim_matches('`'));
            // A route answers 200, or 405 to a GET where it wants a POST; anything unknown is 404.
            let (status, text) = request(served.address, "GET", &path, "");
            assert!([200, 405].contains(&status), "{client}: {path}: {status} {text}");
            if status == 405 {
                let (status, text) = request(served.address, "POST", &path, "{}");
                assert_eq!(status, 400, "{client}: {path}: {text}");
            }
        }
        clients.push(client.split(',').next().unwrap());
    }
    for name in ["Claude Code", "Codex", "opencode", "aider", "Open WebUI", "Continue", "LangChain", "LiteLLM"] {
        assert!(clients.contains(&name), "{name} has no row");
        let section = agents.split(&format!("\n## {name}\n")).nth(1).unwrap_or_else(|| panic!("{name} has no section"));
        let section = section.split("\n## ").next().unwrap();
        let is_row = |line: &&str| line.starts_with(&format!("| {name}")) && line.contains("http://");
        for row in agents.lines().filter(is_row) {
            let base = row.split('`').nth(1).unwrap();
            let ends = |quote: &str| section.contains(&format!("{base}{quote}"));
            assert!(ends("\"") || ends("\n"), "{name}: its section does not set {base}");
        }
    }
}

#[test]
fn code_in_the_guides_is_the_code_of_the_examples() {
    let shown = blocks_of(Way::RustExample);
    let files = ["crates/engine/examples/embed.rs", "tests/e2e/examples/own_server.rs"];
    assert_eq!(shown.len(), files.len(), "a file for each");
    for (path, block) in files.iter().zip(shown) {
        let file = std::fs::read_to_string(root().join(path)).unwrap();
        let (_, code) = file.split_once("\n\n").unwrap();
        assert_eq!(code.trim_end(), block.body.trim_end(), "{} does not show {path} as it is", block.place());
    }
}

#[test]
fn the_example_of_a_model_works_and_is_warm_the_second_time() {
    let folder = tempfile::tempdir().unwrap();
    let question = "What is a poncho, what is it made of, and who wears one? ".repeat(12);
    let messages = json!([{"role": "user", "content": question}]).to_string();
    let model = embed::load(&model_path(ModelKind::Attention), folder.path()).unwrap();
    let mut out = Vec::new();
    let first = embed::ask(&model, &messages, &mut out).unwrap();
    assert_eq!(first.hit, HitKind::Cold);
    let second = embed::ask(&model, &messages, &mut out).unwrap();
    assert_ne!(second.hit, HitKind::Cold);
    assert!(second.cached_tokens > 500, "{:?}", second.cached_tokens);
    model.shut_down().unwrap();
}

#[test]
fn the_example_of_a_server_works() {
    let folder = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let asking = std::thread::spawn(move || {
        // The listener is open already, so the connection waits until the model is loaded.
        let answer = request(address, "GET", "/v1/models", "");
        let _ = stop.send(());
        answer
    });
    let until = async {
        let _ = stopped.await;
    };
    own_server::run(&model_path(ModelKind::Attention), folder.path(), listener, until).unwrap();
    let (status, text) = asking.join().unwrap();
    assert!(status == 200 && text.contains("mine"), "{text}");
}

#[test]
fn the_index_names_every_guide() {
    let index = std::fs::read_to_string(root().join("docs/README.md")).unwrap();
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && name != "README.md" {
            assert!(index.contains(&format!("({name})")), "docs/README.md does not name {name}");
        }
    }
}
