//! `poncho bench compare` and `poncho bench matrix` on generated models: that the figures are there and hang together, and
//! that a peer which fails is reported.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use poncho_testkit::{ModelKind, model_path};
use serde_json::Value;

use crate::served::{Served, serve_without_model};
use crate::support::{Run, bench, run};

/// A Poncho in the place of the other server.
fn peer(folder: &Path) -> Served {
    let mut command = serve_without_model(&folder.join("kv"));
    command.args(["--port", "0", "--parallel", "8", "--model"]).arg(model_path(ModelKind::Attention));
    Served::start_command(&mut command, folder)
}

/// How a faulty peer answers a chat completion.
#[derive(Clone, Copy)]
enum Fault {
    Error,
    DiesMidStream,
    NoUsage,
}

/// A peer that lists a model and fails at what is asked of it. It ends with the test's process.
fn faulty_peer(fault: Fault) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap(), fault)));
    url
}

fn answer(mut stream: TcpStream, fault: Fault) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    let json = |status: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let piece = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
    let stream_head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let reply = match (first.contains("/v1/models"), first.contains("/v1/chat"), fault) {
        (true, ..) => json("200 OK", r#"{"data":[{"id":"faulty"}]}"#),
        (_, true, Fault::Error) => json("500 Internal Server Error", r#"{"error":{"message":"out of wool"}}"#),
        (_, true, Fault::DiesMidStream) => format!("{stream_head}{chunk}"),
        (_, true, Fault::NoUsage) => format!("{stream_head}{chunk}e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"),
        _ => json("404 Not Found", "{}"),
    };
    // The client may be gone already.
    let _ = stream.write_all(reply.as_bytes());
}

fn compare(peer: &str, words: &[&str]) -> Run {
    let mut command = bench();
    command.args(["compare", "--quick", "--ctx-size", "4096", "--parallel", "8", "--threads", "1", "--model"]);
    run(command.arg(model_path(ModelKind::Attention)).args(["--peer", peer]).args(words))
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn measure<'a>(report: &'a Value, scenario: &str, name: &str) -> &'a Value {
    let measures = report["measures"].as_array().unwrap();
    let found = measures.iter().find(|measure| measure["scenario"] == scenario && measure["name"] == name);
    found.unwrap_or_else(|| panic!("no {scenario} / {name} in {measures:#?}"))
}

/// A line has one round, and a verdict if and only if it has a target: one without a ratio is not measured.
fn check_shape(measure: &Value) {
    assert_eq!(measure["pairs"].as_array().unwrap().len(), 1, "the warm-up does not count: {measure:#}");
    assert_eq!(measure["target"].is_null(), measure["verdict"].is_null(), "{measure:#}");
    if !measure["verdict"].is_null() {
        assert_eq!(measure["ratio"].is_null(), measure["verdict"] == "not_measured", "{measure:#}");
    }
}

#[test]
fn two_ponchos_are_compared_in_every_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let peer = peer(folder.path());
    let trace = folder.path().join("trace.json");
    std::fs::write(
        &trace,
        r#"{"system":"You answer in one line.","turns":[{"role":"user","content":"What is a poncho?"},
        {"role":"assistant","content":"A cloak."},{"role":"user","content":"And a cape?"}],
        "requests":[{"upto":1},{"upto":3}]}"#,
    )
    .unwrap();
    let (json, plots) = (folder.path().join("all.json"), folder.path().join("plots"));
    let pid = peer.pid().to_string();
    let words = ["--peer-restart", "true", "--peer-pid", &pid, "--streams", "2", "--loop-speed", "2=1"];
    let files =
        ["--json", json.to_str().unwrap(), "--plot", plots.to_str().unwrap(), "--traces", trace.to_str().unwrap()];
    let ran = compare(&peer.url(), &[&words[..], &files[..]].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("at least 0.98") && ran.stdout.contains("at most 0.01"), "{}", ran.stdout);

    let report = read_json(&json);
    assert_eq!((&report["failures"], &report["quick"]), (&serde_json::json!([]), &Value::Bool(true)));
    for (scenario, name) in [
        ("cold", "512 tokens, prefill speed"),
        ("again", "the same again, first token"),
        ("again", "a new tail, first token"),
        ("again", "back after 8 others, first token"),
        ("again", "after a restart, first token"),
        ("agents", "total time"),
        ("chat", "total time"),
        ("chat", "total time, restarts"),
        ("traces", "one after the other, total time"),
        ("traces", "interleaved, total time"),
        ("traces", "restart in the middle, total time"),
        ("traces", "with a clock, prompt tokens computed"),
        ("throughput", "2 x 64 tokens, with prompts"),
        ("memory", "resident, idle"),
        ("memory", "resident, most under load"),
        ("neighbours", "short prompt, first token, median client"),
        ("neighbours", "long prompt, first token"),
    ] {
        let measure = measure(&report, scenario, name);
        let ratio = measure["ratio"]["median"].as_f64();
        assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{measure:#}");
        check_shape(measure);
    }
    // On a busy machine a short reply may come in one piece, which has no gap, and two streams need not overlap.
    for name in ["2 x 16 tokens, gap p99", "2 x 64 tokens, decoding", "2 x 64 tokens, beside llama.cpp's own loop"] {
        let measure = measure(&report, "throughput", name);
        let figures = ["poncho", "peer"].map(|side| measure["pairs"][0][side].as_f64());
        assert!(figures.into_iter().flatten().all(|figure| figure > 0.0), "{measure:#}");
        assert_eq!(figures.iter().all(Option::is_some), measure["ratio"].is_object(), "{measure:#}");
        check_shape(measure);
    }
    let written = measure(&report, "memory", "written");
    assert!(written["poncho"]["median"].as_f64().unwrap() > 0.0, "{written:#}");
    for chart in ["cold-tokens-per-s", "again-ms", "chat-tokens", "memory-MiB"] {
        let text = std::fs::read_to_string(plots.join(format!("{chart}.svg"))).unwrap();
        assert!(text.starts_with("<svg ") && text.contains("peer"), "{chart}");
    }
}

