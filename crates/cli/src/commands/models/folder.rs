//! Which registry folder a command works on.
//!
//! The flag over the setting (`PONCHO_MODELS_DIR`, `models_dir` in poncho.toml) over the platform's data folder. Looking
//! makes no folder; `pull` and `create` make it.

use std::path::PathBuf;

use anyhow::Context;
use poncho_models::Registry;

use crate::commands::models::args::RegistryArgs;
use crate::settings;
use crate::settings::user_folder::UserFolder;

/// The folder that flag and environment mean, whether or not it is there.
pub(crate) fn models_folder(flag: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(path) = flag {
        return Ok(path.clone());
    }
    match settings::configured("models_dir")? {
        Some((path, _)) => Ok(path.into()),
        None => {
            let folder = UserFolder::Data.find();
            let folder =
                folder.context("there is no home folder to keep models in; give a folder with --models-dir")?;
            Ok(folder.join("models"))
        }
    }
}

/// The registry in that folder.
pub(crate) fn open(args: &RegistryArgs) -> anyhow::Result<Registry> {
    Ok(Registry::open(models_folder(args.models_dir.as_ref())?)?)
}
