//! Which models are served: those that were named, by path or by name, and everything in the models folder.
//!
//! Read by `serve`, and by commands that serve a model of their own. Text of the command line may be a path; text of clients never is, and does not come here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use poncho_models::{DEFAULT_MODEL, Reference, Registry, Resolved};
use poncho_server::{KeepAlive, LibraryModel, ModelLibrary, RegistryLibrary};

use crate::args::ServeArgs;
use crate::commands::models::folder::models_folder;
use crate::commands::serve::{ModelShape, model_config};
use crate::serving::model_file;

/// What the command line says about models.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// Names and paths; none means the default model.
    pub(crate) models: &'a [String],
    /// What clients call a model that is given by its path.
    pub(crate) name: Option<&'a str>,
    pub(crate) models_dir: Option<&'a PathBuf>,
}

/// What is loaded at the start, and where the rest comes from.
pub(crate) struct ServedModels {
    pub(crate) library: RegistryLibrary,
    /// Full names, in the order in which they were given; at least one.
    pub(crate) named: Vec<String>,
}

impl ServedModels {
    /// Finds the models that were named, without loading any.
    pub(crate) fn find(asked: Asked<'_>, shape: &ModelShape) -> anyhow::Result<Self> {
        let folder = models_folder(asked.models_dir)?;
        let registry = Registry::open(&folder).with_context(|| {
            format!("cannot use the models folder {}; choose another with --models-dir", folder.display())
        })?;
        let of_installed = shape.clone();
        let settings = move |name: &str, path: &Path| model_config(path, name, &of_installed);
        let mut found = Vec::new();
        for text in asked.models {
            found.push(Named::read(&registry, text)?);
        }
        if found.is_empty() {
            let Ok(default) = Named::read(&registry, DEFAULT_MODEL) else {
                bail!(
                    "no model is named and the default one, {DEFAULT_MODEL}, is not in {}; fetch it with `poncho pull \
                     {DEFAULT_MODEL}`, or give the path of a GGUF file with --model",
                    folder.display()
                );
            };
            found.push(default);
        }
        let mut library = RegistryLibrary::new(registry, Box::new(settings));
        let mut named = Vec::new();
        for model in found {
            match (model, asked.name) {
                (Named::Installed(_), Some(name)) => {
                    bail!(
                        "--name {name} is for a model that is given by its path; use --alias {name}=MODEL for this one"
                    )
                }
                (Named::Installed(name), None) => named.push(name),
                (Named::File(_), Some(name)) if asked.models.len() > 1 => {
                    bail!("--name {name} does not say which of {} models it means; use --alias", asked.models.len())
                }
                (Named::File(path), name) => {
                    let name = name.map_or_else(|| file_stem(&path), |name| Ok(name.to_owned()))?;
                    if named.contains(&name) {
                        bail!("two models are called {name}; rename a file, or pull it under a name of its own");
                    }
                    library = library.with_file(LibraryModel::new(model_config(&path, &name, shape)));
                    named.push(name);
                }
            }
        }
        Ok(Self { library, named })
    }

    /// A model that was named.
    pub(crate) fn get(&self, name: &str) -> anyhow::Result<LibraryModel> {
        self.library.find(name)?.with_context(|| format!("{name} is gone; start again"))
    }
}

/// A model of the command line.
enum Named {
    File(PathBuf),
    Installed(String),
}

impl Named {
    fn read(registry: &Registry, text: &str) -> anyhow::Result<Self> {
        // A file that is there is meant, whatever its name looks like.
        let path = match Reference::parse(text) {
            _ if Path::new(text).is_file() => Some(PathBuf::from(text)),
            Ok(Reference::Path(path)) => Some(path),
            _ => None,
        };
        if let Some(path) = path {
            model_file::check(&path)?;
            return Ok(Self::File(path));
        }
        match registry.resolve(text)? {
            Resolved::Installed(installed) => Ok(Self::Installed(installed.name.short())),
            Resolved::File { path, .. } => Ok(Self::File(path)),
        }
    }
}

/// The file's name without its ending, which is what clients call the model.
fn file_stem(path: &Path) -> anyhow::Result<String> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    Ok(stem.context("the model's file name is not text; give it a name with --name")?.to_owned())
}

/// Reads `NAME=MODEL`.
pub(crate) fn parse_alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((alias, model)) if !alias.is_empty() && !model.is_empty() => Ok((alias.to_owned(), model.to_owned())),
        _ => Err(format!(
            "`{text}` is no alias; write NAME=MODEL, such as gpt-4o=smollm2:135m or 'claude-*=smollm2:135m'"
        )),
    }
}

/// Reads how long models stay.
pub(crate) fn parse_keep_alive(text: &str) -> Result<KeepAlive, String> {
    KeepAlive::parse(text)
}

/// The aliases as the server wants them.
pub(crate) fn aliases(args: &ServeArgs) -> anyhow::Result<BTreeMap<String, String>> {
    let mut aliases = BTreeMap::new();
    for (alias, model) in &args.alias {
        if let Some(other) = aliases.insert(alias.clone(), model.clone()) {
            bail!("--alias {alias} stands for {other} and for {model}; give it once");
        }
    }
    Ok(aliases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_have_two_sides() {
        assert_eq!(parse_alias("claude-*=a:b").unwrap(), ("claude-*".to_owned(), "a:b".to_owned()));
        assert_eq!(parse_alias("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        for wrong in ["", "a", "=b", "a=", "="] {
            assert!(parse_alias(wrong).unwrap_err().contains("NAME=MODEL"), "{wrong}");
        }
    }
}
