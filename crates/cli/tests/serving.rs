//! `poncho serve` with names instead of paths: which model is meant, what is loaded on demand, what a newcomer is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

use poncho_models::{ModelName, Registry, ignore_progress};
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::support::{poncho, run};

/// A server; ended in order by `stop`, killed when a test fails.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(folder: &Path, words: &[&str]) -> Self {
        let mut command = poncho();
        command.args(["serve", "--port", "0", "--ctx-size", "512", "--parallel", "1", "--threads", "1"]).args(words);
        command.arg("--cache-dir").arg(folder.join("kv")).arg("--models-dir").arg(folder.join("models"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let greeting = lines.find(|line| line.starts_with("serving ")).expect("it did not start");
        let url = greeting.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
        let address = url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
        // What it says later is read too, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    fn send(&self, head: &str, body: &str) -> Value {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let rest = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
        write!(socket, "{head} HTTP/1.1\r\n{rest}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"))
    }

    /// Which model answers to a name.
    fn answers(&self, name: &str) -> String {
        let body = json!({"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]});
        let answer = self.send("POST /v1/chat/completions", &body.to_string());
        answer["model"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn install(folder: &Path, name: &str) {
    let registry = Registry::open(folder.join("models")).unwrap();
    let name = ModelName::parse(name).unwrap();
    registry.import(&model_path(ModelKind::Attention), &name, &mut ignore_progress).unwrap();
}

#[test]
fn names_aliases_and_paths_find_their_model() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), "small:v1");
    let path = model_path(ModelKind::Hybrid);
    let words = ["--model", path.to_str().unwrap(), "--alias", "claude-*=small:v1", "--keep-alive", "-1"];
    let served = Served::start(folder.path(), &words);
    let first = path.file_stem().unwrap().to_str().unwrap();
    assert_eq!(served.answers(first), first);
    assert_eq!(served.answers("gpt-4o"), first, "a name that nobody knows");
    let loaded = |served: &Served| served.send("GET /api/ps", "")["models"].as_array().unwrap().len();
    assert_eq!(loaded(&served), 1);
    assert_eq!(served.answers("claude-sonnet"), "small:v1", "loaded on demand");
    assert_eq!((served.answers("small:v1").as_str(), loaded(&served)), ("small:v1", 2));
    served.stop();
}

#[test]
fn the_default_model_is_used_or_the_way_to_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |words: &[&str]| {
        let mut command = poncho();
        command.arg("serve").args(["--port", "0", "--models-dir"]).arg(folder.path().join("models"));
        run(command.arg("--cache-dir").arg(folder.path().join("kv")).args(words))
    };
    let missing = serve(&[]);
    assert!(missing.failed().contains("poncho pull smollm2:135m"), "{}", missing.stderr);
    install(folder.path(), "small:v1");
    let typo = serve(&["--model", "smal:v1"]);
    assert!(typo.failed().contains("small:v1"), "{}", typo.stderr);
    let path = serve(&["--model", "./nothing.gguf"]);
    assert!(path.failed().contains("there is no file ./nothing.gguf"), "{}", path.stderr);
    for (words, said) in [
        (["--alias", "nothing"], "NAME=MODEL"),
        (["--keep-alive", "soon"], "5m"),
        (["--memory", "much"], "none for no limit"),
    ] {
        let wrong = serve(&words);
        assert!(wrong.code == Some(2) && wrong.stderr.contains(said), "{}", wrong.stderr);
    }
    install(folder.path(), "smollm2:135m");
    let served = Served::start(folder.path(), &[]);
    assert_eq!(served.answers("smollm2:135m"), "smollm2:135m");
    served.stop();
}
