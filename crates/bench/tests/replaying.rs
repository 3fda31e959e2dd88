//! `poncho bench replay` on generated models: what it counts, warm and with a restart between every two requests.

use std::path::{Path, PathBuf};

use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::served::Served;
use crate::support::{Run, bench, run};

/// Long enough that the gates let its state pass: these models read one token a byte.
fn system_prompt() -> String {
    "You are a careful assistant who reads files and answers in one line. ".repeat(10)
}

/// A conversation of four turns with a tool call, and a side call with another system prompt between the first two.
fn trace() -> Value {
    let call =
        json!({"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{\"file\":\"a\"}"}});
    json!({
        "id": "synthetic", "system": system_prompt(), "systems": ["Name this conversation. ".repeat(25)], "toolsets": [[]],
        "tools": [{"type": "function", "function": {"name": "read", "description": "Read a file",
            "parameters": {"type": "object", "properties": {"file": {"type": "string"}}}}}],
        "turns": [
            {"role": "user", "content": "What does the file a hold?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "one line of text ".repeat(12)},
            {"role": "assistant", "content": "Text, one line of it, again and again."},
            {"role": "user", "content": "And how often?"},
            {"role": "assistant", "content": "Twelve times."},
            {"role": "user", "content": "Thank you. And in the file b?"},
        ],
        "requests": [
            {"upto": 1, "edits": null}, {"upto": 1, "sys": 0, "tset": 0, "edits": {"order": [0]}},
            {"upto": 3, "edits": null}, {"upto": 5, "edits": null}, {"upto": 7, "edits": null},
        ],
    })
}

fn write_trace(folder: &Path) -> PathBuf {
    let path = folder.join("synthetic.json");
    std::fs::write(&path, trace().to_string()).unwrap();
    path
}

fn replay(kind: ModelKind, trace: &Path, words: &[&str]) -> Run {
    let mut command = bench();
    command.args(["replay", "--threads", "1", "--model"]).arg(model_path(kind)).args(words).arg(trace);
    run(&mut command)
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

#[track_caller]
fn check(report: &Value, limit: f64) {
    let trace = &report["traces"][0];
    assert_eq!((trace["name"].as_str(), number(&trace["requests"])), (Some("synthetic"), 5));
    let steps = trace["steps"].as_array().unwrap();
    let sum = |field: &str| steps.iter().map(|step| number(&step[field])).sum::<usize>();
    let (sent, new, prefilled) = (sum("prompt"), sum("prompt") - sum("common"), sum("prompt") - sum("cached"));
    assert_eq!(
        [sent, new, prefilled],
        ["tokens_sent", "tokens_new", "tokens_prefilled"].map(|field| number(&trace[field]))
    );
    assert_eq!(number(&steps[0]["common"]), 0, "nothing was sent before the first request");
    assert!(number(&steps[1]["common"]) < 100, "the side call has a system prompt of its own");
    for (step, before) in [(2, 0), (3, 2), (4, 3)] {
        let common = number(&steps[step]["common"]);
        assert!(
            common + 40 > number(&steps[before]["prompt"]),
            "request {step} goes on where {before} ended: {common}"
        );
    }
    let ratio = trace["ratio"].as_f64().unwrap();
    assert!(ratio >= 1.0 && ratio <= limit, "{ratio}: {trace:#}");
    assert!((ratio - prefilled as f64 / new as f64).abs() < 1e-9);
    let hits: usize = trace["hits"].as_object().unwrap().values().map(number).sum();
    assert_eq!(hits, 5, "every request has a hit kind");
    assert!(number(&trace["bytes_written"]) > 0);
    let (median, longest) = (&trace["first_token_median_ms"], &trace["first_token_max_ms"]);
    assert!(median.as_f64().unwrap() > 0.0 && median.as_f64() <= longest.as_f64());
}

#[test]
fn attention_reads_nothing_again_warm_or_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_trace(folder.path());
    let warm = replay(ModelKind::Attention, &trace, &["--json"]).json();
    assert_eq!(warm["mode"], "warm");
    check(&warm, 1.02);
    let restarted = replay(ModelKind::Attention, &trace, &["--json", "--restart"]).json();
    assert_eq!(restarted["mode"], "restarted");
    check(&restarted, 1.02);
    let hits = restarted["traces"][0]["hits"].as_object().unwrap();
    assert_eq!(hits.keys().collect::<Vec<_>>(), ["cold", "partial"], "no sequence outlives its server");
}

#[test]
fn models_that_cannot_be_cut_resume_at_message_ends() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_trace(folder.path());
    for kind in [ModelKind::Window, ModelKind::Recurrent, ModelKind::Hybrid] {
        for words in [&["--json"][..], &["--json", "--restart"]] {
            check(&replay(kind, &trace, words).json(), 1.25);
        }
    }
}

