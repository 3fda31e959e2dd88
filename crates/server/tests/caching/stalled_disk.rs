//! A cache folder that does not answer, as clients see it.
//!
//! The folder holds one conversation, and nothing else does. A file system of the test stalls every operation on it, as a hung
//! network disk does, until the test releases them. A request that needs the folder is computed after its deadline, other
//! requests do not wait with it, and the server ends in bounded time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use poncho_cache::testing::{Fault, FaultFs, MemoryFs, Operation};
use poncho_cache::{Cache, CacheConfig, Gates};
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::{Engine, RestoreRule};
use poncho_server::ServerConfig;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::support::{Server, Setup, asking, load, with};

/// Far more than anything here takes on a busy machine, and far less than the two minutes that a patient model waits for a
/// read: what comes within this time did not wait for the disk.
const SOON: Duration = Duration::from_secs(60);

/// The file system of the cache. Dropping it releases what stalls: threads of the cache wait there, also when a test fails.
struct Folder {
    fs: FaultFs,
}

impl Folder {
    /// Stalls every operation from now on.
    fn stall(fs: FaultFs) -> Self {
        for operation in Operation::ALL {
            fs.fail(operation, Fault::Stall);
        }
        Self { fs }
    }

    /// Waits until an operation stalls.
    async fn until_stalled(&self) {
        let fs = self.fs.clone();
        assert!(spawn_blocking(move || fs.wait_until_stalled(1, SOON)).await.unwrap(), "the folder was not used");
    }

    fn is_stalled(&self) -> bool {
        self.fs.wait_until_stalled(1, Duration::ZERO)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.fs.release();
    }
}

/// A server on a folder that does not answer.
struct Stalled {
    folder: Folder,
    server: Server,
    engine: Arc<Engine>,
    /// A chat request that only the folder holds the state of.
    known: Value,
    /// The choices of its reply.
    choices: Value,
}

/// Waits for reads for two minutes.
fn patient() -> Setup {
    Setup { restore_rule: RestoreRule::Always, ..Setup::default() }
}

/// Waits for reads for about a tenth of a second: half of what 60 tokens are taken to cost before a prefill was measured.
fn impatient() -> Setup {
    Setup { restore_rule: RestoreRule::Faster, read_wait: Duration::from_millis(20), ..Setup::default() }
}

/// A cache that keeps nothing in memory, and gives up what it cannot write at its end soon.
fn cache_config(fs: &FaultFs) -> CacheConfig {
    let gates = Gates { evict_save_timeout_ms: 50, ..Gates::default() };
    let drain_limit = Duration::from_millis(50);
    let fs = Arc::new(fs.clone());
    CacheConfig { ram_quota: 0, drain_limit, gates, fs, ..CacheConfig::on_disk("/cache", 1 << 30) }
}

fn engine_on(cache: &Arc<Cache>) -> Arc<Engine> {
    Arc::new(Engine::new(Arc::new(StubBackend::new(MemoryKind::Attention)), Arc::clone(cache)))
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("{what} waited for the folder"))
}

impl Stalled {
    /// Fills the folder with one conversation, then starts a server with the models `stub` and `other` and stalls the folder.
    async fn start(setup: Setup) -> Self {
        let fs = FaultFs::new(Arc::new(MemoryFs::new()));
        let cache = Arc::new(Cache::open(cache_config(&fs)).unwrap());
        let known = asking("A question that is long enough to be worth a row of its own");
        let known = with(known, &json!({"max_tokens": 4}));
        let choices = fill(&cache, &known).await;
        let engine = engine_on(&cache);
        load(&engine, "stub", &setup);
        load(&engine, "other", &Setup { fingerprint: [8; 32], ..setup });
        let config = ServerConfig { shutdown_grace: Duration::from_millis(100), ..ServerConfig::default() };
        let server = Server::of(Arc::clone(&engine), config).await;
        server.until_ready().await;
        Self { folder: Folder::stall(fs), server, engine, known, choices }
    }

    /// Sends the known request and returns when a read for it stalls.
    async fn send_known(&self) -> JoinHandle<hyper::Result<Value>> {
        let mut client = self.server.client().await;
        let request = hyper::Request::post("/v1/chat/completions")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::from(self.known.to_string()))
            .unwrap();
        let reply = tokio::spawn(async move {
            let body = client.send_request(request).await?.into_body().collect().await?;
            Ok(serde_json::from_slice(&body.to_bytes()).unwrap())
        });
        self.folder.until_stalled().await;
        reply
    }
}

/// Lets a model compute a request and ends it. The folder of the cache holds the conversation then, and no memory does.
async fn fill(cache: &Arc<Cache>, known: &Value) -> Value {
    let engine = engine_on(cache);
    load(&engine, "stub", &patient());
    let mut server = Server::of(Arc::clone(&engine), ServerConfig::default()).await;
    let reply = server.chat(known).await;
    server.begin_shutdown();
    server.stopped().await;
    let cache = Arc::clone(cache);
    spawn_blocking(move || {
        engine.unload_all().unwrap();
        cache.flush();
    })
    .await
    .unwrap();
    reply["choices"].clone()
}

