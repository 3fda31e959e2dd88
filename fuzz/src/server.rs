//! A server of a stub model in this process, and one request to it for each input.
//!
//! Used by the target for request bodies. The server runs as it does for users: real sockets, real handlers. The model is
//! the stub, so that what an input costs is the server's.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{ChatSettings, Engine, FingerprintSource, Host, ModelConfig};
use poncho_server::{ServerConfig, serve};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Short, so that a body without a limit ends soon.
const CONTEXT: u32 = 256;
/// An answer that takes longer is a finding.
const PATIENCE: Duration = Duration::from_secs(20);

/// The endpoints that take a body, one family after the other.
pub const PATHS: [&str; 18] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/generate",
    "/api/chat",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
    "/api/create",
    "/api/copy",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/api/cache/explain",
    "/api/cache/evict",
];

struct Harness {
    runtime: Runtime,
    address: SocketAddr,
}

/// Sends a body to an endpoint and returns the status and the answer.
///
/// # Panics
/// If the server does not answer: that is what the target looks for.
pub fn answer(path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    static HARNESS: OnceLock<Harness> = OnceLock::new();
    let harness = HARNESS.get_or_init(start);
    let sent = async {
        let stream = TcpStream::connect(harness.address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let driving = tokio::spawn(connection);
        let body = Full::new(Bytes::copy_from_slice(body));
        let request = Request::builder().method(Method::POST).uri(path).header("host", "localhost");
        let request = request.header("content-type", "application/json").body(body)?;
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let text = response.into_body().collect().await?.to_bytes().to_vec();
        driving.abort();
        Ok::<_, Box<dyn std::error::Error>>((status, text))
    };
    let answered = harness.runtime.block_on(async { tokio::time::timeout(PATIENCE, sent).await });
    match answered {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => panic!("{path}: the server broke the connection: {error}"),
        Err(_) => panic!("{path}: no answer within {PATIENCE:?}"),
    }
}

fn start() -> Harness {
    match try_start() {
        Ok(harness) => harness,
        Err(error) => panic!("no server to fuzz: {error}"),
    }
}

fn try_start() -> Result<Harness, Box<dyn std::error::Error>> {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(16 << 20))?);
    let engine = Arc::new(Engine::new(Arc::new(StubBackend::new(MemoryKind::Attention)), cache));
    let context =
        ContextOptions { n_ctx: CONTEXT, n_seq_max: 4, n_cells: Some(CONTEXT * 4), ..ContextOptions::default() };
    let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
    engine.load(ModelConfig { fingerprint, context, ..ModelConfig::new("stub", "stub") })?;
    let config = ServerConfig { any_model: true, ..ServerConfig::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let node = Arc::new(Host::new(engine, ChatSettings::default()));
    runtime.spawn(serve(listener, node, config, std::future::pending()));
    Ok(Harness { runtime, address })
}
