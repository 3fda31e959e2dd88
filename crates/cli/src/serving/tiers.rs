//! The tiers of a server's cache, as its settings describe them.
//!
//! Used by `serve`. Rows on the disk are found whichever tier new ones go to.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use poncho_cache::{CacheConfig, FileTierConfig, Tier};

use crate::settings::args::{CacheTierArg, ServeArgs};

/// The memory file system that Linux has.
const SHARED_MEMORY: &str = "/dev/shm";

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
