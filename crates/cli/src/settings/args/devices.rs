//! The flags for devices that this build does not bring itself.
//!
//! Filled by clap, used by `serving/devices.rs`.

use std::path::PathBuf;

/// Where devices come from.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Folder with backend libraries for GPUs; may be repeated [default: backends and ../lib/poncho/backends beside the program]
    #[arg(long, value_name = "DIR")]
    pub(crate) backends: Vec<PathBuf>,

    /// RPC worker that computes a part of each model (see `poncho rpc-worker`); may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) rpc: Vec<String>,
}
