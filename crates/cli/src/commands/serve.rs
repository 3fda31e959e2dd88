//! `poncho serve`: opens the cache, loads the named models, serves until a signal arrives, and saves their states.
//!
//! Wiring only. The first SIGINT or SIGTERM starts an orderly shutdown: requests in flight may finish, states are saved,
//! the exit code is 0. Both have a time limit, so that a stuck disk cannot keep the process, and a line says that the server
//! waits. A second signal ends it at once: streams get the error event of their dialect.

mod door;
mod greeting;
mod manager;
mod member;
pub(crate) mod node;
mod report;
pub(crate) mod route;
mod start;
mod stopping;

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use poncho_cluster::bus::Lookout;
use poncho_server::{Ending, ServerConfig, check_bind};
use poncho_terminal::{Outcome, printable_line};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::cluster::kv_events;
use crate::cluster::pulls::Pulls;
use crate::commands::machine::config::shown_settings;
use crate::commands::serve::greeting::Greeting;
use crate::commands::serve::member::{Door, Member, advertised};
use crate::commands::serve::start::Start;
use crate::commands::serve::stopping::{StopSignals, Waiting};
use crate::serving::draining::Drained;
use crate::serving::engine_process::{self, EngineProcess};
use crate::serving::models::aliases;
use crate::serving::shape::{beside, records_file};
use crate::serving::shared_tier;
use crate::serving::templates::usable_template;
use crate::serving::{limits, memory, port};
use crate::settings::Resolved;
use crate::settings::args::ServeArgs;
use crate::settings::cache_folder::cache_folder;
use crate::settings::logging::recent_warnings;

/// Maximum threads for blocking work: a few prepare prompts, and each upload or download takes one.
const BLOCKING_THREADS: usize = 128;
/// How long an idle one is kept; its memory is freed with it.
const IDLE_THREAD: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &ServeArgs, resolved: Option<&Resolved>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    limits::raise_open_files();
    if let Some(socket) = engine_process::socket() {
        let runtime = runtime()?;
        let pulls = match advertised(args) {
            Some(at) => Pulls::open(args, at, &runtime)?,
            None => None,
        };
        engine_process::compute(args, &runtime, &socket, pulls.as_ref())?;
        return Ok(Outcome::Good);
    }
    let (address, mut config) = configured(args, resolved)?;
    shared_tier::check(&args.shared_tier)?;
    let runtime = runtime()?;
    if !args.nodes.node.is_empty() {
        return front(args, &runtime, address, config, None, out);
    }
    kv_events::check(&args.events)?;
    let start = Start::find(args, resolved)?;
    let listener = listen(&runtime, address)?;
    let address = listener.local_addr()?;
    let door = Door::open(args, &runtime)?;
    if door.is_none() && !args.cluster.cluster.is_empty() {
        writeln!(out, "not in the cluster: `poncho serve` joins it with --cluster-key-file and --advertise HOST:PORT")?;
    }
    let mut start = start.look(args, out)?;
    // A child opens its own.
    let pulls = match advertised(args).filter(|_| args.in_process) {
        Some(at) => Pulls::open(args, at, &runtime)?,
        None => None,
    };
    let engine = start.engine(args, &runtime, pulls.as_ref())?;
    start.load(args, &engine, &runtime, out)?;
    kv_events::publish(&args.events, &runtime, engine.node())?;
    let id = start.models.named.first().context("no model is named")?.clone();
    let signals = install(&runtime)?;
    let member = door.map(|door| door.join(args, &runtime, engine.node())).transpose()?;
    let report = member.as_ref().map(Member::line).unwrap_or_default() + &start.report();
    greet(args, address, &id, &report, out)?;
    config.default_model = Some(id);
    start.show_in(&mut config);
    config.library = Some(Arc::new(
        start.models.library.with_client_templates(args.client_templates).with_template_check(usable_template),
    ));
    serve(Serving { runtime: &runtime, listener, engine: &engine, config, signals, member: member.as_ref() }, out)?;
    if let Some(member) = member {
        member.end(&runtime, args.limits.shutdown_grace);
    }
    end(engine, &runtime, args.drain_limit, &start.folder, out)?;
    // A load that is still running must not delay the end.
    runtime.shutdown_background();
    Ok(Outcome::Good)
}

/// The address and the settings of the server, checked before anything is loaded.
fn configured(args: &ServeArgs, resolved: Option<&Resolved>) -> anyhow::Result<(SocketAddr, ServerConfig)> {
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
    let mut config = ServerConfig {
        keys,
        admin_keys: args.admin_key.clone(),
        isolate_keys: args.isolate_keys,
        any_model: true,
        memory: memory::limit(args.memory),
        keep_alive: args.keep_alive,
        aliases: aliases(&args.alias)?,
        records_file: Some(records_file(&folder)),
        ..ServerConfig::default()
    };
    observe(args, &mut config);
    args.tool_servers.set(&mut config)?;
    config.savings_file = Some(beside(&folder, ".savings"));
    config.settings = resolved.map(shown_settings).unwrap_or_default();
    config.recent_warnings = recent_warnings();
    config.check()?;
    Ok((address, config))
}