#[test]
fn a_limit_that_is_passed_shows_in_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_trace(folder.path());
    let good = replay(ModelKind::Attention, &trace, &["--max-ratio", "1.02", "--verbose"]);
    assert_eq!(good.code, Some(0), "{}", good.stderr);
    let printed = &good.stdout;
    assert!(printed.contains("READ AGAIN") && printed.contains("RATIO"), "{printed}");
    // With every state too short to be saved, a restart loses everything.
    let words = ["--restart", "--min-tokens", "2048", "--max-ratio", "1.5", "--markdown"];
    let bad = replay(ModelKind::Attention, &trace, &words);
    assert_eq!(bad.code, Some(1), "{}{}", bad.stdout, bad.stderr);
    assert!(bad.stdout.starts_with("| trace | requests |"), "{}", bad.stdout);
    assert!(bad.stdout.contains("| cold 5 |"), "{}", bad.stdout);
}

#[test]
fn a_folder_that_is_kept_is_known_to_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("synthetic.json");
    let mut trace = trace();
    // The main conversation only, and its last request twice.
    let main = json!([{"upto": 1}, {"upto": 3}, {"upto": 5}, {"upto": 7}, {"upto": 7}]);
    trace["requests"] = main;
    std::fs::write(&path, trace.to_string()).unwrap();
    let kept = folder.path().join("kv");
    let words = ["--json", "--reply-length", "logged", "--ctx-size", "4096", "--cache-dir", kept.to_str().unwrap()];
    let first = &replay(ModelKind::Attention, &path, &words).json()["traces"][0];
    assert_eq!(first["tokens_prefilled"], first["tokens_new"]);
    assert_eq!(first["steps"][4]["common"], first["steps"][4]["prompt"], "sent twice, and new only once");
    let second = &replay(ModelKind::Attention, &path, &words).json()["traces"][0];
    assert_eq!(second["tokens_new"], first["tokens_new"], "what was sent before this run does not count");
    assert_eq!((&second["tokens_prefilled"], &second["bytes_written"]), (&json!(0), &json!(0)), "{second:#}");
}

#[test]
fn a_running_server_is_measured_over_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_trace(folder.path());
    let served = Served::start_model(&model_path(ModelKind::Attention), folder.path());
    let mut command = bench();
    let report = run(command.args(["replay", "--json", "--url", &served.url()]).arg(&trace)).json();
    assert_eq!((report["mode"].as_str(), report["model"].as_str()), (Some("running"), Some("attention")));
    check(&report, 1.02);
}

#[test]
fn conversations_are_sent_side_by_side_and_reported_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut trace = trace();
    let turns = trace["turns"].take();
    trace["threads"] = json!({"a": turns, "b": turns, "c": turns});
    let request = |thread: &str, upto: usize| json!({"thread": thread, "upto": upto});
    trace["requests"] =
        [1, 3, 5].iter().flat_map(|upto| ["a", "b", "c"].map(|thread| request(thread, *upto))).collect();
    let path = folder.path().join("threads.json");
    std::fs::write(&path, trace.to_string()).unwrap();
    let words = ["--json", "--at-once", "3", "--parallel", "8"];
    let report = replay(ModelKind::Attention, &path, &words).json();
    let steps = report["traces"][0]["steps"].as_array().unwrap();
    let order: Vec<&str> = steps.iter().map(|step| step["thread"].as_str().unwrap()).collect();
    assert_eq!(order, ["a", "b", "c", "a", "b", "c", "a", "b", "c"]);
    for (index, step) in steps.iter().enumerate() {
        assert_eq!(number(&step["index"]), index);
        assert_eq!(step["common"] == step["prompt"], index % 3 > 0, "b and c send what a sent");
    }
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_trace(folder.path());
    let small = replay(ModelKind::Attention, &trace, &["--ctx-size", "256"]);
    assert!(small.failed().contains("request 0 of synthetic"), "{}", small.stderr);
    let broken = folder.path().join("broken.json");
    std::fs::write(&broken, "{\"turns\": [], \"requests\": [{\"upto\": 3}]}").unwrap();
    let broken = replay(ModelKind::Attention, &broken, &[]);
    let said = broken.failed();
    assert!(said.contains("broken.json") && said.contains("requests[0]") && said.contains("0 messages"), "{said}");
    let mut nobody = bench();
    let nobody = run(nobody.args(["replay", "--url", "http://127.0.0.1:1"]).arg(&trace));
    assert!(nobody.failed().contains("127.0.0.1:1"), "{}", nobody.stderr);
    let mut neither = bench();
    assert_eq!(run(neither.args(["replay"]).arg(&trace)).code, Some(2), "a model or a server is needed");
}
