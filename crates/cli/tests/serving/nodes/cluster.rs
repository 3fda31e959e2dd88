//! A cluster of the real binary: two nodes with a real model, a router and a NATS server.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command};

use poncho_testkit::NatsServer;
use poncho_testkit::{ModelKind, model_path};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::served::Served;
use crate::serving::stopping::until;
use crate::support::{poncho, run};

pub(super) struct Node {
    child: Child,
    /// Kept open: the node writes its last lines there.
    _stdout: BufReader<ChildStdout>,
}

impl Node {
    fn start(folder: &Path, name: &str, server: &NatsServer) -> Self {
        Self::with_models(folder, name, server, &[model_path(ModelKind::Attention)])
    }

    pub(super) fn with_models(folder: &Path, name: &str, server: &NatsServer, models: &[PathBuf]) -> Self {
        let mut command = poncho();
        command.args(["node", "--listen", "127.0.0.1:0", "--ctx-size", "4096", "--threads", "1"]);
        command.args(["--save-min-tokens", "16", "--parallel", "2"]);
        for model in models {
            command.arg("--model").arg(model);
        }
        command.arg("--cache-dir").arg(folder.join(name)).args(["--node-name", name]);
        in_cluster(&mut command, folder, server);
        let (child, stdout, said) = super::started(&mut command, folder, name);
        assert!(said.contains(&format!("in the cluster as {name} at 127.0.0.1:")), "{said}");
        Self { child, _stdout: stdout }
    }

