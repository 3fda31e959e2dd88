//! `poncho serve`: opens the cache, loads the named models, serves until a signal arrives, and saves their states.
//!
//! Wiring only. The first SIGINT or SIGTERM starts an orderly shutdown: requests in flight may finish, states are saved,
//! the exit code is 0. Both have a time limit, so that a stuck disk cannot keep the process, and a line says that the server
//! waits. A second signal ends it at once: streams get the error event of their dialect.

mod greeting;
mod report;
mod stopping;

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use poncho_cache::CacheConfig;
use poncho_engine::{ModelConfig, Sizing, sizing};
use poncho_server::{Ending, MemoryBudget, ServerConfig, check_bind};
use poncho_terminal::{Outcome, Progress, printable_line, show_bytes};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::commands::serve::greeting::Greeting;
use crate::commands::serve::report::Report;
use crate::commands::serve::stopping::{StopSignals, Waiting};
use crate::serving::devices::Looked;
use crate::serving::disk::{LITTLE_SPACE, free_bytes};
use crate::serving::draining::Drained;
use crate::serving::engine_process::{self, EngineProcess};
use crate::serving::memory::{Demand, Fit};
use crate::serving::models::{Asked, ServedModels, aliases};
use crate::serving::probing::prober;
use crate::serving::shape::{ModelShape, chat_settings, replay_file, show_fingerprint};
use crate::serving::templates::usable_template;
use crate::serving::tiers::cache_config;
use crate::serving::{devices, limits, memory, names, port};
use crate::settings::args::ServeArgs;
use crate::settings::cache_folder::cache_folder;

/// Maximum threads for blocking work: a few prepare prompts, and each upload or download takes one.
const BLOCKING_THREADS: usize = 128;
/// How long an idle one is kept; its memory is freed with it.
const IDLE_THREAD: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &ServeArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    limits::raise_open_files();
    if let Some(socket) = engine_process::socket() {
        let folder = cache_folder(args.cache_dir.as_deref())?;
        let cache = cache_config(args, &folder)?;
        engine_process::serve_engine(
            &runtime()?,
            &socket,
            cache,
            chat_settings(args, Some(replay_file(&folder))),
            args.drain_limit,
        )?;
        return Ok(Outcome::Good);
    }
    let address = address(args)?;
    let keys = args.api_key.clone();
    let all_keys = [keys.as_slice(), &args.admin_key].concat();
    check_bind(address, &all_keys, args.open).map_err(|_| {
        anyhow!(
            "other machines can reach {address} and no key is set; set one (PONCHO_API_KEY, api_key in poncho.toml, or \
             --api-key), listen on 127.0.0.1 only, or allow it with --open"
        )
    })?;
    let folder = cache_folder(args.cache_dir.as_deref())?;
    let shape = ModelShape::of(args, prober(args.probe_models, Some(&folder)));
    let asked = Asked { models: &args.model, name: args.name.as_deref(), models_dir: args.models_dir.as_deref() };
    let models = ServedModels::find(asked, &shape)?;
    let aliases = aliases(&args.alias)?;
    let mut config = ServerConfig {
        keys,
        admin_keys: args.admin_key.clone(),
        isolate_keys: args.isolate_keys,
        any_model: true,
        memory: args.memory.unwrap_or_default(),
        keep_alive: args.keep_alive,
        aliases,
        ..ServerConfig::default()
    };
    observe(args, &mut config);
    // Fail before a model is loaded.
    config.check()?;
    let runtime = runtime()?;
    // The port first: if it is taken, no time is lost for loading a model.
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(|error| {
        let why = port::why_not(address, &error);
        anyhow::Error::new(error).context(format!("cannot listen on {address}: {why}"))
    })?;
    let address = listener.local_addr()?;
    let start = Start::look(args, &models, cache_config(args, &folder)?)?;
    let engine = if args.in_process {
        devices::load(start.looked.sources.clone())?;
        EngineProcess::own(start.cache.clone(), chat_settings(args, Some(replay_file(&folder))))?
    } else {
        EngineProcess::child(&runtime, &folder, &start.looked.sources)?
    };
    warn_of_little_space(&folder);
    if let Some(note) = &models.note {
        writeln!(out, "{}", printable_line(note))?;
    }
    for name in &models.named {
        let model = models.get(name)?;
        writeln!(out, "loading {}", printable_line(name))?;
        out.flush()?;
        let progress = Progress::on_stderr();
        engine.load(&runtime, model.load(), show_fingerprint(&progress))?;
        progress.clear();
        if let Some(loaded) = engine.node().model(name) {
            names::record(&folder, name, &loaded.report().fingerprint);
        }
    }
    let id = models.named.first().context("no model is named")?.clone();
    let signals = {
        let _inside = runtime.enter();
        StopSignals::install().context("cannot listen for signals")?
    };
    greet(args, address, &id, &start, out)?;
    config.default_model = Some(id);
    config.library = Some(Arc::new(
        models.library.with_client_templates(args.client_templates).with_template_check(usable_template),
    ));
    let ending = Ending {
        shutdown: signals.first(),
        hurry: signals.second(),
        // A line that cannot be written is ignored: the server must end all the same.
        notice: |draining| drop(writeln!(out, "{}", Waiting(draining)).and_then(|()| out.flush())),
    };
    runtime.block_on(poncho_server::serve_until(listener, engine.node(), config, ending))?;
    signals.served();
    let limit = args.drain_limit;
    writeln!(out, "saving the states of the models, for at most {} s", limit.as_secs_f64())?;
    out.flush()?;
    if engine.end(&runtime, limit)? == Drained::GaveUp {
        let seconds = limit.as_secs_f64();
        writeln!(
            out,
            "{} did not respond within {seconds} s; unsaved states are computed again next time (see --drain-limit)",
            folder.display()
        )?;
        out.flush()?;
    }
    // A load that is still running must not delay the end.
    runtime.shutdown_background();
    Ok(Outcome::Good)
}

fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(IDLE_THREAD)
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// Without space nothing fails, but prompts are computed again; a warning says why.
fn warn_of_little_space(folder: &Path) {
    let existing = folder.ancestors().find(|folder| folder.is_dir());
    if let Some(free) = existing.and_then(free_bytes).filter(|free| *free < LITTLE_SPACE) {
        tracing::warn!(
            folder = %folder.display(),
            free = show_bytes(free),
            "little space for the cache; free some, or name a folder on another disk with --cache-dir"
        );
    }
}

/// Browser access, timeouts, uploads and traces.
fn observe(args: &ServeArgs, config: &mut ServerConfig) {
    config.allowed_hosts.clone_from(&args.allow_host);
    config.cors.clone_from(&args.cors);
    args.limits.set(config);
    config.write_timeout = args.write_timeout;
    config.uploads.most_bytes = args.max_upload;
    config.uploads.time = args.upload_timeout;
    config.otlp_endpoint.clone_from(&args.otlp_endpoint);
}

fn address(args: &ServeArgs) -> anyhow::Result<SocketAddr> {
    let host = (args.host.as_str(), args.port);
    let mut found = host.to_socket_addrs().with_context(|| {
        format!("{} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all interfaces", args.host)
    })?;
    found.next().with_context(|| format!("the host {} has no address", args.host))
}

/// What is known before the models are loaded.
struct Start {
    models: Vec<(ModelConfig, Sizing)>,
    looked: Looked,
    available: Option<u64>,
    cache: CacheConfig,
}

impl Start {
    /// Looks at the models and the machine. Fails if the memory is too little, unless it has no limit.
    fn look(args: &ServeArgs, models: &ServedModels, cache: CacheConfig) -> anyhow::Result<Self> {
        let mut sized = Vec::new();
        for name in &models.named {
            let config = models.get(name)?.load().config;
            let sizing = sizing(&config);
            sized.push((config, sizing));
        }
        let looked = devices::look(&args.devices);
        let available = sized.first().and_then(|(config, _)| memory::available_for(config, &looked.devices));
        let all: Vec<_> = sized.iter().map(|(config, sizing)| (config, *sizing)).collect();
        if let Some(available) = available.filter(|_| args.memory != Some(MemoryBudget::Unlimited))
            && let Fit::TooLittle(shortage) = Demand::of_sized(&all).fit(available)
        {
            bail!("{shortage}; --memory none skips this check");
        }
        Ok(Self { models: sized, looked, available, cache })
    }

    fn report(&self) -> String {
        Report { models: &self.models, available: self.available, looked: &self.looked, cache: &self.cache }.text()
    }
}

fn greet(args: &ServeArgs, address: SocketAddr, id: &str, start: &Start, out: &mut impl Write) -> anyhow::Result<()> {
    let greeting = Greeting {
        address,
        model: id,
        report: &start.report(),
        needs_key: !args.api_key.is_empty() || !args.admin_key.is_empty(),
    };
    out.write_all(greeting.text().as_bytes())?;
    out.flush()?;
    Ok(())
}
