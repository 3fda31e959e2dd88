//! A NATS server for one test, fetched by `scripts/fetch/nats.py` if it is not there.
//!
//! Used by the tests of the cluster, of nodes and of the command line. It listens on loopback and ends with its value.

#![expect(clippy::unwrap_used, reason = "called by tests only, and a test without its server has to fail")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::port::unused_address;

/// See the module.
pub struct NatsServer {
    program: PathBuf,
    folder: TempDir,
    port: u16,
    child: Child,
}

fn program() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = root.join(".tools/nats/nats-server");
    if !program.is_file() {
        let fetched = Command::new(root.join("scripts/fetch/nats.py")).status().unwrap();
        assert!(fetched.success(), "scripts/fetch/nats.py could not fetch the server");
    }
    program
}

fn run(program: &Path, folder: &Path, port: u16) -> Child {
    let mut command = Command::new(program);
    command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"]).arg(folder);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl NatsServer {
    /// Starts one with an empty folder.
    #[must_use]
    pub fn start() -> Self {
        let (program, folder) = (program(), TempDir::new().unwrap());
        let port = unused_address().port();
        let child = run(&program, folder.path(), port);
        Self { program, folder, port, child }
    }

    /// Where clients reach it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills it.
    pub fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port and folder.
    pub fn start_again(&mut self) {
        self.child = run(&self.program, self.folder.path(), self.port);
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}
