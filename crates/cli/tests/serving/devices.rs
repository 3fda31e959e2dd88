//! Devices that the build does not bring itself: backend libraries, and workers reached over RPC.
//!
//! The library is `disguise.cpp` beside this file, the processor under another name: it shows that a library gets its ggml
//! from the program. The worker is `poncho rpc-worker` on loopback: its memory is not that of the engine, as with a GPU.
//! `make test-vulkan` has the states pass through a device of a real library instead.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::served::{Served, serve_without_model};
use crate::serving::surviving::engine_of;
use crate::support::poncho;

/// Names a device that states pass through instead of a worker, such as `Vulkan0`.
const TEST_DEVICE: &str = "PONCHO_TEST_DEVICE";
/// The folder with the library that brings this device.
const TEST_BACKENDS: &str = "PONCHO_BACKENDS";
/// More flags for servers on that device, for what its driver cannot do.
const TEST_FLAGS: &str = "PONCHO_TEST_FLAGS";

/// Builds the library, with the stamp that the binary wants to see.
fn library(folder: &Path, flags: &[&str]) -> PathBuf {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let binding = packages.iter().find(|package| package["name"] == "llama-cpp-sys-4").unwrap();
    let ggml = Path::new(binding["manifest_path"].as_str().unwrap()).parent().unwrap().join("llama.cpp/ggml");
    let path = folder.join("libggml-test.so");
    let built = Command::new("c++")
        .args(["-shared", "-fPIC", "-std=c++17", "-DGGML_BACKEND_DL", "-DGGML_BACKEND_SHARED", "-DGGML_SHARED", "-I"])
        .arg(ggml.join("include"))
        .arg("-I")
        .arg(ggml.join("src"))
        .args(flags)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serving/disguise.cpp"))
        .arg("-o")
        .arg(&path)
        .status()
        .unwrap();
    assert!(built.success());
    let versions = String::from_utf8(poncho().arg("--version").output().unwrap().stdout).unwrap();
    let version = versions.lines().find_map(|line| line.strip_prefix("llama.cpp ")).unwrap();
    std::fs::write(folder.join("libggml-test.so.version"), version).unwrap();
    path
}

/// The findings of `poncho doctor` with these flags.
fn findings(flags: &[&str], backends: &Path, folder: &Path) -> Vec<Value> {
    let output = poncho()
        .args(["doctor", "--json", "--port", "0", "--cache-dir"])
        .arg(folder.join("kv"))
        .arg("--backends")
        .arg(backends)
        .args(flags)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["findings"].as_array().unwrap().clone()
}

fn fact<'a>(findings: &'a [Value], check: &str) -> &'a str {
    findings.iter().find(|finding| finding["check"] == check).and_then(|finding| finding["fact"].as_str()).unwrap_or("")
}

fn serve(folder: &Path, kind: ModelKind, flags: &[&str]) -> Served {
    let mut command = serve_without_model(&folder.join("kv"));
    command.args(["--port", "0", "--parallel", "2", "--save-min-tokens", "16", "--model"]).arg(model_path(kind));
    Served::start_command(command.args(flags), folder)
}

fn prompt() -> String {
    "The quick brown fox jumps over the lazy dog. ".repeat(12)
}

/// A reply to the same prompt each time: its text, and the tokens of the prompt that came from the cache.
fn reply(server: &Served, prompt: &str) -> (String, u64) {
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0});
    let answer = server.post("/v1/completions", &body);
    let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
    (text, answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
}

#[test]
fn a_backend_library_beside_the_program_computes() {
    let folder = tempfile::tempdir().unwrap();
    let backends = folder.path().join("backends");
    std::fs::create_dir(&backends).unwrap();
    library(&backends, &[]);
    let found = findings(&[], &backends, folder.path());
    assert!(fact(&found, "devices").contains("TEST0 (a disguise)"), "{found:?}");
    let flag = backends.to_str().unwrap();
    for in_process in [false, true] {
        let here = tempfile::tempdir().unwrap();
        let more: &[&str] = if in_process { &["--in-process"] } else { &[] };
        // Named too, and with a trial of the model, which knows no device of a library.
        let named = ["--device", "TEST0", "--probe-models", "always"];
        let server = serve(here.path(), ModelKind::Attention, &[&["--backends", flag], more, &named].concat());
        assert!(server.greeting.contains("all layers on TEST0 (a disguise)"), "{}", server.greeting);
        let (first, cached) = reply(&server, &prompt());
        assert_eq!(cached, 0);
        server.stop();
        let server = serve(here.path(), ModelKind::Attention, &[&["--backends", flag], more].concat());
        let (again, cached) = reply(&server, &prompt());
        assert!(cached > 100, "{cached}");
        assert_eq!(first, again);
        server.stop();
    }
}

#[test]
fn a_library_that_crashes_or_is_of_another_version_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let backends = folder.path().join("backends");
    std::fs::create_dir(&backends).unwrap();
    library(&backends, &["-DDISGUISE_CRASH"]);
    std::fs::write(backends.join("libggml-cuda.so"), b"not a library").unwrap();
    std::fs::write(backends.join("libggml-cuda.so.version"), b"b1 (other 0.1)").unwrap();
    let found = findings(&[], &backends, folder.path());
    let said: Vec<&str> =
        found.iter().filter(|finding| finding["check"] == "backend").filter_map(|one| one["fact"].as_str()).collect();
    assert!(said.iter().any(|said| said.contains("libggml-test.so") && said.contains("crashed")), "{said:?}");
    assert!(said.iter().any(|said| said.contains("libggml-cuda.so") && said.contains("b1 (other 0.1)")), "{said:?}");
    let server = serve(folder.path(), ModelKind::Attention, &["--backends", backends.to_str().unwrap()]);
    assert!(server.greeting.contains("not used: "), "{}", server.greeting);
    assert!(!reply(&server, &prompt()).0.is_empty());
    server.stop();
}

