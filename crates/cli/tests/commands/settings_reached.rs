//! Settings that reach parts of the engine and the cache which nothing else does: the tier of files in memory, the
//! signing key, llama.cpp's own options, the bounds of the server. Each is seen to work, not only to be accepted.

use std::path::Path;

use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::served::{Served, request, serve_command, serve_without_model};
use crate::support::{poncho, run};

const QUESTION: &str =
    "Tell me everything about the ponchos of the high plains, and leave nothing out of it at all, please.";

fn start(folder: &Path, words: &[&str]) -> Served {
    Served::start_command(serve_command(&folder.join("kv")).args(["--port", "0"]).args(words), folder)
}

/// How many tokens of the prompt were found, and computed.
fn found_and_computed(served: &Served) -> (u64, u64) {
    let body = json!({"model": "m", "max_tokens": 2, "temperature": 0, "poncho": true,
        "messages": [{"role": "user", "content": QUESTION.repeat(20)}]});
    let facts = served.post("/v1/chat/completions", &body)["poncho"].clone();
    (facts["cached_tokens"].as_u64().unwrap(), facts["new_tokens"].as_u64().unwrap())
}

fn rows_in(folder: &Path) -> usize {
    fn count(folder: &Path) -> usize {
        let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .map(|path| {
                if path.is_dir() { count(&path) } else { usize::from(path.extension().is_some_and(|end| end == "kvc")) }
            })
            .sum()
    }
    count(folder)
}

/// The server dies with SIGKILL; what it had stored in files in memory serves the next one.
#[test]
fn rows_in_memory_files_outlive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("memory");
    let words = ["--cache-tier", "ram-file", "--ram-file-dir", memory.to_str().unwrap(), "--ram-file-size", "64MiB"];
    let served = start(folder.path(), &words);
    assert_eq!(found_and_computed(&served).0, 0);
    let tiers = serde_json::from_str::<Value>(&served.ask("GET", "/api/cache").1).unwrap()["tiers"].clone();
    let tier = tiers.as_array().unwrap().iter().find(|tier| tier["tier"] == "ram_file").unwrap().clone();
    assert_eq!(tier["quota"], 64 << 20, "{tier}");
    crate::serving::stopping::until("a row in the folder", || rows_in(&memory) > 0);
    assert_eq!(rows_in(&folder.path().join("kv")), 0, "nothing goes to the disk");
    // Dropped without a signal that it could answer.
    drop(served);
    let served = start(folder.path(), &words);
    let (found, _) = found_and_computed(&served);
    assert!(found > 100, "{found} tokens found");
    let (code, last) = served.terminate();
    assert_eq!(code, Some(0), "{last}");
}

/// Two servers with a cache folder each, one after the other: the second finds what the first uploaded as it ended.
#[test]
fn a_second_machine_restores_what_the_first_has_computed() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("store").display());
    let ask = |served: &Served| {
        let body = json!({"model": "m", "max_tokens": 4, "temperature": 0, "poncho": true,
            "messages": [{"role": "user", "content": QUESTION.repeat(30)}]});
        let reply = served.post("/v1/chat/completions", &body);
        (reply["choices"][0]["message"]["content"].clone(), reply["poncho"].clone())
    };
    let shared =
        |served: &Served| serde_json::from_str::<Value>(&served.ask("GET", "/api/cache").1).unwrap()["shared"].clone();
    let machine = |name: &str| {
        let own = folder.path().join(name);
        std::fs::create_dir(&own).unwrap();
        start(&own, &["--shared", &url])
    };
    let first = machine("first");
    crate::serving::stopping::until("the store is measured", || shared(&first)["on"] == true);
    let (text, facts) = ask(&first);
    assert_eq!(facts["cached_tokens"], 0);
    assert_eq!(first.terminate().0, Some(0));
    let listing = run(poncho().args(["cache", "ls", "--json", "--shared", &url])).json();
    assert!(listing["tenants"][0]["rows"][0]["tokens"].as_u64().unwrap() > 500, "{listing:#}");

    // A machine that computes faster than it fetches does not fetch; one of three finds it worth it.
    let mut restored = false;
    for number in 0..3 {
        let second = machine(&format!("second-{number}"));
        crate::serving::stopping::until("the store is measured", || shared(&second)["on"] == true);
        let (again, facts) = ask(&second);
        assert_eq!(again, text, "{facts}");
        restored |= facts["tier"] == "shared";
        if restored {
            break;
        }
    }
    assert!(restored, "no server fetched the row");
}

