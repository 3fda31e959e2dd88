//! A model's way from a hub into a chat and out again, over real sockets: `/api/pull` from a loopback hub with a
//! redirect, broken transfers and wrong hashes, then `/api/chat` and `/api/delete` on real llama.cpp.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::Method;
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::Engine;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_models::{PullOptions, Registry, Sha256};
use poncho_server::{RegistryLibrary, ServerConfig};
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::loopback::{self, Reply, Request, serve_file};
use crate::support::{Server, small_config};

const FILE: &str = "tiny-Q4_K_M.gguf";

fn model() -> Vec<u8> {
    std::fs::read(model_path(ModelKind::Attention)).unwrap()
}

/// A hub that keeps its files on another host, which breaks off the first transfers.
struct Hub {
    hub: loopback::Server,
    files: loopback::Server,
    /// Transfers that still break off.
    breaks: Arc<AtomicUsize>,
}

impl Hub {
    fn start(breaks: usize) -> Self {
        let breaks = Arc::new(AtomicUsize::new(breaks));
        let left = Arc::clone(&breaks);
        let files = loopback::Server::start(move |request| {
            let whole = model();
            let reply = serve_file(request, &whole, "\"v1\"");
            let breaks = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if breaks { reply.cut(whole.len() / 3) } else { reply }
        });
        // The same machine under another name is another host.
        let target = format!("http://localhost:{}/file", files.port());
        let hub = loopback::Server::start(move |request| answer(request, &target));
        Self { hub, files, breaks }
    }

    /// From which byte on the file was asked for, each time.
    fn starts(&self) -> Vec<usize> {
        self.files.seen().iter().map(|request| request.range_start().unwrap_or(0)).collect()
    }
}

fn answer(request: &Request, target: &str) -> Reply {
    let listing = |sha256: Sha256| {
        let size = model().len();
        let file = json!({"rfilename": FILE, "size": size, "lfs": {"sha256": sha256.to_hex(), "size": size}});
        Reply::new(200, json!({"id": "org/x", "sha": "abc123", "siblings": [file]}).to_string())
    };
    match request.path.as_str() {
        "/api/models/org/tiny?blobs=true" => listing(Sha256::of(&model())),
        "/api/models/org/wrong?blobs=true" => listing(Sha256::of(b"something else")),
        path if path.ends_with(&format!("/resolve/abc123/{FILE}")) => Reply::new(302, "").with("location", target),
        _ => Reply::new(404, "nothing here"),
    }
}

struct Home {
    server: Server,
    folder: tempfile::TempDir,
}

impl Home {
    /// A server that pulls from the hub and retries a broken transfer `retries` times.
    async fn new(hub: &Hub, retries: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = PullOptions::default();
        options.hub = hub.hub.url("");
        options.retries = retries;
        options.retry_pause = Duration::ZERO;
        options.silence = crate::support::PATIENCE;
        let registry = Registry::open(folder.path()).unwrap();
        let library = RegistryLibrary::new(registry, Box::new(small_config)).with_pull_options(options);
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 26)).unwrap());
        let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), cache));
        let config = ServerConfig { library: Some(Arc::new(library)), ..ServerConfig::default() };
        Self { server: Server::of(engine, config).await, folder }
    }

    async fn pull(&self, model: &str) -> Vec<Value> {
        self.server.post("/api/pull", &json!({"model": model})).await.lines()
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.server.get("/api/tags").await.json();
        listed["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn chat(&self, model: &str) -> crate::support::Answer {
        let options = json!({"temperature": 0, "num_predict": 4});
        let body = json!({"model": model, "stream": false, "options": options,
            "messages": [{"role": "user", "content": "Hi"}]});
        self.server.post("/api/chat", &body).await
    }

    fn count(&self, folder: &str) -> usize {
        std::fs::read_dir(self.folder.path().join(folder)).map_or(0, Iterator::count)
    }
}

