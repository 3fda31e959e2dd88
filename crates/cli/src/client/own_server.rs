//! A server in this process for one command: the cache of `poncho serve`, one model, a free port of this machine.
//!
//! Started by `connection.rs` if no server answers, and ended by it so that states are saved. If another process holds
//! the cache folder, the states are kept in memory, and a note says so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use poncho_cache::{Cache, CacheConfig, CacheError, RemoteTier};
use poncho_engine::backend::KvLayout;
use poncho_engine::backend::llama::{Device, LlamaBackend};
use poncho_engine::{Engine, ModelConfig};
use poncho_models::DEFAULT_MODEL;
use poncho_server::{MemoryBudget, ServerConfig};
use poncho_shared::SharedTier;
use poncho_terminal::{Progress, Unit};
use tokio::task::spawn_blocking;

use super::args::OwnArgs;
use super::last_model;
use super::local::LocalServer;
use crate::fit::{Earlier, Fitting};
use crate::serving::devices::{self, Looked};
use crate::serving::memory::{self, Demand, Fit};
use crate::serving::models::{Asked, Configs, Extras, ServedModels};
use crate::serving::names;
use crate::serving::probing::prober;
use crate::serving::shape::{ModelShape, chat_settings, replay_file, shapes, show_fingerprint};
use crate::serving::shared_tier;
use crate::serving::tiers::{MEMORY_CACHE, Quotas, cache_config};
use crate::settings;
use crate::settings::args::ServeArgs;
use crate::settings::cache_folder::cache_folder;

/// How long the first request waits for a store that is slow to answer.
const FIRST_TRIAL: Duration = Duration::from_secs(2);
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
    let (settings, of_models) = settings_of(args)?;
    let folder = cache_folder(settings.cache_dir.as_deref()).ok();
    let prober = prober(settings.probe_models, folder.as_deref());
    let alone = |shape: ModelShape| ModelShape { parallel: Some(1), kv: Some(KvLayout::Unified), ..shape };
    let of_models = shapes(&of_models, prober.as_ref()).into_iter().map(|(name, shape)| (name, alone(shape))).collect();
    let shape = ModelShape::of(&settings, prober);
    // One request at a time, which has the memory to itself.
    let ctx_size = if purpose == Purpose::Vocabulary { Some(VOCABULARY_CONTEXT) } else { shape.ctx_size };
    let shape = alone(ModelShape { ctx_size, ..shape });
    let kept_in = folder.as_deref().filter(|_| purpose == Purpose::Compute);
    // A vocabulary needs no device, and looking for some starts a process.
    let looked = match purpose {
        Purpose::Compute => devices::look(&settings.devices),
        Purpose::Vocabulary => Looked::default(),
    };
    devices::load(looked.sources.clone())?;
    let fitting = Arc::new(Fitting::new(&settings, shape, kept_in, &looked).with_models(of_models));
    let mut models = find(model, &settings, &fitting.configs())?;
    let id = models.named.first().context("no model was named")?.clone();
    if purpose == Purpose::Compute {
        let (path, loading) = models.file(&id)?;
        fitting.plan(&path, &id, loading, Earlier::Kept);
        models.configure_again(&id)?;
    }
    let found = models.get(&id)?;
    check_memory(&found.load().config, &settings, &looked.devices)?;
    // It measures its store while the model is loaded.
    let tier = if purpose == Purpose::Compute { shared_tier::open(&settings.shared_tier)? } else { None };
    let (cache, replay_file) = match purpose {
        Purpose::Compute => open_cache(&settings, fitting.quotas(), tier.as_ref())?,
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
    // A command has few requests, often only one: it shall find what the store has.
    if let Some(tier) = tier
        && !spawn_blocking(move || tier.wait_until_tried(Instant::now() + FIRST_TRIAL)).await.unwrap_or(true)
    {
        eprintln!("note: the object store of --shared does not answer yet; this command goes on without it");
    }
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
fn settings_of(args: &OwnArgs) -> anyhow::Result<(ServeArgs, Vec<(String, ServeArgs)>)> {
    let (mut settings, mut of_models) = settings::of_serve()?;
    settings.cache_dir = args.cache_dir.clone().or(settings.cache_dir);
    settings.cache_size = args.cache_size.or(settings.cache_size);
    for settings in std::iter::once(&mut settings).chain(of_models.iter_mut().map(|(_, settings)| settings)) {
        settings.ctx_size = args.ctx_size.or(settings.ctx_size);
        settings.threads = args.threads.or(settings.threads);
    }
    Ok((settings, of_models))
}

/// Finds the model: the one that is named, or the first one of the settings, or that of the last chat, or the default
/// model, which may also be where `make model` puts it.
fn find(model: Option<&str>, settings: &ServeArgs, configs: &Configs) -> anyhow::Result<ServedModels> {
    let (models_dir, extras) = (settings.models_dir.as_deref(), Extras::default());
    let model = model.or(settings.model.first().map(String::as_str));
    if model.is_none()
        && let Some(last) = last_model::read()
        && let Ok(found) = ServedModels::find(Asked { models: &[last], name: None, models_dir, extras }, configs)
    {
        return Ok(found);
    }
    let named: Vec<String> = model.map(str::to_owned).into_iter().collect();
    let found = ServedModels::find(Asked { models: &named, name: None, models_dir, extras }, configs);
    let fetched = Path::new(FETCHED_DEFAULT);
    if found.is_err() && model.is_none_or(|model| model == DEFAULT_MODEL) && fetched.is_file() {
        let models = [FETCHED_DEFAULT.to_owned()];
        return ServedModels::find(Asked { models: &models, name: None, models_dir, extras }, configs);
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

/// The cache of `poncho serve` with the file of recorded tool calls beside it, or memory if the folder is in
/// use, or is the default one and cannot be opened.
fn open_cache(
    settings: &ServeArgs,
    quotas: Quotas,
    tier: Option<&Arc<SharedTier>>,
) -> anyhow::Result<(Cache, Option<PathBuf>)> {
    let folder = cache_folder(settings.cache_dir.as_deref())?;
    let shared =
        |cache| CacheConfig { remote: tier.map(|tier| Arc::<SharedTier>::clone(tier) as Arc<dyn RemoteTier>), ..cache };
    match Cache::open(shared(cache_config(settings, quotas, &folder)?)) {
        Ok(cache) => Ok((cache, Some(replay_file(&folder)))),
        Err(CacheError::Locked { pid, .. }) => {
            eprintln!(
                "note: process {pid} is using the cache folder {}; this command keeps its states in memory only",
                folder.display()
            );
            Ok((Cache::open(shared(CacheConfig::in_memory(MEMORY_CACHE)))?, None))
        }
        // A failing cache makes a command slower, unless the user named the folder.
        Err(error @ CacheError::Folder { .. }) if settings.cache_dir.is_none() => {
            eprintln!("note: {error}; this command keeps its states in memory only");
            Ok((Cache::open(shared(CacheConfig::in_memory(MEMORY_CACHE)))?, None))
        }
        Err(error) => Err(error.into()),
    }
}
