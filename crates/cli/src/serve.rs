//! `poncho serve`: opens the cache, loads the models that were named, serves until it is told to stop, saves what they
//! hold.
//!
//! Wiring only. The first SIGINT or SIGTERM begins an orderly end: requests in flight may finish, states are saved, the
//! exit code is 0. Both have a limit, so that a disk which does not answer cannot keep the process. A second signal ends it
//! at once.

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use poncho_cache::{Cache, CacheConfig, FileTierConfig, Tier};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{ContextOptions, KvLayout};
use poncho_engine::reply::signature::SigningKey;
use poncho_engine::{Engine, Exactness, ModelConfig, Prober};
use poncho_server::{ServerConfig, check_bind, load_model};
use tokio::net::TcpListener;

use crate::Outcome;
use crate::args::{CacheTierArg, ExactArg, FolderArgs, ServeArgs};
use crate::backend_args::BackendArgs;
use crate::bytes::show_bytes;
use crate::cache::folder::{chosen_folder, free_bytes};
use crate::doctor::{LITTLE_SPACE, limits, port};
use crate::draining::{Drained, drain};
use crate::greeting::Greeting;
use crate::printable::printable_line;
use crate::probing::prober;
use crate::served_models::{Asked, ServedModels, aliases};
use crate::stopping::StopSignals;

/// Threads for work that blocks, at most. Preparing prompts takes a few of them; uploads and downloads one each.
const BLOCKING_THREADS: usize = 128;
/// How long one of them waits for more work; its memory goes back with it.
const IDLE_THREAD: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &ServeArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    limits::raise_open_files();
    let address = address(args)?;
    let keys = args.api_key.clone();
    let all_keys = [keys.as_slice(), &args.admin_key].concat();
    check_bind(address, &all_keys, args.open).map_err(|_| {
        anyhow!(
            "{address} can be reached from other machines and no key is set; set one (PONCHO_API_KEY, api_key in \
             poncho.toml, or --api-key), listen on 127.0.0.1 only, or allow it with --open"
        )
    })?;
    let folder = chosen_folder(&FolderArgs { cache_dir: args.cache_dir.clone(), ram_file_dir: None })?;
    let exactness = match args.exact {
        None => Exactness::Off,
        Some(ExactArg::Always) => Exactness::Always,
        Some(ExactArg::Request) => Exactness::OnRequest,
    };
    let kv = args.kv_layout.layout(args.parallel);
    let prober = prober(args.probe_models, Some(&folder));
    let shape = ModelShape {
        ctx_size: args.ctx_size,
        parallel: args.parallel,
        kv,
        threads: args.threads,
        exactness,
        prober,
        backend: args.backend.clone(),
        queue_limit: Some(args.limits.queue()),
        signing_key: args.signing_key.as_deref().and_then(|secret| SigningKey::new(secret.as_bytes())),
    };
    let asked = Asked { models: &args.model, name: args.name.as_deref(), models_dir: args.models_dir.as_ref() };
    let models = ServedModels::find(asked, &shape)?;
    let aliases = aliases(args)?;
    let mut config = ServerConfig {
        keys,
        admin_keys: args.admin_key.clone(),
        isolate_keys: args.isolate_keys,
        replay: args.replay.scope(),
        any_model: true,
        memory: args.memory.unwrap_or_default(),
        keep_alive: args.keep_alive,
        aliases,
        replay_file: Some(replay_file(&folder)),
        ..ServerConfig::default()
    };
    observe(args, &mut config);
    // Before a model is loaded for nothing.
    config.check()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(IDLE_THREAD)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    // The port first: a taken one should not cost the time to load a model.
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(|error| {
        let why = port::why_not(address, &error);
        anyhow::Error::new(error).context(format!("cannot listen on {address}: {why}"))
    })?;
    let address = listener.local_addr()?;
    let cache = Cache::open(cache_config(args, &folder)?)?;
    warn_of_little_space(&folder);
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), Arc::new(cache)));
    for name in &models.named {
        let model = models.get(name)?;
        writeln!(out, "loading {}", printable_line(name))?;
        out.flush()?;
        load_model(&engine, &model, &mut |_, _| {})?;
    }
    let id = models.named.first().context("no model was named")?.clone();
    let signals = {
        let _inside = runtime.enter();
        StopSignals::install().context("cannot wait for signals")?
    };
    greet(args, address, &id, &folder, out)?;
    config.default_model = Some(id);
    config.library = Some(Arc::new(models.library.with_client_templates(args.client_templates)));
    runtime.block_on(poncho_server::serve(listener, Arc::clone(&engine), config, signals.told()))?;
    let limit = args.drain_limit;
    writeln!(out, "saving what the models hold, for at most {} s", limit.as_secs_f64())?;
    out.flush()?;
    if drain(engine, limit)? == Drained::GaveUp {
        let seconds = limit.as_secs_f64();
        writeln!(
            out,
            "{} does not answer: gave up after {seconds} s; what is not written there is computed again next time (--drain-limit)",
            folder.display()
        )?;
        out.flush()?;
    }
    // A load that nobody waits for any more does not hold up the end.
    runtime.shutdown_background();
    Ok(Outcome::Good)
}

