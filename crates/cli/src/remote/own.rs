//! A server in this process for one command: the cache of `poncho serve`, one model, a free port of this machine.
//!
//! Started by `connection.rs` when no server answers, and ended by it so that states are saved. A cache folder that
//! another process holds is no reason to fail: the states are then kept in memory, and the user is told.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use poncho_cache::{Cache, CacheConfig, CacheError};
use poncho_engine::backend::KvLayout;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Engine, Exactness};
use poncho_models::DEFAULT_MODEL;
use poncho_server::{ServerConfig, load_model};
use tokio::task::spawn_blocking;

use super::args::OwnArgs;
use crate::args::FolderArgs;
use crate::bench::local::LocalServer;
use crate::bytes::show_bytes;
use crate::cache::folder::chosen_folder;
use crate::printable::printable_line;
use crate::probing::{configured_probing, prober};
use crate::serve::{ModelShape, replay_file};
use crate::served_models::{Asked, ServedModels};

/// Memory for states when the folder is taken: a conversation of a small model fits several times.
const MEMORY_CACHE: u64 = 1 << 30;
/// Enough to split texts into tokens; nothing is computed.
const VOCABULARY_CONTEXT: u32 = 64;
/// Where `make model` puts the default model, seen from the project's folder.
const FETCHED_DEFAULT: &str = ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf";
/// How often a spinner turns.
const SPINNER_STEP: Duration = Duration::from_millis(100);

/// What a model in this process is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It computes, and what it read is kept.
    Compute,
    /// Only its vocabulary is needed, and nothing is kept.
    Vocabulary,
}

/// Loads the model and serves it. Returns what clients call it, too.
pub(crate) async fn start(
    model: Option<&str>,
    args: &OwnArgs,
    purpose: Purpose,
) -> anyhow::Result<(LocalServer, String)> {
    let ctx_size = if purpose == Purpose::Vocabulary { VOCABULARY_CONTEXT } else { args.ctx_size };
    let (kv, exactness) = (KvLayout::Unified, Exactness::Off);
    let folder = chosen_folder(&FolderArgs { cache_dir: args.cache_dir.clone(), ram_file_dir: None }).ok();
    let prober = prober(configured_probing()?, folder.as_deref());
    let shape =
        ModelShape { ctx_size, parallel: 1, kv, threads: args.threads, exactness, prober, ..ModelShape::default() };
    let models = find(model, &shape)?;
    let id = models.named.first().context("no model was named")?.clone();
    let found = models.get(&id)?;
    let (cache, replay_file) = match purpose {
        Purpose::Compute => open_cache(args)?,
        Purpose::Vocabulary => (Cache::open(CacheConfig::in_memory(MEMORY_CACHE))?, None),
    };
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), Arc::new(cache)));
    let bar = loading_bar(&id);
    let (loading, shown, name) = (Arc::clone(&engine), bar.clone(), printable_line(&id));
    let loaded = spawn_blocking(move || {
        load_model(&loading, &found, &mut |done, all| {
            shown.set_message(format!("{name}, {} of {} checked", show_bytes(done), show_bytes(all)));
        })
    });
    let loaded = loaded.await.context("loading was interrupted");
    bar.finish_and_clear();
    loaded??;
    let config = ServerConfig {
        any_model: true,
        default_model: Some(id.clone()),
        library: Some(Arc::new(models.library)),
        replay_file,
        ..ServerConfig::default()
    };
    Ok((LocalServer::over(engine, config).await?, id))
}

/// The model that is meant; the default one also where `make model` put it.
fn find(model: Option<&str>, shape: &ModelShape) -> anyhow::Result<ServedModels> {
    let named: Vec<String> = model.map(str::to_owned).into_iter().collect();
    let found = ServedModels::find(Asked { models: &named, name: None, models_dir: None }, shape);
    let fetched = Path::new(FETCHED_DEFAULT);
    if found.is_err() && model.is_none_or(|model| model == DEFAULT_MODEL) && fetched.is_file() {
        let models = [FETCHED_DEFAULT.to_owned()];
        return ServedModels::find(Asked { models: &models, name: None, models_dir: None }, shape);
    }
    found
}

/// The cache of `poncho serve` with the file of kept tool calls beside it, or memory if another process has the folder.
fn open_cache(args: &OwnArgs) -> anyhow::Result<(Cache, Option<PathBuf>)> {
    let folder = chosen_folder(&FolderArgs { cache_dir: args.cache_dir.clone(), ram_file_dir: None })?;
    match Cache::open(CacheConfig::on_disk(&folder, args.cache_size)) {
        Ok(cache) => Ok((cache, Some(replay_file(&folder)))),
        Err(CacheError::Locked { pid, .. }) => {
            eprintln!(
                "note: process {pid} holds the cache folder {}; what is read here is kept in memory only",
                folder.display()
            );
            Ok((Cache::open(CacheConfig::in_memory(MEMORY_CACHE))?, None))
        }
        Err(error) => Err(error.into()),
    }
}

/// Drawn on a terminal only.
fn loading_bar(id: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} loading {msg} {elapsed}");
    let bar = ProgressBar::new_spinner().with_message(printable_line(id));
    let bar = style.map_or(bar.clone(), |style| bar.with_style(style));
    bar.enable_steady_tick(SPINNER_STEP);
    bar
}