/// The lines of a pull that went well, as Ollama's clients read them.
fn check_lines(lines: &[Value]) {
    let digest = format!("sha256:{}", Sha256::of(&model()));
    let statuses: Vec<&str> = lines.iter().map(|line| line["status"].as_str().unwrap()).collect();
    assert_eq!(statuses.first(), Some(&"pulling manifest"));
    assert_eq!(statuses[statuses.len() - 3..], ["verifying sha256 digest", "writing manifest", "success"]);
    let layers: Vec<&Value> = lines.iter().filter(|line| line.get("digest").is_some()).collect();
    assert!(!layers.is_empty(), "{lines:?}");
    let mut before = 0;
    for layer in &layers {
        assert_eq!(layer["status"], format!("pulling {}", &digest["sha256:".len()..][..12]));
        assert_eq!((&layer["digest"], &layer["total"]), (&json!(digest), &json!(model().len())));
        let completed = layer["completed"].as_u64().unwrap_or(0);
        assert!(completed >= before && completed <= model().len() as u64, "{lines:?}");
        before = completed;
    }
    assert_eq!(before, model().len() as u64, "a bar drawn from them is full at the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_is_pulled_through_a_break_served_and_deleted() {
    let hub = Hub::start(1);
    let home = Home::new(&hub, 1).await;
    assert_eq!(home.chat("hf:org/tiny").await.status, 404, "it is not here yet");
    check_lines(&home.pull("hf:org/tiny").await);
    assert_eq!(hub.starts(), [0, model().len() / 3], "it went on where it broke off");
    assert_eq!(hub.files.seen()[1].header("if-range"), Some("\"v1\""), "and only of the same file");
    assert_eq!(
        (home.names().await, home.count("partial"), home.count("blobs")),
        (vec!["org/tiny:latest".into()], 0, 1)
    );
    for name in ["org/tiny", "org/tiny:latest", "hf:org/tiny"] {
        let said = home.chat(name).await;
        assert_eq!((said.status, &said.json()["done"]), (200, &json!(true)), "{name}: {}", said.text);
        assert_eq!(said.json()["eval_count"], 4);
    }
    let shown = home.server.ask("/api/show", &json!({"model": "org/tiny"})).await;
    assert_eq!(shown["details"]["family"], "llama");
    // Again: nothing is fetched twice.
    let whole = home.server.ask("/api/pull", &json!({"name": "hf:org/tiny", "stream": false})).await;
    assert_eq!((whole, hub.files.seen().len()), (json!({"status": "success"}), 2));
    let json = [("content-type", "application/json")];
    let body = json!({"model": "org/tiny"}).to_string();
    assert_eq!(home.server.send(Method::DELETE, "/api/delete", &json, body.into()).await.status, 200);
    assert_eq!((home.chat("org/tiny").await.status, home.names().await, home.count("blobs")), (404, Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_failed_goes_on_when_it_is_asked_for_again() {
    let hub = Hub::start(1);
    let home = Home::new(&hub, 0).await;
    let lines = home.pull("hf:org/tiny").await;
    let error = lines.last().unwrap()["error"].as_str().unwrap_or_else(|| panic!("{lines:?}"));
    assert!(error.contains("broke off") || error.contains("interrupted") || error.contains("again"), "{error}");
    assert_eq!(
        (home.names().await, home.count("partial") > 0),
        (Vec::new(), true),
        "what came is kept, without a name"
    );
    assert_eq!(hub.breaks.load(Ordering::SeqCst), 0);
    check_lines(&home.pull("hf:org/tiny").await);
    assert_eq!(hub.starts(), [0, model().len() / 3]);
    assert_eq!(home.chat("org/tiny").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_a_wrong_hash_or_is_not_there_gets_no_name() {
    let hub = Hub::start(0);
    let home = Home::new(&hub, 0).await;
    let lines = home.pull("hf:org/wrong").await;
    let error = lines.last().unwrap()["error"].as_str().unwrap_or_else(|| panic!("{lines:?}"));
    assert!(error.contains(&Sha256::of(b"something else").to_hex()[..12]), "{error}");
    assert!(!error.contains(&home.folder.path().display().to_string()), "no path of this machine: {error}");
    let whole = home.server.post("/api/pull", &json!({"model": "hf:org/wrong", "stream": false})).await;
    assert!(whole.status >= 400 && whole.json()["error"].is_string(), "{}", whole.text);
    let missing = home.server.post("/api/pull", &json!({"model": "hf:org/none", "stream": false})).await;
    assert_eq!(missing.status, 404, "{}", missing.text);
    assert_eq!((home.names().await, home.count("blobs")), (Vec::new(), 0));
    assert_eq!(home.chat("org/wrong").await.status, 404);
    // The next one works.
    check_lines(&home.pull("hf:org/tiny").await);
    assert_eq!(home.chat("org/tiny").await.status, 200);
}