/// The tiers of the cache. Rows on the disk are found whichever tier new ones go to.
fn cache_config(args: &ServeArgs, folder: &Path) -> anyhow::Result<CacheConfig> {
    let ram_file = match args.cache_tier {
        CacheTierArg::RamFile => {
            Some(FileTierConfig { folder: ram_file_folder(args.ram_file_dir.as_deref())?, quota: args.ram_file_size })
        }
        CacheTierArg::Disk | CacheTierArg::Ram => None,
    };
    let save_tier = match args.cache_tier {
        CacheTierArg::Disk => None,
        CacheTierArg::RamFile => Some(Tier::RamFile),
        CacheTierArg::Ram => Some(Tier::Ram),
    };
    Ok(CacheConfig {
        ram_quota: args.cache_ram,
        ram_file,
        save_tier,
        pressure: args.pressure.config(),
        ..CacheConfig::on_disk(folder, args.cache_size)
    })
}

/// The folder of files in memory. Everybody may write to `/dev/shm`, so a folder there must be ours.
fn ram_file_folder(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = named.map_or_else(|| PathBuf::from(format!("/dev/shm/poncho-{user}")), Path::to_path_buf);
    match std::fs::symlink_metadata(&folder) {
        Ok(facts) if !facts.is_dir() => {
            bail!("{} is not a folder; give another one with --ram-file-dir", folder.display())
        }
        Ok(facts) if facts.uid() != user => {
            bail!("{} belongs to another user; give a folder of yours with --ram-file-dir", folder.display())
        }
        Ok(_) | Err(_) => Ok(folder),
    }
}

/// Nothing fails without space, but what was read would be read again: better said before it is noticed.
fn warn_of_little_space(folder: &Path) {
    let existing = folder.ancestors().find(|folder| folder.is_dir());
    if let Some(free) = existing.and_then(free_bytes).filter(|free| *free < LITTLE_SPACE) {
        tracing::warn!(
            folder = %folder.display(),
            free = show_bytes(free),
            "little space for the cache; free some, or give a folder on another disk with --cache-dir"
        );
    }
}

/// Who may look in from a browser, how long clients are waited for, what they may send, and who gets traces.
fn observe(args: &ServeArgs, config: &mut ServerConfig) {
    config.allowed_hosts.clone_from(&args.allow_host);
    config.cors.clone_from(&args.cors);
    args.limits.set(config);
    config.write_timeout = args.write_timeout;
    config.uploads.most_bytes = args.max_upload;
    config.uploads.time = args.upload_timeout;
    if args.no_hygiene {
        config.hygiene.clear();
    }
    config.otlp_endpoint.clone_from(&args.otlp_endpoint);
}

/// Beside the cache folder, under its name: whatever is in the folder belongs to the cache.
pub(crate) fn replay_file(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".replay");
    name.into()
}

fn address(args: &ServeArgs) -> anyhow::Result<SocketAddr> {
    let host = (args.host.as_str(), args.port);
    let mut found = host.to_socket_addrs().with_context(|| {
        format!("{} is no address of this machine; use 127.0.0.1, or 0.0.0.0 for every interface", args.host)
    })?;
    found.next().with_context(|| format!("{} names no address", args.host))
}

/// How much a model may take at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelShape {
    /// Tokens that one request may use.
    pub(crate) ctx_size: u32,
    /// Requests at the same time.
    pub(crate) parallel: u32,
    /// Whether they share their cells.
    pub(crate) kv: KvLayout,
    /// Threads that compute; `None` for the physical cores.
    pub(crate) threads: Option<u32>,
    /// Whether replies are exact.
    pub(crate) exactness: Exactness,
    /// Tries models before they are loaded.
    pub(crate) prober: Option<Prober>,
    /// llama.cpp's own options.
    pub(crate) backend: BackendArgs,
    /// Requests that may wait for their turn; `None` for the engine's default.
    pub(crate) queue_limit: Option<usize>,
    /// Signs thinking.
    pub(crate) signing_key: Option<SigningKey>,
}

/// The settings of a model that is served.
pub(crate) fn model_config(model: &Path, id: &str, shape: &ModelShape) -> ModelConfig {
    let ModelShape { ctx_size, parallel, kv, threads, exactness, ref prober, ref backend, .. } = *shape;
    let mut context = ContextOptions {
        n_ctx: ctx_size,
        n_seq_max: parallel,
        // Every request may use all of its context, whoever else is served.
        n_cells: Some(ctx_size.saturating_mul(parallel)),
        kv,
        threads,
        ..ContextOptions::default()
    };
    backend.set_context(&mut context);
    let signing_key = shape.signing_key.clone();
    let mut config =
        ModelConfig { context, exactness, prober: prober.clone(), signing_key, ..ModelConfig::new(id, model) };
    backend.set_model(&mut config.model);
    config.queue_limit = shape.queue_limit.unwrap_or(config.queue_limit);
    config
}

fn greet(args: &ServeArgs, address: SocketAddr, id: &str, folder: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let greeting = Greeting {
        address,
        model: id,
        ctx_size: args.ctx_size,
        cache_folder: folder,
        needs_key: !args.api_key.is_empty() || !args.admin_key.is_empty(),
    };
    out.write_all(greeting.text().as_bytes())?;
    out.flush()?;
    Ok(())
}
