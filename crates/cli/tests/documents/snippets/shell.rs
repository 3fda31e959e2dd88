//! The lines that documents give for a shell are run as `place.rs` says.
//!
//! A `poncho serve` is run until it greets, and then ended with Ctrl-C. What `curl` brings must be a good answer in JSON.
//! `make` prints what it would do (`make newcomer` does it); only `make help` is run. `poncho doctor` may find something on
//! the machine that runs the tests. Any other line must exit with 0. There is no line that is passed over.

use serde_json::Value;

use super::place::{Place, lines};
use super::{Way, all_blocks, blocks_of, root};
use crate::served::{Served, request};
use crate::support::run;

fn try_line(place: &Place, line: &str) {
    let words: Vec<&str> = line.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
    let is_assignment = |word: &&&str| word.contains('=') && !word.starts_with('-');
    let assigned = words.iter().take_while(is_assignment).count();
    match &words[assigned..] {
        ["make", "help"] => {
            let printed = run(place.shell("make help").current_dir(root()));
            assert!(printed.good().contains("make run"), "{}", printed.stdout);
        }
        ["make", words @ ..] => {
            let would = run(place.shell(&format!("make --dry-run {}", words.join(" "))).current_dir(root()));
            assert_eq!(would.code, Some(0), "$ {line}\n{}", would.stderr);
            assert!(!would.stdout.is_empty(), "$ {line}");
        }
        ["curl", ..] => {
            let line = line.replacen("curl ", "curl -sS --fail-with-body ", 1);
            let answer = place.must_work(&line).stdout;
            serde_json::from_str::<Value>(&answer).unwrap_or_else(|error| panic!("$ {line}\n{error}: {answer}"));
        }
        ["poncho", "serve", ..] => {
            let line = place.translated(line).replacen("poncho serve", "exec poncho serve", 1);
            let mut command = place.shell(&line);
            command.env("PONCHO_PORT", "0").env("PONCHO_THREADS", "1");
            let folder = tempfile::tempdir().unwrap();
            let (code, last) = Served::start_command(&mut command, folder.path()).stop();
            assert_eq!(code, Some(0), "$ {line}\n{last}");
        }
        ["poncho", "doctor", ..] => {
            let found = run(&mut place.shell(&place.translated(line)));
            assert!(found.stdout.contains("cache folder: "), "$ {line}\n{}{}", found.stdout, found.stderr);
        }
        ["export", setting] => {
            place.must_work(line);
            let (_, value) = setting.split_once('=').unwrap();
            if let Some(rest) = place.translated(value).strip_prefix("http://") {
                let path = rest
                    .strip_prefix(&place.address().to_string())
                    .unwrap_or_else(|| panic!("not an address of the server: {line}"));
                let path = if path == "/v1" { "/v1/models" } else { "/api/version" };
                assert_eq!(request(place.address(), "GET", path, "").0, 200, "{line}");
            }
        }
        ["poncho" | "sudo", ..] => drop(place.must_work(line)),
        _ => panic!("nobody knows how to try this line: {line}"),
    }
}

#[test]
fn every_line_for_the_shell_works() {
    let place = Place::new();
    for (number, trace) in blocks_of(Way::Trace).iter().enumerate() {
        place.write("conversation.json", &trace.body);
        place.write(&format!("traces/{number}.short.json"), &trace.body);
    }
    let mut tried = 0;
    for block in blocks_of(Way::Shell) {
        for line in lines(&block.body) {
            // Shown by the runner for a test that fails.
            println!("{}: {line}", block.place());
            try_line(&place, &line);
            tried += 1;
        }
    }
    assert!(tried >= 30, "{tried} lines were found");
}

#[test]
fn what_is_installed_is_what_the_unit_names() {
    let place = Place::new();
    let blocks = blocks_of(Way::Shell);
    let installing = blocks.iter().find(|block| block.opens().starts_with("sudo install")).unwrap();
    for line in lines(&installing.body) {
        place.must_work(&line);
    }
    let system = place.path().join("system");
    let unit = std::fs::read_to_string(system.join("etc/systemd/system/poncho.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    // Its paths lead into the folder, as those of every file in `packaging` do there.
    for path in start.split_whitespace().filter(|word| word.starts_with('/')) {
        assert!(path.starts_with(system.to_str().unwrap()), "{path}");
        assert!(std::path::Path::new(path).is_file(), "the unit names {path}, which nobody installed");
    }
    let checked = run(&mut place.shell(&start.replacen(" serve", " config", 1)));
    assert!(checked.good().contains("model.gguf"), "{}", checked.stdout);
}

#[test]
fn the_traces_that_are_shown_can_be_replayed() {
    let place = Place::new();
    for trace in blocks_of(Way::Trace) {
        place.write("shown.json", &trace.body);
        let report = place.must_work("poncho bench replay --model model.gguf --threads 1 --json shown.json").json();
        let recorded: Value = serde_json::from_str(&trace.body).unwrap();
        assert_eq!(report["traces"][0]["requests"], recorded["requests"].as_array().unwrap().len());
    }
}

#[test]
fn make_run_takes_a_path_with_spaces_and_parentheses() {
    for (given, word) in [
        ("my models/it's (1).gguf", r"'my models/it'\''s (1).gguf'"),
        ("~/my models/a.gguf", "'/h/my models/a.gguf'"),
        ("a.gguf", "'a.gguf'"),
    ] {
        let mut make = std::process::Command::new("make");
        make.args(["--dry-run", "run", &format!("MODEL={given}")]).current_dir(root()).env("HOME", "/h");
        let would = run(&mut make);
        assert_eq!(would.code, Some(0), "{}", would.stderr);
        assert!(would.stdout.contains(&format!("serve --model {word}")), "{}", would.stdout);
    }
}

#[test]
fn every_benchmark_that_a_document_names_is_there() {
    let mut named = 0;
    for block in all_blocks() {
        for line in lines(&block.body).iter().filter(|line| line.starts_with("cargo bench")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let after = |flag: &str| words.iter().skip_while(|word| **word != flag).nth(1).copied();
            let crate_folder = after("-p").unwrap().trim_start_matches("poncho-");
            let manifest = root().join("crates").join(crate_folder).join("Cargo.toml");
            let manifest = std::fs::read_to_string(manifest).unwrap();
            let bench = after("--bench").unwrap();
            let declared =
                manifest.split("[[bench]]").skip(1).any(|part| part.contains(&format!("name = \"{bench}\"")));
            assert!(declared, "{}: no benchmark {bench}: {line}", block.place());
            assert_eq!(after("--profile"), Some("release"), "{}: another profile is another build", block.place());
            named += 1;
        }
    }
    assert!(named >= 5, "{named} benchmarks are named");
}
