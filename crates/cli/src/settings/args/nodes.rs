//! The flags for engines in other processes: on other machines, and after crashes.
//!
//! Filled by clap as a part of the settings of `serve`. No input or output here, apart from the files of certificates.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use poncho_node::{CredentialFiles, Credentials, NodeAddress};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NodeArgs {
    /// Serve the models of a `poncho node` at this address instead of loading models here; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) node: Vec<NodeAddress>,

    /// Certificate that this machine presents to nodes, or a node to its servers; PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) node_cert: Option<PathBuf>,

    /// Private key of that certificate; PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) node_key: Option<PathBuf>,

    /// Authority that must have signed the certificate of the other machine; PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) node_ca: Option<PathBuf>,

    /// Number of crashes in a minute after which a model is suspended for a while; 0 for never
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub(crate) crash_limit: u32,
}

impl NodeArgs {
    /// The certificates, if any are set.
    pub(crate) fn credentials(&self) -> anyhow::Result<Option<Arc<Credentials>>> {
        let files = match (&self.node_cert, &self.node_key, &self.node_ca) {
            (None, None, None) => return Ok(None),
            (Some(certificate), Some(key), Some(authority)) => {
                CredentialFiles { certificate: certificate.clone(), key: key.clone(), authority: authority.clone() }
            }
            _ => bail!("--node-cert, --node-key and --node-ca belong together; set all three, or none of them"),
        };
        Ok(Some(Arc::new(Credentials::read(&files)?)))
    }
}
