//! The port at which routers and servers on other machines reach this one.
//!
//! Used by `poncho node`, and by `poncho serve` as a member of a cluster. It must never let anybody in before the models are
//! loaded: a port is taken first, and listened on later.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::Context as _;
use poncho_node::NodeAddress;
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use crate::serving::port;

/// The time in which routers learn that this node ends.
pub(super) const ANNOUNCED_WITHIN: Duration = Duration::from_millis(250);

/// Connections that may wait to be taken.
pub(super) const BACKLOG: u32 = 1024;

/// Takes a port without letting anybody in.
pub(super) fn bind(runtime: &Runtime, address: SocketAddr) -> anyhow::Result<TcpSocket> {
    let _inside = runtime.enter();
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address).map_err(|error| {
        let why = port::why_not(address, &error);
        anyhow::Error::new(error).context(format!("cannot listen on {address}: {why}"))
    })?;
    Ok(socket)
}

/// The address of this machine that a name stands for.
pub(super) fn address(listen: &NodeAddress) -> anyhow::Result<SocketAddr> {
    let mut found = (listen.host(), listen.port()).to_socket_addrs().with_context(|| {
        format!("{} is not an address of this machine; use 0.0.0.0 for all interfaces", listen.host())
    })?;
    found.next().with_context(|| format!("the host {} has no address", listen.host()))
}