#[test]
fn a_memory_folder_that_is_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut command = serve_command(&folder.path().join("kv"));
    let refused = run(command.args(["--port", "0", "--cache-tier", "ram-file", "--ram-file-dir"]).arg(&file));
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("--ram-file-dir"), "{}", refused.stderr);
}

/// Thinking that comes back must be what this server signed, as soon as there is a key to sign with.
#[test]
fn the_signing_key_is_a_setting() {
    let folder = tempfile::tempdir().unwrap();
    let body = json!({"max_tokens": 1, "model": "m", "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Nobody thought this.", "signature": "00"},
            {"type": "text", "text": "Hello"},
        ]},
        {"role": "user", "content": "Go on"},
    ]});
    let status = |served: &Served| request(served.address, "POST", "/v1/messages", &body.to_string());
    let open = start(folder.path(), &[]);
    assert_eq!(status(&open).0, 200);
    drop(open);
    let mut command = serve_command(&folder.path().join("kv"));
    command.args(["--port", "0"]).env("PONCHO_SIGNING_KEY", "a secret");
    let signing = Served::start_command(&mut command, folder.path());
    let (code, said) = status(&signing);
    assert_eq!(code, 400, "{said}");
    assert!(said.contains("signature"), "{said}");
    let shown = run(poncho().arg("config").env("PONCHO_SIGNING_KEY", "a secret"));
    assert!(!shown.good().contains("a secret"), "{}", shown.stdout);
}

/// The options change what is computed: rows of one KV type are not those of another.
#[test]
fn options_of_llama_cpp_reach_it() {
    let folder = tempfile::tempdir().unwrap();
    let quantised = ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--flash-attn", "on", "--batch-size", "256"];
    let more =
        ["--threads-batch", "1", "--no-mmap", "--check-tensors", "--rope-freq-scale", "0.5", "--gpu-layers", "0"];
    let plain = start(folder.path(), &[]);
    assert_eq!(found_and_computed(&plain).0, 0);
    assert_eq!(plain.terminate().0, Some(0));
    let other = start(folder.path(), &[&quantised[..], &more].concat());
    assert_eq!(found_and_computed(&other).0, 0, "another type of KV cache");
    assert_eq!(other.terminate().0, Some(0));
    let again = start(folder.path(), &[&quantised[..], &more].concat());
    assert!(found_and_computed(&again).0 > 100, "the same options find their rows");
    drop(again);
    let mut command = serve_without_model(&folder.path().join("kv"));
    command.args(["--port", "0", "--cache-type-v", "q8_0", "--flash-attn", "off", "--model"]);
    let refused = run(command.arg(model_path(ModelKind::Attention)));
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("quantised values need flash attention"), "{}", refused.stderr);
}

#[test]
fn the_bounds_of_the_server_are_settings() {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("poncho.toml");
    std::fs::write(&settings, "max_body = \"1KiB\"\nrope_freq_scale = 1.0\nyarn_orig_ctx = 2048\n").unwrap();
    let served = start(folder.path(), &["--config", settings.to_str().unwrap()]);
    let long = json!({"model": "m", "messages": [{"role": "user", "content": "a".repeat(2000)}]}).to_string();
    let (status, said) = request(served.address, "POST", "/v1/chat/completions", &long);
    assert_eq!(status, 413, "{said}");
    let shown = run(poncho().args(["config", "--json", "--config"]).arg(&settings)).json();
    assert_eq!(shown["settings"]["max_body"]["value"], "1KiB", "{shown}");
}
