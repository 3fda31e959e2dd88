//! Models that requests load: every family, names and aliases, too little memory, clients that leave, shutdown.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hyper::Method;
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::Engine;
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::backend::{Backend, HostBuffer, LoadError, MemoryKind, Model, ModelOptions};
use poncho_server::{KeepAlive, LibraryError, LibraryModel, MemoryBudget, ModelLibrary, ServerConfig};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::support::{PATIENCE, Server, eventually, small_config};

/// Holds loads while it is shut, and counts them.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<(bool, usize)>, Condvar)>);

impl Gate {
    pub(crate) fn set_shut(&self, is_shut: bool) {
        self.0.0.lock().unwrap().0 = is_shut;
        self.0.1.notify_all();
    }

    pub(crate) fn loads(&self) -> usize {
        self.0.0.lock().unwrap().1
    }

    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.1 += 1;
        drop(self.0.1.wait_while(state, |state| state.0).unwrap());
    }
}

struct GatedBackend(StubBackend, Gate);

impl Backend for GatedBackend {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn build(&self) -> String {
        self.0.build()
    }

    fn load_model(&self, options: &ModelOptions) -> Result<Arc<dyn Model>, LoadError> {
        self.1.pass();
        self.0.load_model(options)
    }

    fn host_buffer(&self, len: usize) -> HostBuffer {
        self.0.host_buffer(len)
    }
}

/// An engine on the stub with a gate for its loads.
pub(crate) fn gated_engine(backend: StubBackend) -> (Arc<Engine>, Gate) {
    let gate = Gate::default();
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 26)).unwrap());
    (Arc::new(Engine::new(Arc::new(GatedBackend(backend, gate.clone())), cache)), gate)
}

/// Models of 100 bytes each.
struct Shelf {
    models: BTreeMap<String, LibraryModel>,
    _folder: tempfile::TempDir,
}

impl Shelf {
    fn new(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let models = names.iter().enumerate().map(|(at, name)| {
            let path = folder.path().join(at.to_string());
            std::fs::write(&path, format!("{at:<100}")).unwrap();
            ((*name).to_owned(), LibraryModel::new(small_config(name, &path)))
        });
        Self { models: models.collect(), _folder: folder }
    }
}

impl ModelLibrary for Shelf {
    fn find(&self, name: &str) -> Result<Option<LibraryModel>, LibraryError> {
        Ok(self.models.get(name).cloned())
    }

    fn list(&self) -> Result<Vec<LibraryModel>, LibraryError> {
        Ok(self.models.values().cloned().collect())
    }
}

async fn server(names: &[&str], config: ServerConfig) -> (Server, Gate) {
    let (engine, gate) = gated_engine(StubBackend::new(MemoryKind::Attention));
    let config = ServerConfig { library: Some(Arc::new(Shelf::new(names))), ..config };
    (Server::of(engine, config).await, gate)
}

fn loaded(server: &Server) -> Vec<String> {
    server.engine.models().iter().map(|model| model.id().to_owned()).collect()
}

