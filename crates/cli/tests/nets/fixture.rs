//! A cache folder that an earlier build wrote must open, verify and restore in this one.
//!
//! `fixture/KIND` holds such a folder for each kind of memory: the row files in `kv`, and in `recorded.json` the seed of the
//! generated model, the facts of each row, and the replies that the writing build gave from that folder. Each test copies
//! the folder, because a server writes to it.
//!
//! Rows are plain ones: the namespace of exact rows covers the compiler and the thread count, so another machine would not
//! find them. A restored state has the stored bytes on every machine (`cache verify` checks the checksums), but a CPU with
//! other kernels may compute the next logits with other last bits. So the text must be equal, which the margin between the
//! two best tokens makes safe (the recorder refuses a smaller one), and log probabilities must be close. The first token after
//! an `exact` hit comes from stored logits, so its log probability leaves almost no room. On the machine that recorded,
//! `PONCHO_FIXTURE_BITS=1` requires equal bits everywhere.
//!
//! A change of the format or of llama.cpp's state layout needs a new folder. Write it with the build that is to be read from
//! then on (the files hold the name of the host), review the difference of `recorded.json`, and say why in the commit:
//!
//! ```text
//! PONCHO_FIXTURE_WRITER=path/to/poncho cargo nextest run --release -p poncho -E 'test(of_an_earlier_build_restores)'
//! ```

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use poncho_cache::Key;
use poncho_testkit::{ModelKind, ModelSpec, path_of};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::served::Served;
use crate::support::{cache, contents, damage, program, row_path, run};

/// The least difference between the log probabilities of the two best tokens: ten times what may differ.
const LEAST_MARGIN: f64 = 0.1;
/// What a computed log probability may differ by on another CPU.
const COMPUTED: f64 = 0.01;
/// The same for one that is read from stored logits.
const STORED: f64 = 1e-5;

/// The facts of a row that `cache show` must report as they were recorded.
const FACTS: [&str; 17] = [
    "key",
    "bytes",
    "tokens",
    "start",
    "parent",
    "reason",
    "version",
    "created",
    "parts",
    "namespace",
    "fingerprint_mode",
    "flags",
    "context_size",
    "payload_offset",
    "payload_bytes",
    "payload_crc",
    "chain_whole",
];

/// What `recorded.json` holds.
#[derive(Serialize, Deserialize)]
struct Recorded {
    seed: u64,
    rows: Vec<Map<String, Value>>,
    replies: Vec<Reply>,
}

/// The answer to one prompt by a server that was just started on the folder.
#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    prompt: String,
    hit: String,
    /// Tokens of the prompt with a stored state.
    read: u64,
    text: String,
    /// Log probability of each chosen token.
    logprobs: Vec<f64>,
    /// Difference from the best token to the second, the smallest of the reply.
    margin: f64,
}

fn folder_of(kind: ModelKind) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nets/fixture").join(kind.name())
}

/// Small layers: a row needs 512 tokens, and four folders of them must stay small.
fn model(kind: ModelKind, seed: u64) -> PathBuf {
    path_of(&ModelSpec { seed, n_layers: 2, head_size: 32, ..ModelSpec::tiny(kind) }).unwrap()
}

/// Long enough for a row.
fn story() -> String {
    (1..=32).map(|line| format!("Line {line} of the story. ")).collect()
}

fn start(binary: &OsStr, model: &Path, folder: &Path) -> Served {
    let mut command = program(binary);
    command.args(["serve", "--port", "0", "--name", "fixture", "--ctx-size", "2048", "--threads", "1"]);
    command.args(["--parallel", "1", "--model"]).arg(model).arg("--cache-dir").arg(folder.join("kv"));
    Served::start_command(&mut command, folder)
}

fn stop(served: Served) {
    let (code, last) = served.stop();
    assert_eq!(code, Some(0), "{last}");
}

