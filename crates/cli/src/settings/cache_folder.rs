//! Which cache folder a command uses: the flag over `PONCHO_CACHE_DIR` over the settings file over the platform's folder.
//!
//! Used by the server, by `poncho cache` and by `doctor`. It must never create the folder.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::configured;
use super::user_folder::{self, UserFolder};

const VARIABLE: &str = "PONCHO_CACHE_DIR";

/// Where the choice comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FolderOrigin {
    /// The user named it with this flag or variable, so it must exist.
    Named(&'static str),
    /// The settings file or the default; it may be missing, because no server has run yet.
    Default,
}

/// The cache folder that flag and environment mean, whether or not it exists.
pub(crate) fn cache_folder(flag: Option<&Path>) -> anyhow::Result<PathBuf> {
    choose_cache_folder(flag).map(|(path, _)| path)
}

/// The same, with its origin.
pub(crate) fn choose_cache_folder(flag: Option<&Path>) -> anyhow::Result<(PathBuf, FolderOrigin)> {
    if let Some(path) = flag {
        return Ok((path.to_path_buf(), FolderOrigin::Named("--cache-dir")));
    }
    if let Some(path) = user_folder::set(VARIABLE) {
        return Ok((path.into(), FolderOrigin::Named(VARIABLE)));
    }
    if let Some((path, _)) = configured("cache_dir")? {
        return Ok((path.into(), FolderOrigin::Default));
    }
    let folder =
        UserFolder::Cache.find().context("there is no home folder for the cache; name one with --cache-dir")?;
    Ok((folder.join("kv"), FolderOrigin::Default))
}
