//! Which folders a command works on, and what kind of file system they are on.
//!
//! Flags over `PONCHO_CACHE_DIR` over the settings file over the platform's cache folder. A folder that was named must be there; the default
//! one may be missing, which is an empty cache. It must never create a folder: a mistyped name would become one.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use poncho_cache::{CacheConfig, FileTierConfig, Tier};

use crate::args::FolderArgs;
use crate::settings::configured;
use crate::settings::user_folder::{self, UserFolder};

const VARIABLE: &str = "PONCHO_CACHE_DIR";

/// One cache folder that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) tier: Tier,
}

/// The folders of a command; none if the default one does not exist yet.
#[derive(Debug)]
pub(crate) struct Folders {
    pub(crate) found: Vec<Folder>,
}

/// Who said where the cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Named(&'static str),
    Default,
}

/// The cache folder that flags and environment mean, whether or not it is there.
pub(crate) fn chosen_folder(args: &FolderArgs) -> anyhow::Result<PathBuf> {
    choose(args).map(|(path, _)| path)
}

fn choose(args: &FolderArgs) -> anyhow::Result<(PathBuf, Origin)> {
    Ok(match (&args.cache_dir, user_folder::set(VARIABLE)) {
        (Some(path), _) => (path.clone(), Origin::Named("--cache-dir")),
        (None, Some(path)) => (path.into(), Origin::Named(VARIABLE)),
        // A folder of the settings file may be missing like the default one: no server has run yet.
        (None, None) => match configured("cache_dir")? {
            Some((path, _)) => (path.into(), Origin::Default),
            None => {
                let folder = UserFolder::Cache.find();
                let folder = folder
                    .context("there is no home folder to look for a cache in; give the folder with --cache-dir")?;
                (folder.join("kv"), Origin::Default)
            }
        },
    })
}

impl Folders {
    /// Finds out what the flags and the environment mean.
    pub(crate) fn find(args: &FolderArgs) -> anyhow::Result<Self> {
        let (path, origin) = choose(args)?;
        let mut found = Vec::new();
        if is_there(&path, origin)? {
            // Alone, a folder is of the tier that its file system says; beside a memory folder it is the disk.
            let tier = if args.ram_file_dir.is_none() && is_in_memory(&path) { Tier::RamFile } else { Tier::Disk };
            found.push(Folder { path, tier });
        }
        if let Some(path) = &args.ram_file_dir
            && is_there(path, Origin::Named("--ram-file-dir"))?
        {
            if found.iter().any(|other| is_same(&other.path, path)) {
                bail!("--cache-dir and --ram-file-dir are both {}; give each tier a folder of its own", path.display());
            }
            found.push(Folder { path: path.clone(), tier: Tier::RamFile });
        }
        Ok(Self { found })
    }

    /// Settings that open exactly these folders and evict nothing of their own accord. `None` without a folder.
    pub(crate) fn config(&self) -> Option<CacheConfig> {
        let tier = |tier| {
            let folder = self.found.iter().find(|folder| folder.tier == tier)?;
            Some(FileTierConfig { folder: folder.path.clone(), quota: u64::MAX })
        };
        (!self.found.is_empty()).then(|| CacheConfig {
            ram_quota: 0,
            ram_file: tier(Tier::RamFile),
            disk: tier(Tier::Disk),
            ..CacheConfig::default()
        })
    }
}

fn is_there(path: &Path, origin: Origin) -> anyhow::Result<bool> {
    match (std::fs::metadata(path), origin) {
        (Ok(metadata), _) if metadata.is_dir() => Ok(true),
        (Ok(_), _) => {
            bail!("{} is a file, not a folder; give the folder that the cache is in", path.display())
        }
        (Err(error), Origin::Default) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        (Err(error), Origin::Named(by)) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "cache folder {} does not exist; check {by}, or leave it out to use the default folder",
                path.display()
            )
        }
        (Err(error), _) => Err(error).with_context(|| {
            format!("cannot look into cache folder {}; check the path and its permissions", path.display())
        }),
    }
}

fn is_same(one: &Path, two: &Path) -> bool {
    matches!((one.canonicalize(), two.canonicalize()), (Ok(one), Ok(two)) if one == two)
}

/// Whether a folder is on a memory file system.
#[cfg(target_os = "linux")]
pub(crate) fn is_in_memory(path: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::statfs(path).is_ok_and(|facts| [TMPFS, RAMFS].contains(&facts.f_type))
}

/// Whether a folder is on a memory file system: only Linux says so.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_in_memory(_path: &Path) -> bool {
    false
}

/// Bytes that this user may still write where a folder is.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().map(|facts| facts.f_bavail.saturating_mul(facts.f_frsize))
}
