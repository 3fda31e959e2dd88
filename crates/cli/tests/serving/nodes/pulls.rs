//! Rows that travel between nodes, and KV events of a server: the real binary with a real model, NATS and ZeroMQ.

use std::io::BufReader;
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use poncho_testkit::NatsServer;
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};
use zeromq::{Socket as _, SocketRecv as _, SubSocket};

use crate::served::{Served, serve_command};
use crate::serving::stopping::until;
use crate::support::{poncho, run};

struct Node {
    child: Child,
    /// Kept open: the node writes its last lines there.
    _stdout: BufReader<ChildStdout>,
    address: String,
}

impl Node {
    fn start(folder: &Path, name: &str, bus: &NatsServer) -> Self {
        let key = folder.join("cluster.key");
        std::fs::write(&key, "a secret of at least thirty-two bytes\n").unwrap();
        let mut command = poncho();
        command.args(["node", "--listen", "127.0.0.1:0", "--ctx-size", "4096", "--threads", "1", "--parallel", "1"]);
        command.args(["--save-min-tokens", "16", "--node-name", name, "--cluster", &bus.address()]);
        command.arg("--cluster-key-file").arg(key).arg("--model").arg(model_path(ModelKind::Attention));
        command.arg("--cache-dir").arg(folder.join(name));
        let (child, stdout, said) = super::started(&mut command, folder, name);
        let line = said.lines().find(|line| line.starts_with("computing")).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap().to_owned();
        Self { child, _stdout: stdout, address }
    }

    /// A server in front of this node alone.
    fn front(&self, folder: &Path, name: &str) -> Served {
        let own = folder.join(format!("front-{name}"));
        std::fs::create_dir(&own).unwrap();
        let mut command = poncho();
        command.args(["serve", "--port", "0", "--node", &self.address, "--cache-dir"]).arg(own.join("kv"));
        Served::start_command(&mut command, &own)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn peers(served: &Served) -> Value {
    serde_json::from_str::<Value>(&served.ask("GET", "/api/cache").1).unwrap()["peers"].clone()
}

#[test]
fn a_prompt_that_one_node_computed_is_pulled_by_another_one_and_answered_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let bus = NatsServer::start();
    let ask = |served: &Served| {
        let content = "Once upon a time there was a poncho that kept everything warm. ".repeat(40);
        let body = json!({"model": "x", "max_tokens": 8, "temperature": 0, "ignore_eos": true, "poncho": true,
            "messages": [{"role": "user", "content": content}]});
        let reply = served.post("/v1/chat/completions", &body);
        (reply["choices"][0]["message"]["content"].clone(), reply["poncho"].clone())
    };
    let one = Node::start(folder, "one", &bus);
    let first = one.front(folder, "one");
    let (text, facts) = ask(&first);
    assert_eq!(facts["cached_tokens"], 0, "{facts}");
    until("its row is announced", || {
        let mut command = poncho();
        command.args(["cluster", "status", "--json", "--cluster", &bus.address(), "--cluster-key-file"]);
        let status = run(command.arg(folder.join("cluster.key")));
        serde_json::from_str::<Value>(&status.stdout).is_ok_and(|status| status["rows"].as_u64() > Some(0))
    });
    // A machine that computes faster than it pulls does not pull; one of three finds it worth it.
    let mut pulled = false;
    for number in 0..3 {
        let name = format!("two-{number}");
        let two = Node::start(folder, &name, &bus);
        let second = two.front(folder, &name);
        until("the rows of the other node are known", || peers(&second)["on"] == true);
        let (again, facts) = ask(&second);
        assert_eq!(again, text, "{facts}");
        if facts["tier"] == "peer" {
            pulled = true;
            until("both ends count it", || {
                peers(&second)["fetched_bytes"].as_u64() > Some(0) && peers(&first)["uploaded_rows"].as_u64() > Some(0)
            });
            break;
        }
    }
    assert!(pulled, "no node pulled the row");
}

/// Waits for a batch with an event of this name.
async fn receive(subscriber: &mut SubSocket, wanted: &str) -> bool {
    let read = async {
        loop {
            let message = subscriber.recv().await.unwrap();
            let payload = message.get(2).unwrap();
            if payload.windows(wanted.len()).any(|part| part == wanted.as_bytes()) {
                return true;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(2), read).await.unwrap_or(false)
}

#[test]
fn a_subscriber_sees_what_a_server_stores_and_removes() {
    let folder = tempfile::tempdir().unwrap();
    let port = poncho_testkit::unused_address().port();
    let address = format!("127.0.0.1:{port}");
    let mut command = serve_command(&folder.path().join("kv"));
    command.args(["--port", "0", "--save-min-tokens", "16", "--kv-events", &address]);
    let served = Served::start_command(&mut command, folder.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut subscriber = SubSocket::new();
    runtime.block_on(async {
        subscriber.connect(&format!("tcp://{address}")).await.unwrap();
        subscriber.subscribe("").await.unwrap();
    });
    // A subscription takes a moment to arrive: prompts are stored until one is received.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut number = 0;
    loop {
        number += 1;
        let prompt = format!("{number} ").repeat(80);
        served.post("/v1/completions", &json!({"model": "m", "prompt": prompt, "max_tokens": 1}));
        if runtime.block_on(receive(&mut subscriber, "BlockStored")) {
            break;
        }
        assert!(Instant::now() < deadline, "nothing was received");
    }
    until("all rows left", || {
        served.post("/api/cache/clear", &json!({}));
        runtime.block_on(receive(&mut subscriber, "BlockRemoved"))
    });
}

#[test]
fn kv_events_stay_on_this_machine_unless_that_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve_command(&folder.path().join("kv"));
    let refused = run(command.args(["--port", "0", "--kv-events", "0.0.0.0:5557"]));
    assert!(refused.failed().contains("--kv-events-open"), "{}", refused.stderr);
}
