//! Log lines of a served model: request ids, both formats, and nothing that a client would not want to see there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::fake_server::BOUND;
use crate::served::{Served, exchange, serve_command};
use crate::support::{poncho, run};

const KEY: &str = "sk-do-not-tell-anybody";
const PROMPT: &str = "my grandmother's recipe for marmalade";

/// A server with a key.
fn serve(folder: &Path, flags: &[&str]) -> Served {
    let mut command = serve_command(&folder.join("kv"));
    command.args(["--port", "0"]).args(flags).env("HOME", folder).env("PONCHO_API_KEY", KEY);
    Served::start_command(&mut command, folder)
}

/// Posts with the key; the whole answer.
fn post(served: &Served, path: &str, body: &Value) -> String {
    let headers = format!("authorization: Bearer {KEY}\r\n");
    exchange(served.address, &format!("POST {path}"), &headers, &body.to_string())
}

/// Ends it; what it logged.
fn log(served: Served, folder: &Path) -> String {
    drop(served);
    std::fs::read_to_string(folder.join("stderr")).unwrap()
}

/// Requests that are answered, refused for a field that quotes the prompt, and streamed.
fn use_it(served: &Served) -> Vec<String> {
    let chat = |fields: Value| {
        let mut body = json!({"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": PROMPT}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        post(served, "/v1/chat/completions", &body)
    };
    let answers = [
        chat(json!({})),
        chat(json!({"stream": true})),
        chat(json!({"temperature": PROMPT})),
        chat(json!({"tools": [{"type": PROMPT}]})),
        post(served, "/v1/messages", &json!({"model": "m", "max_tokens": PROMPT, "messages": []})),
        post(served, "/api/generate", &json!({"model": "m", "prompt": PROMPT, "options": {"stop": [PROMPT, 5]}})),
        post(served, "/v1/completions", &json!({"model": "m", "prompt": PROMPT, "max_tokens": 2})),
    ];
    let id = |answer: &String| {
        let line = answer.lines().find(|line| line.starts_with("x-request-id: "));
        line.unwrap_or_else(|| panic!("{answer}")).trim_start_matches("x-request-id: ").to_owned()
    };
    assert!(answers[0].starts_with("HTTP/1.1 200 ") && answers[2].starts_with("HTTP/1.1 400 "), "{answers:?}");
    assert!(answers[2].contains(PROMPT), "the client itself may see what it sent");
    answers.iter().map(id).collect()
}

/// Whether a line is of this kind; the line of a reply is a sentence, and has an outcome.
fn is_called(line: &Value, kind: &str) -> bool {
    line["message"] == kind || (kind == "replied" && !line["outcome"].is_null())
}

#[test]
fn json_lines_have_ids_and_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path(), &["--log-level", "info", "--log-format", "json"]);
    let ids = use_it(&served);
    let log = log(served, folder.path());
    assert!(!log.contains(KEY) && !log.contains("marmalade"), "{log}");
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let of = |id: &str, message: &str| {
        let found = lines.iter().find(|line| line["request"] == id && is_called(line, message));
        found.unwrap_or_else(|| panic!("{message} of {id} in {log}")).clone()
    };
    for id in &ids {
        let answered = of(id, "answered");
        assert!(
            answered["level"] == "INFO" && answered["timestamp"].is_string() && answered["us"].is_u64(),
            "{answered}"
        );
    }
    let replied = of(&ids[0], "replied");
    assert_eq!((&replied["hit"], &replied["generated_tokens"]), (&json!("cold"), &json!(3)));
    assert!(replied["prompt_tokens"].as_u64().unwrap() > 3 && replied["queue_us"].is_u64(), "{replied}");
    let refused = of(&ids[2], "answered");
    assert_eq!((&refused["status"], &refused["code"]), (&json!(400), &json!("invalid_value")));
}

#[test]
fn text_lines_have_no_secrets_either() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path(), &["--log-level", "info"]);
    let ids = use_it(&served);
    let log = log(served, folder.path());
    assert!(!log.contains(KEY) && !log.contains("marmalade"), "{log}");
    assert!(ids.iter().all(|id| log.lines().any(|line| line.contains("answered") && line.contains(id))), "{log}");
}

