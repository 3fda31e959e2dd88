//! Many requests at once: who is refused before work is done, how many threads that takes, and who is served all the same.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use hyper::Method;
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::Engine;
use poncho_engine::backend::double::ModelDouble;
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::backend::{Backend, HostBuffer, LoadError, MemoryKind, Model, ModelOptions};
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, asking, eventually, load, read, with};

/// Requests that come at the same time.
const CROWD: usize = 300;
/// Prompts that the server prepares at the same time.
const PREPARED: usize = 8;

/// Holds back all preparing until it is opened, and counts.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    inside: AtomicUsize,
    begun: AtomicUsize,
}

impl Gate {
    fn pass(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_add(1, Ordering::SeqCst);
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// The stub behind a gate.
struct Gated {
    inner: StubBackend,
    gate: Arc<Gate>,
}

impl Backend for Gated {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn build(&self) -> String {
        self.inner.build()
    }

    fn load_model(&self, options: &ModelOptions) -> Result<Arc<dyn Model>, LoadError> {
        Ok(Arc::new(GatedModel { inner: self.inner.load_model(options)?, gate: Arc::clone(&self.gate) }))
    }

    fn host_buffer(&self, len: usize) -> HostBuffer {
        self.inner.host_buffer(len)
    }
}

struct GatedModel {
    inner: Arc<dyn Model>,
    gate: Arc<Gate>,
}

impl ModelDouble for GatedModel {
    fn inner(&self) -> &dyn Model {
        &*self.inner
    }

    fn before_text(&self) {
        self.gate.pass();
    }
}

async fn gated(sequences: u32, queue_limit: usize) -> (Arc<Server>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let backend = Gated { inner: StubBackend::new(MemoryKind::Attention), gate: Arc::clone(&gate) };
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 28)).unwrap());
    let engine = Arc::new(Engine::new(Arc::new(backend), cache));
    load(&engine, "stub", &Setup { sequences, queue_limit, ..Setup::default() });
    (Arc::new(Server::of(engine, ServerConfig::default()).await), gate)
}

/// Threads of this process, which the server is part of.
fn threads() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
    line.trim().parse().unwrap()
}

fn crowd(server: &Arc<Server>, path: &'static str, body: &Value) -> Vec<tokio::task::JoinHandle<Answer>> {
    let send = |_| {
        let (server, body) = (Arc::clone(server), body.to_string());
        let json = [("content-type", "application/json")];
        tokio::spawn(async move { read(server.open(Method::POST, path, &json, body.into()).await).await })
    };
    (0..CROWD).map(send).collect()
}

/// Hardening 17: 928 refused requests of 1,000 were rendered and tokenized first, on 512 threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_before_anything_is_rendered() {
    let (server, gate) = gated(2, 6).await;
    server.until_ready().await;
    let before = threads();
    let body = with(asking("Hello"), &json!({"max_tokens": 1}));
    let requests = crowd(&server, "/v1/chat/completions", &body);
    // Nothing can be prepared, and still all others hear at once that the queue is full.
    let refused = || requests.iter().filter(|request| request.is_finished()).count();
    eventually("refusals", || refused() == CROWD - 8).await;
    assert!(gate.begun.load(Ordering::SeqCst) <= 8, "nothing was done for those that were refused");
    assert!(threads() <= before + PREPARED + 4, "{before} threads became {}", threads());
    gate.open();
    let mut served = 0;
    for request in requests {
        let answer = request.await.unwrap();
        match answer.status {
            200 => served += 1,
            429 => assert_eq!(answer.headers["retry-after"], "1"),
            other => panic!("{other}: {}", answer.text),
        }
    }
    assert_eq!(served, 8, "a request with a place is not refused later");
    eventually("every place is given back", || server.model().status().queue_depth == 0).await;
}

/// Hardening 17: the same for endpoints that have no queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_prepared_share_a_few_threads() {
    for (path, body) in [
        ("/tokenize", json!({"model": "stub", "content": "Hello"})),
        ("/apply-template", asking("Hello")),
        ("/v1/messages/count_tokens", asking("Hello")),
        ("/api/cache/explain", json!({"model": "stub", "prompt": "Hello"})),
    ] {
        let (server, gate) = gated(2, 6).await;
        server.until_ready().await;
        let before = threads();
        let requests = crowd(&server, path, &body);
        eventually("work", || gate.inside.load(Ordering::SeqCst) == PREPARED).await;
        let in_flight =
            async || server.get("/metrics").await.text.contains(&format!("poncho_http_in_flight {CROWD}\n"));
        while !in_flight().await {}
        assert_eq!(gate.inside.load(Ordering::SeqCst), PREPARED, "{path}");
        assert!(threads() <= before + PREPARED + 4, "{path}: {before} threads became {}", threads());
        gate.open();
        for request in requests {
            let answer = request.await.unwrap();
            assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        }
    }
}

/// A request that is wrong gives its place back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_request_gives_its_places_back() {
    let server = Server::start(Setup { sequences: 1, queue_limit: 3, ..Setup::default() }).await;
    let body = json!({"model": "stub", "prompt": ["a", "b"], "n": 2, "max_tokens": 1});
    for _ in 0..20 {
        let wrong = with(body.clone(), &json!({"top_p": 7}));
        assert_eq!(server.post("/v1/completions", &wrong).await.status, 400);
        let many = with(body.clone(), &json!({"n": 3}));
        assert_eq!(server.post("/v1/completions", &many).await.status, 400, "six replies never find four places");
        assert_eq!(server.post("/v1/completions", &body).await.status, 200);
        let model = server.model();
        eventually("the end of all", || model.status().queue_depth == 0).await;
    }
}

/// 429 makes clients try again, and this request would be refused forever.
#[tokio::test]
async fn more_replies_than_an_idle_server_takes_are_no_overload() {
    let server = Server::start(Setup { sequences: 2, queue_limit: 1, ..Setup::default() }).await;
    let chat = with(asking("x"), &json!({"n": 4, "max_tokens": 1}));
    let refused = server.post("/v1/chat/completions", &chat).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("n")), "{}", refused.text);
    let prompts = json!({"model": "stub", "prompt": ["a", "b", "c", "d"], "max_tokens": 1});
    let refused = server.post("/v1/completions", &prompts).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("prompt")), "{}", refused.text);
    server.chat(&with(chat, &json!({"n": 3}))).await;
}
