//! `poncho run` and `poncho serve` on one cache folder: what one has computed, the other does not compute again.

use std::path::Path;

use poncho_testkit::{ModelKind, model_path};
use serde_json::Value;

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
