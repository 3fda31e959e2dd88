//! `poncho config`: what it prints about flags, variables and the file, and that the server obeys all three.

use std::path::Path;

use serde_json::json;

use crate::served::{Served, serve_command};
use crate::support::{Run, poncho, prepare, run};

fn write(folder: &Path, text: &str) -> String {
    let path = folder.join("poncho.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn each_value_comes_with_its_origin_and_keys_stay_hidden() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "port = 9000\nparallel = 2\napi_key = [\"sk-one\", \"sk-two\"]\n");
    let mut command = poncho();
    command.args(["config", "--json", "--config", &file, "--parallel", "3"]).env("PONCHO_CTX_SIZE", "1024");
    let report = run(&mut command).json();
    let setting = |name: &str| &report["settings"][name];
    let line = |number: usize| format!("{file}:{number}");
    assert_eq!(*setting("port"), json!({"value": 9000, "layer": "file", "origin": line(1)}));
    assert_eq!(*setting("parallel"), json!({"value": 3, "layer": "flag", "origin": "--parallel"}));
    assert_eq!(*setting("ctx_size"), json!({"value": 1024, "layer": "environment", "origin": "PONCHO_CTX_SIZE"}));
    assert_eq!(*setting("api_key"), json!({"value": ["***", "***"], "layer": "file", "origin": line(3)}));
    assert_eq!(*setting("host"), json!({"value": "127.0.0.1", "layer": "default", "origin": "default"}));
    assert_eq!(*setting("open"), json!({"value": false, "layer": "default", "origin": "default"}));
    assert_eq!(report["file"], file.as_str());

    let mut command = poncho();
    let text = run(command.args(["config", "--config", &file]).env("PONCHO_API_KEY", "sk-three"));
    let text = text.good();
    assert!(text.contains("PONCHO_API_KEY") && !text.contains("sk-"), "{text}");
    assert!(text.lines().any(|row| row.starts_with("port ") && row.contains("9000") && row.ends_with(":1")), "{text}");
}

#[test]
fn the_default_file_is_read_and_one_in_the_working_folder_is_not() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "port = 1\nopen = true\n");
    let port = |command: &mut std::process::Command| {
        run(command.args(["config", "--json"])).json()["settings"]["port"].clone()
    };
    let here = port(poncho().current_dir(folder.path()).env("HOME", folder.path()).env_remove("XDG_CONFIG_HOME"));
    assert_eq!(here["layer"], "default", "a cloned repository must not decide where a server listens");
    let home = folder.path().join(".config/poncho");
    std::fs::create_dir_all(&home).unwrap();
    write(&home, "port = 2\n");
    let at_home = port(poncho().env("HOME", folder.path()).env_remove("XDG_CONFIG_HOME"));
    assert_eq!((&at_home["value"], &at_home["layer"]), (&json!(2), &json!("file")));
    let named =
        port(poncho().current_dir(folder.path()).env("HOME", folder.path()).env("PONCHO_CONFIG", "poncho.toml"));
    assert_eq!((&named["value"], &named["origin"]), (&json!(1), &json!("poncho.toml:1")));
}

/// The message of a run with wrong settings: the service must not be started again.
#[track_caller]
fn misconfigured(run: &Run) -> &str {
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{}", run.stderr);
    assert!(run.stderr.starts_with("error: "), "{}", run.stderr);
    &run.stderr
}

#[test]
fn a_home_that_is_not_a_folder_has_no_settings_file() {
    let mut command = poncho();
    let config = run(command.args(["config", "--json"]).env("HOME", "/dev/null")).json();
    assert_eq!((&config["file"], &config["settings"]["port"]["layer"]), (&json!(null), &json!("default")));
    let named = run(poncho().args(["config", "--config", "/dev/null/poncho.toml"]));
    assert!(misconfigured(&named).contains("does not exist"), "{}", named.stderr);
}

#[test]
fn wrong_variables_and_lines_end_every_command_that_uses_them() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&["config"][..], &["doctor"], &["serve"]] {
        let wrong = run(poncho().args(words).env("PONCHO_PARALLEL", "many"));
        let said = misconfigured(&wrong);
        assert!(said.contains("PONCHO_PARALLEL is `many`"), "{words:?}: {said}");
        let file = write(folder.path(), "\n\nprt = 1\n");
        let wrong = run(poncho().args(words).args(["--config", &file]));
        let said = misconfigured(&wrong);
        assert!(said.contains("poncho.toml:3: unknown setting `prt`; did you mean `port`?"), "{words:?}: {said}");
    }
    let secret = run(poncho().args(["config"]).env("PONCHO_API_KEY", "sk-secret").env("PONCHO_PORT", "x"));
    assert!(!misconfigured(&secret).contains("sk-secret"), "{}", secret.stderr);
}

#[test]
fn the_server_obeys_the_file_and_the_cache_commands_follow_it() {
    let folder = tempfile::tempdir().unwrap();
    let kv = folder.path().join("from-file");
    let text = format!("port = 0\nname = \"named-by-file\"\ncache_dir = {:?}\n", kv.to_str().unwrap());
    let file = write(folder.path(), &text);
    let mut command = serve_command(&kv);
    let served = Served::start_command(command.env("PONCHO_CONFIG", &file), folder.path());
    assert!(served.greeting.contains("serving named-by-file on"), "{}", served.greeting);
    assert_eq!(served.ask("GET", "/health").0, 200);
    drop(served);
    std::fs::remove_dir_all(&kv).unwrap();
    let stat = || run(poncho().args(["cache", "stat", "--json"]).env("PONCHO_CONFIG", &file)).json();
    assert_eq!(stat()["rows"], 0, "a folder of the file may be missing, like the default one");
    prepare(&kv);
    assert_eq!(stat()["rows"], 5);
}

#[test]
fn keys_of_every_layer_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve_command(&folder.path().join("kv"));
    let served =
        Served::start_command(command.args(["--port", "0"]).env("PONCHO_API_KEY", "sk-variable"), folder.path());
    assert_eq!(served.ask("GET", "/v1/models").0, 401);
    assert!(
        !served.greeting.contains("sk-variable") && served.greeting.contains("$PONCHO_API_KEY"),
        "{}",
        served.greeting
    );
}
