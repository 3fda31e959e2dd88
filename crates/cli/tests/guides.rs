//! The guides do what they say: every fenced block is run, parsed, or compared with the file it comes from.
//!
//! A line of a `sh` block is run as it stands where that is possible, with a tiny model in place of the real one and the
//! server's port in place of 8080; a line for a program that is not ours is checked for what it names. A kind of line
//! or block that is not known here fails the test, so that nothing untried can be added to a guide.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use poncho_cache::HitKind;
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::served::{Served, request};
use crate::support::{poncho, run};

#[path = "../../engine/examples/embed.rs"]
#[expect(dead_code, reason = "its `main` is for people")]
mod embed;
#[path = "../../server/examples/own_server.rs"]
#[expect(dead_code, reason = "its `main` is for people")]
mod own_server;

const GUIDES: [(&str, &str); 6] = [
    ("quick-start", include_str!("../../../docs/quick-start.md")),
    ("agents", include_str!("../../../docs/agents.md")),
    ("configuration", include_str!("../../../docs/configuration.md")),
    ("deploying", include_str!("../../../docs/deploying.md")),
    ("embedding", include_str!("../../../docs/embedding.md")),
    ("safety", include_str!("../../../docs/safety.md")),
];

const MODEL_IN_GUIDES: &str = ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf";
const ADDRESS_IN_GUIDES: &str = "127.0.0.1:8080";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn guide(name: &str) -> &'static str {
    GUIDES.iter().find(|(guide, _)| *guide == name).unwrap().1
}

/// The fenced blocks of a guide with their kinds.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut parts = text.split("\n```");
    parts.next();
    while let Some(block) = parts.next() {
        let (kind, body) = block.split_once('\n').unwrap();
        blocks.push((kind, body));
        assert!(parts.next().is_some(), "a block is not closed: {body}");
    }
    blocks
}

/// The lines of a `sh` block, each with its continuations.
fn lines(block: &str) -> Vec<String> {
    block.replace("\\\n", " ").lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

fn shell(line: &str, folder: &Path) -> (bool, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_poncho"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    for (name, value) in poncho().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["-c", line]).current_dir(root()).env("PATH", path).env("HOME", folder).env("no_proxy", "*");
    let ran = command.output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    (ran.status.success(), text)
}

/// Tries a line, or fails because nobody knows how.
fn try_line(line: &str, address: SocketAddr, folder: &Path) {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["make", target] => {
            let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
            assert!(makefile.contains(&format!("\n{target}:")), "no target {target}: {line}");
        }
        ["curl", ..] if Command::new("curl").arg("--version").output().is_err() => {
            assert!(line.contains(ADDRESS_IN_GUIDES), "{line}");
        }
        ["curl", ..] => {
            let line = line.replace(ADDRESS_IN_GUIDES, &address.to_string()).replacen(
                "curl ",
                "curl -sS --fail-with-body ",
                1,
            );
            let (good, text) = shell(&line, folder);
            assert!(good, "{line}: {text}");
            serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"));
        }
        // What a server would be started with is what `config` accepts; the greeting's test starts one.
        [.., "serve", _, _] | ["poncho", "serve", ..] | [_, "poncho", "serve", ..] => {
            let (good, text) = shell(&line.replace("poncho serve", "poncho config"), folder);
            assert!(good, "{line}: {text}");
        }
        // Findings about the machine that runs the tests are no fault of the guide.
        ["poncho", "doctor", ..] => {
            let (_, text) = shell(line, folder);
            assert!(text.contains("cache folder: "), "{line}: {text}");
        }
        ["poncho", ..] => {
            let (good, text) = shell(line, folder);
            assert!(good, "{line}: {text}");
        }
        ["export", setting] => {
            let (_, value) = setting.split_once('=').unwrap();
            assert!(!value.starts_with("http") || value.contains(ADDRESS_IN_GUIDES), "{line}");
        }
        // Not run: they need root, a network or a daemon. What they name must be there, or come out of the build.
        ["sudo", "install", ..] | ["podman", ..] => {
            for named in words.iter().filter(|word| word.starts_with("packaging/")) {
                assert!(root().join(named).is_file(), "{named}: {line}");
            }
        }
        ["sudo", "systemctl", ..] | ["journalctl", ..] => {}
        _ => panic!("nobody knows how to try this line: {line}"),
    }
}

