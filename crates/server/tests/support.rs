//! A server on a free port, stub models that say what a test scripted, and a small HTTP client.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use poncho_api::{ChatSettings, SigningKey};
use poncho_cache::{Cache, CacheConfig, Gates};
use poncho_engine::backend::stub::{DecodeFault, StubBackend, StubFaults, StubTemplate, vocab};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{DraftRule, Drafts, Engine, FingerprintSource, Host, Model, ModelConfig, Reasoning, RestoreRule};
use poncho_server::{ConfigError, Draining, Ending, ServerConfig, serve_until};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Names and values.
type Headers<'a> = &'a [(&'a str, &'a str)];

/// Longer than any honest wait: a real model on a machine that does much else took more than half a minute for a reply.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// What a test server is made of.
pub(crate) struct Setup {
    pub(crate) memory: MemoryKind,
    pub(crate) template: StubTemplate,
    /// What the models say after a rendered prompt.
    pub(crate) replies: Vec<(String, String)>,
    pub(crate) models: Vec<&'static str>,
    /// What the model files say beside the usual.
    pub(crate) metadata: Vec<(&'static str, &'static str)>,
    pub(crate) queue_limit: usize,
    pub(crate) sequences: u32,
    /// Tokens that one request may use.
    pub(crate) context: u32,
    /// Signs thinking.
    pub(crate) signing_key: Option<SigningKey>,
    pub(crate) config: ServerConfig,
    pub(crate) chat: ChatSettings,
    /// The models' file; the stub needs none.
    pub(crate) file: PathBuf,
    /// Whether the models can fill a gap.
    pub(crate) fills_gaps: bool,
    /// The identity of the models' file: models with the same one share stored states.
    pub(crate) fingerprint: [u8; 32],
    pub(crate) restore_rule: RestoreRule,
    pub(crate) drafts: Drafts,
    /// What the operator wants of thinking.
    pub(crate) reasoning: Reasoning,
    /// How long a request waits for stored rows at least.
    pub(crate) read_wait: Duration,
    /// How long a request waits for the row that it names as its parent.
    pub(crate) parent_wait: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            memory: MemoryKind::Attention,
            template: StubTemplate::Full,
            replies: Vec::new(),
            models: vec!["stub"],
            metadata: Vec::new(),
            queue_limit: 64,
            sequences: 8,
            context: 4096,
            signing_key: None,
            config: ServerConfig::default(),
            chat: ChatSettings::default(),
            file: PathBuf::from("stub"),
            fills_gaps: false,
            fingerprint: [7; 32],
            // The stub computes faster than anything can be restored.
            restore_rule: RestoreRule::Always,
            drafts: Drafts::Off,
            reasoning: Reasoning::default(),
            read_wait: Duration::from_secs(1),
            parent_wait: Duration::from_millis(500),
        }
    }
}

pub(crate) struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) faults: StubFaults,
    address: std::net::SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    hurry: Option<oneshot::Sender<()>>,
    notice: Option<oneshot::Receiver<Draining>>,
    task: JoinHandle<Result<(), ConfigError>>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The data of each event.
    pub(crate) fn events(&self) -> Vec<String> {
        assert_eq!(self.headers["content-type"], "text/event-stream", "{}", self.text);
        let blocks = self.text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
        blocks.map(|block| block.strip_prefix("data: ").unwrap_or_else(|| panic!("{block:?}")).to_owned()).collect()
    }

    /// The events of a stream with named events; their data repeat the names.
    pub(crate) fn named_events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream", "{}", self.text);
        let blocks = self.text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
        let read = |block: &str| {
            let lines: Vec<&str> = block.lines().collect();
            let [event, data] = lines[..] else { panic!("{block:?}") };
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(Some(data["type"].as_str().unwrap()), event.strip_prefix("event: "), "{block}");
            data
        };
        blocks.map(read).collect()
    }

    /// The lines of a stream of JSON lines.
    pub(crate) fn lines(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "application/x-ndjson", "{}", self.text);
        assert!(self.text.ends_with('\n'), "{}", self.text);
        self.text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"))).collect()
    }

    /// The chunks of a stream that ended well.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.text);
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

impl Server {
    pub(crate) async fn start(setup: Setup) -> Self {
        Self::start_with_tokens(setup, &[], "").await
    }

