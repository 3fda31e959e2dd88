//! Nodes in processes of their own and a server in front of them, all of them the real binary with real models.

mod cluster;
mod drafting;
mod figures;
mod pulls;

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use poncho_testkit::{ModelKind, model_path};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::served::{Served, serve_command};
use crate::serving::stopping::until;
use crate::support::{poncho, run};

/// A node that listens.
struct Node {
    child: Child,
    /// Kept open: the node writes its last lines there.
    _stdout: BufReader<ChildStdout>,
    address: String,
}

fn certificate(folder: &Path, name: &str) -> [String; 6] {
    let file = |file: String| folder.join("certificates").join(file).to_str().unwrap().to_owned();
    let [cert, key, ca] = [file(format!("{name}.pem")), file(format!("{name}-key.pem")), file("ca.pem".to_owned())];
    ["--node-cert".into(), cert, "--node-key".into(), key, "--node-ca".into(), ca]
}

fn certificates(folder: &Path) {
    let made = run(poncho().args(["node", "cert", "127.0.0.1", "front", "--dir"]).arg(folder.join("certificates")));
    assert!(made.good().contains("--node-cert"), "{}", made.stdout);
}

/// Starts a node and waits until it computes: its process, its output from there on, and what it printed.
fn started(command: &mut Command, folder: &Path, name: &str) -> (Child, BufReader<ChildStdout>, String) {
    let stderr = std::fs::File::create(folder.join(format!("{name}.stderr"))).unwrap();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("Ctrl-C") {
        let read = stdout.read_line(&mut said).unwrap();
        assert!(read > 0, "{said}{}", std::fs::read_to_string(folder.join(format!("{name}.stderr"))).unwrap());
    }
    (child, stdout, said)
}

