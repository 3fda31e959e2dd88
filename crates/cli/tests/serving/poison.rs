//! A request that really ends llama.cpp: a prompt longer than the table in which a model looks its positions up.
//!
//! A server refuses a context that is longer than the table. Only an engine that skips our checks gets to the assertion.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use poncho_testkit::{AlteredModel, ModelKind, ModelSpec};
use serde_json::{Value, json};

use crate::served::{Served, request};
use crate::serving::surviving::stream;
use crate::support::{poncho, run};

/// Rows of the table.
const POSITIONS: u32 = 1024;

fn model(folder: &Path) -> PathBuf {
    let path = folder.join("table.gguf");
    let spec = ModelSpec { n_ctx_train: POSITIONS, ..ModelSpec::tiny(ModelKind::Attention) };
    AlteredModel::with_position_table(&spec).unwrap().write(&path).unwrap();
    path
}

fn serve(folder: &Path, context: u32) -> std::process::Command {
    let mut command = poncho();
    command.args(["serve", "--port", "0", "--threads", "1", "--parallel", "4", "--exact"]);
    command.args(["--ctx-size", &context.to_string(), "--cache-dir"]).arg(folder.join("kv"));
    command.arg("--model").arg(model(folder));
    command
}

fn body(prompt: &Value, max_tokens: u32, is_streamed: bool) -> Value {
    json!({"model": "table", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": is_streamed,
        "ignore_eos": true})
}

/// What the processes that ended said last.
fn crashes(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder.join("kv.crashes")) else { return Vec::new() };
    entries.flatten().map(|entry| std::fs::read_to_string(entry.path()).unwrap()).collect()
}

#[test]
fn a_context_behind_the_table_of_positions_is_refused_and_one_within_it_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(&mut serve(folder.path(), POSITIONS + 1));
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("table of 1024 positions"), "{}", refused.stderr);
    let served = Served::start_command(&mut serve(folder.path(), POSITIONS), folder.path());
    let prompt: Vec<u32> = (0..POSITIONS - 4).map(|number| number % 200 + 10).collect();
    let answer = served.post("/v1/completions", &body(&json!(prompt), 3, false));
    assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
    assert_eq!((served.stop().0, crashes(folder.path()).len()), (Some(0), 0));
}

#[test]
fn a_real_poison_request_ends_the_engine_twice_and_is_refused_and_the_others_finish() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(folder.path(), 2 * POSITIONS);
    command.args(["--probe-models", "off"]).env("_PONCHO_ENGINE_UNCHECKED", "1");
    let served = Served::start_command(&mut command, folder.path());
    let address = served.address;
    let other = |number: u32| body(&json!(format!("Story {number}: once upon a time")), 400, true);
    let expected: Vec<String> =
        (0..3).map(|number| stream(address, "/v1/completions", &other(number), |_| {})).collect();
    assert_eq!(crashes(folder.path()).len(), 0);

    let poison: Vec<u32> = (0..POSITIONS + 100).map(|number| number % 200 + 10).collect();
    let poison = body(&json!(poison), 3, false).to_string();
    let (running, begun) = channel();
    let (replies, refused) = std::thread::scope(|scope| {
        let others: Vec<_> = (0..3)
            .map(|number| {
                let running = running.clone();
                let note = move |events| {
                    if events == 1 {
                        let _ = running.send(());
                    }
                };
                scope.spawn(move || stream(address, "/v1/completions", &other(number), note))
            })
            .collect();
        others.iter().for_each(|_| begun.recv().unwrap());
        let refused = request(address, "POST", "/v1/completions", &poison);
        (others.into_iter().map(|other| other.join().unwrap()).collect::<Vec<_>>(), refused)
    });
    assert_eq!(replies, expected, "the others finish");
    assert!(refused.0 >= 400 && refused.1.contains("poison_request"), "{refused:?}");
    let ended = crashes(folder.path());
    assert_eq!(ended.len(), 2, "{ended:?}");
    for record in &ended {
        assert!(record.contains("signal 6") && record.contains("GGML_ASSERT"), "{record}");
    }

    // It is known now, and does no more harm.
    let again = request(address, "POST", "/v1/completions", &poison);
    assert!(again.1.contains("poison_request"), "{again:?}");
    assert_eq!(stream(address, "/v1/completions", &other(1), |_| {}), expected[1]);
    assert_eq!((served.stop().0, crashes(folder.path()).len()), (Some(0), 2));
}
