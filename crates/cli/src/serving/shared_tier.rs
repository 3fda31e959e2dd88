//! The shared tier of a server, opened where its engine runs.
//!
//! Used by `serve`. Without `--shared` nothing here opens a store or starts a thread.

use std::sync::Arc;

use poncho_cache::CacheConfig;
use poncho_shared::{SharedStore, SharedTier};

use crate::settings::args::shared::SharedArgs;

/// Adds the shared tier to the configuration of a cache that is about to be opened in this process.
pub(crate) fn with_shared_tier(cache: CacheConfig, args: &SharedArgs) -> anyhow::Result<CacheConfig> {
    let Some(settings) = args.settings() else { return Ok(cache) };
    Ok(CacheConfig { remote: Some(Arc::new(SharedTier::open(&settings)?)), ..cache })
}

/// Fails if the settings of the store cannot be used: before a model is loaded, and without a request.
pub(crate) fn check(args: &SharedArgs) -> anyhow::Result<()> {
    if let Some(settings) = args.settings() {
        SharedStore::open(&settings)?;
    }
    Ok(())
}
