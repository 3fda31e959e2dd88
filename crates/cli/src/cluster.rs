//! A cluster as this process sees it: its key, its bus, the nodes in it, and this node as one of them.
//!
//! Used by `node`, `route` and `cluster`. Wiring only; `poncho-cluster` decides, and `poncho-node` follows the cache. A bus
//! that is away is never an error.

pub(crate) mod kv_events;
pub(crate) mod pulls;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use anyhow::{Context, bail};
use poncho_api::Node;
use poncho_cluster::bus::{Bus, Lookout, NatsBus, Place};
use poncho_cluster::seal::ClusterKey;
use poncho_node::{MemberSettings, Membership, NodeAddress};
use tokio::runtime::Runtime;

use crate::settings::args::cluster::ClusterArgs;

/// Where Linux keeps the host name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// Longer names of hosts are cut: a name has 64 characters.
const LONGEST_HOST: usize = 50;

/// See the module.
#[derive(Clone)]
pub(crate) struct Cluster {
    key: ClusterKey,
    bus: Option<Arc<dyn Bus>>,
}

impl Cluster {
    /// Reads the key and connects to the bus in the background; `None` if the settings name neither.
    pub(crate) fn open(args: &ClusterArgs, runtime: &Runtime) -> anyhow::Result<Option<Self>> {
        let file = match (&args.cluster_key_file, args.cluster.first()) {
            (Some(file), _) => file,
            (None, None) => return Ok(None),
            (None, Some(_)) => bail!(
                "--cluster needs --cluster-key-file, a secret that all nodes and routers share; create it with \
                 `head -c 32 /dev/urandom | base64 > cluster.key`"
            ),
        };
        let key = ClusterKey::from_file(file)?;
        let bus = match args.cluster.as_slice() {
            [] => None,
            servers => Some(Arc::new(runtime.block_on(NatsBus::connect(servers, &key.name()))?) as Arc<dyn Bus>),
        };
        Ok(Some(Self { key, bus }))
    }

    /// Follows the nodes of the cluster. Nodes at these addresses are asked even without a bus, at the next port, which is
    /// where a node answers questions if nothing else is set.
    pub(crate) fn lookout(&self, runtime: &Runtime, nodes: &[NodeAddress]) -> anyhow::Result<Arc<Lookout>> {
        let _inside = runtime.enter();
        let seeds = nodes.iter().filter_map(|node| hints_of(node).ok()).map(|hints| hints.to_string()).collect();
        Ok(Arc::new(Lookout::start(&self.key, self.bus.clone(), seeds)?))
    }

    /// Announces this node, which serves requests at `served`.
    pub(crate) fn join(
        &self,
        runtime: &Runtime,
        args: &ClusterArgs,
        listen: &NodeAddress,
        served: SocketAddr,
        node: Arc<dyn Node>,
    ) -> anyhow::Result<(Place, Membership)> {
        let place = place(args, listen, served)?;
        let peers = Some(pulls::speed(Arc::clone(&node)));
        let settings = MemberSettings { key: self.key.clone(), bus: self.bus.clone(), place: place.clone(), peers };
        Ok((place, runtime.block_on(Membership::join(node, settings))?))
    }
}

/// Where a node answers questions if nothing else is set.
fn hints_of(node: &NodeAddress) -> anyhow::Result<NodeAddress> {
    let port = node.port().checked_add(1).context("the port 65535 has no next one; set --hints-listen")?;
    let host = if node.host().contains(':') { format!("[{}]", node.host()) } else { node.host().to_owned() };
    format!("{host}:{port}").parse().map_err(anyhow::Error::msg)
}

/// The name and the addresses of this node.
pub(crate) fn place(args: &ClusterArgs, listen: &NodeAddress, served: SocketAddr) -> anyhow::Result<Place> {
    let is_all = |ip: IpAddr| ip.is_unspecified();
    let advertised = match &args.advertise {
        Some(advertise) => advertise.clone(),
        None if is_all(served.ip()) => {
            bail!("{served} is not an address that routers can use; set --advertise HOST:PORT")
        }
        None => format!("{}:{}", in_brackets(listen.host()), served.port()).parse().map_err(anyhow::Error::msg)?,
    };
    let hints = match &args.hints_listen {
        Some(hints) => {
            let mut found = (hints.host(), hints.port()).to_socket_addrs().with_context(|| {
                format!("{} is not an address of this machine; use 0.0.0.0 for all interfaces", hints.host())
            })?;
            found.next().with_context(|| format!("the host {} has no address", hints.host()))?
        }
        // With any free port for requests, any free port for questions.
        None if listen.port() == 0 => SocketAddr::new(served.ip(), 0),
        None => SocketAddr::new(served.ip(), hints_of(listen)?.port()),
    };
    let host = is_all(hints.ip()).then(|| advertised.host().to_owned());
    let name = args.node_name.clone().unwrap_or_else(|| default_name(advertised.port()));
    Ok(Place { name, address: advertised.to_string(), listen: hints, host })
}

fn in_brackets(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// The host name and the port: unique, and the same after a restart.
fn default_name(port: u16) -> String {
    let known = std::fs::read_to_string(HOST_NAME).ok().map(|name| name.trim().to_owned());
    let host = known.filter(|name| !name.is_empty()).unwrap_or_else(|| "node".to_owned());
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '-' };
    let host: String = host.chars().map(plain).take(LONGEST_HOST).collect();
    format!("{host}-{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(listen: &str, served: &str, args: &ClusterArgs) -> anyhow::Result<Place> {
        place(args, &listen.parse().unwrap(), served.parse().unwrap())
    }

    #[test]
    fn a_node_is_reached_where_it_listens_and_asked_at_the_next_port() {
        let named = ClusterArgs { node_name: Some("a".to_owned()), ..ClusterArgs::default() };
        let place = at("127.0.0.1:7070", "127.0.0.1:7070", &named).unwrap();
        assert_eq!((place.name.as_str(), place.address.as_str(), place.host), ("a", "127.0.0.1:7070", None));
        assert_eq!(place.listen.to_string(), "127.0.0.1:7071");
        let any = at("localhost:0", "127.0.0.1:4000", &ClusterArgs::default()).unwrap();
        assert_eq!((any.address.as_str(), any.listen.port()), ("localhost:4000", 0));
        assert!(any.name.ends_with("-4000"), "{}", any.name);
    }

    #[test]
    fn all_interfaces_need_an_address_for_routers() {
        let error = at("0.0.0.0:7070", "0.0.0.0:7070", &ClusterArgs::default()).unwrap_err();
        assert!(error.to_string().contains("--advertise"), "{error}");
        let advertise = Some("gpu-1.example:7070".parse().unwrap());
        let place = at("0.0.0.0:7070", "0.0.0.0:7070", &ClusterArgs { advertise, ..Default::default() }).unwrap();
        assert_eq!((place.address.as_str(), place.host.as_deref()), ("gpu-1.example:7070", Some("gpu-1.example")));
        assert_eq!(place.listen.to_string(), "0.0.0.0:7071");
    }
}
