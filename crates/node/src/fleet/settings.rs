//! The settings of a fleet. Made by the command line, read by `fleet.rs` and `kept.rs`. Plain data.

use std::sync::Arc;
use std::time::Duration;

use poncho_cluster::bus::Lookout;

use crate::link::NodeAddress;
use crate::tls::Credentials;

/// Which nodes there are.
#[derive(Debug, Clone)]
pub struct FleetSettings {
    /// Where they listen.
    pub nodes: Vec<NodeAddress>,
    /// What this end shows, and what it demands of the nodes; not needed for nodes on this machine.
    pub credentials: Option<Arc<Credentials>>,
    /// How long a call waits for a node that has its model.
    pub call_wait: Duration,
    /// The cluster in which further nodes announce themselves.
    pub cluster: Option<Arc<Lookout>>,
}
