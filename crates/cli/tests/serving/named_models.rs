//! `poncho serve` with names instead of paths: which model is meant, what is loaded on demand, which hints a newcomer gets.

use std::path::Path;

use poncho_models::{ModelName, Registry, ignore_progress};
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::served::{Served, serve_without_model};
use crate::serving::stopping::until;
use crate::support::{poncho, run};

/// A server with a folder of models.
fn serve(folder: &Path, words: &[&str]) -> Served {
    let mut command = serve_without_model(&folder.join("kv"));
    command.args(["--port", "0", "--parallel", "1", "--models-dir"]).arg(folder.join("models")).args(words);
    Served::start_command(&mut command, folder)
}

/// Which model answers to a name.
fn answers(served: &Served, name: &str) -> String {
    let body = json!({"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]});
    served.post("/v1/chat/completions", &body)["model"].as_str().unwrap().to_owned()
}

/// Ends it as a service manager does.
fn terminate(served: Served) {
    let (code, last) = served.terminate();
    assert_eq!(code, Some(0), "{last}");
}

fn install(folder: &Path, name: &str) {
    let registry = Registry::open(folder.join("models")).unwrap();
    let name = ModelName::parse(name).unwrap();
    registry.import(&model_path(ModelKind::Attention), &name, &mut ignore_progress).unwrap();
}

#[test]
fn names_aliases_and_paths_find_their_model() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "small:v1");
    let path = model_path(ModelKind::Hybrid);
    let words = ["--model", path.to_str().unwrap(), "--alias", "claude-*=small:v1", "--keep-alive", "-1"];
    let served = serve(folder.path(), &words);
    let first = path.file_stem().unwrap().to_str().unwrap();
    assert_eq!(answers(&served, first), first);
    assert_eq!(answers(&served, "gpt-4o"), first, "a name that nobody knows");
    let loaded = |served: &Served| {
        let (_, text) = served.ask("GET", "/api/ps");
        serde_json::from_str::<Value>(&text).unwrap()["models"].as_array().unwrap().len()
    };
    assert_eq!(loaded(&served), 1);
    assert_eq!(answers(&served, "claude-sonnet"), "small:v1", "loaded on demand");
    assert_eq!((answers(&served, "small:v1").as_str(), loaded(&served)), ("small:v1", 2));
    terminate(served);
}

#[test]
fn memory_for_stored_states_is_bounded_and_watched_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "small:v1");
    let cache = |words: &[&str]| {
        let served = serve(folder.path(), &[&["--model", "small:v1"], words].concat());
        let mut told = Value::Null;
        until("the watcher's first look", || {
            told = serde_json::from_str(&served.ask("GET", "/api/cache").1).unwrap();
            told["pressure"]["on"] == false || told["pressure"]["samples"].as_u64().unwrap() > 0
        });
        terminate(served);
        told
    };
    let ram = |cache: &Value| {
        let tiers = cache["tiers"].as_array().unwrap();
        tiers.iter().find(|tier| tier["tier"] == "ram").unwrap()["quota"].as_u64().unwrap()
    };
    let plain = cache(&[]);
    assert!(ram(&plain) >= 64 << 20 && plain["pressure"]["on"] == json!(false), "what fits is chosen: {plain}");
    let asked = cache(&["--cache-ram", "3MiB", "--pressure", "system"]);
    assert_eq!((ram(&asked), &asked["pressure"]["on"]), (3 << 20, &json!(true)), "{asked}");
    let sample = &asked["pressure"]["last_sample"];
    assert!(sample["total"].as_u64().unwrap() > sample["used"].as_u64().unwrap(), "{asked}");
}

#[test]
fn the_default_model_is_used_or_the_way_to_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |words: &[&str]| {
        let mut command = poncho();
        command.arg("serve").args(["--port", "0", "--models-dir"]).arg(folder.path().join("models"));
        run(command.arg("--cache-dir").arg(folder.path().join("kv")).args(words))
    };
    let missing = refused(&[]);
    assert!(missing.failed().contains("poncho pull smollm2:135m"), "{}", missing.stderr);
    install(folder.path(), "small:v1");
    let typo = refused(&["--model", "smal:v1"]);
    assert!(typo.failed().contains("small:v1"), "{}", typo.stderr);
    let path = refused(&["--model", "./nothing.gguf"]);
    assert!(path.failed().contains("./nothing.gguf does not exist"), "{}", path.stderr);
    for (words, said) in [
        (["--alias", "nothing"], "NAME=MODEL"),
        (["--keep-alive", "soon"], "5m"),
        (["--memory", "much"], "none for no limit"),
    ] {
        let wrong = refused(&words);
        assert!(wrong.code == Some(2) && wrong.stderr.contains(said), "{}", wrong.stderr);
    }
    install(folder.path(), "smollm2:135m");
    let served = serve(folder.path(), &[]);
    assert_eq!(answers(&served, "smollm2:135m"), "smollm2:135m");
    terminate(served);
}

/// Everyday use 12: without the default model the server refused to start.
#[test]
fn without_the_default_model_another_installed_one_is_served() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "small:v1");
    install(folder.path(), "other:v2");
    let served = serve(folder.path(), &[]);
    let line = served.greeting.lines().next().unwrap().to_owned();
    assert!(line.starts_with("the default model smollm2:135m is not installed; using "), "{line}");
    assert!(line.contains("small:v1") && line.contains("other:v2") && line.contains("--model"), "{line}");
    for name in ["small:v1", "other:v2"] {
        assert_eq!(answers(&served, name), name);
    }
    terminate(served);
}