#[test]
fn every_command_of_the_guides_works() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path());
    let mut tried = 0;
    for (name, text) in GUIDES {
        for (kind, block) in blocks(text) {
            assert!(
                ["sh", "json", "toml", "yaml", "python", "rust"].contains(&kind),
                "{name}: a block of kind `{kind}`"
            );
            if kind == "sh" {
                for line in lines(block) {
                    let model = model_path(ModelKind::Attention);
                    try_line(&line.replace(MODEL_IN_GUIDES, model.to_str().unwrap()), served.address, folder.path());
                    tried += 1;
                }
            }
        }
    }
    assert!(tried >= 25, "{tried} lines were found");
}

#[test]
fn snippets_of_settings_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut kinds = std::collections::BTreeMap::<&str, usize>::new();
    for (name, text) in GUIDES {
        for (kind, block) in blocks(text) {
            *kinds.entry(kind).or_default() += 1;
            match kind {
                "json" => drop(
                    serde_json::from_str::<Value>(block).unwrap_or_else(|error| panic!("{name}: {error}: {block}")),
                ),
                "toml" => {
                    drop(toml::de::DeTable::parse(block).unwrap_or_else(|error| panic!("{name}: {error}: {block}")))
                }
                "yaml" => {
                    let read = yaml_rust2::YamlLoader::load_from_str(block)
                        .unwrap_or_else(|error| panic!("{name}: {error}: {block}"));
                    assert_eq!(read.len(), 1, "{block}");
                }
                "python" => {
                    let path = folder.path().join("snippet.py");
                    std::fs::write(&path, block).unwrap();
                    let check = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
                    let read = Command::new("python3").args(["-c", check]).arg(&path).output();
                    assert!(read.is_ok_and(|read| read.status.success()), "{name}: {block}");
                }
                _ => {}
            }
            for url in block.split(['"', '\'', ' ', '=', '\n']).filter(|word| word.starts_with("http://")) {
                assert!(url.starts_with(&format!("http://{ADDRESS_IN_GUIDES}")), "{name}: {url}");
            }
        }
    }
    for (kind, least) in [("json", 2), ("toml", 2), ("yaml", 3), ("python", 3), ("rust", 2)] {
        assert!(kinds.get(kind).is_some_and(|count| *count >= least), "{kind}: {kinds:?}");
    }
}

#[test]
fn the_settings_file_of_the_reference_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let block = blocks(guide("configuration")).into_iter().find(|(kind, _)| *kind == "toml").unwrap().1;
    let path = folder.path().join("poncho.toml");
    std::fs::write(&path, block).unwrap();
    let report = run(poncho().args(["config", "--json", "--config"]).arg(&path).env("HOME", folder.path())).json();
    let set = report["settings"].as_object().unwrap().values().filter(|setting| setting["layer"] == "file").count();
    assert_eq!(set, block.lines().count());
}

#[test]
fn what_each_client_calls_is_a_route() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path());
    let agents = guide("agents");
    let rows = agents.lines().filter(|line| line.starts_with("| ") && line.contains("http://"));
    let mut clients = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [client, base, calls] = cells.as_slice() else { panic!("{row}") };
        let prefix = base.trim_matches('`').strip_prefix(&format!("http://{ADDRESS_IN_GUIDES}")).unwrap();
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
    let embedding = guide("embedding");
    let shown: Vec<&str> =
        blocks(embedding).into_iter().filter(|(kind, _)| *kind == "rust").map(|(_, body)| body).collect();
    for (path, shown) in ["crates/engine/examples/embed.rs", "crates/server/examples/own_server.rs"].iter().zip(shown) {
        let file = std::fs::read_to_string(root().join(path)).unwrap();
        let (_, code) = file.split_once("\n\n").unwrap();
        assert_eq!(code.trim_end(), shown.trim_end(), "docs/embedding.md does not show {path} as it is");
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
    assert!(second.cache_delta.read > 500, "{:?}", second.cache_delta);
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
