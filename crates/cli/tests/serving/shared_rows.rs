//! `poncho run` and `poncho serve` on one cache folder or one object store: what one has computed, the other does not
//! compute again.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::served::{Served, serve_without_model};
use crate::support::{poncho, run};

/// A prompt that is long enough for a row, different for each number.
fn prompt(number: usize) -> String {
    format!("Task {number}. ") + &"Read this carefully and answer in one line. ".repeat(20)
}

/// `poncho run` at a server, or in its own process.
fn ask(home: &Path, model: &Path, words: &[&str], prompt: &str) -> Value {
    let mut command = poncho();
    command.args(["run", "--json", "--max-tokens", "4", "--temperature", "0"]).args(words);
    run(command.arg(model).arg(prompt).env("HOME", home).env_remove("XDG_STATE_HOME")).json()
}

/// Whether all but the end of the prompt was cached, or no more than what the template puts before all of them.
#[track_caller]
fn assert_cached(is_cached: bool, answer: &Value, what: &str) {
    let cached = answer["cached_tokens"].as_u64().unwrap();
    assert!(if is_cached { cached > 500 } else { cached < 100 }, "{what}: {answer}");
}

/// Everyday use 2: 2,699 of 2,705 tokens were computed again by the other command.
#[test]
fn run_and_serve_find_each_others_rows_whatever_their_settings() {
    let home = tempfile::tempdir().unwrap();
    let kv = home.path().join("kv");
    let folder = ["--cache-dir", kv.to_str().unwrap()];
    let alone = [&["--local", "--threads", "1"][..], &folder].concat();
    let settings: [&[&str]; 5] = [
        &[],
        &["--parallel", "1", "--kv-layout", "split"],
        &["--parallel", "2", "--kv-layout", "unified", "--keep-alive", "1h", "--cache-ram", "0"],
        &["--parallel", "3", "--cache-size", "1GiB", "--batch-size", "256", "--threads-batch", "2"],
        &["--parallel", "1", "--ubatch-size", "64", "--queue-limit", "3"],
    ];
    for (kind, model) in [ModelKind::Attention, ModelKind::Hybrid].map(|kind| (kind, model_path(kind))) {
        for (number, words) in settings.iter().enumerate() {
            let what = format!("{kind:?} with {words:?}");
            let (of_run, of_serve) = (prompt(2 * number), prompt(2 * number + 1));
            assert_cached(false, &ask(home.path(), &model, &alone, &of_run), &what);
            let mut command = serve_without_model(&kv);
            command.args(["--port", "0", "--model"]).arg(&model).args(*words);
            let served = Served::start_command(&mut command, home.path());
            let url = ["--url", &served.url()[..]];
            assert_cached(true, &ask(home.path(), &model, &url, &of_run), &format!("{what}, from run to serve"));
            assert_cached(false, &ask(home.path(), &model, &url, &of_serve), &what);
            assert_eq!(served.stop().0, Some(0));
            assert_cached(true, &ask(home.path(), &model, &alone, &of_serve), &format!("{what}, from serve to run"));
        }
    }
}

