//! `poncho run` and the small commands without a terminal: what goes to which stream, and how they exit.

use std::path::Path;
use std::process::Command;

use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::fake_server::{End, FakeServer, Script};
use crate::served::Served;
use crate::support::{Run, poncho, run, run_with_input};

/// The binary with a home folder of its own and words before the test's own.
fn in_home(home: &Path, words: &[&str]) -> Command {
    let mut command = poncho();
    command.args(words).env("HOME", home).env_remove("XDG_STATE_HOME");
    command
}

/// A command that runs the model in its own process.
fn own(home: &Path, words: &[&str]) -> Command {
    let mut command = in_home(home, words);
    command.args(["--local", "--threads", "1", "--cache-dir"]).arg(home.join("kv"));
    command
}

fn attention() -> String {
    model_path(ModelKind::Attention).to_str().unwrap().to_owned()
}

fn long_prompt() -> String {
    "Read this carefully and answer in one line. ".repeat(20)
}

fn whole(pieces: &[&'static str]) -> Script {
    Script { pieces: pieces.to_vec(), end: End::Whole }
}

#[test]
fn a_prompt_on_standard_input_gets_the_reply_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let server = FakeServer::start(whole(&["a\x1b[31m", "\r\nb \u{202e}"]));
    let run = run_with_input(&mut in_home(home.path(), &["run", "--url", &server.url]), "Two\nlines\n");
    assert_eq!(run.good(), "a\x1b[31m\r\nb \u{202e}\n", "a pipe gets what the model wrote");
    let (path, body) = server.posted.recv().unwrap();
    assert_eq!((path.as_str(), &body["model"]), ("/v1/chat/completions", &json!("fake")));
    assert_eq!(body["messages"], json!([{"role": "user", "content": "Two\nlines"}]));
}

#[test]
fn flags_reach_the_server_and_a_dash_stands_for_standard_input() {
    let home = tempfile::tempdir().unwrap();
    let server = FakeServer::start(whole(&["yes\n"]));
    let words = ["run", "--url", &server.url, "--system", "Be brief.", "--max-tokens", "7", "--temperature", "0.5"];
    let mut command = in_home(home.path(), &words);
    command.args(["--seed", "11", "named", "Describe this:", "-"]);
    assert_eq!(run_with_input(&mut command, "a change\n").good(), "yes\n", "no second line end");
    let body = server.posted.recv().unwrap().1;
    assert_eq!(
        body["messages"],
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Describe this: a change"}])
    );
    let sent = ["model", "max_tokens", "temperature", "seed"].map(|name| body[name].clone());
    assert_eq!(sent, [json!("named"), json!(7), json!(0.5), json!(11)]);
}

#[test]
fn json_tells_the_reply_and_its_cost() {
    let home = tempfile::tempdir().unwrap();
    let server = FakeServer::start(whole(&["one", " two"]));
    let answer = run(&mut in_home(home.path(), &["run", "--json", "--url", &server.url, "fake", "Hello"])).json();
    let told = ["model", "reply", "hit", "cached_tokens", "new_tokens", "reply_tokens", "finish_reason"];
    let told = told.map(|name| answer[name].clone());
    let expected = [json!("fake"), json!("one two"), json!("partial"), json!(6), json!(3), json!(4), json!("stop")];
    assert_eq!(told, expected);
    assert!(answer["first_token_ms"].is_number());
}

#[test]
fn what_goes_wrong_shows_in_the_exit_code() {
    let home = tempfile::tempdir().unwrap();
    let server = FakeServer::start(Script { pieces: vec!["half"], end: End::Broken });
    let broken = run(&mut in_home(home.path(), &["run", "--url", &server.url, "fake", "Hello"]));
    assert_eq!((broken.code, broken.stdout.as_str()), (Some(1), "half"));
    assert!(broken.stderr.contains("error: the reply broke off"), "{}", broken.stderr);
    let nobody = run(&mut in_home(home.path(), &["run", "--url", "http://127.0.0.1:1", "m", "Hello"]));
    assert!(nobody.failed().contains("127.0.0.1:1"));
    let silent = run(&mut in_home(home.path(), &["run", "--url", &server.url]));
    assert!(silent.failed().contains("standard input is empty"));
    let no_model = run(&mut own(home.path(), &["run", "no/such.gguf", "Hello"]));
    assert!(no_model.failed().contains("no/such.gguf"));
    let mut no_default = own(home.path(), &["run"]);
    let no_default = run_with_input(no_default.current_dir(home.path()), "Hello");
    assert!(no_default.failed().contains("smollm2:135m"), "{}", no_default.stderr);
    for wrong in [&["run", "--temperature", "3"][..], &["run", "--nope"], &["run", "--local", "--url", "x"], &["stop"]]
    {
        assert_eq!(run(&mut in_home(home.path(), wrong)).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn a_model_in_this_process_keeps_what_it_read() {
    let home = tempfile::tempdir().unwrap();
    let (model, prompt) = (attention(), long_prompt());
    let ask = || run(&mut own(home.path(), &["run", "--json", "--max-tokens", "4", &model, &prompt])).json();
    let first = ask();
    assert_eq!((&first["hit"], &first["cached_tokens"]), (&json!("cold"), &json!(0)));
    let second = ask();
    assert_ne!(second["hit"], "cold", "{second}");
    assert!(second["cached_tokens"].as_u64().unwrap() > 500, "{second}");
}

#[test]
fn a_poncho_at_the_default_address_is_used() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start_model(&model_path(ModelKind::Attention), home.path());
    let port = served.address.port().to_string();
    let prompt = long_prompt();
    let ask = |words: &[&str]| {
        let mut command = in_home(home.path(), &["run", "--json", "--max-tokens", "4"]);
        run_with_input(command.args(words).env("PONCHO_PORT", &port).current_dir(home.path()), &prompt).json()
    };
    assert_eq!(ask(&[])["hit"], "cold");
    let by_file = attention();
    for words in [&[][..], &["attention"], &[&by_file]] {
        let answer = ask(words);
        assert_eq!(answer["model"], "attention");
        assert_ne!(answer["hit"], "cold", "{words:?}: the server has read it already");
    }
    assert!(!home.path().join(".cache").exists(), "no cache of our own was opened");
}

#[test]
fn another_file_of_the_same_name_is_not_answered_by_the_server() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start_model(&model_path(ModelKind::Attention), home.path());
    let folder = home.path().join("other");
    std::fs::create_dir(&folder).unwrap();
    let same_name = folder.join("attention.gguf");
    std::fs::copy(model_path(ModelKind::Recurrent), &same_name).unwrap();
    let mut command = in_home(home.path(), &["run", "--json", "--max-tokens", "4", "--threads", "1"]);
    command.arg(&same_name).arg("Hello").arg("--cache-dir").arg(home.path().join("own"));
    run(command.env("PONCHO_PORT", served.address.port().to_string())).json();
    assert!(home.path().join("own").exists(), "the file that was named was loaded in the command's own process");
}

#[test]
fn a_cache_folder_that_is_in_use_does_not_stop_a_chat() {
    let home = tempfile::tempdir().unwrap();
    let _served = Served::start_model(&model_path(ModelKind::Attention), home.path());
    let Run { code, stdout, stderr } = run(&mut own(home.path(), &["run", "--max-tokens", "4", &attention(), "Hello"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stdout.is_empty() && stderr.contains("in memory only"), "{stderr}");
}

#[test]
fn a_home_that_cannot_be_written_does_not_stop_a_chat() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join(".cache"), "a file where the folder should be").unwrap();
    let model = attention();
    let words = ["run", "--local", "--threads", "1", "--max-tokens", "4", &model, "Hello"];
    let mut command = in_home(home.path(), &words);
    let Run { code, stdout, stderr } = run(&mut command);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stdout.is_empty() && stderr.contains("in memory only"), "{stderr}");
    let named = run(command.arg("--cache-dir").arg(home.path().join(".cache/kv")));
    assert!(named.failed().contains(".cache/kv"), "{}", named.stderr);
}

