//! `poncho node`: an engine with its cache for servers on other machines, and `poncho node cert`, which makes certificates.
//!
//! Wiring only. It ends as `serve` does: the first SIGINT or SIGTERM lets replies finish and saves states, the second ends
//! it at once.

mod cert;

use std::io::Write;

use anyhow::{Context, bail};
use clap::Subcommand;
use poncho_node::{HostError, NodeAddress, serve_network};
use poncho_terminal::{Outcome, printable_line};

use self::cert::CertArgs;
use super::door::{ANNOUNCED_WITHIN, BACKLOG, address, bind};
use super::start::Start;
use super::{end, install, manager, runtime};
use crate::cluster::pulls::Pulls;
use crate::cluster::{Cluster, kv_events};
use crate::serving::engine_process;
use crate::serving::limits;
use crate::settings::Resolved;
use crate::settings::args::ServeArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct NodeCommand {
    #[command(subcommand)]
    pub(crate) command: Option<NodeSubcommand>,

    /// Address to listen on; other machines need certificates
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7070")]
    pub(crate) listen: NodeAddress,

    #[command(flatten)]
    pub(crate) settings: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeSubcommand {
    /// Make certificates for nodes and servers, and an authority that signs them
    #[command(after_help = "Example:\n  poncho node cert --dir certificates gpu-1.example 10.0.0.7 front")]
    Cert(CertArgs),
}

pub(crate) fn run(args: &NodeCommand, resolved: Option<&Resolved>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    if let Some(NodeSubcommand::Cert(cert)) = &args.command {
        return cert::run(cert, out);
    }
    let settings = &args.settings;
    limits::raise_open_files();
    if let Some(socket) = engine_process::socket() {
        let runtime = runtime()?;
        let pulls = Pulls::open(settings, &args.listen, &runtime)?;
        engine_process::compute(settings, &runtime, &socket, pulls.as_ref())?;
        return Ok(Outcome::Good);
    }
    if let Some(node) = settings.nodes.node.first() {
        bail!("a node computes itself and cannot use the node {node}; remove --node, or use `poncho serve`");
    }
    let credentials = settings.nodes.credentials()?;
    let address = address(&args.listen)?;
    if credentials.is_none() && !address.ip().is_loopback() {
        bail!(HostError::NeedsTls { address });
    }
    kv_events::check(&settings.events)?;
    let start = Start::find(settings, resolved)?;
    let runtime = runtime()?;
    // A wrong key is named before a model is loaded.
    let cluster = Cluster::open(&settings.cluster, &runtime)?;
    // The port first: if it is taken, no time is lost for loading a model. Nobody is let in before the models are there.
    let socket = bind(&runtime, address)?;
    let mut start = start.look(settings, out)?;
    // A child opens its own.
    let pulls = if settings.in_process { Pulls::open(settings, &args.listen, &runtime)? } else { None };
    let engine = start.engine(settings, &runtime, pulls.as_ref())?;
    start.load(settings, &engine, &runtime, out)?;
    kv_events::publish(&settings.events, &runtime, engine.node())?;
    let signals = install(&runtime)?;
    let listener = {
        let _inside = runtime.enter();
        socket.listen(BACKLOG).with_context(|| format!("cannot listen on {address}"))?
    };
    let served = listener.local_addr()?;
    let member = match &cluster {
        Some(cluster) => Some(cluster.join(&runtime, &settings.cluster, &args.listen, served, engine.node())?),
        None => None,
    };
    let names = start.models.named.iter().map(|name| printable_line(name).to_string()).collect::<Vec<_>>().join(", ");
    let tls = if credentials.is_some() { "with certificates" } else { "for this machine only" };
    writeln!(out, "computing {names} on {served} {tls}")?;
    if let Some((place, member)) = &member {
        writeln!(out, "  in the cluster as {} at {}, questions at {}", place.name, place.address, member.hints())?;
    }
    out.write_all(start.report().as_bytes())?;
    writeln!(
        out,
        "\nPress Ctrl-C to stop: running replies finish and states are saved. Press it twice to stop at once."
    )?;
    out.flush()?;
    manager::is_ready(&runtime);
    let stop = async {
        signals.first().await;
        manager::is_stopping();
        if let Some((_, member)) = &member {
            // Routers stop sending requests before this node refuses them.
            member.drain();
            tokio::time::sleep(ANNOUNCED_WITHIN).await;
        }
    };
    let grace = settings.limits.shutdown_grace;
    runtime.block_on(async {
        tokio::select! {
            served = serve_network(listener, credentials.as_deref(), engine.node(), stop, grace) => served,
            () = signals.second() => Ok(()),
        }
    })?;
    signals.served();
    end(engine, &runtime, settings.drain_limit, &start.folder, out)?;
    runtime.shutdown_background();
    Ok(Outcome::Good)
}
