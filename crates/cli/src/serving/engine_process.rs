//! Where the engine of a server runs: in a child process, which may end without taking the server along, in this one, or on
//! other machines.
//!
//! Used by `serve` and `node`. The child is this program with the same arguments and a variable that names the socket to serve, so
//! both read the same settings. It must never print.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures_util::StreamExt as _;
use poncho_api::{ChatSettings, LoadEvent, LoadModel, Node};
use poncho_cache::CacheConfig;
use poncho_cluster::bus::Lookout;
use poncho_engine::backend::Backend;
use poncho_engine::backend::llama::{DeviceSources, LlamaBackend, UncheckedLlamaBackend};
use poncho_engine::{Engine, Host};
use poncho_node::{ChildNode, Ended, Fleet, FleetSettings, Launch, parent_is_gone, serve_parent};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::pulls::Pulls;
use crate::serving::devices;
use crate::serving::draining::{Drained, drain};
use crate::serving::shape::{beside, chat_settings, replay_file};
use crate::serving::shared_tier::with_shared_tier;
use crate::serving::tiers::{Quotas, cache_config, open_cache};
use crate::settings::args::ServeArgs;
use crate::settings::args::nodes::NodeArgs;
use crate::settings::cache_folder::cache_folder;
use crate::settings::logging::note_warning;

/// Names the socket that a child serves. Users never set it.
const SOCKET: &str = "__PONCHO_NODE_SOCKET";
/// Set by tests of real crashes: the child then trusts every file. Harmless: only the child skips the checks.
const UNCHECKED: &str = "_PONCHO_ENGINE_UNCHECKED";
/// A cache folder of a million rows takes a while to open.
const START_WITHIN: Duration = Duration::from_secs(600);
/// A large model on a slow disk takes a while to load again.
const RESTART_WITHIN: Duration = Duration::from_secs(600);
/// A node that is started again loads its models first.
const NODE_WITHIN: Duration = Duration::from_secs(300);

/// The socket to serve, in a process that was started to compute.
pub(crate) fn socket() -> Option<PathBuf> {
    std::env::var_os(SOCKET).map(PathBuf::from)
}

/// llama.cpp, with checks of what it is given.
fn backend() -> Arc<dyn Backend> {
    if socket().is_some() && std::env::var_os(UNCHECKED).is_some() {
        return Arc::new(UncheckedLlamaBackend);
    }
    Arc::new(LlamaBackend)
}

/// See the module.
pub(crate) enum EngineProcess {
    Child(ChildNode),
    Own(Arc<Engine>, Arc<Host>),
    Fleet(Fleet),
}

impl EngineProcess {
    /// Starts a child that opens the cache in this folder and computes on these devices. It gets the settings that were
    /// chosen here.
    pub(crate) fn child(
        runtime: &Runtime,
        folder: &Path,
        devices: &DeviceSources,
        crash_limit: u32,
        chosen: &[String],
    ) -> anyhow::Result<Self> {
        let (name, value) = devices::for_child(devices)?;
        let launch = Launch {
            program: std::env::current_exe().context("cannot find this program to start it again")?,
            arguments: with_chosen(std::env::args_os().skip(1), chosen),
            variables: vec![(name.into(), value)],
            socket_variable: SOCKET,
            start_within: START_WITHIN,
            call_wait: RESTART_WITHIN,
            crash_limit,
            crashes: beside(folder, ".crashes"),
            note: Some(note_warning),
        };
        Ok(Self::Child(runtime.block_on(ChildNode::start(launch))?))
    }

    /// Opens the cache in this process. A node of a cluster serves its rows to others, and pulls theirs.
    pub(crate) fn own(
        runtime: &Runtime,
        cache: CacheConfig,
        chat: ChatSettings,
        pulls: Option<&Pulls>,
    ) -> anyhow::Result<Self> {
        let cache = Arc::new(open_cache(match pulls {
            Some(pulls) => pulls.with_peers(cache),
            None => cache,
        })?);
        if let Some(pulls) = pulls {
            pulls.serve(runtime, &cache)?;
        }
        let engine = Arc::new(Engine::new(backend(), cache));
        let host = Arc::new(Host::new(Arc::clone(&engine), chat));
        Ok(Self::Own(engine, host))
    }

    /// Connects to engines on other machines: those that are named, and those of a cluster.
    pub(crate) fn fleet(runtime: &Runtime, args: &NodeArgs, cluster: Option<Arc<Lookout>>) -> anyhow::Result<Self> {
        let (nodes, credentials) = (args.node.clone(), args.credentials()?);
        let settings = FleetSettings { nodes, credentials, call_wait: NODE_WITHIN, cluster };
        Ok(Self::Fleet(runtime.block_on(Fleet::connect(settings))?))
    }

