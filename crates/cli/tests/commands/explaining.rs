//! `poncho explain`, and `poncho tokenize` piped into `poncho cache explain`: with a real server and a tiny model.

use std::path::Path;

use serde_json::{Value, json};

use crate::fake_server::{End, FakeServer, Script};
use crate::served::{Served, serve_command};
use crate::support::{Run, cache, poncho, run, run_with_input};

const SYSTEM: &str =
    "You are a careful assistant for the files of a small workshop. Read a file before you speak of it.";

fn conversation(system: &str) -> Value {
    let mut messages = vec![json!({"role": "system", "content": system})];
    for number in 0..5 {
        messages.push(json!({"role": "user", "content": format!("What does part {number} say about wood and glue?")}));
        messages
            .push(json!({"role": "assistant", "content": format!("Part {number} speaks of oak and of bone glue.")}));
    }
    messages.push(json!({"role": "user", "content": "Put all parts into one list."}));
    Value::Array(messages)
}

fn explain(served: &Served, home: &Path, body: &Value, more: &[&str]) -> Run {
    let file = home.join("body.json");
    std::fs::write(&file, body.to_string()).unwrap();
    run(poncho().args(["explain", "--url", &served.url(), "--request"]).arg(&file).args(more))
}

/// Everyday use 7: an id in front of the system prompt was `never_seen`.
#[test]
fn a_request_of_any_dialect_is_explained_with_cause_place_and_fix() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start(home.path());
    let body = |system: &str| json!({"messages": conversation(system), "max_tokens": 4, "temperature": 0});
    let mut first = body(SYSTEM);
    first["model"] = "attention".into();
    served.post("/v1/chat/completions", &first);
    let changed = format!("Request 7f3a2b90\n{SYSTEM}");
    let report = explain(&served, home.path(), &body(&changed), &[]);
    let text = report.good();
    for line in [
        "cause          changing_id: an id or another number differs, and the text behind it is cached",
        "place          message 1 (system), token ",
        "fix            Move this to the end of the prompt",
        "asked   Request 7f3a2b90\\nYou",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let json = explain(&served, home.path(), &body(&changed), &["--json"]).json();
    let [tokens, usable, lost] = ["tokens", "usable", "lost"].map(|field| json[field].as_u64().unwrap());
    assert!(lost * 10 > (tokens - usable) * 8, "{json}");
    // The same conversation as Anthropic's clients send it, recognized or named.
    let mut messages = conversation("");
    messages.as_array_mut().unwrap().remove(0);
    let anthropic = json!({"system": changed, "messages": messages, "max_tokens": 4});
    for more in [&["--json"][..], &["--json", "--dialect", "anthropic"]] {
        let found = explain(&served, home.path(), &anthropic, more).json();
        assert_eq!((&found["cause"], &found["lost"]), (&json["cause"], &json["lost"]), "{found}");
    }
    let mut dropped = body(SYSTEM);
    dropped["messages"].as_array_mut().unwrap().drain(1..3);
    let found = explain(&served, home.path(), &dropped, &["--json"]).json();
    assert_eq!(
        (&found["cause"], &found["message"]),
        (&json!("truncated_history"), &json!({"number": 2, "role": "user"}))
    );
}

#[test]
fn what_cannot_be_explained_is_refused_with_the_reason() {
    let home = tempfile::tempdir().unwrap();
    let fake = FakeServer::start(Script { pieces: Vec::new(), end: End::Whole });
    let refused = |text: &str| {
        let command = &mut poncho();
        run_with_input(command.args(["explain", "--url", &fake.url, "--request", "-"]), text)
    };
    assert!(refused("{").failed().contains("standard input is not JSON"));
    assert!(refused("[1]").failed().contains("expected a JSON object"));
    assert!(refused(r#"{"prompt": "x"}"#).failed().contains("there is no such path"), "an older server");
    let missing = run(poncho().args(["explain", "--request"]).arg(home.path().join("none.json")));
    assert!(missing.failed().contains("cannot read a request"));
    assert_eq!(run(poncho().args(["explain", "--request", "-", "--dialect", "latin"])).code, Some(2));
    assert_eq!(run(poncho().arg("explain")).code, Some(2));
}

/// Everyday use 7: the output of `tokenize --json` was refused as a list of tokens.
#[test]
fn the_output_of_tokenize_can_be_piped_into_cache_explain() {
    let home = tempfile::tempdir().unwrap();
    let mut command = serve_command(&home.path().join("kv"));
    let served = Served::start_command(command.args(["--port", "0", "--save-min-tokens", "64"]), home.path());
    let text = SYSTEM.to_owned();
    served.post("/v1/completions", &json!({"model": "attention", "prompt": text, "max_tokens": 4, "temperature": 0}));
    let changed = format!("Request 7f3a2b90. {text}");
    let tokens = run(poncho().args(["tokenize", "--json", "--url", &served.url(), &changed]));
    tokens.good();
    served.stop();
    let folder = home.path().join("kv");
    let explain = |more: &[&str]| {
        let command = &mut poncho();
        command.args(["cache", "explain", "--tokens", "-", "--cache-dir"]).arg(&folder).args(more);
        run_with_input(command, &tokens.stdout)
    };
    let found = explain(&["--json"]).json();
    let [tokens, shared] = [&found["tokens"], &found["similar"]["shared"]].map(|field| field.as_u64().unwrap());
    assert!(shared * 10 > tokens * 7, "{found}");
    assert!(found["similar"]["resumes"]["asked"].as_u64() > found["similar"]["resumes"]["stored"].as_u64(), "{found}");
    let text = explain(&[]);
    assert!(
        text.good().contains("most similar   ") && text.stdout.contains("; the same tokens follow"),
        "{}",
        text.stdout
    );
    cache(&folder, &["verify"]).good();
}
