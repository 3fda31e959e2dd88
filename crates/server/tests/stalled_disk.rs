//! A cache folder that does not answer, as clients see it: those whose prompt is not in it do not notice, and the server ends in
//! time. A gate in the file system holds the reads until the test opens it.

use std::sync::Arc;
use std::time::Duration;

use poncho_cache::testing::{Fault, FaultFs, MemoryFs, Operation};
use poncho_cache::{Cache, CacheConfig, Gates};
use poncho_engine::Engine;
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::StubBackend;
use poncho_server::ServerConfig;
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::support::{PATIENCE, Server, Setup, asking, load, with};

/// Hardening 15: with reads stalled for 6 s, a short prompt waited 6 s, and SIGTERM hung.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_does_not_answer_keeps_neither_other_clients_nor_the_end_of_the_server() {
    let fs = FaultFs::new(Arc::new(MemoryFs::new()));
    let gates = Gates { evict_save_timeout_ms: 50, ..Gates::default() };
    let config =
        CacheConfig { ram_quota: 0, gates, fs: Arc::new(fs.clone()), ..CacheConfig::on_disk("/cache", 1 << 30) };
    let cache = Arc::new(Cache::open(config).unwrap());
    let engine = Arc::new(Engine::new(Arc::new(StubBackend::new(MemoryKind::Attention)), Arc::clone(&cache)));
    load(&engine, "stub", &Setup::default());
    let config = ServerConfig { shutdown_grace: Duration::from_millis(200), ..ServerConfig::default() };
    let mut server = Server::of(Arc::clone(&engine), config).await;
    let known = with(asking("a prompt that is long enough to be worth a row of its own"), &json!({"max_tokens": 4}));
    let told = server.chat(&known).await;
    // From now on the prompt is in the folder alone.
    let model = server.model();
    spawn_blocking(move || model.evict().unwrap()).await.unwrap();
    cache.flush();
    fs.fail(Operation::Open, Fault::Stall);
    let mut waits = server.client().await;
    let request = hyper::Request::post("/v1/chat/completions")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(http_body_util::Full::from(known.to_string()))
        .unwrap();
    let waiting = tokio::spawn(async move { waits.send_request(request).await.map(|response| response.status()) });
    let stalled = fs.clone();
    assert!(spawn_blocking(move || stalled.wait_until_stalled(1, PATIENCE)).await.unwrap());
    let other = with(asking("x"), &json!({"max_tokens": 4}));
    let alone = Server::plain().await;
    assert_eq!(server.chat(&other).await["choices"], alone.chat(&other).await["choices"]);
    assert_eq!(alone.chat(&known).await["choices"], told["choices"]);
    // The gate is still shut: a worker that reads by itself would have answered nobody.
    server.begin_shutdown();
    server.stopped().await;
    spawn_blocking(move || engine.unload_all().unwrap()).await.unwrap();
    let stalled = fs.clone();
    assert!(spawn_blocking(move || stalled.wait_until_stalled(1, Duration::ZERO)).await.unwrap(), "it still stalls");
    drop(waiting);
    fs.release();
}
