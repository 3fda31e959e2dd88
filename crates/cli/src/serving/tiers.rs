//! The tiers of a server's cache, as its settings describe them.
//!
//! Used by `serve`. Rows on the disk are found whichever tier new ones go to.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use poncho_cache::{CacheConfig, FileTierConfig, Tier};

use crate::settings::args::{CacheTierArg, ServeArgs};

/// The configuration of the cache in this folder.
pub(crate) fn cache_config(args: &ServeArgs, folder: &Path) -> anyhow::Result<CacheConfig> {
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
        ram_quota: args.cache_ram,
        ram_file,
        save_tier,
        pressure: args.pressure.config(),
        ..CacheConfig::on_disk(folder, args.cache_size)
    })
}

/// The folder of files in memory. Every user may write to `/dev/shm`, so a folder there must be ours.
fn ram_file_folder(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = named.map_or_else(|| PathBuf::from(format!("/dev/shm/poncho-{user}")), Path::to_path_buf);
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