fn ask(served: &Served, prompt: &str) -> Reply {
    let body = json!({
        "model": "fixture", "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": true,
        "poncho": true,
    });
    let answer = served.post("/v1/completions", &body);
    let choice = &answer["choices"][0];
    let margin = |best: &Value| {
        let mut values: Vec<f64> = best.as_object().unwrap().values().map(|value| value.as_f64().unwrap()).collect();
        values.sort_by(f64::total_cmp);
        // Two tokens that are parts of a character have the same name and leave one value.
        values.len().checked_sub(2).map_or(0.0, |second| values[second + 1] - values[second])
    };
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    Reply {
        prompt: prompt.to_owned(),
        hit: answer["poncho"]["hit"].as_str().unwrap().to_owned(),
        read: answer["poncho"]["cached_tokens"].as_u64().unwrap(),
        text: choice["text"].as_str().unwrap().to_owned(),
        logprobs: logprobs.iter().map(|value| value.as_f64().unwrap()).collect(),
        margin: choice["logprobs"]["top_logprobs"].as_array().unwrap().iter().map(margin).fold(f64::MAX, f64::min),
    }
}

/// Copies the files of a cache folder, readable for their owner alone as a server leaves them.
fn copy(from: &Path, to: &Path) {
    for (path, bytes) in contents(from) {
        let copied = to.join(path.strip_prefix(from).unwrap());
        let parent = copied.parent().unwrap();
        std::fs::create_dir_all(parent).unwrap();
        std::fs::set_permissions(parent, PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::write(&copied, bytes).unwrap();
        std::fs::set_permissions(&copied, PermissionsExt::from_mode(0o600)).unwrap();
    }
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o700)).unwrap();
}

/// The reply of a server that starts on a copy of the folder: its first choice depends on no measurement.
fn ask_a_copy(binary: &OsStr, model: &Path, from: &Path, prompt: &str) -> Reply {
    let folder = tempfile::tempdir().unwrap();
    copy(from, &folder.path().join("kv"));
    let served = start(binary, model, folder.path());
    let reply = ask(&served, prompt);
    stop(served);
    assert_rows_are_kept(from, &folder.path().join("kv"));
    reply
}

/// Every row of the first folder is in the second, with the same bytes but for the two fields that are rewritten in place.
fn assert_rows_are_kept(before: &Path, after: &Path) {
    let timeless = |path: &Path| {
        let mut bytes = std::fs::read(path).unwrap();
        // Hit count and time of last use, as docs/format.md has them.
        bytes[12..16].fill(0);
        bytes[32..40].fill(0);
        bytes
    };
    for (path, _) in contents(before) {
        let kept = after.join(path.strip_prefix(before).unwrap());
        assert!(timeless(&path) == timeless(&kept), "{} was rewritten", kept.display());
    }
}

/// The facts of every row, in the order of `cache ls`.
fn facts(binary: &OsStr, folder: &Path) -> Vec<Map<String, Value>> {
    let json = |words: &[&str]| {
        run(program(binary).arg("cache").args(words).arg("--json").arg("--cache-dir").arg(folder)).json()
    };
    let fact = |key: &Value| {
        let shown = json(&["show", key.as_str().unwrap()]);
        FACTS.iter().map(|name| ((*name).to_owned(), shown[name].clone())).collect()
    };
    let mut rows: Vec<Map<String, Value>> =
        json(&["ls"]).as_array().unwrap().iter().map(|row| fact(&row["key"])).collect();
    rows.sort_by_key(|row| row["key"].to_string());
    rows
}

/// Writes the folder of a kind with the seed of a model, and what is to be found in it. Writes nothing and
/// returns false if a margin is too small.
fn record(writer: &OsStr, kind: ModelKind, seed: u64) -> bool {
    let model = model(kind, seed);
    let folder = tempfile::tempdir().unwrap();
    let kv = folder.path().join("kv");
    let served = start(writer, &model, folder.path());
    let first = ask(&served, &story());
    let second = ask(&served, &format!("{}{} And then?", first.prompt, first.text));
    stop(served);
    let replies: Vec<Reply> = [
        first.prompt.clone(),
        format!("{}{} More?", second.prompt, second.text),
        format!("{}Otherwise?", story().split_at(400).0),
    ]
    .iter()
    .map(|prompt| ask_a_copy(writer, &model, &kv, prompt))
    .collect();
    if replies.iter().any(|reply| reply.margin < LEAST_MARGIN) {
        return false;
    }
    let recorded = Recorded { seed, rows: facts(writer, &kv), replies };
    let target = folder_of(kind);
    let _ = std::fs::remove_dir_all(&target);
    copy(&kv, &target.join("kv"));
    std::fs::write(target.join("recorded.json"), serde_json::to_string_pretty(&recorded).unwrap() + "\n").unwrap();
    true
}

