//! The shared tier of a server, opened where its engine runs.
//!
//! Used by `serve` and by the commands that load a model themselves. Without `--shared` nothing here opens a store or starts a thread.

use std::sync::Arc;

use poncho_cache::CacheConfig;
use poncho_shared::{SharedStore, SharedTier};

use crate::settings::args::shared::SharedArgs;

/// Adds the shared tier to the configuration of a cache that is about to be opened in this process.
pub(crate) fn with_shared_tier(cache: CacheConfig, args: &SharedArgs) -> anyhow::Result<CacheConfig> {
    Ok(match open(args)? {
        Some(tier) => CacheConfig { remote: Some(tier), ..cache },
        None => cache,
    })
}

/// The shared tier of the settings, if they name one.
pub(crate) fn open(args: &SharedArgs) -> anyhow::Result<Option<Arc<SharedTier>>> {
    let settings = args.settings();
    Ok(settings.map(|settings| SharedTier::open(&settings)).transpose()?.map(Arc::new))
}

/// Fails if the settings of the store cannot be used: before a model is loaded, and without a request.
pub(crate) fn check(args: &SharedArgs) -> anyhow::Result<()> {
    if let Some(settings) = args.settings() {
        SharedStore::open(&settings)?;
    }
    Ok(())
}