/// Hardening 19: a name of a client reached the log with its line ends and escapes, and could forge lines.
#[test]
fn names_of_clients_forge_no_lines_and_command_no_terminal() {
    const NAME: &str = "x\nFORGED line\r\u{1b}[2J\u{9b}31m\u{7f}";
    for format in ["text", "json"] {
        let folder = tempfile::tempdir().unwrap();
        let served = serve(folder.path(), &["--log-level", "debug", "--log-format", format]);
        let chat = json!({"model": NAME, "max_tokens": 1, "messages": [{"role": NAME, "content": "Hi"}]});
        let answers = [
            post(&served, "/api/pull", &json!({"model": NAME, "stream": false})),
            post(&served, "/api/copy", &json!({"source": NAME, "destination": "b"})),
            post(&served, "/v1/chat/completions", &chat),
            post(&served, "/v1/messages", &chat),
        ];
        let log = log(served, folder.path());
        assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 4")), "{answers:?}");
        let quoted = log.lines().filter(|line| line.contains("FORGED line")).count();
        assert!(quoted >= 3, "the name is nowhere in {log}");
        assert!(log.lines().all(|line| !line.starts_with("FORGED")), "{log:?}");
        assert!(log.chars().all(|letter| letter == '\n' || !letter.is_control()), "{log:?}");
        let is_whole = |line: &str| match format {
            "json" => serde_json::from_str::<Value>(line).is_ok(),
            _ => line.starts_with("20"),
        };
        assert!(log.lines().all(is_whole), "every line is an event: {log}");
    }
}

/// Hardening 27: the id that a client sent was in no log line.
#[test]
fn log_lines_carry_the_id_that_the_client_sent() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path(), &["--log-level", "info", "--log-format", "json"]);
    let headers = format!("authorization: Bearer {KEY}\r\nx-request-id: trace-me-17\r\n");
    let body = json!({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]});
    let answer = exchange(served.address, "POST /v1/chat/completions", &headers, &body.to_string());
    assert!(answer.contains("x-request-id: trace-me-17\r\n"), "{answer}");
    let log = log(served, folder.path());
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for message in ["answered", "replied"] {
        let found = lines.iter().find(|line| is_called(line, message)).unwrap_or_else(|| panic!("{message}: {log}"));
        assert_eq!(found["request"], "trace-me-17");
    }
}

/// The collector refuses, so that a line about it is logged.
#[test]
fn headers_of_the_environment_reach_the_collector_and_no_log_line() {
    const TOKEN: &str = "a-token-of-the-collector";
    let folder = tempfile::tempdir().unwrap();
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", collector.local_addr().unwrap());
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = collector.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        tell.send(head).unwrap();
        // The server may have ended with the test.
        let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    });
    let mut command = serve_command(&folder.path().join("kv"));
    command.args(["--port", "0", "--log-level", "trace", "--otlp-endpoint", &url]).env("HOME", folder.path());
    command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("authorization=Bearer%20{TOKEN},x-tenant=blue"));
    let served = Served::start_command(&mut command, folder.path());
    assert_eq!(served.ask("GET", "/health").0, 200);
    let head = told.recv_timeout(BOUND).unwrap();
    assert_eq!(head[0], "POST /v1/traces HTTP/1.1");
    for header in [format!("authorization: Bearer {TOKEN}"), "x-tenant: blue".to_owned()] {
        assert!(head.contains(&header), "{header} in {head:?}");
    }
    let start = Instant::now();
    while !served.messages().contains("traces are not taken") {
        assert!(start.elapsed() < BOUND, "{}", served.messages());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!log(served, folder.path()).contains(TOKEN));
}

#[test]
fn wrong_settings_are_told_before_a_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, word) in [
        (["--cors", "*"], "https://chat.example"),
        (["--cors", "chat.example"], "https://chat.example"),
        (["--otlp-endpoint", "ftp://collector"], "http://localhost:4318"),
    ] {
        let mut command = poncho();
        command.args(["serve", "--port", "0", "--model"]).arg(model_path(ModelKind::Attention)).args(flags);
        let ended = run(command.env("HOME", folder.path()).arg("--cache-dir").arg(folder.path().join("kv")));
        assert!(ended.failed().contains(word), "{flags:?}: {}", ended.stderr);
    }
    let mut command = poncho();
    let ended = run(command.env("PONCHO_LOG_FORMAT", "xml").args(["cache", "stat"]));
    assert!(ended.failed().contains("PONCHO_LOG_FORMAT is `xml`; set it to text or json"), "{}", ended.stderr);
}
