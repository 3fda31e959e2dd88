//! A node with the stub engine that listens on a port of this machine, with certificates, in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use poncho_engine::backend::MemoryKind;
use poncho_node::{
    ConnectError, CredentialFiles, Credentials, Fleet, FleetSettings, issue, parent_is_gone, serve_network,
};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::support::{KINDS, PATIENCE, host, load};

/// Names the folder of a machine; without it this binary runs its tests.
const MACHINE: &str = "PONCHO_TEST_MACHINE";
const KIND: &str = "PONCHO_TEST_NODE_KIND";
const GRACE: Duration = Duration::from_secs(60);

/// The certificate of a name; an authority is made the first time.
pub(crate) fn certificate(folder: &Path, name: &str) -> CredentialFiles {
    let files = CredentialFiles {
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}-key.pem")),
        authority: folder.join("ca.pem"),
    };
    if !files.key.exists() {
        issue(folder, &[name.to_owned()], 30).unwrap();
    }
    files
}

/// What `Machine` starts. By itself it shows that a port that others can reach needs certificates.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_serves_the_port_of_its_folder() {
    let Some(folder) = std::env::var_os(MACHINE).map(PathBuf::from) else {
        let folder = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
        let node = host(KINDS[0], folder.path());
        let error = serve_network(listener, None, node, std::future::pending(), GRACE).await.unwrap_err();
        assert!(error.to_string().contains("--node-cert"), "{error}");
        return;
    };
    let kind = KINDS[std::env::var(KIND).unwrap().parse::<usize>().unwrap()];
    let port = folder.join("port");
    let known: u16 = std::fs::read_to_string(&port).ok().and_then(|port| port.parse().ok()).unwrap_or(0);
    let node = host(kind, &folder.join("rows"));
    load(&*node).await;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", known)).await.unwrap();
    let credentials = Credentials::read(&certificate(folder.parent().unwrap(), "127.0.0.1")).unwrap();
    let new = folder.join("port.new");
    std::fs::write(&new, listener.local_addr().unwrap().port().to_string()).unwrap();
    std::fs::rename(new, port).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let _member = crate::cluster::join(&folder, address, Arc::clone(&node)).await;
    let mut terminated = signal(SignalKind::terminate()).unwrap();
    let stop = async move {
        let _ = terminated.recv().await;
    };
    tokio::select! {
        served = serve_network(listener, Some(&credentials), node, stop, GRACE) => served.unwrap(),
        () = parent_is_gone() => {}
    }
    std::process::exit(0)
}

/// A process with a node that can be killed and comes back on its port.
pub(crate) struct Machine {
    kind: usize,
    folder: PathBuf,
    process: Mutex<Child>,
}

impl Machine {
    /// Starts it with a model, and waits until it listens.
    pub(crate) async fn start(kind: MemoryKind, folder: &Path, name: &str) -> Self {
        let kind = KINDS.iter().position(|other| *other == kind).unwrap();
        certificate(folder, "127.0.0.1");
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        let process = Mutex::new(spawn(kind, &folder));
        let machine = Self { kind, folder, process };
        let started = Instant::now();
        while !machine.folder.join("port").exists() {
            assert!(started.elapsed() < PATIENCE, "the machine starts");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        machine
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", std::fs::read_to_string(self.folder.join("port")).unwrap())
    }

    /// Sends a signal.
    pub(crate) async fn signal(&self, signal: &str) {
        let id = self.process.lock().unwrap().id().unwrap();
        let sent = Command::new("kill").args([signal, &id.to_string()]).status().await.unwrap();
        assert!(sent.success());
    }

    /// Waits for its end and starts it again.
    pub(crate) async fn restart(&self) {
        self.ended().await;
        *self.process.lock().unwrap() = spawn(self.kind, &self.folder);
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) {
        let started = Instant::now();
        while self.process.lock().unwrap().try_wait().unwrap().is_none() {
            assert!(started.elapsed() < PATIENCE, "the machine ends");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn spawn(kind: usize, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["machines::a_machine_serves_the_port_of_its_folder", "--exact", "--nocapture"])
        .env(MACHINE, folder)
        .env(KIND, kind.to_string())
        // Ends with this process.
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// A front of some machines, with the certificate of `front` in their folder.
pub(crate) async fn fleet(machines: &[&Machine]) -> Fleet {
    let folder = machines.first().unwrap().folder.parent().unwrap();
    connect(machines, Some(certificate(folder, "front"))).await.unwrap()
}

/// A front with certain files.
pub(crate) async fn connect(machines: &[&Machine], files: Option<CredentialFiles>) -> Result<Fleet, ConnectError> {
    let nodes = machines.iter().map(|machine| machine.address().parse().unwrap()).collect();
    let credentials = files.map(|files| Arc::new(Credentials::read(&files).unwrap()));
    Fleet::connect(FleetSettings { nodes, credentials, call_wait: PATIENCE, cluster: None }).await
}