/// Serves the models of nodes on other machines. Nothing is computed or stored here.
fn front(
    args: &ServeArgs,
    runtime: &Runtime,
    address: SocketAddr,
    config: ServerConfig,
    cluster: Option<Arc<Lookout>>,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    if let Some(model) = args.models().first() {
        let with = if cluster.is_some() { "a cluster" } else { "--node" };
        bail!("--model {model} and {with} exclude each other; nodes load their models themselves");
    }
    let listener = listen(runtime, address)?;
    let address = listener.local_addr()?;
    let engine = EngineProcess::fleet(runtime, &args.nodes, cluster.clone())?;
    if let EngineProcess::Fleet(fleet) = &engine {
        for (node, reason) in fleet.absent() {
            writeln!(out, "waiting for the node {node}: {}", printable_line(&reason))?;
        }
    }
    let signals = install(runtime)?;
    let models = engine.node().models();
    let announced = cluster.map(|cluster| cluster.nodes()).unwrap_or_default();
    let announced = announced.into_iter().map(|(beat, _)| printable_line(&beat.node).to_string());
    let nodes = args.nodes.node.iter().map(ToString::to_string).chain(announced).collect::<Vec<_>>().join(", ");
    let nodes =
        if nodes.is_empty() { "the nodes of the cluster; none has announced itself yet".to_owned() } else { nodes };
    let id = models.first().map_or_else(|| "any model".to_owned(), |model| model.report().id.clone());
    greet(args, address, &id, &format!("  computed by {nodes}\n"), out)?;
    serve(Serving { runtime, listener, engine: &engine, config, signals, member: None }, out)?;
    Ok(Outcome::Good)
}

/// The port first: if it is taken, no time is lost for loading a model.
fn listen(runtime: &Runtime, address: SocketAddr) -> anyhow::Result<TcpListener> {
    runtime.block_on(TcpListener::bind(address)).map_err(|error| {
        let why = port::why_not(address, &error);
        anyhow::Error::new(error).context(format!("cannot listen on {address}: {why}"))
    })
}

fn install(runtime: &Runtime) -> anyhow::Result<StopSignals> {
    let _inside = runtime.enter();
    StopSignals::install().context("cannot listen for signals")
}

/// What serving takes.
struct Serving<'a> {
    runtime: &'a Runtime,
    listener: TcpListener,
    engine: &'a EngineProcess,
    config: ServerConfig,
    signals: StopSignals,
    /// This server as a node of a cluster.
    member: Option<&'a Member>,
}

/// Serves until a signal, and lets replies finish.
fn serve(serving: Serving<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let Serving { runtime, listener, engine, config, signals, member } = serving;
    let ending = Ending {
        shutdown: async {
            signals.first().await;
            manager::is_stopping();
            if let Some(member) = member {
                member.drain().await;
            }
        },
        hurry: signals.second(),
        // A line that cannot be written is ignored: the server must end all the same.
        notice: |draining| drop(writeln!(out, "{}", Waiting(draining)).and_then(|()| out.flush())),
    };
    manager::is_ready(runtime);
    runtime.block_on(poncho_server::serve_until(listener, engine.node(), config, ending))?;
    signals.served();
    Ok(())
}

/// Saves what the models hold, and says if that took too long. Lines that cannot be written are ignored: what reads them,
/// such as `tee`, may have ended with the same Ctrl-C, and the states are saved all the same.
fn end(
    engine: EngineProcess,
    runtime: &Runtime,
    limit: Duration,
    folder: &Path,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let seconds = limit.as_secs_f64();
    let mut say = |line: &str| drop(writeln!(out, "{line}").and_then(|()| out.flush()));
    say(&format!("saving the states of the models, for at most {seconds} s"));
    if engine.end(runtime, limit)? == Drained::GaveUp {
        say(&format!(
            "{} did not respond within {seconds} s; unsaved states are computed again next time (see --drain-limit)",
            folder.display()
        ));
    }
    Ok(())
}

fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(IDLE_THREAD)
        .enable_all()
        .build()
        .context("cannot start the runtime")
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

fn greet(args: &ServeArgs, address: SocketAddr, id: &str, report: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let greeting =
        Greeting { address, model: id, report, needs_key: !args.api_key.is_empty() || !args.admin_key.is_empty() };
    out.write_all(greeting.text().as_bytes())?;
    out.flush()?;
    Ok(())
}