#[test]
fn loaded_models_are_listed_and_unloaded() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start_model(&model_path(ModelKind::Attention), home.path());
    let listed = run(&mut in_home(home.path(), &["ps", "--json", "--url", &served.url()])).json();
    assert_eq!((&listed[0]["name"], &listed[0]["context_length"]), (&json!("attention:latest"), &json!(4096)));
    let table = run(&mut in_home(home.path(), &["ps", "--url", &served.url()]));
    let lines: Vec<&str> = table.good().lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("NAME") && lines[1].ends_with("forever"), "{lines:?}");
    let fake = FakeServer::start(whole(&[]));
    let stopped = run(&mut in_home(home.path(), &["stop", "smollm2:135m", "--url", &fake.url]));
    assert_eq!(stopped.good(), "unloaded smollm2:135m\n");
    assert_eq!(fake.posted.recv().unwrap(), ("/api/models/unload".to_owned(), json!({"model": "smollm2:135m"})));
    let unknown = run(&mut in_home(home.path(), &["ps", "--url", &fake.url]));
    assert!(unknown.failed().contains("has no /api/ps"));
}

#[test]
fn texts_become_vectors_here_and_at_a_server() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start_model(&model_path(ModelKind::Attention), home.path());
    let there =
        run(&mut in_home(home.path(), &["embed", "--json", "--url", &served.url(), "one text", "another"])).json();
    let model = attention();
    let here = run(&mut own(home.path(), &["embed", "--json", "--model", &model, "one text", "another"])).json();
    let numbers =
        |answer: &Value, at: usize| -> Vec<f64> { serde_json::from_value(answer["embeddings"][at].clone()).unwrap() };
    for at in [0, 1] {
        let (here, there) = (numbers(&here, at), numbers(&there, at));
        assert!(here.len() > 8 && here.len() == there.len());
        assert!(here.iter().zip(&there).all(|(here, there)| (here - there).abs() < 1e-3));
    }
    assert_ne!(numbers(&there, 0), numbers(&there, 1));
    let lines = run_with_input(&mut in_home(home.path(), &["embed", "--url", &served.url()]), "one text\n");
    let line: Vec<f64> = lines.good().split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!(line.len(), numbers(&there, 0).len());
}

#[test]
fn texts_become_tokens_and_tokens_texts() {
    let home = tempfile::tempdir().unwrap();
    let model = attention();
    let split = run(&mut own(home.path(), &["tokenize", "--json", "--model", &model, "Hi \u{e9}"])).json();
    let tokens = split["tokens"].as_array().unwrap();
    assert_eq!(split["count"], tokens.len());
    let ids: Vec<String> = tokens.iter().map(|token| token["id"].to_string()).collect();
    let mut back = own(home.path(), &["tokenize", "--model", &model, "--detokenize"]);
    assert_eq!(run(back.args(&ids)).good(), "Hi \u{e9}\n");
    let table = run(&mut own(home.path(), &["tokenize", "--model", &model, "Hi", "there"]));
    let lines: Vec<&str> = table.good().lines().collect();
    assert!(
        lines[0].trim() == "ID  PIECE" && lines.iter().any(|line| line.contains("' '") || line.contains("' t")),
        "{lines:?}"
    );
    assert!(!home.path().join("kv").exists(), "a vocabulary needs no cache folder");
    let wrong = run(&mut own(home.path(), &["tokenize", "--model", &model, "--detokenize", "999999"]));
    assert!(wrong.failed().contains("tokens[0]"));
}