impl Node {
    fn start(folder: &Path, name: &str, listen: &str) -> Self {
        let mut command = poncho();
        command.args(["node", "--listen", listen, "--ctx-size", "4096", "--threads", "1", "--exact"]);
        command.args(["--save-min-tokens", "16", "--parallel", "2", "--model"]).arg(model_path(ModelKind::Attention));
        command.arg("--cache-dir").arg(folder.join(name)).args(certificate(folder, "127.0.0.1"));
        let (child, stdout, said) = started(&mut command, folder, name);
        let line = said.lines().find(|line| line.starts_with("computing")).unwrap();
        assert!(line.ends_with("with certificates"), "{line}");
        let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap().to_owned();
        Self { child, _stdout: stdout, address }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn front(folder: &Path, nodes: &[&Node]) -> Served {
    let mut command = poncho();
    command.args(["serve", "--port", "0"]).args(certificate(folder, "front"));
    for node in nodes {
        command.args(["--node", &node.address]);
    }
    Served::start_command(&mut command, folder)
}

fn body() -> Value {
    json!({
        "model": "x", "prompt": "Once upon a time there was a poncho that kept everything warm", "stream": false,
        "max_tokens": 120, "seed": 7, "temperature": 0.9, "ignore_eos": true,
    })
}

fn text(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_front_serves_the_models_of_its_nodes_and_survives_each_of_them() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let (one, two) =
        (Node::start(folder.path(), "one", "127.0.0.1:0"), Node::start(folder.path(), "two", "127.0.0.1:0"));
    let served = front(folder.path(), &[&one, &two]);
    let models: Value = serde_json::from_str(&served.ask("GET", "/v1/models").1).unwrap();
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{models}");
    let expected = text(&served.post("/v1/completions", &body()));
    // Both replies are computed somewhere; one of the machines goes.
    let address = served.address;
    let asked = std::thread::spawn(move || {
        let (status, answer) = crate::served::request(address, "POST", "/v1/completions", &body().to_string());
        assert_eq!(status, 200, "{answer}");
        text(&serde_json::from_str(&answer).unwrap())
    });
    one.signal(Signal::KILL);
    assert_eq!(asked.join().unwrap(), expected);
    assert_eq!(text(&served.post("/v1/completions", &body())), expected);
    // The last one goes too: the front answers, and goes on when a node is back at the same place.
    let place = two.address.clone();
    drop(two);
    assert_eq!(served.ask("GET", "/health").0, 200);
    assert_eq!(served.ask("GET", "/metrics").0, 200);
    let waiting =
        std::thread::spawn(move || crate::served::request(address, "POST", "/v1/completions", &body().to_string()));
    let back = Node::start(folder.path(), "two", &place);
    let (status, answer) = waiting.join().unwrap();
    assert_eq!((status, text(&serde_json::from_str(&answer).unwrap())), (200, expected));
    // Nodes go on without their front, and end in order.
    assert_eq!(served.stop().0, Some(0));
    let mut back = back;
    back.signal(Signal::TERM);
    assert_eq!(back.child.wait().unwrap().code(), Some(0));
}

#[test]
fn mistakes_with_certificates_and_nodes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = folder.path().join("certificates");
    let failed = |words: &[&str]| run(poncho().args(words)).failed().to_owned();
    let exposed = failed(&["node", "--listen", "0.0.0.0:0", "--model", "m.gguf"]);
    assert!(exposed.contains("--node-cert") && exposed.contains("poncho node cert"), "{exposed}");
    assert!(failed(&["serve", "--port", "0", "--node", "192.0.2.1:7070"]).contains("--node-cert"));
    let missing = failed(&["serve", "--port", "0", "--node", "127.0.0.1:1", "--node-cert", "a.pem"]);
    assert!(missing.contains("belong together"), "{missing}");
    let both = failed(&["serve", "--port", "0", "--node", "127.0.0.1:1", "--model", "m.gguf"]);
    assert!(both.contains("exclude each other"), "{both}");
    assert!(failed(&["node", "--node", "127.0.0.1:1"]).contains("computes itself"));
    let wrong = run(poncho().args(["serve", "--node", "nowhere"]));
    assert!(wrong.code == Some(2) && wrong.stderr.contains("HOST:PORT"), "{}", wrong.stderr);
    let made = || run(poncho().args(["node", "cert", "gpu-1", "--dir"]).arg(&certificates));
    assert!(made().good().contains("gpu-1-key.pem"));
    assert!(made().failed().contains("exists"));
    let key: PathBuf = certificates.join("gpu-1-key.pem");
    let swapped = ["serve", "--port", "0", "--node", "127.0.0.1:1", "--node-cert", key.to_str().unwrap()];
    let ca = certificates.join("ca.pem");
    let more = ["--node-key", key.to_str().unwrap(), "--node-ca", ca.to_str().unwrap()];
    let swapped = run(poncho().args(swapped).args(more)).failed().to_owned();
    assert!(swapped.contains("contains no certificate"), "{swapped}");
}

/// What systemd would learn, by the messages of one process.
fn learns(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 512];
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn the_service_manager_learns_when_a_server_is_ready_alive_and_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut command = serve_command(&folder.path().join("kv"));
    command.args(["--port", "0"]).env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    let served = Served::start_command(&mut command, folder.path());
    assert!(learns(&socket).contains("READY=1"));
    // The engine is another process and has nothing to say.
    for _ in 0..2 {
        assert!(learns(&socket).contains("WATCHDOG=1"));
    }
    let stopped = std::thread::spawn(move || served.terminate());
    until("it says that it stops", || learns(&socket).contains("STOPPING=1"));
    assert_eq!(stopped.join().unwrap().0, Some(0));
}

#[test]
fn a_front_without_any_node_says_what_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = poncho();
    command.args(["serve", "--port", "0", "--node", "127.0.0.1:1"]);
    let served = Served::start_command(&mut command, folder.path());
    assert!(served.greeting.contains("waiting for the node 127.0.0.1:1"), "{}", served.greeting);
    let (status, answer) = crate::served::request(served.address, "POST", "/v1/completions", &body().to_string());
    assert_eq!(status, 503, "{answer}");
    assert_eq!(served.stop().0, Some(0));
}
