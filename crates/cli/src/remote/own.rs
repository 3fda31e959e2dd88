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
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Engine, Exactness};
use poncho_server::ServerConfig;
use tokio::task::spawn_blocking;

use super::args::OwnArgs;
use crate::args::FolderArgs;
use crate::bench::local::LocalServer;
use crate::bytes::show_bytes;
use crate::cache::folder::chosen_folder;
use crate::printable::printable_line;
use crate::serve::{ModelShape, model_config, replay_file};

/// Memory for states when the folder is taken: a conversation of a small model fits several times.
const MEMORY_CACHE: u64 = 1 << 30;
/// Enough to split texts into tokens; nothing is computed.
const VOCABULARY_CONTEXT: u32 = 64;
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
pub(crate) async fn start(path: &Path, args: &OwnArgs, purpose: Purpose) -> anyhow::Result<(LocalServer, String)> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let id = stem.context("the model's file name is not text; rename the file")?.to_owned();
    let (cache, replay_file) = match purpose {
        Purpose::Compute => open_cache(args)?,
        Purpose::Vocabulary => (Cache::open(CacheConfig::in_memory(MEMORY_CACHE))?, None),
    };
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), Arc::new(cache)));
    let ctx_size = if purpose == Purpose::Vocabulary { VOCABULARY_CONTEXT } else { args.ctx_size };
    let shape = ModelShape { ctx_size, parallel: 1, threads: args.threads, exactness: Exactness::Off };
    let config = model_config(path, &id, &shape);
    let bar = loading_bar(&id);
    let (loading, shown, name) = (Arc::clone(&engine), bar.clone(), printable_line(&id));
    let loaded = spawn_blocking(move || {
        loading.load_with_progress(config, &mut |done, all| {
            shown.set_message(format!("{name}, {} of {} checked", show_bytes(done), show_bytes(all)));
        })
    });
    let loaded = loaded.await.context("loading was interrupted");
    bar.finish_and_clear();
    loaded??;
    let config = ServerConfig { any_model: true, replay_file, ..ServerConfig::default() };
    Ok((LocalServer::over(engine, &id, config).await?, id))
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