fn until_store_is_used(served: &Served) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !served.ask("GET", "/metrics").1.contains("\nponcho_shared_on 1\n") {
        assert!(Instant::now() < deadline, "the store is not used: {}", served.messages());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Fetches are tried this often: one that is slower than a tiny model computes is left alone, as it should be.
const ATTEMPTS: usize = 8;

/// `poncho run` ignored `--shared`: it computed what the store had, and its own rows stayed on one machine.
#[test]
fn run_and_serve_on_two_machines_find_each_others_rows_in_the_store() {
    let home = tempfile::tempdir().unwrap();
    let store = format!("file://{}", home.path().join("store").display());
    let model = model_path(ModelKind::Attention);
    // Long enough for a fetch to be worth it.
    let long = |number: usize| format!("Task {number}. ") + &"Read this carefully, then go on. ".repeat(90);
    let run_on = |machine: &str, prompt: &str| {
        let mut command = poncho();
        command.args(["run", "--local", "--json", "--max-tokens", "4", "--temperature", "0", "--threads", "1"]);
        command.arg("--cache-dir").arg(home.path().join(machine)).env("PONCHO_SHARED", &store);
        run(command.arg(&model).arg(prompt).env("HOME", home.path()).env_remove("XDG_STATE_HOME")).json()
    };
    let serve_on = |machine: &str| {
        let mut command = serve_without_model(&home.path().join(machine));
        command.args(["--port", "0", "--shared", &store, "--model"]).arg(&model);
        Served::start_command(&mut command, home.path())
    };
    let eventually = |what: &str, is_found: &dyn Fn(usize) -> bool| {
        assert!((0..ATTEMPTS).any(is_found), "{what}: not in {ATTEMPTS} attempts");
    };
    let cached = |answer: &Value| answer["cached_tokens"].as_u64().unwrap();
    assert!(cached(&run_on("one", &long(1))) < 100);
    eventually("from run to run", &|attempt| cached(&run_on(&format!("two{attempt}"), &long(1))) > 1000);
    eventually("from run to serve", &|attempt| {
        let served = serve_on(&format!("three{attempt}"));
        let body = json!({"model": "attention", "max_tokens": 4, "temperature": 0, "poncho": true,
            "messages": [{"role": "user", "content": long(1)}]});
        until_store_is_used(&served);
        let explained = served.post("/api/cache/explain", &body);
        assert_eq!((&explained["usable"], &explained["remote"]["tier"]), (&json!(0), &json!("shared")), "{explained}");
        assert!(explained["remote"]["tokens"].as_u64() > Some(1000), "{explained}");
        let answer = served.post("/v1/chat/completions", &body);
        let is_found = answer["poncho"]["tier"] == "shared";
        if is_found {
            assert_eq!(served.post("/api/cache/explain", &body)["remote"], Value::Null, "it is here now");
        }
        assert_eq!(served.stop().0, Some(0));
        is_found
    });
}

/// `poncho cache explain` ignored the store.
#[test]
fn tokens_are_looked_up_in_the_store_as_well_as_in_the_folder() {
    let home = tempfile::tempdir().unwrap();
    let (store, folder) = (format!("file://{}", home.path().join("store").display()), home.path().join("kv"));
    let key_file = home.path().join("key");
    std::fs::write(&key_file, "a1".repeat(32)).unwrap();
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let model = model_path(ModelKind::Attention);
    let mut command = serve_without_model(&folder);
    command.args(["--port", "0", "--shared", &store, "--save-min-tokens", "16"]);
    command.arg("--shared-key-file").arg(&key_file).arg("--model").arg(&model);
    let served = Served::start_command(&mut command, home.path());
    let tokens: Vec<u32> = (5..400).map(|number| number % 200 + 10).collect();
    served.post("/v1/completions", &json!({"model": "attention", "prompt": tokens, "max_tokens": 2}));
    until_store_is_used(&served);
    assert_eq!(served.stop().0, Some(0));
    let (asked, other) = (home.path().join("tokens.json"), home.path().join("other.json"));
    let longer: Vec<u32> = tokens.iter().copied().chain([7, 8, 9]).collect();
    std::fs::write(&asked, json!(longer).to_string()).unwrap();
    std::fs::write(&other, json!(vec![3; 300]).to_string()).unwrap();
    let explain = |folder: &Path, tokens: &Path, words: &[&str]| {
        let mut command = poncho();
        command
            .args(["cache", "explain", "--cache-dir"])
            .arg(folder)
            .arg("--tokens")
            .arg(tokens)
            .args(words)
            .env("PONCHO_SHARED_KEY_FILE", &key_file);
        run(&mut command)
    };
    let empty = home.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for folder in [&folder, &empty] {
        let found = explain(folder, &asked, &["--json", "--shared", &store]).json();
        assert_eq!(found["shared"]["row"]["tokens"], 395, "{found}");
        let ran = explain(folder, &asked, &["--shared", &store]);
        let text = ran.good();
        assert!(text.contains("shared tier    395 of 398 tokens, "), "{text}");
    }
    let ran = explain(&folder, &other, &["--shared", &store]);
    let text = ran.good();
    assert!(text.contains("shared tier    no row begins these tokens in file://"), "{text}");
    let found = explain(&folder, &asked, &["--json"]).json();
    assert!(found.get("shared").is_none(), "no store is configured: {found}");
}

/// The bytes of all files below a folder.
fn bytes_below(folder: &Path) -> Vec<Vec<u8>> {
    let below = |entry: std::fs::DirEntry| {
        let path = entry.path();
        if path.is_dir() { bytes_below(&path) } else { vec![std::fs::read(path).unwrap()] }
    };
    std::fs::read_dir(folder).unwrap().flatten().flat_map(below).collect()
}

#[test]
fn an_encrypted_store_shows_nothing_of_a_prompt_that_a_server_uploaded() {
    let home = tempfile::tempdir().unwrap();
    let key_file = home.path().join("key");
    std::fs::write(&key_file, "a1".repeat(32)).unwrap();
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let tokens: Vec<u32> = (5..400).map(|number| number * 7 % 200 + 10).collect();
    let runs = tokens.windows(4).map(|run| run.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>());
    let runs: std::collections::HashSet<Vec<u8>> = runs.collect();
    let words = "Xylophonkonzert quicksilverbadger";
    for is_encrypted in [false, true] {
        let store = home.path().join(format!("store-{is_encrypted}"));
        let mut command = serve_without_model(&home.path().join(format!("kv-{is_encrypted}")));
        command.args(["--port", "0", "--save-min-tokens", "16", "--model"]).arg(model_path(ModelKind::Attention));
        command.args(["--shared", &format!("file://{}", store.display())]);
        if is_encrypted {
            command.arg("--shared-key-file").arg(&key_file);
        }
        let served = Served::start_command(&mut command, home.path());
        for prompt in [json!(tokens), json!(words.repeat(20))] {
            served.post("/v1/completions", &json!({"model": "attention", "prompt": prompt, "max_tokens": 2}));
        }
        until_store_is_used(&served);
        assert_eq!(served.stop().0, Some(0));
        let objects = bytes_below(&store);
        assert!(objects.len() > 4, "rows were uploaded: {} objects", objects.len());
        let shows_tokens = objects.iter().any(|bytes| bytes.windows(16).any(|window| runs.contains(window)));
        assert_eq!(shows_tokens, !is_encrypted, "encrypted: {is_encrypted}");
        // The text of a prompt is not part of what is uploaded, with a key or without one.
        for word in words.split(' ').map(str::as_bytes) {
            assert!(!objects.iter().any(|bytes| bytes.windows(word.len()).any(|window| window == word)));
        }
    }
}
