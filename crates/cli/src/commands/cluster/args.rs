//! The flags of `poncho cluster`.
//!
//! Filled by clap and read by the commands of this folder. No input or output here.

use std::path::PathBuf;

use clap::Subcommand;
use poncho_node::NodeAddress;
use poncho_terminal::parse_bytes;

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterCommand {
    #[command(flatten)]
    pub(crate) reach: ReachArgs,

    /// Print JSON on standard output and nothing else
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: ClusterSubcommand,
}

/// How the cluster is reached; what is not given comes from the settings of `poncho route`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ReachArgs {
    /// NATS server of the cluster; may be repeated [env: PONCHO_CLUSTER]
    #[arg(long, value_name = "URL", global = true)]
    pub(crate) cluster: Vec<String>,

    /// File with the secret of the cluster [env: PONCHO_CLUSTER_KEY_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) cluster_key_file: Option<PathBuf>,

    /// Node to ask even without NATS; may be repeated [env: PONCHO_NODE]
    #[arg(long, value_name = "HOST:PORT", global = true)]
    pub(crate) node: Vec<NodeAddress>,

    /// Certificate that this machine presents to nodes; PEM [env: PONCHO_NODE_CERT]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) node_cert: Option<PathBuf>,

    /// Private key of that certificate; PEM [env: PONCHO_NODE_KEY]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) node_key: Option<PathBuf>,

    /// Authority that must have signed the certificates of nodes; PEM [env: PONCHO_NODE_CA]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) node_ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterSubcommand {
    /// List the nodes: state, models, load and cached rows
    #[command(after_help = "Examples:\n  poncho cluster status\n  poncho cluster status --json | jq '.nodes[].name'")]
    Status,
    /// Send no new requests to a node; running requests finish, and its cached rows stay usable
    #[command(after_help = "Example:\n  poncho cluster drain gpu-1-7070\n\n\
        Restart the node to make it accept requests again.")]
    Drain(DrainArgs),
    /// Show which node would compute the reply to a prompt, and what it would cost on each
    #[command(after_help = "Examples:\n  poncho cluster explain 'Why is the sky blue?'\n  \
        poncho cluster explain --raw --model smollm2:135m \"$(cat prompt.txt)\"\n\nNothing is computed.")]
    Explain(ExplainArgs),
    /// Remove unused states from the object store of the cluster, after a question; one machine at a time
    #[command(after_help = "Examples:\n  poncho cluster gc --dry-run\n  \
        poncho cluster gc --shared s3://kv/prefix --shared-quota 500GiB --yes\n\n\
        Works beside running nodes. Segments that no row uses are removed ten minutes after a collection found them.")]
    Gc(GcArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// Name of the node, as `poncho cluster status` shows it
    #[arg(value_name = "NODE")]
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Print what would be removed, and change nothing
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,

    /// Remove without a question
    #[arg(long)]
    pub(crate) yes: bool,

    /// Object store [default: the setting shared]
    #[arg(long, value_name = "URL")]
    pub(crate) shared: Option<String>,

    /// Maximum size of the store: the rows that were not used for longest leave it [default: the setting shared_quota]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) shared_quota: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// A user message, or the whole prompt with --raw
    pub(crate) prompt: String,

    /// Model [default: the first one of the cluster]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) model: Option<String>,

    /// Use the prompt as it is, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
}
