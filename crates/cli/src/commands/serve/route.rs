//! `poncho route`: a front of all nodes in a cluster. Requests go to the node that has their prefix.
//!
//! Wiring only. Nothing is computed or stored here, and no model file is needed. Nodes come and go as they announce
//! themselves; those of `--node` are used even without a bus.

use std::io::Write;

use anyhow::bail;
use poncho_terminal::Outcome;

use super::{configured, front, runtime};
use crate::cluster::Cluster;
use crate::serving::limits;
use crate::settings::Resolved;
use crate::settings::args::ServeArgs;

pub(crate) fn run(args: &ServeArgs, resolved: Option<&Resolved>, out: &mut impl Write) -> anyhow::Result<Outcome> {
    limits::raise_open_files();
    let (address, config) = configured(args, resolved)?;
    let runtime = runtime()?;
    let cluster = match Cluster::open(&args.cluster, &runtime)? {
        Some(cluster) => cluster.lookout(&runtime, &args.nodes.node)?,
        None => bail!(
            "no cluster is named; set --cluster nats://HOST:PORT and --cluster-key-file FILE, or use `poncho serve --node` \
             for nodes without a cluster"
        ),
    };
    front(args, &runtime, address, config, Some(cluster), out)
}