    pub(super) fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn in_cluster(command: &mut Command, folder: &Path, server: &NatsServer) {
    let key = folder.join("cluster.key");
    if !key.exists() {
        std::fs::write(&key, "a secret of at least thirty-two bytes\n").unwrap();
    }
    command.args(["--cluster", &server.address(), "--cluster-key-file"]).arg(key);
}

fn cluster(folder: &Path, server: &NatsServer, words: &[&str]) -> Value {
    let mut command = poncho();
    command.arg("cluster").args(words).arg("--json");
    in_cluster(&mut command, folder, server);
    serde_json::from_str(run(&mut command).good()).unwrap()
}

fn turn(served: &Served, prompt: &str) -> Value {
    let body = json!({ "model": "x", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    served.post("/v1/completions", &body)
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

#[test]
fn a_second_turn_goes_to_the_node_of_the_first_one_and_hits() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut server = NatsServer::start();
    let nodes = [Node::start(folder, "one", &server), Node::start(folder, "two", &server)];
    let mut command = poncho();
    command.args(["route", "--port", "0"]);
    in_cluster(&mut command, folder, &server);
    let router = Served::start_command(&mut command, folder);
    let names = |status: &Value| status["nodes"].as_array().unwrap().len();
    until("both nodes are known", || names(&cluster(folder, &server, &["status"])) == 2);

    let first = "Once upon a time there was a poncho that kept everything warm. ".repeat(20);
    let answer = turn(&router, &first);
    assert_eq!(cached(&answer), 0, "{answer}");
    until("its row is announced", || cluster(folder, &server, &["status"])["rows"].as_u64() > Some(0));
    let second = format!("{first}{} And then?", answer["choices"][0]["text"].as_str().unwrap());
    let explained = cluster(folder, &server, &["explain", "--raw", &second]);
    let home = explained["node"].as_str().unwrap().to_owned();
    assert!(explained["considered"][0]["cached_tokens"].as_u64() > Some(0), "{explained}");
    assert_eq!(explained["considered"][0]["source"], "local", "{explained}");
    let answer = turn(&router, &second);
    assert!(cached(&answer) > 0, "{answer}");

    // The node takes no more requests: the other one computes the next turn.
    assert_eq!(cluster(folder, &server, &["drain", &home])["state"], "draining");
    let elsewhere = || cluster(folder, &server, &["explain", "--raw", &second])["node"].as_str() != Some(home.as_str());
    until("the other node is chosen", elsewhere);
    turn(&router, &second);
    let mut stranger = poncho();
    std::fs::write(folder.join("other.key"), "another secret of at least 32 bytes").unwrap();
    stranger.args(["cluster", "status", "--cluster", &server.address(), "--cluster-key-file"]);
    assert!(run(stranger.arg(folder.join("other.key"))).failed().contains("no node announces itself"));

    server.stop();
    assert!(turn(&router, &first)["choices"][0]["text"].is_string(), "served without NATS");
    server.start_again();
    for node in nodes {
        assert_eq!(node.stop(), Some(0));
    }
    assert_eq!(router.stop().0, Some(0));
}

/// The nodes of a cluster that starts as a whole are a moment late.
#[test]
fn a_request_that_comes_before_the_first_node_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = NatsServer::start();
    let mut command = poncho();
    command.args(["route", "--port", "0"]);
    in_cluster(&mut command, folder, &server);
    let router = Served::start_command(&mut command, folder);
    assert!(router.greeting.contains("none has announced itself yet"), "{}", router.greeting);
    let address = router.address;
    let asked = std::thread::spawn(move || {
        let body = json!({ "model": "x", "prompt": "Once", "max_tokens": 2 }).to_string();
        crate::served::request(address, "POST", "/v1/completions", &body)
    });
    let _node = Node::start(folder, "one", &server);
    let (status, answer) = asked.join().unwrap();
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn a_server_joins_a_cluster_beside_its_own_clients() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = NatsServer::start();
    let port = poncho_testkit::unused_address();
    let start = |name: &str, advertise: Option<String>| {
        std::fs::create_dir(folder.join(name)).unwrap();
        let mut command = crate::served::serve_command(&folder.join(name).join("kv"));
        command.args(["--port", "0", "--save-min-tokens", "16", "--node-name", name]);
        if let Some(advertise) = advertise {
            command.args(["--advertise", &advertise, "--hints-listen", "127.0.0.1:0"]);
        }
        in_cluster(&mut command, folder, &server);
        Served::start_command(&mut command, &folder.join(name))
    };
    let outside = start("outside", None);
    assert!(outside.greeting.contains("not in the cluster"), "{}", outside.greeting);
    let inside = start("box", Some(port.to_string()));
    assert!(inside.greeting.contains(&format!("in the cluster as box at {port}")), "{}", inside.greeting);
    let status = cluster(folder, &server, &["status"]);
    assert_eq!(
        (status["nodes"].as_array().unwrap().len(), &status["nodes"][0]["name"]),
        (1, &json!("box")),
        "{status}"
    );

    // What its own clients computed is there for those of a router, in the same cache.
    let mut command = poncho();
    command.args(["route", "--port", "0"]);
    in_cluster(&mut command, folder, &server);
    let router = Served::start_command(&mut command, folder);
    let prompt = "Once upon a time there was a poncho that kept everything warm. ".repeat(20);
    let first = turn(&inside, &prompt);
    let again = turn(&router, &prompt);
    assert_eq!(again["choices"][0]["text"], first["choices"][0]["text"]);
    assert!(cached(&again) > 0, "{again}");
    assert_eq!(inside.stop().0, Some(0));
    until("it has left", || {
        cluster(folder, &server, &["status"])["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["state"] == "draining")
    });
}

#[test]
fn unused_states_of_a_cluster_are_collected_after_a_yes() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("store").display());
    let gc = |words: &[&str]| run(poncho().args(["cluster", "gc", "--shared", &url]).args(words));
    let foreseen = gc(&["--dry-run", "--json"]).json();
    assert_eq!((&foreseen["dry_run"], &foreseen["removed_rows"]), (&json!(true), &json!(0)));
    assert!(gc(&["--dry-run"]).good().contains("would remove 0 rows"));
    assert!(gc(&[]).failed().contains("confirm it with --yes"));
    let collected = gc(&["--yes", "--json", "--shared-quota", "1GiB"]).json();
    assert_eq!((&collected["dry_run"], &collected["removed_rows"]), (&json!(false), &json!(0)));
    let of_setting = run(poncho().args(["cluster", "gc", "--dry-run", "--json"]).env("PONCHO_SHARED", &url)).json();
    assert_eq!(of_setting["rows"], 0);
    assert!(run(poncho().args(["cluster", "gc", "--yes"])).failed().contains("--shared s3://BUCKET/PREFIX"));
}

#[test]
fn mistakes_with_clusters_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let failed = |words: &[&str]| run(poncho().args(words)).failed().to_owned();
    assert!(failed(&["route", "--port", "0"]).contains("--cluster-key-file"));
    assert!(failed(&["route", "--port", "0", "--cluster", "nats://127.0.0.1:1"]).contains("needs --cluster-key-file"));
    std::fs::write(&key, "short").unwrap();
    let short = ["cluster", "status", "--cluster", "nats://127.0.0.1:1", "--cluster-key-file", key.to_str().unwrap()];
    assert!(failed(&short).contains("32 are needed"));
    assert!(failed(&["cluster", "status"]).contains("no cluster is named"));
}
