//! The flags of the shared tier: the object store that several machines use.
//!
//! Filled by clap; `serve` opens the tier with them, `doctor` measures the store, and `poncho cache` lists and collects it.
//! No input or output here.

use std::path::PathBuf;

use poncho_shared::Settings;
use poncho_terminal::parse_bytes;

/// See the module.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SharedArgs {
    /// Object store for cached states that other machines may restore: file:///DIR, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX [default: none]
    #[arg(long, value_name = "URL")]
    pub(crate) shared: Option<String>,

    /// Maximum size of the object store; the least recently used states are removed first [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) shared_quota: Option<u64>,

    /// Maximum rate of uploads to the object store, in bytes per second [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) shared_bandwidth: Option<u64>,

    /// File with the secret of all machines that share the object store, 64 hexadecimal digits; states are encrypted with it [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_key_file: Option<PathBuf>,
}

impl SharedArgs {
    /// The settings of the tier; `None` if no store is named.
    pub(crate) fn settings(&self) -> Option<Settings> {
        let url = self.shared.as_ref().filter(|url| !url.is_empty())?;
        Some(Settings {
            quota: self.shared_quota,
            upload_bytes_per_second: self.shared_bandwidth.filter(|rate| *rate > 0),
            key_file: self.shared_key_file.clone(),
            ..Settings::new(url.clone())
        })
    }
}
