//! A server in this process for one command: the cache of `poncho serve`, one model, a free port of this machine.
//!
//! Started by `connection.rs` if no server answers, and ended by it so that states are saved. If another process holds
//! the cache folder, the states are kept in memory, and a note says so.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use poncho_cache::{Cache, CacheConfig, CacheError};
use poncho_engine::backend::KvLayout;
use poncho_engine::backend::llama::{Device, LlamaBackend};
use poncho_engine::{Engine, ModelConfig};
use poncho_models::DEFAULT_MODEL;
use poncho_server::{MemoryBudget, ServerConfig};
use poncho_terminal::{Progress, Unit};
use tokio::task::spawn_blocking;

use super::args::OwnArgs;
use super::last_model;
use super::local::LocalServer;
use crate::serving::devices;
use crate::serving::memory::{self, Demand, Fit};
use crate::serving::models::{Asked, ServedModels};
use crate::serving::names;
use crate::serving::probing::prober;
use crate::serving::shape::{ModelShape, chat_settings, replay_file, show_fingerprint};
use crate::serving::tiers::cache_config;
use crate::settings;
use crate::settings::args::ServeArgs;
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
    let settings = settings_of(args)?;
    let folder = cache_folder(settings.cache_dir.as_deref()).ok();
    let shape = ModelShape::of(&settings, prober(settings.probe_models, folder.as_deref()));
    // One request at a time, which has the memory to itself.
    let (ctx_size, kv) = (shape.ctx_size, KvLayout::Unified);
    let ctx_size = if purpose == Purpose::Vocabulary { VOCABULARY_CONTEXT } else { ctx_size };
    let shape = ModelShape { ctx_size, parallel: 1, kv, ..shape };
    let models = find(model, &settings, &shape)?;
    let id = models.named.first().context("no model was named")?.clone();
    let found = models.get(&id)?;
    let looked = devices::look(&settings.devices);
    devices::load(looked.sources)?;
    check_memory(&found.load().config, &settings, &looked.devices)?;
    let (cache, replay_file) = match purpose {
        Purpose::Compute => open_cache(&settings)?,
        Purpose::Vocabulary => (Cache::open(CacheConfig::in_memory(MEMORY_CACHE))?, None),
    };
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), Arc::new(cache)));
    let (loading, progress) = (Arc::clone(&engine), Progress::on_stderr());
    progress.begin(&format!("loading {id}"), Unit::Nothing, None);
    let shown = progress.clone();
    let loaded = spawn_blocking(move || loading.load_model(found.load(), &mut show_fingerprint(&shown)));
    let loaded = loaded.await.context("loading was interrupted");
    progress.clear();
    let loaded = loaded??;
    if let (Purpose::Compute, Some(folder)) = (purpose, &folder) {
        names::record(folder, loaded.id(), &loaded.current_namespace().fingerprint);
    }
    let records_file = replay_file.as_deref().map(|file| file.with_extension("requests"));
    let config = ServerConfig {
        records_file,
        any_model: true,
        default_model: Some(id.clone()),
        library: Some(Arc::new(models.library)),
        ..ServerConfig::default()
    };
    let chat = chat_settings(&settings, replay_file);
    Ok((LocalServer::start(engine, config, chat).await?, id))
}

/// The settings of `poncho serve`, with the flags of this command over them.
fn settings_of(args: &OwnArgs) -> anyhow::Result<ServeArgs> {
    let mut settings = settings::of_serve()?;
    settings.cache_dir = args.cache_dir.clone().or(settings.cache_dir);
    settings.cache_size = args.cache_size.unwrap_or(settings.cache_size);
    settings.ctx_size = args.ctx_size.unwrap_or(settings.ctx_size);
    settings.threads = args.threads.or(settings.threads);
    Ok(settings)
}

/// Finds the model: the one that is named, or the first one of the settings, or that of the last chat, or the default
/// model, which may also be where `make model` puts it.
fn find(model: Option<&str>, settings: &ServeArgs, shape: &ModelShape) -> anyhow::Result<ServedModels> {
    let models_dir = settings.models_dir.as_deref();
    let model = model.or(settings.model.first().map(String::as_str));
    if model.is_none()
        && let Some(last) = last_model::read()
        && let Ok(found) = ServedModels::find(Asked { models: &[last], name: None, models_dir }, shape)
    {
        return Ok(found);
    }
    let named: Vec<String> = model.map(str::to_owned).into_iter().collect();
    let found = ServedModels::find(Asked { models: &named, name: None, models_dir }, shape);
    let fetched = Path::new(FETCHED_DEFAULT);
    if found.is_err() && model.is_none_or(|model| model == DEFAULT_MODEL) && fetched.is_file() {
        let models = [FETCHED_DEFAULT.to_owned()];
        return ServedModels::find(Asked { models: &models, name: None, models_dir }, shape);
    }
    found
}

/// Fails before llama.cpp allocates memory that is not there.
fn check_memory(config: &ModelConfig, settings: &ServeArgs, devices: &[Device]) -> anyhow::Result<()> {
    let available = memory::available_for(config, devices);
    if let Some(available) = available.filter(|_| settings.memory != Some(MemoryBudget::Unlimited))
        && let Fit::TooLittle(shortage) = Demand::of(std::slice::from_ref(config)).without_type_flags().fit(available)
    {
        bail!("{shortage}; PONCHO_MEMORY=none skips this check");
    }
    Ok(())
}

/// The cache of `poncho serve` with the file of recorded tool calls beside it, or memory if the folder is in use.
fn open_cache(settings: &ServeArgs) -> anyhow::Result<(Cache, Option<PathBuf>)> {
    let folder = cache_folder(settings.cache_dir.as_deref())?;
    match Cache::open(cache_config(settings, &folder)?) {
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
