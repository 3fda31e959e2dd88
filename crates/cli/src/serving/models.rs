//! Which models are served: those of the command line, by path or by name, and everything in the models folder.
//!
//! Used by `serve`, and by commands that serve a model of their own. Text of the command line may be a path. Text of
//! clients never is, and does not reach this file.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use poncho_engine::ModelConfig;
use poncho_models::{DEFAULT_MODEL, Reference, Registry, Resolved};
use poncho_server::{LibraryModel, LoadingParameters, ModelLibrary, RegistryLibrary};

use crate::serving::model_file;
use crate::settings::models_folder::models_folder;

/// How a model is loaded, by its file, its name and its Modelfile.
pub(crate) type Configs = Arc<dyn Fn(&Path, &str, LoadingParameters) -> ModelConfig + Send + Sync>;

/// The models of a command line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// Names and paths; empty means the default model, or the newest one if that is not installed.
    pub(crate) models: &'a [String],
    /// The name for clients of a model that is given by its path.
    pub(crate) name: Option<&'a str>,
    pub(crate) models_dir: Option<&'a Path>,
    /// What these models get beside their settings.
    pub(crate) extras: Extras<'a>,
}

/// Adapters and a template for the models of a command line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extras<'a> {
    /// LoRA adapters.
    pub(crate) lora: &'a [PathBuf],
    /// The chat template that stands for the model's own.
    pub(crate) template: Option<&'a str>,
}

impl Extras<'_> {
    fn is_empty(&self) -> bool {
        self.lora.is_empty() && self.template.is_none()
    }

    fn add_to(&self, model: &mut LibraryModel) {
        model.adapters.extend(self.lora.iter().cloned());
        if let Some(template) = self.template {
            model.defaults.template = Some(template.to_owned());
        }
    }
}

/// The models to load at startup, and the library of all others.
pub(crate) struct ServedModels {
    pub(crate) library: RegistryLibrary,
    /// Full names in the order of the command line; at least one.
    pub(crate) named: Vec<String>,
    /// Why a model is served that nobody named.
    pub(crate) note: Option<String>,
    /// The names of models that the library does not take from the registry.
    apart: Vec<String>,
    configs: Configs,
}

impl ServedModels {
    /// Finds the models of the command line without loading them.
    pub(crate) fn find(asked: Asked<'_>, configs: &Configs) -> anyhow::Result<Self> {
        let folder = models_folder(asked.models_dir)?;
        let registry = Registry::open(&folder).with_context(|| {
            format!("cannot use the models folder {}; name another one with --models-dir", folder.display())
        })?;
        let of_installed = Configs::clone(configs);
        let settings = move |name: &str, path: &Path, loading: LoadingParameters| of_installed(path, name, loading);
        let (mut found, mut note) = (Vec::new(), None);
        for text in asked.models {
            found.push(Named::read(&registry, text)?);
        }
        if found.is_empty() {
            found.push(match Named::read(&registry, DEFAULT_MODEL) {
                Ok(default) => default,
                Err(_) => {
                    let (newest, why) = newest(&registry)?;
                    note = Some(why);
                    newest
                }
            });
        }
        let mut library = RegistryLibrary::planned(registry, Box::new(settings));
        let (mut named, mut apart) = (Vec::new(), Vec::new());
        for model in found {
            match (model, asked.name) {
                (Named::Installed(_), Some(name)) => {
                    bail!(
                        "--name {name} only applies to a model that is given by its path; use --alias {name}=MODEL instead"
                    )
                }
                (Named::Installed(name), None) => named.push(name),
                (Named::File(_), Some(name)) if asked.models.len() > 1 => {
                    bail!("--name {name} is ambiguous for {} models; use --alias", asked.models.len())
                }
                (Named::File(path), name) => {
                    let name = name.map_or_else(|| file_stem(&path), |name| Ok(name.to_owned()))?;
                    if named.contains(&name) {
                        bail!(
                            "two models have the name {name}; rename a file, or install it under another name with `poncho pull`"
                        );
                    }
                    let config = configs(&path, &name, LoadingParameters::default());
                    library = library.with_file(LibraryModel::new(config));
                    apart.push(name.clone());
                    named.push(name);
                }
            }
        }
        if !asked.extras.is_empty() {
            for name in &named {
                if let Some(mut model) = library.find(name)? {
                    asked.extras.add_to(&mut model);
                    library.replace_file(model);
                }
            }
            apart.clone_from(&named);
        }
        Ok(Self { library, named, note, apart, configs: Configs::clone(configs) })
    }

    /// Asks for the configuration of a model again, because its plan has changed.
    pub(crate) fn configure_again(&mut self, name: &str) -> anyhow::Result<()> {
        // The library asks for the settings of an installed one itself.
        if self.apart.iter().any(|apart| apart == name) {
            let model = self.get(name)?;
            let loading = LoadingParameters::of(&model.defaults.parameters);
            let config = (self.configs)(&model.config.model.path, name, loading);
            let config = ModelConfig { fingerprint: model.config.fingerprint.clone(), ..config };
            self.library.replace_file(LibraryModel { config, ..model });
        }
        Ok(())
    }

    /// The file of a model, and what its Modelfile says about loading it.
    pub(crate) fn file(&self, name: &str) -> anyhow::Result<(PathBuf, LoadingParameters)> {
        let model = self.get(name)?;
        let loading = LoadingParameters::of(&model.defaults.parameters);
        Ok((model.config.model.path, loading))
    }

    /// A model by its name.
    pub(crate) fn get(&self, name: &str) -> anyhow::Result<LibraryModel> {
        self.library.find(name)?.with_context(|| format!("{name} was removed meanwhile; try again"))
    }
}

/// A model of the command line.
enum Named {
    File(PathBuf),
    Installed(String),
}

impl Named {
    fn read(registry: &Registry, text: &str) -> anyhow::Result<Self> {
        // An existing file wins, even if its name looks like that of a model.
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

/// The model to serve if the default one is not installed: the one that was added last. Also says so.
fn newest(registry: &Registry) -> anyhow::Result<(Named, String)> {
    let mut installed = registry.list()?;
    installed.sort_by_key(|model| Reverse(model.manifest.created));
    let mut names = installed.iter().map(|model| model.name.short());
    let Some(name) = names.next() else {
        bail!(
            "no model is given and none is installed in {}; install the default model with `poncho pull \
             {DEFAULT_MODEL}`, or give the path of a GGUF file with --model",
            registry.folder().display()
        );
    };
    let others: Vec<String> = names.collect();
    let mut why = format!("the default model {DEFAULT_MODEL} is not installed; using {name}");
    if !others.is_empty() {
        why.push_str(&format!(" (also installed: {}; choose one with --model)", others.join(", ")));
    }
    Ok((Named::Installed(name), why))
}

/// The file name without its ending, which is the name of the model for clients.
fn file_stem(path: &Path) -> anyhow::Result<String> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    Ok(stem.context("the file name of the model is not UTF-8; set a name with --name")?.to_owned())
}

/// The aliases as the server expects them.
pub(crate) fn aliases(given: &[(String, String)]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut aliases = BTreeMap::new();
    for (alias, model) in given {
        if let Some(other) = aliases.insert(alias.clone(), model.clone()) {
            bail!("--alias {alias} is given for {other} and for {model}; remove one of them");
        }
    }
    Ok(aliases)
}