#[test]
fn a_run_on_known_prompts_is_not_called_cold() {
    let folder = tempfile::tempdir().unwrap();
    let peer = peer(folder.path());
    let words = ["--scenario", "cold", "--rounds", "1"];
    assert_eq!(compare(&peer.url(), &words).code, Some(0));
    // The same prompts again: our own Poncho is fresh, the peer has seen them.
    let again = compare(&peer.url(), &words);
    assert_eq!(again.code, Some(1), "{}", again.stdout);
    assert!(again.stdout.contains("failed: peer, cold") && again.stdout.contains("--seed"), "{}", again.stdout);
    let fresh = compare(&peer.url(), &[&words[..], &["--seed", "2"]].concat());
    assert_eq!(fresh.code, Some(0), "{}", fresh.stdout);
}

#[test]
fn a_peer_that_fails_is_reported_and_given_up() {
    for (fault, word) in [(Fault::Error, "out of wool"), (Fault::DiesMidStream, "broke off"), (Fault::NoUsage, "usage")]
    {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("all.json");
        let peer = faulty_peer(fault);
        let words = ["--scenario", "cold", "--rounds", "3", "--prompt-tokens", "128"];
        let ran = compare(&peer, &[&words[..], &["--json", json.to_str().unwrap()]].concat());
        assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains(word) && ran.stdout.contains("no more requests"), "{}", ran.stdout);
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
        let report = read_json(&json);
        let failures = report["failures"].as_array().unwrap();
        assert!(failures.len() == 3 && failures.iter().all(|failure| failure["side"] == "peer"), "{failures:#?}");
        let cold = measure(&report, "cold", "128 tokens, prefill speed");
        assert_eq!((&cold["verdict"], &cold["ratio"]), (&Value::from("not_measured"), &Value::Null));
        assert_eq!(cold["poncho"]["count"], 3, "what Poncho did is measured all the same");
    }
}

#[test]
fn what_restarts_would_show_is_said_to_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    let peer = peer(folder.path());
    let ran = compare(&peer.url(), &["--scenario", "again"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("not measured: again: after a restart: needs --peer-restart"), "{}", ran.stdout);
}

#[test]
fn servers_that_are_not_there_are_named() {
    let nobody = compare("http://127.0.0.1:1", &[]);
    assert!(nobody.failed().contains("peer") && nobody.stderr.contains("127.0.0.1:1"), "{}", nobody.stderr);
    let mut neither = bench();
    assert_eq!(run(neither.args(["compare", "--peer", "http://127.0.0.1:1"])).code, Some(2));
    let mut missing = bench();
    let missing = run(missing.args(["matrix", "--model", "none.gguf"]));
    assert!(missing.failed().contains("none.gguf"), "{}", missing.stderr);
}

#[test]
fn the_matrix_has_every_length_and_the_clients() {
    let folder = tempfile::tempdir().unwrap();
    let (json, plots) = (folder.path().join("m.json"), folder.path().join("plots"));
    let mut command = bench();
    command.args(["matrix", "--threads", "1", "--rounds", "1", "--prompt-tokens", "256,700", "--markdown", "--model"]);
    command.arg(model_path(ModelKind::Attention)).arg("--json").arg(&json).arg("--plot").arg(&plots);
    let printed = run(&mut command);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    assert!(printed.stdout.contains("| prompt tokens |"), "{}", printed.stdout);
    let found = read_json(&json);
    let lengths = found["lengths"].as_array().unwrap();
    assert_eq!(lengths.len(), 2);
    for row in lengths {
        for kind in ["cold", "exact", "partial", "restarted"] {
            assert_eq!(row[kind]["count"], 1, "{row:#}");
        }
    }
    let prompts: Vec<u64> = lengths.iter().map(|row| row["prompt"].as_u64().unwrap()).collect();
    assert!((200..450).contains(&prompts[0]) && (600..900).contains(&prompts[1]), "{prompts:?}");
    assert_eq!(found["agents"]["count"], 4);
    assert!(std::fs::read_to_string(plots.join("matrix.svg")).unwrap().contains("after a restart"));
}
