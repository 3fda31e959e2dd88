//! Pulls between nodes, set up where the cache is: this node serves its rows, and fetches those of others.
//!
//! Used by the process that computes for `poncho node`, if the settings name a cluster. Wiring only; `poncho-shared` sends
//! and checks the bytes, and the hints of `poncho-cluster` name the node that has a row.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use poncho_api::Node;
use poncho_cache::{Cache, CacheConfig, Key, RemoteTier};
use poncho_cluster::bus::Lookout;
use poncho_node::{NodeAddress, PeerSpeed};
use poncho_shared::{Holder, Nearest, PeerTier, PullLimits, PullSecret, PullTls, RowServer, Whereabouts};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::{Cluster, in_brackets};
use crate::settings::args::ServeArgs;

/// Bytes in a second that routers expect before a pull was measured.
const ASSUMED_SPEED: f64 = 50e6;

/// See the module.
pub(crate) struct Pulls {
    tier: Arc<PeerTier>,
    peers: Arc<Peers>,
    secret: PullSecret,
    tls: Option<PullTls>,
    /// Where to listen.
    listen: SocketAddr,
    /// The host under which other nodes reach this one.
    host: String,
}

impl Pulls {
    /// Follows the other nodes of the cluster; `None` if the settings name none.
    pub(crate) fn open(args: &ServeArgs, listen: &NodeAddress, runtime: &Runtime) -> anyhow::Result<Option<Self>> {
        let Some(cluster) = Cluster::open(&args.cluster, runtime)? else { return Ok(None) };
        let tls = match args.nodes.credentials()? {
            Some(credentials) => Some(PullTls {
                client: Arc::new(credentials.client_config()?),
                server: Arc::new(credentials.server_config()?),
            }),
            None => None,
        };
        let (host, port) = match &args.cluster.pull_listen {
            Some(address) => (address.host(), address.port()),
            None => (listen.host(), 0),
        };
        let mut found = (host, port).to_socket_addrs().with_context(|| {
            format!("{host} is not an address of this machine; set --pull-listen, with 0.0.0.0 for all interfaces")
        })?;
        let address = found.next().with_context(|| format!("the host {host} has no address"))?;
        let host = match &args.cluster.advertise {
            Some(advertise) => advertise.host(),
            None if address.ip().is_unspecified() => listen.host(),
            None => host,
        };
        let peers = Arc::new(Peers { lookout: cluster.lookout(runtime, &[])?, own: std::sync::OnceLock::new() });
        let secret = PullSecret::from_bytes(cluster.key.pulls());
        let known: Arc<dyn Whereabouts> = Arc::<Peers>::clone(&peers);
        let tier = Arc::new(PeerTier::open(known, secret, tls.as_ref(), PullLimits::default())?);
        Ok(Some(Self { tier, peers, secret, tls, listen: address, host: in_brackets(host) }))
    }

    /// The configuration of a cache that looks into other nodes too, before the shared tier if there is one.
    pub(crate) fn with_peers(&self, cache: CacheConfig) -> CacheConfig {
        let peers: Arc<dyn RemoteTier> = Arc::<PeerTier>::clone(&self.tier);
        let remote = match cache.remote {
            Some(shared) => Arc::new(Nearest::new(peers, shared)) as Arc<dyn RemoteTier>,
            None => peers,
        };
        CacheConfig { remote: Some(remote), ..cache }
    }

    /// Serves the rows of this cache to other nodes, as long as it is open.
    pub(crate) fn serve(&self, runtime: &Runtime, cache: &Arc<Cache>) -> anyhow::Result<()> {
        let listener = runtime.block_on(TcpListener::bind(self.listen)).with_context(|| {
            format!("cannot serve cached states on {}; choose another address with --pull-listen", self.listen)
        })?;
        let _inside = runtime.enter();
        let server = RowServer::start(listener, cache, self.secret, self.tls.as_ref(), PullLimits::default())?;
        let address = format!("{}:{}", self.host, server.address().port());
        let _ = self.peers.own.set(address.clone());
        self.tier.serves(Arc::new(server), address);
        Ok(())
    }
}

/// How fast a node pulls from others, for routers; 0 if it does not.
pub(super) fn speed(node: Arc<dyn Node>) -> PeerSpeed {
    Arc::new(move || {
        let peers = node.cache().peers;
        let measured = |megabyte: Duration| 1e6 / megabyte.as_secs_f64().max(1e-9);
        peers.map_or(0.0, |peers| peers.megabyte.map_or(ASSUMED_SPEED, measured))
    })
}

/// The other nodes, as their hints say.
struct Peers {
    lookout: Arc<Lookout>,
    /// The address of this node, which does not pull from itself.
    own: std::sync::OnceLock<String>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Peers")
    }
}

impl Whereabouts for Peers {
    fn holders(&self, keys: &[Key]) -> Vec<Holder> {
        let others = self.lookout.holders(keys).into_iter().filter(|(address, _)| Some(address) != self.own.get());
        others.map(|(address, key)| Holder { address, key }).collect()
    }

    fn has_peers(&self) -> bool {
        let is_other = |rows: &String| Some(rows) != self.own.get();
        // A node with rows that are not known yet cannot be asked for any.
        let known = self.lookout.nodes();
        known.iter().any(|(beat, is_current)| *is_current && beat.rows.as_ref().is_some_and(is_other))
    }
}
