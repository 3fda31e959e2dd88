//! Which registry folder a command works on.
//!
//! The flag over the setting (`PONCHO_MODELS_DIR`, `models_dir` in poncho.toml) over the platform's data folder. Looking
//! makes no folder; `pull` and `create` make it.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use poncho_models::Registry;

use crate::models::args::RegistryArgs;
use crate::settings;

/// The folder that flag and environment mean, whether or not it is there.
pub(crate) fn models_folder(flag: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(path) = flag {
        return Ok(path.clone());
    }
    match settings::configured("models_dir")? {
        Some((path, _)) => Ok(path.into()),
        None => default_folder(variable("XDG_DATA_HOME"), variable("HOME")),
    }
}

/// The registry in that folder.
pub(crate) fn open(args: &RegistryArgs) -> anyhow::Result<Registry> {
    Ok(Registry::open(models_folder(args.models_dir.as_ref())?)?)
}

/// An environment variable; an empty one counts as unset.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// `$XDG_DATA_HOME/poncho/models`, or `~/.local/share/poncho/models`. A relative `XDG_DATA_HOME` is ignored, as its rules
/// ask.
fn default_folder(xdg_data_home: Option<OsString>, home: Option<OsString>) -> anyhow::Result<PathBuf> {
    let base = xdg_data_home
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| home.map(|home| PathBuf::from(home).join(".local").join("share")))
        .context("there is no home folder to keep models in; give a folder with --models-dir")?;
    Ok(base.join("poncho").join("models"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_folder_follows_the_platform() {
        let folder =
            |xdg: Option<&str>, home: Option<&str>| default_folder(xdg.map(Into::into), home.map(Into::into)).ok();
        assert_eq!(folder(Some("/x"), Some("/h")), Some("/x/poncho/models".into()));
        assert_eq!(folder(Some("relative"), Some("/h")), Some("/h/.local/share/poncho/models".into()));
        assert_eq!(folder(None, Some("/h")), Some("/h/.local/share/poncho/models".into()));
        assert_eq!(folder(None, None), None);
    }
}
