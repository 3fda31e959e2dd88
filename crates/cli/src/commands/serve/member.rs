//! `poncho serve` as a node of a cluster: its engine also serves routers, and its rows other nodes.
//!
//! Used by `serve` if the settings name a cluster and `--advertise`. Wiring only; the same parts as `poncho node`. Clients
//! of this server are served whether the cluster is there or not.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use poncho_api::Node;
use poncho_cluster::bus::Place;
use poncho_node::{Credentials, HostError, Membership, NodeAddress, serve_network};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::door::{ANNOUNCED_WITHIN, BACKLOG, address, bind};
use crate::cluster::Cluster;
use crate::settings::args::ServeArgs;

/// Where this server takes requests of routers, if it joins a cluster.
pub(super) fn advertised(args: &ServeArgs) -> Option<&NodeAddress> {
    args.cluster.advertise.as_ref().filter(|_| args.cluster.cluster_key_file.is_some())
}

/// A port that is taken, before the models are loaded.
pub(super) struct Door {
    cluster: Cluster,
    socket: TcpSocket,
    at: NodeAddress,
    credentials: Option<Arc<Credentials>>,
}

impl Door {
    /// Takes the port of `--advertise`; `None` if this server joins no cluster.
    pub(super) fn open(args: &ServeArgs, runtime: &Runtime) -> anyhow::Result<Option<Self>> {
        let Some(at) = advertised(args) else { return Ok(None) };
        let Some(cluster) = Cluster::open(&args.cluster, runtime)? else { return Ok(None) };
        let credentials = args.nodes.credentials()?;
        let address = address(at)?;
        if credentials.is_none() && !address.ip().is_loopback() {
            bail!(HostError::NeedsTls { address });
        }
        Ok(Some(Self { cluster, socket: bind(runtime, address)?, at: at.clone(), credentials }))
    }

    /// Serves routers from now on, and announces this server to them.
    pub(super) fn join(self, args: &ServeArgs, runtime: &Runtime, node: Arc<dyn Node>) -> anyhow::Result<Member> {
        let Self { cluster, socket, at, credentials } = self;
        let listener = {
            let _inside = runtime.enter();
            socket.listen(BACKLOG)?
        };
        let served = listener.local_addr()?;
        let (place, membership) = cluster.join(runtime, &args.cluster, &at, served, Arc::clone(&node))?;
        let (stop, mut stopped) = watch::channel(false);
        let grace = args.limits.shutdown_grace;
        let serving = runtime.spawn(async move {
            let stop = async move {
                // An end of the sender is an end too.
                let _ = stopped.wait_for(|stops| *stops).await;
            };
            if let Err(error) = serve_network(listener, credentials.as_deref(), node, stop, grace).await {
                tracing::error!(%error, "routers are not served any longer; clients of this server are");
            }
        });
        Ok(Member { place, membership, stop, serving })
    }
}

/// See the module.
pub(super) struct Member {
    place: Place,
    membership: Membership,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Member {
    /// The line of the greeting.
    pub(super) fn line(&self) -> String {
        let Place { name, address, .. } = &self.place;
        format!("  in the cluster as {name} at {address}, questions at {}\n", self.membership.hints())
    }

    /// Routers send no more requests; those that they have sent may finish.
    pub(super) async fn drain(&self) {
        self.membership.drain();
        tokio::time::sleep(ANNOUNCED_WITHIN).await;
        self.stop.send_replace(true);
    }

    /// Waits until requests of routers have ended, for a bounded time.
    pub(super) fn end(self, runtime: &Runtime, limit: Duration) {
        self.stop.send_replace(true);
        // Too late is ended with the engine.
        let _late = runtime.block_on(async { tokio::time::timeout(limit, self.serving).await });
    }
}
