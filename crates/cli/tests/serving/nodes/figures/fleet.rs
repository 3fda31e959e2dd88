//! Nodes, routers and a bus for one measurement. Everything ends with its value.

use std::io::BufReader;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command};
use std::time::Duration;

use poncho_testkit::NatsServer;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::served::Served;
use crate::serving::stopping::until;
use crate::support::{poncho, run};

/// A node that listens at any free port.
const ANYWHERE: (&str, &[String]) = ("127.0.0.1:0", &[]);

/// What all nodes of a fleet have in common.
#[derive(Clone)]
pub(super) struct Recipe {
    pub(super) model: PathBuf,
    pub(super) flags: Vec<String>,
}

impl Recipe {
    pub(super) fn new(model: PathBuf, flags: &[&str]) -> Self {
        Self { model, flags: flags.iter().map(|flag| (*flag).to_owned()).collect() }
    }
}

/// See the module.
pub(super) struct Fleet {
    pub(super) nodes: Vec<Node>,
    pub(super) bus: NatsServer,
    folder: TempDir,
    recipe: Recipe,
    routers: usize,
}

/// A node in a process group of its own, with its engine.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) address: String,
    child: Child,
    /// Kept open: the node writes its last lines there.
    _stdout: BufReader<ChildStdout>,
}

impl Node {
    fn start(folder: &Path, name: &str, recipe: &Recipe, bus: &str, (listen, more): (&str, &[String])) -> Self {
        let mut command = poncho();
        command.args(["node", "--listen", listen, "--node-name", name, "--memory", "none", "--model"]);
        command.arg(&recipe.model).args(&recipe.flags).arg("--cache-dir").arg(folder.join(name)).args(more);
        command.args(["--cluster", bus, "--cluster-key-file"]).arg(key(folder)).process_group(0);
        let (child, stdout, said) = super::super::started(&mut command, folder, name);
        let line = said.lines().find(|line| line.starts_with("computing")).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap().to_owned();
        Self { name: name.to_owned(), address, child, _stdout: stdout }
    }

    /// Ends the node and its engine without a word.
    pub(super) fn kill(&mut self) {
        let group = Pid::from_child(&self.child);
        // It may have ended already.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
        // Its engine holds the cache folder until it is gone too.
        for _ in 0..200 {
            if test_kill_process_group(group).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn key(folder: &Path) -> PathBuf {
    let key = folder.join("cluster.key");
    if !key.exists() {
        std::fs::write(&key, "a secret of at least thirty-two bytes\n").unwrap();
    }
    key
}

impl Fleet {
    pub(super) fn start(count: usize, recipe: Recipe) -> Self {
        let (folder, bus) = (tempfile::tempdir().unwrap(), NatsServer::start());
        let names = (0..count).map(|number| format!("node-{number}"));
        let start = |name: String| Node::start(folder.path(), &name, &recipe, &bus.address(), ANYWHERE);
        let nodes = names.map(start).collect();
        Self { nodes, bus, folder, recipe, routers: 0 }
    }

    /// One more node, with flags of its own, over another way to the bus.
    pub(super) fn add(&mut self, name: &str, bus: &str, listen: &str, more: &[String]) {
        self.nodes.push(Node::start(self.folder.path(), name, &self.recipe, bus, (listen, more)));
    }

    /// Kills a node. It starts again with its name and its cache at another port.
    pub(super) fn restart(&mut self, place: usize) {
        self.nodes[place].kill();
        let name = self.nodes[place].name.clone();
        self.nodes[place] = Node::start(self.folder.path(), &name, &self.recipe, &self.bus.address(), ANYWHERE);
    }

    /// A server's folder, for its messages.
    fn fresh(&mut self, name: &str) -> PathBuf {
        self.routers += 1;
        let folder = self.folder.path().join(format!("{name}-{}", self.routers));
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    /// A router that knows all nodes.
    pub(super) fn router(&mut self) -> Served {
        let own = self.fresh("router");
        let mut command = poncho();
        command.args(["route", "--port", "0", "--cache-dir"]).arg(own.join("kv"));
        self.reach(&mut command);
        let served = Served::start_command(&mut command, &own);
        let count = self.nodes.len();
        until("the router uses all nodes", || {
            let system: Value = serde_json::from_str(&served.ask("GET", "/api/system").1).unwrap();
            system["nodes"]
                .as_array()
                .is_some_and(|nodes| nodes.iter().filter(|node| node["state"] == "up").count() == count)
        });
        served
    }

    /// A server in front of one node, without a cluster.
    pub(super) fn direct(&mut self, place: usize) -> Served {
        let own = self.fresh("direct");
        let mut command = poncho();
        command.args(["serve", "--port", "0", "--node", &self.nodes[place].address, "--cache-dir"]).arg(own.join("kv"));
        Served::start_command(&mut command, &own)
    }

    fn reach(&self, command: &mut Command) {
        command.args(["--cluster", &self.bus.address(), "--cluster-key-file"]).arg(key(self.folder.path()));
    }

    pub(super) fn status(&self) -> Value {
        let mut command = poncho();
        command.args(["cluster", "status", "--json"]);
        self.reach(&mut command);
        run(&mut command).json()
    }

    /// Waits until all announced rows are known.
    pub(super) fn settle(&self) {
        let mut last = None;
        until("the rows are announced", || {
            let status = self.status();
            let is_current = status["nodes"].as_array().unwrap().iter().all(|node| node["is_current"] == true);
            let now = is_current.then(|| status["rows"].clone());
            std::mem::replace(&mut last, now.clone()) == now && now.is_some()
        });
    }
}

/// A counter of the only model that a server has.
pub(super) fn counter(served: &Served, name: &str) -> f64 {
    let metrics = served.ask("GET", "/metrics").1;
    let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{")));
    let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("{name} in {metrics}"));
    value.parse().unwrap()
}