    /// A server with a model that also says `reply` after exactly these tokens.
    pub(crate) async fn start_with_tokens(setup: Setup, prompt: &[u32], reply: &str) -> Self {
        let mut backend = StubBackend::new(setup.memory).with_template(setup.template);
        if !prompt.is_empty() {
            backend = backend.with_reply(prompt, &vocab::tokens(reply));
        }
        for (prompt, reply) in &setup.replies {
            backend = backend.with_reply(&vocab::tokens(prompt), &vocab::tokens(reply));
        }
        for (key, value) in &setup.metadata {
            backend = backend.with_metadata(key, value);
        }
        if setup.fills_gaps {
            backend = backend.with_fill_tokens();
        }
        let faults = backend.faults();
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 28)).unwrap());
        let engine = Arc::new(Engine::new(Arc::new(backend), cache));
        for id in &setup.models {
            load(&engine, id, &setup);
        }
        Self { faults, ..Self::chatting(engine, setup.config, setup.chat).await }
    }

    /// A server of models that the test loaded itself.
    pub(crate) async fn of(engine: Arc<Engine>, config: ServerConfig) -> Self {
        Self::chatting(engine, config, ChatSettings::default()).await
    }

    /// The same, with other rules for conversations.
    pub(crate) async fn chatting(engine: Arc<Engine>, config: ServerConfig, chat: ChatSettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (hurry, hurried) = oneshot::channel::<()>();
        let (noticed, notice) = oneshot::channel();
        let ending = Ending {
            shutdown: async move {
                let _ = stopped.await;
            },
            hurry: async move {
                if hurried.await.is_err() {
                    std::future::pending::<()>().await;
                }
            },
            notice: move |draining| {
                let _ = noticed.send(draining);
            },
        };
        let node = Arc::new(Host::new(Arc::clone(&engine), chat));
        let task = tokio::spawn(serve_until(listener, node, config, ending));
        let (stop, hurry, notice) = (Some(stop), Some(hurry), Some(notice));
        Self { engine, faults: StubFaults::new(), address, stop, hurry, notice, task }
    }

    pub(crate) async fn plain() -> Self {
        Self::start(Setup::default()).await
    }

    /// A server with a model that answers one user message.
    pub(crate) async fn saying(user: &str, reply: &str) -> Self {
        Self::start(Setup { replies: vec![(rendered(user), reply.to_owned())], ..Setup::default() }).await
    }

    pub(crate) fn model(&self) -> Model {
        self.engine.get("stub").unwrap()
    }

    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection that can be used several times.
    pub(crate) async fn client(&self) -> SendRequest<Full<Bytes>> {
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(self.connect().await)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Sends a request and returns when the head of the response is there.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: Headers<'_>,
        body: Vec<u8>,
    ) -> Response<Incoming> {
        let headers: Vec<_> = [("host", "localhost")].iter().chain(headers).copied().collect();
        self.open_bare(method, path, &headers, body).await
    }

    async fn open_bare(&self, method: Method, path: &str, headers: Headers<'_>, body: Vec<u8>) -> Response<Incoming> {
        let mut sender = self.client().await;
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("no answer came").unwrap()
    }

    /// Sends a request to the server under another name.
    pub(crate) async fn send_as(
        &self,
        host: &str,
        method: Method,
        path: &str,
        headers: Headers<'_>,
        body: Vec<u8>,
    ) -> Answer {
        let headers: Vec<_> = [("host", host)].iter().chain(headers).copied().collect();
        read(self.open_bare(method, path, &headers, body).await).await
    }

    pub(crate) async fn send(&self, method: Method, path: &str, headers: Headers<'_>, body: Vec<u8>) -> Answer {
        read(self.open(method, path, headers, body).await).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Vec::new()).await
    }

    /// Waits until the server says that it is ready: a worker begins a moment after its model was loaded.
    pub(crate) async fn until_ready(&self) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self.get("/health/ready").await.status != 200 {
            assert!(tokio::time::Instant::now() < deadline, "the server did not become ready");
        }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string().into()).await
    }

    /// Posts and expects success.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    pub(crate) async fn chat(&self, body: &Value) -> Value {
        self.ask("/v1/chat/completions", body).await
    }

    /// Posts with `stream` on and reads the whole stream.
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Answer {
        let mut body = body.clone();
        body["stream"] = true.into();
        let answer = self.post(path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    }

    pub(crate) fn begin_shutdown(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Ends the grace of a shutdown.
    pub(crate) fn hurry(&mut self) {
        self.hurry.take().unwrap().send(()).unwrap();
    }

    /// What the server says when it begins to wait for replies; `None` if it never waits.
    pub(crate) async fn draining(&mut self) -> Option<Draining> {
        tokio::time::timeout(PATIENCE, self.notice.take().unwrap()).await.expect("no notice came").ok()
    }

    /// Waits until `serve` returns.
    pub(crate) async fn stopped(self) {
        tokio::time::timeout(PATIENCE, self.task).await.expect("the server did not stop").unwrap().unwrap();
    }

    /// Ends the server and its engine; its folder is free for the next one.
    pub(crate) async fn ended(mut self) {
        let engine = Arc::clone(&self.engine);
        self.begin_shutdown();
        self.stopped().await;
        let end = move || {
            engine.unload_all().unwrap();
            engine.cache().flush();
        };
        tokio::task::spawn_blocking(end).await.unwrap();
    }

    /// Leaves a stream of 3000 tokens while a decode of it is held: the request is cancelled, not finished.
    pub(crate) async fn leave(&self, response: Response<Incoming>) {
        wait_until_held(self).await;
        drop(response);
        self.faults.release();
        let model = self.model();
        eventually("the end of the request", || model.status().queue_depth == 0 && model.status().active == 0).await;
        assert!(model.status().generated_tokens < 3000, "it was cancelled, not finished");
    }

    /// Sends a request three times to a server that has room for two. Returns the refusal.
    pub(crate) async fn overload(path: &str, body: &Value) -> Answer {
        let server = Self::start(Setup { sequences: 1, queue_limit: 1, ..Setup::default() }).await;
        server.faults.on_decode(1, DecodeFault::Block);
        let model = server.model();
        let late = async {
            // What is released before it is held stays held.
            wait_until_held(&server).await;
            eventually("two requests", || model.status().queue_depth == 2).await;
            let refused = server.post(path, body).await;
            server.faults.release();
            refused
        };
        let (one, two, refused) = tokio::join!(server.post(path, body), server.post(path, body), late);
        assert_eq!((one.status, two.status), (200, 200));
        assert_eq!(refused.headers["retry-after"], "1");
        refused
    }
}

/// Gates under which a short prompt is saved.
pub(crate) fn small_gates() -> Gates {
    Gates { min_tokens: 4, cold_min_tokens: 4, boundary_trim_tokens: 2, boundary_align_tokens: 8, ..Gates::default() }
}

pub(crate) fn load(engine: &Engine, id: &str, setup: &Setup) {
    let gates = Gates {
        cold_max_tokens: 4096,
        continued_interval: 64,
        session_resume_wait_ms: u64::try_from(setup.parent_wait.as_millis()).unwrap(),
        ..small_gates()
    };
    let n_seq_max = setup.sequences;
    let context = ContextOptions {
        n_ctx: setup.context,
        n_cells: Some(setup.context.max(65536)),
        n_batch: 512,
        n_ubatch: 512,
        n_seq_max,
        ..ContextOptions::default()
    };
    let config = ModelConfig {
        fingerprint: FingerprintSource::FastUnsafe(setup.fingerprint),
        gates,
        context,
        queue_limit: setup.queue_limit,
        signing_key: setup.signing_key.clone(),
        restore_rule: setup.restore_rule,
        drafts: setup.drafts,
        reasoning: setup.reasoning,
        draft_rule: DraftRule::Always,
        read_wait: setup.read_wait,
        ..ModelConfig::new(id, &setup.file)
    };
    engine.load(config).unwrap();
}

pub(crate) async fn read(response: Response<Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("the body did not end").unwrap();
    let text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
    Answer { status: parts.status.as_u16(), headers: parts.headers, text }
}

/// The prompt of one user message.
pub(crate) fn rendered(user: &str) -> String {
    format!("<s><|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")
}

/// A greedy chat request with one user message.
pub(crate) fn asking(user: &str) -> Value {
    json!({"model": "stub", "temperature": 0, "messages": [{"role": "user", "content": user}]})
}

/// Fields added to a request.
pub(crate) fn with(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// What the deltas of a chat stream add up to, for one choice.
pub(crate) fn joined(chunks: &[Value], index: u64, field: &str) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let deltas = choices.filter(|choice| choice["index"] == index).map(|choice| &choice["delta"][field]);
    deltas.filter_map(Value::as_str).collect()
}

/// Opens a cache folder that the server before may not have let go of yet: its last connections hold it for a moment.
pub(crate) async fn reopened(folder: &Path) -> Arc<Cache> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match Cache::open(CacheConfig::on_disk(folder, 1 << 28)) {
            Ok(cache) => return Arc::new(cache),
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until something is so; fails if it does not become so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until a decode is held.
pub(crate) async fn wait_until_held(server: &Server) {
    let faults = server.faults.clone();
    assert!(tokio::task::spawn_blocking(move || faults.wait_until_held(PATIENCE)).await.unwrap());
}

/// Settings for a model of the stub.
pub(crate) fn small_config(name: &str, path: &Path) -> ModelConfig {
    let context = ContextOptions { n_ctx: 1024, n_seq_max: 2, ..ContextOptions::default() };
    let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
    ModelConfig { context, fingerprint, ..ModelConfig::new(name, path) }
}