fn saying(model: &str) -> Value {
    json!({"model": model, "max_tokens": 2, "temperature": 0, "messages": [{"role": "user", "content": "Hi"}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_loads_the_model_it_names() {
    let names = ["m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"];
    let (server, gate) = server(&names, ServerConfig::default()).await;
    assert_eq!(server.get("/health/ready").await.status, 200, "a request would be taken");
    let options = json!({"num_predict": 2});
    let requests = [
        ("/v1/chat/completions", saying("m1")),
        ("/v1/completions", json!({"model": "m2", "prompt": "Hi", "max_tokens": 2})),
        ("/v1/responses", json!({"model": "m3", "input": "Hi", "max_output_tokens": 16})),
        ("/v1/embeddings", json!({"model": "m4", "input": "Hi"})),
        ("/v1/messages", saying("m5")),
        ("/api/generate", json!({"model": "m6", "prompt": "Hi", "stream": false, "options": options})),
        ("/api/chat", json!({"model": "m7", "stream": false, "options": options, "messages": saying("")["messages"]})),
        ("/api/embed", json!({"model": "m8", "input": "Hi"})),
        ("/tokenize", json!({"model": "m9", "content": "Hi"})),
    ];
    for (path, body) in requests {
        let model = body["model"].as_str().unwrap().to_owned();
        assert!(!loaded(&server).contains(&model));
        server.ask(path, &body).await;
        assert!(loaded(&server).contains(&model), "{path}");
        server.ask(path, &body).await;
    }
    assert_eq!(gate.loads(), 9, "each of them once");
    let listed = server.get("/v1/models").await.json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_come_together_share_the_load_and_its_failure() {
    let (server, gate) = server(&["a"], ServerConfig::default()).await;
    gate.set_shut(true);
    let server = Arc::new(server);
    let ask = |server: &Arc<Server>| {
        let server = Arc::clone(server);
        tokio::spawn(async move { server.post("/v1/chat/completions", &saying("a")).await })
    };
    let waiting: Vec<_> = (0..8).map(|_| ask(&server)).collect();
    let ps = async || server.get("/api/ps").await.json()["models"][0].clone();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while ps().await["requests"] != 8 {
        assert!(tokio::time::Instant::now() < deadline, "they do not wait");
    }
    let shown = ps().await;
    assert_eq!((&shown["state"], &shown["name"]), (&json!("loading"), &json!("a:latest")));
    assert!(shown["progress"]["total"].is_u64() && shown["size"] == 100, "{shown}");
    gate.set_shut(false);
    for answer in waiting {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    assert_eq!((gate.loads(), &ps().await["state"]), (1, &json!("loaded")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_fails_has_an_answer_in_each_shape_and_no_path_in_it() {
    let backend = StubBackend::new(MemoryKind::Attention);
    let faults = backend.faults();
    let (engine, _) = gated_engine(backend);
    let config = ServerConfig { library: Some(Arc::new(Shelf::new(&["a"]))), ..ServerConfig::default() };
    let server = Server::of(engine, config).await;
    faults.fail_next(poncho_engine::backend::stub::StubCall::LoadModel, 3);
    let openai = server.post("/v1/chat/completions", &saying("a")).await;
    assert_eq!((openai.status, &openai.json()["error"]["code"]), (500, &json!("load_failed")), "{}", openai.text);
    let anthropic = server.post("/v1/messages", &saying("a")).await;
    assert_eq!((anthropic.status, &anthropic.json()["error"]["type"]), (500, &json!("api_error")));
    let ollama = server.post("/api/chat", &json!({"model": "a"})).await;
    assert!(ollama.status == 500 && ollama.json()["error"].is_string(), "{}", ollama.text);
    for answer in [&openai, &anthropic, &ollama] {
        assert!(!answer.text.contains("/tmp"), "{}", answer.text);
    }
    server.ask("/v1/chat/completions", &saying("a")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_little_memory_is_a_normal_answer() {
    let config = ServerConfig { memory: MemoryBudget::Bytes(150), ..ServerConfig::default() };
    let (server, gate) = server(&["a", "b"], config).await;
    gate.set_shut(true);
    let server = Arc::new(server);
    let busy = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.post("/v1/chat/completions", &saying("a")).await })
    };
    eventually("the load", || gate.loads() == 1).await;
    let openai = server.post("/v1/chat/completions", &saying("b")).await;
    assert_eq!((openai.status, &openai.json()["error"]["code"]), (503, &json!("insufficient_memory")));
    assert_eq!(openai.headers["retry-after"], "1");
    let text = openai.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(["100 bytes", "150", "--memory"].iter().all(|word| text.contains(word)), "{text}");
    let anthropic = server.post("/v1/messages", &saying("b")).await;
    assert_eq!((anthropic.status, &anthropic.json()["error"]["type"]), (529, &json!("overloaded_error")));
    let ollama = server.post("/api/generate", &json!({"model": "b"})).await;
    assert!(ollama.status == 503 && ollama.json()["error"].as_str().unwrap().contains("needs 100"), "{}", ollama.text);
    gate.set_shut(false);
    assert_eq!(busy.await.unwrap().status, 200);
    server.ask("/v1/chat/completions", &saying("b")).await;
    assert_eq!(loaded(&server), ["b"], "a made room");
    let config = ServerConfig { memory: MemoryBudget::Bytes(99), ..ServerConfig::default() };
    let (small, _) = self::server(&["a"], config).await;
    let never = small.post("/v1/chat/completions", &saying("a")).await;
    assert_eq!((never.status, &never.json()["error"]["code"]), (503, &json!("model_too_large")));
    assert!(never.headers.get("retry-after").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keep_alive_decides_when_a_model_goes() {
    let (server, _) = server(&["a", "b"], ServerConfig::default()).await;
    let ps = async || server.get("/api/ps").await.json()["models"].as_array().unwrap().clone();
    let loading = server.ask("/api/generate", &json!({"model": "a", "keep_alive": "10m"})).await;
    assert_eq!((&loading["done_reason"], &loading["done"]), (&json!("load"), &json!(true)));
    let expires = ps().await[0]["expires_at"].as_str().unwrap().to_owned();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(expires.as_str() > "2020" && expires.len() > 19, "{expires} after {now:?}");
    let unloading = server.ask("/api/chat", &json!({"model": "a", "keep_alive": 0})).await;
    assert_eq!(unloading["done_reason"], "unload");
    assert_eq!((loaded(&server).len(), ps().await.len()), (0, 0));
    let again = server.ask("/api/generate", &json!({"model": "a", "keep_alive": 0})).await;
    assert_eq!((&again["done_reason"], loaded(&server).len()), (&json!("unload"), 0), "it is not loaded for that");
    let body = json!({"model": "b", "prompt": "Hi", "keep_alive": 0, "stream": false, "options": {"num_predict": 1}});
    server.ask("/api/generate", &body).await;
    eventually("the end of b", || loaded(&server).is_empty()).await;
    let body = json!({"model": "b", "input": "Hi", "keep_alive": "50ms"});
    server.ask("/api/embed", &body).await;
    eventually("the end of b", || loaded(&server).is_empty()).await;
    server.ask("/api/generate", &json!({"model": "a", "keep_alive": -1})).await;
    let year: u32 = ps().await[0]["expires_at"].as_str().unwrap()[..4].parse().unwrap();
    assert!(year > 2300, "never");
    for beyond in [json!("10000000000h"), json!(1e18), json!(9_200_000_000_000_000_000_u64)] {
        server.ask("/api/generate", &json!({"model": "a", "keep_alive": beyond})).await;
        let expires = ps().await[0]["expires_at"].as_str().unwrap().to_owned();
        assert!(expires.as_str() > "2300" && expires.as_str() < "3000", "{beyond}: {expires}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_come_and_go_by_hand() {
    let (server, gate) = server(&["a"], ServerConfig::default()).await;
    let body = json!({"model": "a:latest", "keep_alive": -1});
    let answer = server.ask("/api/models/load", &body).await;
    assert_eq!((&answer["model"], &answer["state"], &answer["n_ctx"]), (&json!("a"), &json!("loaded"), &json!(1024)));
    assert_eq!(loaded(&server), ["a"]);
    let gone = json!({"model": "a", "state": "unloaded"});
    assert_eq!(server.ask("/api/models/unload", &json!({"model": "a"})).await, gone);
    assert_eq!(server.ask("/api/models/unload", &json!({"model": "a"})).await, gone);
    assert!(loaded(&server).is_empty());
    gate.set_shut(true);
    let server = Arc::new(server);
    let busy = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.post("/v1/chat/completions", &saying("a")).await })
    };
    eventually("the load", || gate.loads() == 2).await;
    let later = server.ask("/api/models/unload", &json!({"model": "a"})).await;
    assert_eq!(later["state"], "unloading", "somebody waits for it");
    gate.set_shut(false);
    assert_eq!(busy.await.unwrap().status, 200);
    eventually("its end", || loaded(&server).is_empty()).await;
    for path in ["/api/models/load", "/api/models/unload"] {
        let unknown = server.post(path, &json!({"model": "nobody"})).await;
        assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
        assert_eq!(server.post(path, &json!({})).await.status, 400);
    }
}

/// The console asks for it when somebody clicks on a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_a_request_of_an_unloaded_model_does_not_load_it() {
    let (server, gate) = server(&["a"], ServerConfig::default()).await;
    server.ask("/v1/chat/completions", &saying("a")).await;
    server.ask("/api/models/unload", &json!({"model": "a"})).await;
    eventually("the end of the model", || loaded(&server).is_empty()).await;
    let why = server.send(Method::GET, "/api/requests/1/why", &[], Vec::new()).await;
    assert_eq!((why.status, &why.json()["error"]["code"]), (409, &json!("model_not_loaded")), "{}", why.text);
    assert_eq!((loaded(&server).len(), gate.loads()), (0, 1));
    server.ask("/api/models/load", &json!({"model": "a"})).await;
    let why = server.send(Method::GET, "/api/requests/1/why", &[], Vec::new()).await;
    assert_eq!(why.status, 200, "{}", why.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aliases_stand_for_models_that_are_not_loaded() {
    let aliases = [("gpt-4o", "a"), ("claude-*", "b"), ("claude-opus*", "a"), ("b", "a"), ("lost", "nobody")];
    let aliases: BTreeMap<String, String> = aliases.map(|(alias, to)| (alias.to_owned(), to.to_owned())).into();
    let config = ServerConfig { aliases: aliases.clone(), ..ServerConfig::default() };
    let (server, _) = server(&["a", "b", "c"], config).await;
    for (name, id) in [
        ("claude-sonnet-9", "b"),
        ("claude-", "b"),
        ("claude-opus-4", "a"),
        ("gpt-4o", "a"),
        ("gpt-4o:latest", "a"),
        ("b", "b"),
    ] {
        assert_eq!(server.ask("/v1/chat/completions", &saying(name)).await["model"], id, "{name}");
    }
    for name in ["lost", "claude", "gpt-4", "*", "claude-*x".trim_end_matches('x')] {
        let status = server.post("/v1/chat/completions", &saying(name)).await.status;
        assert_eq!(status, if name == "claude-*" { 200 } else { 404 }, "{name}");
    }
    let ids = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    let listed = server.get("/v1/models").await.json();
    assert_eq!(ids(&listed["data"]), ["a", "b", "c", "gpt-4o"], "patterns are not names");
    let c = server.get("/v1/models/c").await.json();
    assert_eq!((&c["meta"]["loaded"], &c["meta"]["n_ctx"]), (&json!(false), &json!(1024)));
    let shown = server.ask("/api/show", &json!({"model": "c"})).await;
    assert!(shown["modelfile"].as_str().unwrap().starts_with("FROM c"), "{shown}");
    assert!(!loaded(&server).contains(&"c".to_owned()), "looking at it does not load it");
    let config =
        ServerConfig { aliases, any_model: true, default_model: Some("c".to_owned()), ..ServerConfig::default() };
    let (any, _) = self::server(&["a", "b", "c"], config).await;
    for (name, id) in [("gpt-4o", "a"), ("whatever", "c"), ("b", "b"), ("../../etc/passwd", "c")] {
        assert_eq!(any.ask("/v1/chat/completions", &saying(name)).await["model"], id, "{name}");
    }
    assert_eq!(any.ask("/tokenize", &json!({"content": "Hi"})).await["tokens"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_a_model_loads_waits_no_more() {
    let (server, gate) = server(&["a"], ServerConfig::default()).await;
    gate.set_shut(true);
    let mut socket = server.connect().await;
    let body = saying("a").to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    eventually("the load", || gate.loads() == 1).await;
    drop(socket);
    let requests = async || server.get("/api/ps").await.json()["models"][0]["requests"].clone();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while requests().await != 0 {
        assert!(tokio::time::Instant::now() < deadline, "it still waits");
    }
    gate.set_shut(false);
    eventually("the model", || loaded(&server) == ["a"]).await;
    let model = server.engine.get("a").unwrap();
    assert_eq!(model.status().generated_tokens, 0, "the client had left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_while_a_model_loads_waits_for_it_and_leaves_it_to_the_owner() {
    let (mut server, gate) = server(&["a"], ServerConfig::default()).await;
    gate.set_shut(true);
    let response = {
        let waiting = server.connect().await;
        let body = saying("a").to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut socket = waiting;
        socket.write_all((head + &body).as_bytes()).await.unwrap();
        socket
    };
    eventually("the load", || gate.loads() == 1).await;
    server.begin_shutdown();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while server.get("/health/ready").await.status == 200 {
        assert!(tokio::time::Instant::now() < deadline, "readiness stayed on");
    }
    let engine = Arc::clone(&server.engine);
    drop(response);
    gate.set_shut(false);
    server.stopped().await;
    assert_eq!(engine.models().len(), 1);
    tokio::task::spawn_blocking(move || engine.unload_all().unwrap()).await.unwrap();
    let config = ServerConfig { shutdown_grace: Duration::from_millis(50), ..ServerConfig::default() };
    let (mut hurried, gate) = self::server(&["a"], config).await;
    gate.set_shut(true);
    let mut socket = hurried.connect().await;
    let body = json!({"model": "a"}).to_string();
    let head =
        "POST /api/models/load HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ";
    socket.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    eventually("the load", || gate.loads() == 1).await;
    hurried.begin_shutdown();
    let engine = Arc::clone(&hurried.engine);
    hurried.stopped().await;
    gate.set_shut(false);
    eventually("the load's own end", || gate.loads() == 1 && engine.models().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_only_ever_names() {
    let (server, _) = server(&["a"], ServerConfig { keep_alive: KeepAlive::Forever, ..ServerConfig::default() }).await;
    let long = "x".repeat(100_000);
    for name in ["", "..", "/etc/passwd", "a/../a", "a\0", "\u{202e}a", "a:latest:latest", "%61", "A ", "*", &long] {
        let answer = server.post("/v1/chat/completions", &saying(name)).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("model_not_found")), "{name:?}");
        let unload = server.post("/api/models/unload", &json!({"model": name})).await;
        assert_eq!(unload.status, 404, "{name:?}");
    }
    assert!(loaded(&server).is_empty());
}

#[tokio::test]
async fn the_front_door_says_that_somebody_is_home() {
    let config = ServerConfig { keys: vec!["k".into()], ..ServerConfig::default() };
    let (server, _) = server(&[], config).await;
    let answer = server.get("/").await;
    assert_eq!((answer.status, answer.text.as_str()), (200, "Poncho is running"));
    let head = server.send(Method::HEAD, "/", &[], Vec::new()).await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    assert_eq!(server.get("/api/ps").await.status, 401);
}
