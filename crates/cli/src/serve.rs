//! `poncho serve`: opens the cache, loads a model, serves it until it is told to stop, saves what it holds.
//!
//! Wiring only. The first SIGINT or SIGTERM begins an orderly end: requests in flight may finish, states are saved, the
//! exit code is 0. A second one ends the process at once.

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::ContextOptions;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Engine, Exactness, ModelConfig};
use poncho_server::{ServerConfig, check_bind};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::Outcome;
use crate::args::{ExactArg, FolderArgs, ServeArgs};
use crate::cache::folder::chosen_folder;

/// Where a key may come from besides the flag: an argument is visible to every user of the machine.
const KEY_VARIABLE: &str = "PONCHO_API_KEY";

/// What every program that makes traces reads.
const OTLP_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

pub(crate) fn run(args: &ServeArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let address = address(args)?;
    let mut keys = args.api_key.clone();
    keys.extend(std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty()));
    check_bind(address, &keys, args.open)?;
    if !args.model.is_file() {
        bail!(
            "{} is not a model file; give the path of a GGUF file with --model (`make model` fetches a small one)",
            args.model.display()
        );
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    // The port first: a taken one should not cost the time to load a model.
    let listener = runtime.block_on(TcpListener::bind(address)).with_context(|| {
        format!(
            "cannot listen on {address}; if the port is taken, stop the other program or choose another with --port"
        )
    })?;
    let address = listener.local_addr()?;
    let folder = chosen_folder(&FolderArgs { cache_dir: args.cache_dir.clone(), ram_file_dir: None })?;
    let replay_file = Some(replay_file(&folder));
    let mut config = ServerConfig { keys, any_model: true, replay_file, ..ServerConfig::default() };
    observe(args, &mut config);
    // Before a model is loaded for nothing.
    config.check()?;
    let cache = Cache::open(CacheConfig::on_disk(&folder, args.cache_size))?;
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), Arc::new(cache)));
    let id = model_name(args)?;
    writeln!(out, "loading {}", args.model.display())?;
    out.flush()?;
    let exactness = match args.exact {
        None => Exactness::Off,
        Some(ExactArg::Always) => Exactness::Always,
        Some(ExactArg::Request) => Exactness::OnRequest,
    };
    let shape = ModelShape { ctx_size: args.ctx_size, parallel: args.parallel, threads: args.threads, exactness };
    engine.load(model_config(&args.model, &id, &shape))?;
    greet(args, address, &id, &folder, out)?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let told = async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        };
        poncho_server::serve(listener, Arc::clone(&engine), config, told).await?;
        anyhow::Ok(())
    })?;
    writeln!(out, "saving what the model holds")?;
    out.flush()?;
    engine.unload(&id)?;
    engine.cache().flush();
    Ok(Outcome::Good)
}

/// Who may look in from a browser, and who gets traces.
fn observe(args: &ServeArgs, config: &mut ServerConfig) {
    config.allowed_hosts.clone_from(&args.allow_host);
    config.cors.clone_from(&args.cors);
    if args.no_hygiene {
        config.hygiene.clear();
    }
    let variable = || std::env::var(OTLP_VARIABLE).ok().filter(|url| !url.is_empty());
    config.otlp_endpoint = args.otlp_endpoint.clone().or_else(variable);
}

/// Beside the cache folder, under its name: whatever is in the folder belongs to the cache.
fn replay_file(folder: &Path) -> PathBuf {
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

/// The file's name without its ending, which is what clients call the model.
fn model_name(args: &ServeArgs) -> anyhow::Result<String> {
    if let Some(name) = &args.name {
        return Ok(name.clone());
    }
    let stem = args.model.file_stem().and_then(|stem| stem.to_str());
    Ok(stem.context("the model's file name is not text; give it a name with --name")?.to_owned())
}

/// How much a model may take at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelShape {
    /// Tokens that one request may use.
    pub(crate) ctx_size: u32,
    /// Requests at the same time.
    pub(crate) parallel: u32,
    /// Threads that compute; `None` for the physical cores.
    pub(crate) threads: Option<u32>,
    /// Whether replies are exact.
    pub(crate) exactness: Exactness,
}

/// The settings of a model that is served.
pub(crate) fn model_config(model: &Path, id: &str, shape: &ModelShape) -> ModelConfig {
    let ModelShape { ctx_size, parallel, threads, exactness } = *shape;
    let context = ContextOptions {
        n_ctx: ctx_size,
        n_seq_max: parallel,
        // Every request may use all of its context, whoever else is served.
        n_cells: Some(ctx_size.saturating_mul(parallel)),
        threads,
        ..ContextOptions::default()
    };
    ModelConfig { context, exactness, ..ModelConfig::new(id, model) }
}

fn greet(args: &ServeArgs, address: SocketAddr, id: &str, folder: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "serving {id} on http://{address}/v1 with a context of {} tokens", args.ctx_size)?;
    writeln!(out, "what was read once is kept in {}", folder.display())?;
    writeln!(out)?;
    writeln!(out, "  curl http://{address}/v1/chat/completions -H 'content-type: application/json' \\")?;
    writeln!(out, "    -d '{{\"model\":\"{id}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'")?;
    writeln!(out)?;
    writeln!(out, "  OpenAI SDK: base_url=\"http://{address}/v1\", api_key=\"any\", model=\"{id}\"")?;
    writeln!(out)?;
    writeln!(out, "Ctrl-C stops it")?;
    out.flush()?;
    Ok(())
}
