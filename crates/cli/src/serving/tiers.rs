//! The tiers of a server's cache, as its settings describe them, and opening it.
//!
//! Used by `serve`, and by commands that serve a model for themselves. Rows on the disk are found whichever tier new
//! ones go to. A folder that cannot be used must never keep anybody from serving.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use poncho_cache::{Cache, CacheConfig, CacheError, FileTierConfig, Tier};

use crate::settings::args::{CacheTierArg, ServeArgs};

/// The memory file system that Linux has.
const SHARED_MEMORY: &str = "/dev/shm";

/// Memory for states that no folder holds: enough for several conversations with a small model.
pub(crate) const MEMORY_CACHE: u64 = 1 << 30;

/// Sizes of the cache's tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quotas {
    pub(crate) ram: u64,
    pub(crate) disk: u64,
}

impl Quotas {
    /// Those of the settings; the server chose them for its child.
    pub(crate) fn given(args: &ServeArgs) -> Self {
        Self { ram: args.cache_ram.unwrap_or(512 << 20), disk: args.cache_size.unwrap_or(20 << 30) }
    }

    /// The flags that pass on what the settings leave open.
    pub(crate) fn flags(self, args: &ServeArgs) -> Vec<String> {
        let ram = args.cache_ram.is_none().then(|| format!("--cache-ram={}", self.ram));
        let disk = args.cache_size.is_none().then(|| format!("--cache-size={}", self.disk));
        ram.into_iter().chain(disk).collect()
    }
}

/// The configuration of the cache in this folder.
pub(crate) fn cache_config(args: &ServeArgs, quotas: Quotas, folder: &Path) -> anyhow::Result<CacheConfig> {
    let ram_file = match args.cache_tier {
        CacheTierArg::RamFile => {
            Some(FileTierConfig { folder: ram_file_folder(args.ram_file_dir.as_deref())?, quota: args.ram_file_size })
        }
        CacheTierArg::Disk | CacheTierArg::Ram => None,
    };
    let save_tier = match args.cache_tier {
        CacheTierArg::Disk => None,
        CacheTierArg::RamFile => Some(Tier::RamFile),
        CacheTierArg::Ram => Some(Tier::Ram),
    };
    Ok(CacheConfig {
        ram_quota: quotas.ram,
        ram_file,
        save_tier,
        pressure: args.pressure.config(),
        ..CacheConfig::on_disk(folder, quotas.disk)
    })
}

/// Opens a cache. With a folder that cannot be used (a disk that became read-only, no rights, no space for a name) its
/// states are kept in memory: an engine that is started again must not fail because of its cache.
///
/// # Errors
/// A folder that another process has open, and settings that make no sense.
pub(crate) fn open_cache(config: CacheConfig) -> Result<Cache, CacheError> {
    let ram_quota = if config.ram_quota == 0 { MEMORY_CACHE } else { config.ram_quota };
    let in_memory = CacheConfig { ram_quota, ram_file: None, disk: None, save_tier: None, ..config.clone() };
    match Cache::open(config) {
        Err(error @ CacheError::Folder { .. }) => {
            tracing::warn!(%error, "states are kept in memory only, until the next start");
            Cache::open(in_memory)
        }
        opened => opened,
    }
}

/// The folder of files in memory. Every user may write to `/dev/shm`, so a folder there must be ours.
fn ram_file_folder(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = match named {
        Some(folder) => folder.to_path_buf(),
        None if Path::new(SHARED_MEMORY).is_dir() => Path::new(SHARED_MEMORY).join(format!("poncho-{user}")),
        None => bail!("this system has no {SHARED_MEMORY}; name a folder on a memory file system with --ram-file-dir"),
    };
    match std::fs::symlink_metadata(&folder) {
        Ok(facts) if !facts.is_dir() => {
            bail!("{} is not a folder; give another one with --ram-file-dir", folder.display())
        }
        Ok(facts) if facts.uid() != user => {
            bail!("{} belongs to another user; give a folder that you own with --ram-file-dir", folder.display())
        }
        Ok(_) | Err(_) => Ok(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that became read-only ended every request from the next start of the engine on.
    #[test]
    fn a_folder_that_cannot_be_used_leaves_the_states_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for ram_quota in [0, 1 << 20] {
            let config = CacheConfig { ram_quota, ..CacheConfig::on_disk(file.join("kv"), 1 << 20) };
            let cache = open_cache(config).unwrap();
            assert_eq!(cache.config().default_tier(), Tier::Ram);
            assert_eq!(cache.config().ram_quota, if ram_quota == 0 { MEMORY_CACHE } else { ram_quota });
        }
    }

    #[test]
    fn a_folder_in_use_and_senseless_settings_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = CacheConfig::on_disk(folder.path(), 1 << 20);
        let cache = open_cache(config.clone()).unwrap();
        assert_eq!(cache.config().default_tier(), Tier::Disk);
        assert!(matches!(open_cache(config).err(), Some(CacheError::Locked { .. })));
        assert!(matches!(open_cache(CacheConfig::in_memory(0)).err(), Some(CacheError::NoTier)));
    }
}
