//! A server in this process for one command: the cache of `poncho serve`, one model, a free port of this machine.
//!
//! Started by `connection.rs` if no server answers, and ended by it so that states are saved. If another process holds
//! the cache folder, the states are kept in memory, and a note says so.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use poncho_api::ChatSettings;
use poncho_cache::{Cache, CacheConfig, CacheError};
use poncho_engine::backend::KvLayout;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Engine, Exactness};
use poncho_models::DEFAULT_MODEL;
use poncho_server::ServerConfig;
use poncho_terminal::{Progress, Unit};
use tokio::task::spawn_blocking;

use super::args::OwnArgs;
use super::last_model;
use super::local::LocalServer;
use crate::serving::models::{Asked, ServedModels};
use crate::serving::probing::{configured_probing, prober};
use crate::serving::shape::{ModelShape, replay_file, show_fingerprint};
use crate::settings::cache_folder::cache_folder;

/// Memory for states if the folder is in use: enough for several conversations with a small model.
const MEMORY_CACHE: u64 = 1 << 30;
/// Enough to split texts into tokens: nothing is computed.
const VOCABULARY_CONTEXT: u32 = 64;
/// Where `make model` puts the default model, relative to the project folder.
const FETCHED_DEFAULT: &str = ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The purpose of a model in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It computes, and its states are saved.
    Compute,
    /// Only its vocabulary is needed, and nothing is saved.
    Vocabulary,
}

/// Loads the model and serves it. Also returns its name.
pub(crate) async fn start(
    model: Option<&str>,
    args: &OwnArgs,
    purpose: Purpose,
) -> anyhow::Result<(LocalServer, String)> {
    let ctx_size = if purpose == Purpose::Vocabulary { VOCABULARY_CONTEXT } else { args.ctx_size };
    let (kv, exactness) = (KvLayout::Unified, Exactness::Off);
    let folder = cache_folder(args.cache_dir.as_deref()).ok();
    let prober = prober(configured_probing()?, folder.as_deref());
    let threads = args.threads;
    let shape = ModelShape { ctx_size, parallel: 1, kv, threads, exactness, prober, ..ModelShape::default() };
    let models = find(model, &shape)?;
    let id = models.named.first().context("no model was named")?.clone();
    let found = models.get(&id)?;
    let (cache, replay_file) = match purpose {
        Purpose::Compute => open_cache(args)?,
        Purpose::Vocabulary => (Cache::open(CacheConfig::in_memory(MEMORY_CACHE))?, None),
    };
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), Arc::new(cache)));
    let (loading, progress) = (Arc::clone(&engine), Progress::on_stderr());
    progress.begin(&format!("loading {id}"), Unit::Nothing, None);
    let shown = progress.clone();
    let loaded = spawn_blocking(move || loading.load_model(found.load(), &mut show_fingerprint(&shown)));
    let loaded = loaded.await.context("loading was interrupted");
    progress.clear();
    loaded??;
    let config = ServerConfig {
        any_model: true,
        default_model: Some(id.clone()),
        library: Some(Arc::new(models.library)),
        ..ServerConfig::default()
    };
    let chat = ChatSettings { replay_file, ..ChatSettings::default() };
    Ok((LocalServer::start(engine, config, chat).await?, id))
}

/// Finds the model. Without a name it is that of the last chat, or the default one, also where `make model` puts it.
fn find(model: Option<&str>, shape: &ModelShape) -> anyhow::Result<ServedModels> {
    if model.is_none()
        && let Some(last) = last_model::read()
        && let Ok(found) = ServedModels::find(Asked { models: &[last], name: None, models_dir: None }, shape)
    {
        return Ok(found);
    }
    let named: Vec<String> = model.map(str::to_owned).into_iter().collect();
    let found = ServedModels::find(Asked { models: &named, name: None, models_dir: None }, shape);
    let fetched = Path::new(FETCHED_DEFAULT);
    if found.is_err() && model.is_none_or(|model| model == DEFAULT_MODEL) && fetched.is_file() {
        let models = [FETCHED_DEFAULT.to_owned()];
        return ServedModels::find(Asked { models: &models, name: None, models_dir: None }, shape);
    }
    found
}

/// The cache of `poncho serve` with the file of recorded tool calls beside it, or memory if the folder is in use.
fn open_cache(args: &OwnArgs) -> anyhow::Result<(Cache, Option<PathBuf>)> {
    let folder = cache_folder(args.cache_dir.as_deref())?;
    match Cache::open(CacheConfig::on_disk(&folder, args.cache_size)) {
        Ok(cache) => Ok((cache, Some(replay_file(&folder)))),
        Err(CacheError::Locked { pid, .. }) => {
            eprintln!(
                "note: process {pid} is using the cache folder {}; this command keeps its states in memory only",
                folder.display()
            );
            Ok((Cache::open(CacheConfig::in_memory(MEMORY_CACHE))?, None))
        }
        Err(error) => Err(error.into()),
    }
}
