//! The engine's process is killed in the middle of replies of a real model: clients notice nothing but a pause.
//!
//! With `--exact` a reply is the same bytes as without a kill, for every memory kind.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::served::{Served, serve_without_model};
use crate::serving::stopping::until;

/// The process that computes for a server.
pub(crate) fn engine_of(served: &Served) -> Option<u32> {
    let server = served.pid();
    let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap_or_default();
    // Threads other than the first may have started it.
    let tasks = std::fs::read_dir(format!("/proc/{server}/task")).unwrap();
    let others = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    let all: Vec<String> = std::iter::once(children).chain(others).collect();
    all.iter().flat_map(|line| line.split_whitespace()).find_map(|word| word.parse().ok())
}

pub(crate) fn kill(process: u32, signal: rustix::process::Signal) {
    let process = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

/// Streams a reply; calls `at` with the number of events so far. Returns all text that came.
pub(crate) fn stream(address: SocketAddr, path: &str, body: &Value, mut at: impl FnMut(usize)) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all((head + &body).as_bytes()).unwrap();
    let (mut text, mut events, mut is_done) = (String::new(), 0, false);
    for line in BufReader::new(connection).lines() {
        let line = line.unwrap();
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            is_done = true;
            continue;
        }
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(event.get("error"), None, "{event}");
        let choice = &event["choices"][0];
        text.push_str(choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default());
        events += 1;
        at(events);
    }
    assert!(is_done, "the stream ended in order: {text}");
    text
}

fn serve(kind: ModelKind, folder: &Path, flags: &[&str]) -> Served {
    let mut command = serve_without_model(&folder.join("kv"));
    command.args(["--port", "0", "--parallel", "2", "--save-min-tokens", "16"]).args(flags);
    Served::start_command(command.arg("--model").arg(model_path(kind)), folder)
}

fn bodies() -> [(&'static str, Value); 3] {
    let seeded = json!({
        "model": "x", "prompt": "Once upon a time there was a poncho that kept everything warm", "stream": true,
        "max_tokens": 200, "seed": 7, "temperature": 0.9, "frequency_penalty": 0.4, "ignore_eos": true,
    });
    let greedy = json!({
        "model": "x", "prompt": "A short beginning", "stream": true, "max_tokens": 160, "temperature": 0, "ignore_eos": true,
    });
    let schema = json!({"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 12, "maxItems": 12}}, "required": ["names"]});
    let json_reply = json!({
        "model": "x", "messages": [{"role": "user", "content": "names, please"}], "stream": true, "seed": 3,
        "max_tokens": 400, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    });
    [("/v1/completions", seeded), ("/v1/completions", greedy), ("/v1/chat/completions", json_reply)]
}

fn survives(kind: ModelKind) {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(kind, folder.path(), &["--exact"]);
    let mut kills = 0;
    for (path, body) in bodies() {
        let expected = stream(served.address, path, &body, |_| {});
        for moment in [1, 7, 40] {
            let mut killed = false;
            let reply = stream(served.address, path, &body, |events| {
                if events >= moment && !killed {
                    kill(engine_of(&served).unwrap(), rustix::process::Signal::KILL);
                    killed = true;
                }
            });
            // A busy machine sends much in one event; the first is always there.
            assert!(killed || moment > 1, "{kind:?} {path}: the reply had no event");
            kills += usize::from(killed);
            assert_eq!(reply, expected, "{kind:?} {path} killed after {moment} events");
        }
    }
    until("each is written down", || std::fs::read_dir(folder.path().join("kv.crashes")).unwrap().count() == kills);
    let (code, _) = served.stop();
    assert_eq!(code, Some(0));
}

#[test]
fn an_exact_reply_of_an_attention_model_survives_its_engine() {
    survives(ModelKind::Attention);
}

#[test]
fn an_exact_reply_of_a_window_model_survives_its_engine() {
    survives(ModelKind::Window);
}

#[test]
fn an_exact_reply_of_a_recurrent_model_survives_its_engine() {
    survives(ModelKind::Recurrent);
}

#[test]
fn an_exact_reply_of_a_hybrid_model_survives_its_engine() {
    survives(ModelKind::Hybrid);
}

#[test]
fn an_engine_that_aborts_while_nobody_asks_is_back_for_the_next_request() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(ModelKind::Attention, folder.path(), &[]);
    let (path, body) = &bodies()[1];
    let expected = stream(served.address, path, body, |_| {});
    kill(engine_of(&served).unwrap(), rustix::process::Signal::ABORT);
    assert_eq!(served.ask("GET", "/health").0, 200, "the server itself lives");
    assert_eq!(stream(served.address, path, body, |_| {}), expected);
}

#[test]
fn an_engine_never_outlives_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(ModelKind::Attention, folder.path(), &[]);
    let engine = engine_of(&served).unwrap();
    kill(served.pid(), rustix::process::Signal::KILL);
    until("the engine is gone", || {
        let status = std::fs::read_to_string(format!("/proc/{engine}/status")).unwrap_or_default();
        status.is_empty() || status.contains("State:\tZ")
    });
    drop(served);
    // Its folder is free for the next one.
    let served = serve(ModelKind::Attention, folder.path(), &[]);
    assert_eq!(served.stop().0, Some(0));
}

#[test]
fn one_process_is_enough_with_in_process() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(ModelKind::Attention, folder.path(), &["--in-process"]);
    assert_eq!(engine_of(&served), None);
    let (path, body) = &bodies()[1];
    assert!(!stream(served.address, path, body, |_| {}).is_empty());
    assert_eq!(served.stop().0, Some(0));
}
