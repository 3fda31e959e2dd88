//! Which folder of models a command uses: the flag over `PONCHO_MODELS_DIR` over the settings file over the platform's
//! folder.
//!
//! Used by the server, by `doctor` and by the commands for models. It must never create the folder.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::configured;
use super::user_folder::UserFolder;

/// The folder that flag and environment mean, whether or not it exists.
pub(crate) fn models_folder(flag: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = flag {
        return Ok(path.to_path_buf());
    }
    if let Some((path, _)) = configured("models_dir")? {
        return Ok(path.into());
    }
    let folder = UserFolder::Data.find().context("there is no home folder for models; name one with --models-dir")?;
    Ok(folder.join("models"))
}