    /// The engine as the server sees it.
    pub(crate) fn node(&self) -> Arc<dyn Node> {
        match self {
            Self::Child(child) => Arc::new(child.clone()),
            Self::Own(_, host) => Arc::clone(host) as Arc<dyn Node>,
            Self::Fleet(fleet) => Arc::new(fleet.clone()),
        }
    }

    /// Loads a model; `progress` learns how much of its file was read.
    pub(crate) fn load(
        &self,
        runtime: &Runtime,
        model: LoadModel,
        mut progress: impl FnMut(u64, u64),
    ) -> anyhow::Result<()> {
        runtime.block_on(async {
            let mut events = self.node().load(model);
            while let Some(event) = events.next().await {
                match event {
                    LoadEvent::Progress { read, total } => progress(read, total),
                    LoadEvent::Loaded => return Ok(()),
                    LoadEvent::Failed(error) => bail!(error),
                }
            }
            Err(anyhow!("loading was interrupted; see the log"))
        })
    }

    /// Saves what the models hold and ends the engine, within a time limit.
    pub(crate) fn end(self, runtime: &Runtime, limit: Duration) -> anyhow::Result<Drained> {
        match self {
            Self::Child(child) => {
                Ok(if runtime.block_on(child.stop(limit)) { Drained::Saved } else { Drained::GaveUp })
            }
            Self::Own(engine, host) => {
                drop(host);
                drain(engine, limit)
            }
            // They go on without this server.
            Self::Fleet(_) => Ok(Drained::Saved),
        }
    }
}

/// The whole work of a process that was started to compute.
pub(crate) fn compute(args: &ServeArgs, runtime: &Runtime, socket: &Path, pulls: Option<&Pulls>) -> anyhow::Result<()> {
    let folder = cache_folder(args.cache_dir.as_deref())?;
    let chat = chat_settings(args, Some(replay_file(&folder)));
    let cache = with_shared_tier(cache_config(args, Quotas::given(args), &folder)?, &args.shared_tier)?;
    serve_engine(runtime, socket, cache, chat, args.drain_limit, pulls)
}

/// The arguments of a child: those of this process, with more settings right after the command.
fn with_chosen(words: impl Iterator<Item = OsString>, chosen: &[String]) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let at =
        words.iter().position(|word| word == "serve" || word == "node").map_or(words.len(), |at| at.saturating_add(1));
    words.splice(at..at, chosen.iter().map(OsString::from));
    words
}

/// The work of a child: serves an engine to the process that started it, saves its states when that process wants it to
/// end, and ends at once when that process is gone.
fn serve_engine(
    runtime: &Runtime,
    socket: &Path,
    cache: CacheConfig,
    chat: ChatSettings,
    limit: Duration,
    pulls: Option<&Pulls>,
) -> anyhow::Result<()> {
    devices::inherited()?;
    // To use the folder, another process has to stop the server, not this child.
    let server = rustix::process::getppid().and_then(|server| server.as_raw_nonzero().get().try_into().ok());
    let cache = CacheConfig { process: server.unwrap_or(cache.process), ..cache };
    let EngineProcess::Own(engine, host) = EngineProcess::own(runtime, cache, chat, pulls)? else {
        bail!("the engine is elsewhere")
    };
    let ended = runtime.block_on(async {
        // A terminal and a service manager send their signals to both processes; the server decides what they mean.
        let _interrupts = signal(SignalKind::interrupt())?;
        let _terminations = signal(SignalKind::terminate())?;
        let _hang_ups = signal(SignalKind::hangup())?;
        serve_parent(socket, host).await
    })?;
    if ended == Ended::ParentGone {
        std::process::exit(1);
    }
    runtime.spawn(async {
        parent_is_gone().await;
        std::process::exit(1);
    });
    let saved = drain(engine, limit);
    if let Err(error) = &saved {
        tracing::error!("the states of the models were not saved: {error:#}");
    }
    // Not by returning: the end of the runtime waits for standard input, and the server for this process.
    std::process::exit(i32::from(saved.is_err()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_settings_come_before_a_model_that_looks_like_a_flag() {
        let words = ["--log-level", "info", "serve", "--port", "1", "--", "-m"].map(OsString::from);
        let all = with_chosen(words.into_iter(), &["--cache-ram=5".to_owned()]);
        assert_eq!(all, ["--log-level", "info", "serve", "--cache-ram=5", "--port", "1", "--", "-m"]);
    }
}
