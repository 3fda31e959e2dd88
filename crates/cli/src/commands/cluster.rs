//! `poncho cluster`: looks at a cluster from outside, with the key of its members.
//!
//! `status` and `drain` speak to the nodes' sockets for questions, `explain` also to a node itself, which renders the
//! prompt. Nothing is computed, and a router need not run. `gc` needs the object store alone.

pub(crate) mod args;
mod explain;
mod gc;
mod status;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use poncho_cluster::bus::Lookout;
use poncho_terminal::{Outcome, Output};
use tokio::runtime::Runtime;

use self::args::{ClusterCommand, ClusterSubcommand, ReachArgs};
use crate::cluster::Cluster;
use crate::settings::args::cluster::ClusterArgs;
use crate::settings::args::nodes::NodeArgs;
use crate::settings::{configured, of_serve};

/// How long nodes have to announce themselves: a beat comes every second.
const HEARD_WITHIN: Duration = Duration::from_millis(2500);
/// How long rows of nodes may take to be known.
const ROWS_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &ClusterCommand, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let mut output = Output { out, json: args.json };
    if let ClusterSubcommand::Gc(collected) = &args.command {
        return gc::run(collected, &mut output);
    }
    let (cluster, nodes) = reach(&args.reach)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let Some(opened) = Cluster::open(&cluster, &runtime)? else {
        bail!("no cluster is named; set --cluster nats://HOST:PORT and --cluster-key-file FILE")
    };
    let lookout = opened.lookout(&runtime, &nodes.node)?;
    wait(&runtime, &lookout, nodes.node.len());
    let outcome = match &args.command {
        ClusterSubcommand::Status => status::run(&lookout, &mut output),
        ClusterSubcommand::Drain(drain) => {
            runtime.block_on(lookout.drain(&drain.name))?;
            if output.json {
                output.print_json(&serde_json::json!({ "node": drain.name, "state": "draining" }))?;
            } else {
                writeln!(output.out, "{} takes no more requests; those that it has may finish", drain.name)?;
            }
            Ok(Outcome::Good)
        }
        ClusterSubcommand::Explain(prompt) => explain::run(prompt, &runtime, &nodes, &lookout, &mut output),
        ClusterSubcommand::Gc(collected) => gc::run(collected, &mut output),
    };
    runtime.shutdown_background();
    outcome
}

/// The flags, and for what they leave out the settings.
fn reach(flags: &ReachArgs) -> anyhow::Result<(ClusterArgs, NodeArgs)> {
    // A wrong setting of the server must not keep anybody from looking at the cluster.
    let settings = of_serve().map(|(settings, _)| settings).ok();
    let path = |flag: &Option<std::path::PathBuf>, name: &str| -> anyhow::Result<Option<std::path::PathBuf>> {
        match flag {
            Some(flag) => Ok(Some(flag.clone())),
            None => Ok(configured(name)?.map(|(value, _)| value.into())),
        }
    };
    let known = settings.as_ref();
    let or = |flags: &[String], known: Option<&Vec<String>>| {
        if flags.is_empty() { known.cloned().unwrap_or_default() } else { flags.to_vec() }
    };
    let cluster = ClusterArgs {
        cluster: or(&flags.cluster, known.map(|known| &known.cluster.cluster)),
        cluster_key_file: path(&flags.cluster_key_file, "cluster_key_file")?,
        ..ClusterArgs::default()
    };
    let node = if flags.node.is_empty() {
        known.map(|known| known.nodes.node.clone()).unwrap_or_default()
    } else {
        flags.node.clone()
    };
    let nodes = NodeArgs {
        node,
        node_cert: path(&flags.node_cert, "node_cert")?,
        node_key: path(&flags.node_key, "node_key")?,
        node_ca: path(&flags.node_ca, "node_ca")?,
        crash_limit: 0,
    };
    Ok((cluster, nodes))
}

/// Waits until the nodes have announced themselves and their rows are known, for a bounded time.
fn wait(runtime: &Runtime, lookout: &Arc<Lookout>, seeds: usize) {
    let (began, mut is_heard) = (Instant::now(), false);
    runtime.block_on(async {
        // The registry has all nodes at once; without it each one is heard within a beat.
        lookout.settled().await;
        loop {
            let nodes = lookout.nodes();
            let is_enough = !nodes.is_empty() && nodes.len() >= seeds;
            is_heard |= is_enough || began.elapsed() > HEARD_WITHIN;
            let is_known = nodes.iter().all(|(_, is_current)| *is_current);
            if (is_heard && is_known) || began.elapsed() > ROWS_WITHIN {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
}

/// The error of a cluster in which nobody answers.
fn check_nodes(lookout: &Lookout) -> anyhow::Result<()> {
    lookout
        .nodes()
        .first()
        .map(drop)
        .context("no node announces itself; check that nodes run with the same --cluster and --cluster-key-file")
}