/// A request for a completion of tokens. Two that start with different tokens have no state in common.
fn starting_with(token: u32) -> Value {
    let prompt: Vec<u32> = (token..token + 16).collect();
    json!({"model": "stub", "prompt": prompt, "max_tokens": 4, "temperature": 0})
}

fn cached_tokens(reply: &Value) -> u64 {
    reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// Hardening 15: with reads stalled for 6 s, a short prompt that needed nothing of the disk waited 6 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_a_stalled_folder_keeps_nobody_else_waiting() {
    let stalled = Stalled::start(patient()).await;
    let server = &stalled.server;
    let waiting = stalled.send_known().await;
    // The same model. A chat prompt would begin like the stored one and need the folder too; these tokens share nothing with it.
    let body = starting_with(90);
    let reply = soon("another prompt", server.ask("/v1/completions", &body)).await;
    let alone = Server::plain().await;
    assert_eq!(reply["choices"], alone.ask("/v1/completions", &body).await["choices"]);
    // Another model, to which the stored state means nothing.
    let body = with(stalled.known.clone(), &json!({"model": "other"}));
    let reply = soon("another model", server.chat(&body)).await;
    assert_eq!((&reply["choices"], cached_tokens(&reply)), (&stalled.choices, 0));
    assert!(stalled.folder.is_stalled() && !waiting.is_finished(), "the first request still waits");
    stalled.folder.fs.release();
    let reply = soon("a folder that answers again", waiting).await.unwrap().unwrap();
    assert_eq!(reply["choices"], stalled.choices);
    assert!(cached_tokens(&reply) > 0, "the rows came in time: {reply}");
}

/// Hardening 15: a read that does not come in time means computing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_for_a_stalled_folder_is_computed_after_its_deadline() {
    let stalled = Stalled::start(impatient()).await;
    let waiting = stalled.send_known().await;
    // A chat prompt begins like the stored one, so it may wait for the folder too.
    let alike = with(asking("Another question"), &json!({"max_tokens": 4}));
    let reply = soon("a prompt that begins alike", stalled.server.chat(&alike)).await;
    assert_eq!(reply["choices"], Server::plain().await.chat(&alike).await["choices"]);
    let reply = soon("the known prompt", waiting).await.unwrap().unwrap();
    assert_eq!((&reply["choices"], cached_tokens(&reply)), (&stalled.choices, 0));
    assert!(stalled.engine.cache().counters().reads_late > 0);
    assert!(stalled.folder.is_stalled());
}

/// Hardening 15: SIGTERM hung for as long as the disk did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_server_does_not_wait_for_a_stalled_folder() {
    let stalled = Stalled::start(patient()).await;
    let waiting = stalled.send_known().await;
    let Stalled { folder, mut server, engine, .. } = stalled;
    server.begin_shutdown();
    soon("the end of the server", server.stopped()).await;
    let reply = soon("a request that was cut off", waiting).await.unwrap().unwrap();
    assert_eq!(reply["error"]["code"], "shutting_down", "{reply}");
    let close = move || {
        let unloaded = engine.unload_all();
        drop(engine);
        unloaded
    };
    soon("the end of the models and the cache", spawn_blocking(close)).await.unwrap().unwrap();
    assert!(folder.is_stalled());
}

/// Hardening 15: an idle session that gave way to another request was saved first, and the worker waited for that save.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_gives_way_without_waiting_for_a_stalled_folder() {
    const PATH: &str = "/v1/completions";
    let fs = FaultFs::new(Arc::new(MemoryFs::new()));
    let gates = Gates { evict_save_timeout_ms: 120_000, ..Gates::default() };
    let config = CacheConfig { writers: 1, queue: 1, gates, ..cache_config(&fs) };
    let engine = engine_on(&Arc::new(Cache::open(config).unwrap()));
    load(&engine, "stub", &Setup { sequences: 1, ..Setup::default() });
    let server = Server::of(Arc::clone(&engine), ServerConfig::default()).await;
    let folder = Folder::stall(fs);
    // The one writer stalls, then the queue is full, so that nothing of the session is saved when its request ends.
    soon("a prompt", server.ask(PATH, &starting_with(40))).await;
    folder.until_stalled().await;
    soon("a prompt behind a stalled writer", server.ask(PATH, &starting_with(60))).await;
    let in_session = with(starting_with(80), &json!({"session_id": "chat"}));
    soon("a session", server.ask(PATH, &in_session)).await;
    assert!(engine.cache().counters().saves_dropped > 0, "the queue is full");
    let other = starting_with(100);
    let reply = soon("the request that takes the session's place", server.ask(PATH, &other)).await;
    assert_eq!(reply["choices"], Server::plain().await.ask(PATH, &other).await["choices"]);
    assert!(folder.is_stalled());
}
