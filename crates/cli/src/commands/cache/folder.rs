//! The folders that a command works on.
//!
//! A folder that the user names must exist; the default one may be missing, which means an empty cache. It must never
//! create a folder: a mistyped name would become one.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use poncho_cache::{CacheConfig, FileTierConfig, Tier};

use crate::commands::cache::args::FolderArgs;
use crate::serving::disk::is_in_memory;
use crate::settings::cache_folder::{FolderOrigin, choose_cache_folder};
use crate::settings::configured;

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

impl Folders {
    /// Resolves the flags and the environment.
    pub(crate) fn find(args: &FolderArgs) -> anyhow::Result<Self> {
        let (path, origin) = choose_cache_folder(args.cache_dir.as_deref())?;
        let memory = memory_folder(args)?;
        let mut found = Vec::new();
        if is_there(&path, origin)? {
            // A single folder has the tier of its file system; beside a memory folder it is the disk.
            let tier = if memory.is_none() && is_in_memory(&path) { Tier::RamFile } else { Tier::Disk };
            found.push(Folder { path, tier });
        }
        if let Some((path, origin)) = &memory
            && is_there(path, *origin)?
        {
            if found.iter().any(|other| is_same(&other.path, path)) {
                bail!(
                    "--cache-dir and --ram-file-dir are both {}; use a different folder for each tier",
                    path.display()
                );
            }
            found.push(Folder { path: path.clone(), tier: Tier::RamFile });
        }
        Ok(Self { found })
    }

    /// Settings that open exactly these folders and evict nothing by themselves. `None` without a folder.
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

/// The folder of files in memory: the flag, or that of the settings. A folder given with `--cache-dir` stands alone.
fn memory_folder(args: &FolderArgs) -> anyhow::Result<Option<(PathBuf, FolderOrigin)>> {
    if let Some(path) = &args.ram_file_dir {
        return Ok(Some((path.clone(), FolderOrigin::Named("--ram-file-dir"))));
    }
    if args.cache_dir.is_some() {
        return Ok(None);
    }
    Ok(configured("ram_file_dir")?.map(|(path, _)| (path.into(), FolderOrigin::Default)))
}

fn is_there(path: &Path, origin: FolderOrigin) -> anyhow::Result<bool> {
    match (std::fs::metadata(path), origin) {
        (Ok(metadata), _) if metadata.is_dir() => Ok(true),
        (Ok(_), _) => {
            bail!("{} is a file, not a folder; name the folder of the cache", path.display())
        }
        (Err(error), FolderOrigin::Default) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        (Err(error), FolderOrigin::Named(by)) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "cache folder {} does not exist; check {by}, or leave it out to use the default folder",
                path.display()
            )
        }
        (Err(error), _) => Err(error).with_context(|| {
            format!("cannot access cache folder {}; check the path and its permissions", path.display())
        }),
    }
}

fn is_same(one: &Path, two: &Path) -> bool {
    matches!((one.canonicalize(), two.canonicalize()), (Ok(one), Ok(two)) if one == two)
}
