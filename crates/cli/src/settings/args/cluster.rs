//! The flags of a cluster: the bus, the key, and how this node is known in it.
//!
//! Filled by clap. `node` announces itself with them, `route` and `cluster` follow the others. No input or output here.

use std::path::PathBuf;

use poncho_node::NodeAddress;

/// See the module.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ClusterArgs {
    /// NATS server over which the nodes of a cluster announce themselves, such as nats://10.0.0.1:4222; may be repeated
    #[arg(long, value_name = "URL")]
    pub(crate) cluster: Vec<String>,

    /// File with the secret of all nodes and routers of the cluster, at least 32 bytes [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_key_file: Option<PathBuf>,

    /// Address at which routers reach this node [default: the one of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<NodeAddress>,

    /// Name of this node in the cluster: letters, digits, `-` and `_` [default: host name and port]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    /// Address at which this node answers queries about its cached states [default: the host of --listen with the next port]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) hints_listen: Option<NodeAddress>,

    /// Address at which this node serves its cached states to other nodes [default: the host of --listen, any free port]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) pull_listen: Option<NodeAddress>,
}

/// The flags of KV events, for routers of other projects.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct KvEventsArgs {
    /// Address to publish cached blocks on in vLLM's format (ZeroMQ), such as 127.0.0.1:5557; they contain the tokens of prompts [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) kv_events: Option<String>,

    /// Address on which subscribers ask for events that they missed [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) kv_events_replay: Option<String>,

    /// Tokens of one block; the router must use the same number
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) kv_events_block: u32,

    /// Allow addresses that other machines can reach; anybody who connects can read the tokens of prompts
    #[arg(long)]
    pub(crate) kv_events_open: bool,
}