/// A worker that ends with the test.
struct Worker {
    child: Child,
    address: String,
}

impl Worker {
    fn start() -> Self {
        let address = poncho_testkit::unused_address().to_string();
        let mut command = poncho();
        command
            .args(["rpc-worker", "--threads", "1", "--listen", &address])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(&address).is_err() {
            assert!(Instant::now() < deadline, "the worker does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, address }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A device with memory of its own.
struct Lent {
    name: String,
    flags: Vec<String>,
    /// `None` if a library brings the device.
    worker: Option<Worker>,
}

impl Lent {
    /// The device that the variables name, or else a worker.
    fn find() -> Self {
        let Some(name) = std::env::var_os(TEST_DEVICE) else {
            let worker = Worker::start();
            let flags = vec!["--rpc".to_owned(), worker.address.clone()];
            return Self { name: "RPC0".to_owned(), flags, worker: Some(worker) };
        };
        let name = name.into_string().unwrap();
        let backends = std::env::var(TEST_BACKENDS).unwrap_or_default();
        assert!(!name.is_empty() && !backends.is_empty(), "{TEST_DEVICE} names a device, {TEST_BACKENDS} its folder");
        let more = std::env::var(TEST_FLAGS).unwrap_or_default();
        let more = more.split_whitespace().map(str::to_owned);
        Self { name, flags: ["--backends".to_owned(), backends].into_iter().chain(more).collect(), worker: None }
    }

    /// A server with all layers on the device; fails if the device is not there.
    fn serve(&self, folder: &Path, kind: ModelKind) -> Served {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let server = serve(folder, kind, &flags);
        let wanted = format!("all layers on {}", self.name);
        assert!(server.greeting.contains(&wanted), "no {}: {}{}", self.name, server.greeting, server.messages());
        server
    }

    /// What a server on the device has to reply to each of these prompts, one after the other.
    ///
    /// A worker computes with the kernels of the host, so that their replies agree. A GPU rounds in another way; it has to
    /// agree with itself without any stored state.
    fn expected(&self, kind: ModelKind, prompts: &[String]) -> Vec<String> {
        if self.worker.is_some() {
            let folder = tempfile::tempdir().unwrap();
            let server = serve(folder.path(), kind, &[]);
            let replies = prompts.iter().map(|prompt| reply(&server, prompt).0).collect();
            server.stop();
            return replies;
        }
        let cold = |prompt: &String| {
            let folder = tempfile::tempdir().unwrap();
            let server = self.serve(folder.path(), kind);
            let (text, cached) = reply(&server, prompt);
            assert_eq!(cached, 0, "{kind:?}");
            self.check_engine(&server);
            server.stop();
            text
        };
        prompts.iter().map(cold).collect()
    }

    /// The greeting names what passed its trial; this looks at what the engine's process has loaded.
    fn check_engine(&self, server: &Served) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", engine_of(server).unwrap())).unwrap();
        assert!(maps.contains("/libggml-"), "the engine did not load the library of {}", self.name);
    }
}

/// Save, restore, continue and chains on a device with memory of its own, for every memory kind.
#[test]
fn states_pass_through_a_device_that_is_not_the_host() {
    for kind in ModelKind::ALL {
        let here = tempfile::tempdir().unwrap();
        let turn = "And then it slept. ";
        let prompts = [prompt(), format!("{}{turn}", prompt()), format!("{}{turn}{turn}", prompt())];
        let lent = Lent::find();
        let expected = lent.expected(kind, &prompts);
        let server = lent.serve(here.path(), kind);
        let first = reply(&server, &prompts[0]);
        assert_eq!(first, (expected[0].clone(), 0), "{kind:?}");
        let (_, live) = reply(&server, &prompts[0]);
        assert!(live > 100, "{kind:?}: {live}");
        server.stop();
        // Each turn adds a row to the chain that the next one is restored from.
        let mut before = 100;
        for (prompt, expected) in prompts.iter().zip(&expected).skip(1) {
            let server = lent.serve(here.path(), kind);
            let (text, cached) = reply(&server, prompt);
            assert!(cached > before, "{kind:?}: {cached} tokens after a restart, {before} before it");
            assert_eq!(&text, expected, "{kind:?}");
            before = cached;
            server.stop();
        }
    }
}

#[test]
fn a_server_survives_the_loss_of_its_worker() {
    let folder = tempfile::tempdir().unwrap();
    let worker = Worker::start();
    let server = serve(folder.path(), ModelKind::Attention, &["--rpc", &worker.address]);
    let (before, _) = reply(&server, &prompt());
    drop(worker);
    // The engine's process ends with the worker; the next one computes here.
    let (after, _) = reply(&server, &prompt());
    assert_eq!(before, after);
    server.stop();
}

#[test]
fn a_worker_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("none");
    let found = findings(&["--rpc", "127.0.0.1:1"], &empty, folder.path());
    assert!(fact(&found, "backend").contains("the worker 127.0.0.1:1 is not used"), "{found:?}");
    let refused = poncho().args(["rpc-worker", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--open"));
}
