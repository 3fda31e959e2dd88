//! A server in this process: a cache folder, an engine with one model, and `poncho_server` on a free port.
//!
//! Used by chats and other commands that find no server, and by the replay, which ends it and starts it again as a user would: requests end, states are saved, the engine and
//! the cache are dropped, and the next one opens the folder anew. Speaking to it goes over the socket like to any other.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Engine, Exactness};
use poncho_server::{ConfigError, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::args::{FolderArgs, KvArg};
use crate::bench::client::Client;
use crate::cache::folder::chosen_folder;
use crate::draining::{Drained, drain};
use crate::probing::{configured_probing, prober};
use crate::serve::{ModelShape, model_config};

/// What the model is called.
pub(crate) const MODEL_ID: &str = "replay";

/// How long the end of such a server waits for its states to be saved.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// How the server is set up, but for the length of its context.
#[derive(Debug, Clone)]
pub(crate) struct LocalSettings {
    pub(crate) model: PathBuf,
    pub(crate) parallel: u32,
    pub(crate) threads: Option<u32>,
    pub(crate) cache_size: u64,
    /// Instead of the engine's own gate.
    pub(crate) min_tokens: Option<u32>,
}

/// A server that runs.
pub(crate) struct LocalServer {
    pub(crate) client: Client,
    engine: Arc<Engine>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ConfigError>>,
}

impl LocalServer {
    /// Opens the folder, loads the model and serves it.
    pub(crate) async fn start(settings: &LocalSettings, folder: &Path, ctx_size: u32) -> anyhow::Result<Self> {
        let cache = Cache::open(CacheConfig::on_disk(folder, settings.cache_size))?;
        let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), Arc::new(cache)));
        let (parallel, threads) = (settings.parallel, settings.threads);
        let kv = KvArg::Auto.layout(parallel);
        // Its own folder may be a temporary one; models stay familiar.
        let known = chosen_folder(&FolderArgs { cache_dir: None, ram_file_dir: None }).ok();
        let prober = prober(configured_probing()?, known.as_deref());
        let shape =
            ModelShape { ctx_size, parallel, kv, threads, exactness: Exactness::Off, prober, ..ModelShape::default() };
        let mut config = model_config(&settings.model, MODEL_ID, &shape);
        if let Some(min_tokens) = settings.min_tokens {
            config.gates.min_tokens = min_tokens;
            config.gates.cold_min_tokens = min_tokens;
        }
        let loading = Arc::clone(&engine);
        spawn_blocking(move || loading.load(config)).await.context("loading was interrupted")??;
        Self::over(engine, ServerConfig::default()).await
    }

    /// Serves the models that are loaded, and those that its library has.
    pub(crate) async fn over(engine: Arc<Engine>, config: ServerConfig) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on 127.0.0.1")?;
        let client = Client::new(&format!("http://{}", listener.local_addr()?), None)?;
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            // A sender that is gone means the same.
            let _ = stopped.await;
        };
        let serving = tokio::spawn(poncho_server::serve(listener, Arc::clone(&engine), config, shutdown));
        Ok(Self { client, engine, stop, serving })
    }

    /// Ends the server in order. Returns the bytes that its cache wrote since it was opened.
    pub(crate) async fn stop(self) -> anyhow::Result<u64> {
        let Self { client: _, engine, stop, serving } = self;
        let _ = stop.send(());
        serving.await.context("the server was interrupted")??;
        match spawn_blocking(move || drain(engine, DRAIN_LIMIT)).await.context("saving was interrupted")?? {
            Drained::Saved { bytes } => Ok(bytes),
            Drained::GaveUp => {
                let seconds = DRAIN_LIMIT.as_secs();
                Err(anyhow!(
                    "the cache folder does not answer: gave up after {seconds} s; check its disk, or name another folder"
                ))
            }
        }
    }
}