/// The recorded folder of a kind.
fn recorded(kind: ModelKind) -> (PathBuf, Recorded) {
    let folder = folder_of(kind);
    let text = std::fs::read_to_string(folder.join("recorded.json")).unwrap();
    (folder.join("kv"), serde_json::from_str(&text).unwrap())
}

fn assert_restores(kind: ModelKind, hits: [&str; 3]) {
    let binary = OsStr::new(env!("CARGO_BIN_EXE_poncho"));
    if let Some(writer) = std::env::var_os("PONCHO_FIXTURE_WRITER") {
        assert!((1..1000).any(|seed| record(&writer, kind, seed)), "no seed gives clear choices");
    }
    let (kv, recorded) = recorded(kind);
    let copied = tempfile::tempdir().unwrap();
    copy(&kv, copied.path());
    let verified = cache(copied.path(), &["verify"]);
    assert_eq!(verified.good(), format!("{} rows checked, 0 damaged\n", recorded.rows.len()));
    assert_eq!(facts(binary, copied.path()), recorded.rows, "cache show, cache ls");
    assert!(cache(copied.path(), &["ls"]).good().contains(&format!("{} rows", recorded.rows.len())));

    let found: Vec<&str> = recorded.replies.iter().map(|reply| reply.hit.as_str()).collect();
    assert_eq!(found, hits, "the fixture holds what this test is about");
    let model = model(kind, recorded.seed);
    for expected in &recorded.replies {
        let reply = ask_a_copy(binary, &model, &kv, &expected.prompt);
        assert_eq!((&reply.hit, reply.read), (&expected.hit, expected.read), "{expected:?}");
        assert_eq!(reply.text, expected.text, "{expected:?}");
        assert_close(&reply, expected);
    }
}

fn assert_close(reply: &Reply, expected: &Reply) {
    assert_eq!(reply.logprobs.len(), expected.logprobs.len());
    let same_machine = std::env::var_os("PONCHO_FIXTURE_BITS").is_some();
    for (place, (now, then)) in reply.logprobs.iter().zip(&expected.logprobs).enumerate() {
        let room = match (same_machine, place, expected.hit.as_str()) {
            (true, ..) => 0.0,
            (false, 0, "exact") => STORED,
            _ => COMPUTED,
        };
        assert!((now - then).abs() <= room, "token {place}: {now} instead of {then}\n{reply:?}\n{expected:?}");
    }
}

#[test]
fn an_attention_folder_of_an_earlier_build_restores() {
    assert_restores(ModelKind::Attention, ["exact", "partial", "partial"]);
}

#[test]
fn a_sliding_window_folder_of_an_earlier_build_restores() {
    assert_restores(ModelKind::Window, ["exact", "partial", "cold"]);
}

#[test]
fn a_recurrent_folder_of_an_earlier_build_restores() {
    assert_restores(ModelKind::Recurrent, ["exact", "partial", "cold"]);
}

#[test]
fn a_hybrid_folder_of_an_earlier_build_restores() {
    assert_restores(ModelKind::Hybrid, ["exact", "partial", "cold"]);
}

#[test]
fn a_changed_byte_of_such_a_folder_is_found_and_not_restored() {
    let binary = OsStr::new(env!("CARGO_BIN_EXE_poncho"));
    let (kv, recorded) = recorded(ModelKind::Recurrent);
    let expected = &recorded.replies[0];
    // Rows of a recurrent model stand alone: the one that an `exact` hit restores is the one with all tokens of the prompt.
    let row = recorded.rows.iter().find(|row| row["tokens"] == expected.read).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let copied = folder.path().join("kv");
    copy(&kv, &copied);
    damage(&row_path(&copied, &Key::from_hex(row["key"].as_str().unwrap()).unwrap()), 10);
    let verified = cache(&copied, &["verify"]);
    assert_eq!(verified.code, Some(1), "{}", verified.stdout);
    let served = start(binary, &model(ModelKind::Recurrent, recorded.seed), folder.path());
    let reply = ask(&served, &expected.prompt);
    assert_eq!((reply.hit.as_str(), reply.read, &reply.text), ("cold", 0, &expected.text));
}
