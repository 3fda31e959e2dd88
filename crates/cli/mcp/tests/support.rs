//! A Poncho with a stub model, the MCP server before it, and a client of either transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use poncho_api::ChatSettings;
use poncho_cache::{Cache, CacheConfig, Gates};
use poncho_client::Client;
use poncho_engine::backend::stub::{StubBackend, StubFaults, vocab};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Engine, FingerprintSource, Host, ModelConfig, RestoreRule};
use poncho_mcp::{PATH, listen, serve_http, serve_streams};
use poncho_server::{ServerConfig, serve};
use rmcp::model::{CallToolRequestParams, CallToolResult, ProgressNotificationParam};
use rmcp::service::{NotificationContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Longer than any honest wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// What the stub model answers, and to which message.
pub(crate) const ASKED: &str = "Why is the sky blue on a clear day in the mountains?";
pub(crate) const ANSWER: &str = "Because of the air.";

/// A Poncho on a free port; it ends when it is dropped.
pub(crate) struct Poncho {
    pub(crate) client: Client,
    pub(crate) url: String,
    pub(crate) faults: StubFaults,
    _stop: oneshot::Sender<()>,
}

impl Poncho {
    pub(crate) async fn start() -> Self {
        Self::with(ServerConfig::default(), None).await
    }

    pub(crate) async fn with(config: ServerConfig, key: Option<&str>) -> Self {
        let prompt = format!("<s><|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n");
        Self::scripted(config, key, &[(prompt, format!("{ANSWER}<|im_end|>"))]).await
    }

    /// With a model that replies to prompts by a script.
    pub(crate) async fn scripted(config: ServerConfig, key: Option<&str>, replies: &[(String, String)]) -> Self {
        let backend = replies.iter().fold(StubBackend::new(MemoryKind::Attention), |backend, (prompt, reply)| {
            backend.with_reply(&vocab::tokens(prompt), &vocab::tokens(reply))
        });
        let faults = backend.faults();
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 26)).unwrap());
        let engine = Arc::new(Engine::new(Arc::new(backend), cache));
        let context = ContextOptions { n_ctx: 2048, n_seq_max: 4, ..ContextOptions::default() };
        let gates = Gates { min_tokens: 4, cold_min_tokens: 4, ..Gates::default() };
        let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
        let restore_rule = RestoreRule::Always;
        let model = ModelConfig::new("stub", "stub");
        engine.load(ModelConfig { context, gates, fingerprint, restore_rule, ..model }).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let node = Arc::new(Host::new(engine, ChatSettings::default()));
        tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            serve(listener, node, config, stopped).await.unwrap();
        });
        Self { client: Client::new(&url, key.map(str::to_owned)).unwrap(), url, faults, _stop: stop }
    }
}

/// A client that counts reports of progress.
#[derive(Clone, Default)]
pub(crate) struct Listener {
    pub(crate) heard: Arc<AtomicUsize>,
}

impl ClientHandler for Listener {
    async fn on_progress(&self, note: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        assert!(note.total.is_none_or(|total| note.progress <= total), "{note:?}");
        self.heard.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) type Session = RunningService<RoleClient, Listener>;

/// A client over a pair of streams, as a program that starts `poncho mcp` has one.
pub(crate) async fn over_streams(client: &Client) -> Session {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (input, output) = tokio::io::split(theirs);
    let client = client.clone();
    tokio::spawn(async move { serve_streams(client, input, output).await.unwrap() });
    Listener::default().serve(ours).await.unwrap()
}

/// The address of a server over HTTP that runs as long as the test.
pub(crate) async fn http_server(client: &Client) -> String {
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}{PATH}", listener.local_addr().unwrap());
    tokio::spawn(serve_http(listener, client.clone(), std::future::pending()));
    url
}

/// A client over HTTP.
pub(crate) async fn over_http(client: &Client) -> Session {
    connect(&http_server(client).await, client.key()).await.unwrap()
}

/// A client over HTTP that sends a key.
pub(crate) async fn connect(url: &str, key: Option<&str>) -> Result<Session, String> {
    // A build of the whole workspace has an HTTP client with TLS, which wants to know by whom.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    if let Some(key) = key {
        config = config.auth_header(key);
    }
    let transport = StreamableHttpClientTransport::from_config(config);
    Listener::default().serve(transport).await.map_err(|error| error.to_string())
}

/// Calls a tool.
pub(crate) async fn call(session: &Session, name: &'static str, arguments: Value) -> CallToolResult {
    let Value::Object(arguments) = arguments else { panic!("{arguments}") };
    let call = CallToolRequestParams::new(name).with_arguments(arguments);
    tokio::time::timeout(PATIENCE, session.call_tool(call)).await.expect("the tool did not answer").unwrap()
}

/// The result of a call that succeeds.
pub(crate) async fn result(session: &Session, name: &'static str, arguments: Value) -> Value {
    let result = call(session, name, arguments).await;
    assert_ne!(result.is_error, Some(true), "{name}: {result:?}");
    let structured = result.structured_content.unwrap();
    let text: Value = serde_json::from_str(&result.content[0].as_text().unwrap().text).unwrap();
    assert_eq!(text, structured, "{name}: both forms say the same");
    structured
}

/// The text of a call that fails.
pub(crate) async fn error(session: &Session, name: &'static str, arguments: Value) -> String {
    let result = call(session, name, arguments).await;
    assert_eq!((result.is_error, &result.structured_content), (Some(true), &None), "{name}: {result:?}");
    result.content[0].as_text().unwrap().text.clone()
}

/// Asks again until an answer is as it should be; a server notes the end of a request after its reply.
pub(crate) async fn eventually(
    session: &Session,
    name: &'static str,
    arguments: &Value,
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = result(session, name, arguments.clone()).await;
        if is_so(&answer) {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "{name}: {answer}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
