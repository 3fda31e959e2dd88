//! The registry on disk as the server's library, with the files that the command line named beside it.
//!
//! Made by the command line. A name from a client is parsed by the registry and never becomes a path; what the registry
//! says about paths of this machine is kept from clients.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use poncho_api::{FingerprintSource, ModelConfig};
use poncho_models::{
    Installed, Message, ModelName, Modelfile, PathRule, Progress, PullError, PullOptions, Reference, Registry,
    RegistryError, Role, Sha256, Upload, ignore_progress,
};

use crate::library::{
    LibraryError, LibraryFacts, LibraryModel, LoadingParameters, ModelDefaults, ModelLibrary, PullStep, Recipe,
    UploadLimits,
};
use crate::models::defaults::{ServedDefaults, is_program};
use crate::models::tags::other_form;

/// How a model of the registry is loaded, by its name and its file.
pub type ModelSettings = Box<dyn Fn(&str, &Path) -> ModelConfig + Send + Sync>;

/// The same, for settings that are chosen beside those of the Modelfile.
pub type PlannedSettings = Box<dyn Fn(&str, &Path, LoadingParameters) -> ModelConfig + Send + Sync>;

/// Checks a Jinja template as the engine would use it; the text says what is wrong.
pub type TemplateCheck = fn(&str) -> Result<(), String>;

/// Checks that a model made from a Modelfile can be served: what could not be is refused when the model is created and
/// not when somebody asks for it.
///
/// # Errors
/// The TEMPLATE or a PARAMETER cannot be used. The message says what to do.
pub fn check_modelfile(modelfile: &Modelfile, jinja: Option<TemplateCheck>) -> Result<(), LibraryError> {
    let refused = |message: String| LibraryError::Refused { message };
    let parameters = modelfile.parameters.to_json();
    let defaults = ModelDefaults { template: modelfile.template.clone(), parameters, ..ModelDefaults::default() };
    ServedDefaults::new(&defaults).map_err(|error| refused(error.to_string()))?;
    let program = modelfile.template.as_deref().filter(|template| is_program(template));
    match (program, jinja) {
        (Some(template), Some(check)) => check(template).map_err(|reason| {
            refused(format!("template: {reason}; correct it, or leave it out for the template in the model's file"))
        }),
        _ => Ok(()),
    }
}

/// See the module.
pub struct RegistryLibrary {
    registry: Registry,
    settings: PlannedSettings,
    /// Models that lie somewhere else, under the names that they were given.
    files: Vec<LibraryModel>,
    pull_options: PullOptions,
    /// Whether clients may bring templates that are programs.
    client_templates: bool,
    template_check: Option<TemplateCheck>,
}

impl RegistryLibrary {
    /// The models of a registry, all loaded with the same settings.
    #[must_use]
    pub fn new(registry: Registry, settings: ModelSettings) -> Self {
        Self::planned(registry, Box::new(move |name, path, _| settings(name, path)))
    }

    /// The models of a registry, each with settings that are chosen for it.
    #[must_use]
    pub fn planned(registry: Registry, settings: PlannedSettings) -> Self {
        let (files, pull_options) = (Vec::new(), PullOptions::from_env());
        Self { registry, settings, files, pull_options, client_templates: false, template_check: None }
    }

    /// Lets clients create models with Jinja templates. Such a template is a program without a step limit; those in
    /// Go's notation have no loops and are always taken.
    #[must_use]
    pub fn with_client_templates(mut self, allowed: bool) -> Self {
        self.client_templates = allowed;
        self
    }

    /// Has the Jinja templates of new models checked.
    #[must_use]
    pub fn with_template_check(mut self, check: TemplateCheck) -> Self {
        self.template_check = Some(check);
        self
    }

    /// Fetches models in another way than the environment says.
    #[must_use]
    pub fn with_pull_options(mut self, options: PullOptions) -> Self {
        self.pull_options = options;
        self
    }

    /// Adds a model that is not in the registry. Its name hides an installed one.
    #[must_use]
    pub fn with_file(mut self, model: LibraryModel) -> Self {
        self.replace_file(model);
        self
    }

    /// Adds such a model, or changes how it is loaded.
    pub fn replace_file(&mut self, model: LibraryModel) {
        self.files.retain(|file| file.name() != model.name());
        self.files.push(model);
    }

    fn model(&self, installed: Installed) -> LibraryModel {
        let stamp = self.registry.stamp(&installed);
        let manifest = installed.manifest;
        let parameters = manifest.parameters.to_json();
        let loading = LoadingParameters::of(&parameters);
        let mut config = (self.settings)(&installed.name.short(), &installed.model, loading);
        // The file's name is its hash, which was compared when it came. It is read again only if it is not as it was then.
        if let Some(sha256) = hash_bytes(&manifest.model.sha256) {
            config.fingerprint = FingerprintSource::Hashed { sha256, stamp };
        }
        let message = |message: &Message| (message.role.word().to_owned(), message.content.clone());
        LibraryModel {
            config,
            adapters: installed.adapters,
            defaults: ModelDefaults {
                system: manifest.system.clone(),
                template: manifest.template.clone(),
                messages: manifest.messages.iter().map(message).collect(),
                parameters,
            },
            facts: LibraryFacts {
                size: manifest.bytes(),
                digest: manifest.model.sha256.to_hex(),
                modified: UNIX_EPOCH.checked_add(Duration::from_secs(manifest.created)),
                architecture: manifest.facts.architecture.clone().unwrap_or_default(),
                parameters: manifest.facts.parameters,
                quantisation: manifest.facts.quantization.clone().unwrap_or_default(),
                context_length: manifest.facts.context_length.unwrap_or(0),
                license: manifest.license.first().cloned().or(manifest.facts.license.clone()),
            },
        }
    }

    /// A template that runs as a program comes from the operator of the server, or is that of an installed model.
    fn check_template(&self, modelfile: &Modelfile) -> Result<(), LibraryError> {
        let Some(template) = modelfile.template.as_deref().filter(|template| is_program(template)) else {
            return Ok(());
        };
        let below = Self::name(&modelfile.from).and_then(|name| self.registry.get(&name).ok());
        let is_known = below.is_some_and(|below| below.manifest.template.as_deref() == Some(template));
        if self.client_templates || is_known {
            return Ok(());
        }
        let message = "template: this server takes Jinja templates from its operator only; write it in Go's notation, \
                       run `poncho create` on the server, or start it with --client-templates";
        Err(LibraryError::Refused { message: message.to_owned() })
    }

    fn file(&self, name: &str) -> Option<&LibraryModel> {
        let named = |name: &str| self.files.iter().find(|file| file.name() == name);
        named(name).or_else(|| other_form(name).and_then(|name| named(&name)))
    }

    /// What a client calls a model, as a name; also for something that was pulled from a hub.
    fn name(text: &str) -> Option<ModelName> {
        match Reference::parse(text).ok()? {
            Reference::Path(_) => None,
            reference => reference.default_name(),
        }
    }

    fn required_name(&self, text: &str) -> Result<ModelName, LibraryError> {
        let refused = |message: String| LibraryError::Refused { message };
        if self.file(text).is_some() {
            let message =
                format!("{text} was named on the command line and is not part of the registry; restart without it");
            return Err(refused(message));
        }
        // The name that `find` looks for: what is installed under another one could not be asked for.
        match Reference::parse(text).map_err(|error| refused(error.to_string()))? {
            Reference::Name(name) => Ok(name),
            hub @ Reference::Hub(_) => {
                hub.default_name().ok_or_else(|| refused(format!("{hub} is too long for a name; choose another")))
            }
            Reference::Path(_) | Reference::Url(_) => {
                ModelName::parse(text).map_err(|error| refused(error.to_string()))
            }
        }
    }

    /// An error as clients may see it.
    fn told(&self, name: &str, error: &RegistryError) -> LibraryError {
        let folder = self.registry.folder().display().to_string();
        let message = error.to_string();
        let message = if folder.is_empty() { message } else { message.replace(&folder, "the models folder") };
        match error {
            RegistryError::Unknown { .. } | RegistryError::NotPulled { .. } => {
                LibraryError::Unknown { name: name.to_owned(), message }
            }
            RegistryError::Reference(_)
            | RegistryError::NotAModel { .. }
            | RegistryError::WrongKind { .. }
            | RegistryError::OtherArchitecture { .. }
            | RegistryError::Split { .. }
            | RegistryError::PathRefused { .. }
            | RegistryError::NoBlob { .. }
            | RegistryError::WrongHash { .. } => LibraryError::Refused { message },
            RegistryError::TooLarge { .. } => LibraryError::TooLarge { message },
            RegistryError::NoRoom { .. } | RegistryError::DiskFull { .. } => LibraryError::NoRoom { message },
            RegistryError::Stopped => LibraryError::Interrupted { name: name.to_owned() },
            _ => LibraryError::Failed { message },
        }
    }
}

impl ModelLibrary for RegistryLibrary {
    fn find(&self, name: &str) -> Result<Option<LibraryModel>, LibraryError> {
        if let Some(file) = self.file(name) {
            return Ok(Some(file.clone()));
        }
        let Some(parsed) = Self::name(name) else { return Ok(None) };
        match self.registry.get(&parsed) {
            Ok(installed) => Ok(Some(self.model(installed))),
            Err(RegistryError::Unknown { .. }) => Ok(None),
            Err(error) => Err(self.told(name, &error)),
        }
    }

    fn list(&self) -> Result<Vec<LibraryModel>, LibraryError> {
        let installed = self.registry.list().map_err(|error| self.told("", &error))?;
        let installed = installed.into_iter().map(|installed| self.model(installed));
        let hidden = |model: &LibraryModel| self.files.iter().any(|file| file.name() == model.name());
        Ok(self.files.iter().cloned().chain(installed.filter(|model| !hidden(model))).collect())
    }

    fn pull(&self, name: &str, step: &mut dyn FnMut(PullStep) -> ControlFlow<()>) -> Result<(), LibraryError> {
        let refused = |message: String| LibraryError::Refused { message };
        if self.file(name).is_some() {
            return Err(refused(format!("{name} was named on the command line and needs no pulling")));
        }
        let reference = Reference::parse(name).map_err(|error| refused(error.to_string()))?;
        if matches!(reference, Reference::Path(_) | Reference::Url(_)) {
            // A client must not choose what the server reads or connects to.
            let message = "over HTTP a model is pulled by its name in the catalogue or as hf:owner/repo; run `poncho pull` \
                           on the server for files and addresses";
            return Err(refused(message.to_owned()));
        }
        let mut tell = |progress: Progress| pull_step(&progress).map_or(ControlFlow::Continue(()), &mut *step);
        let pulled = self.registry.pull(&reference, &self.pull_options, &mut tell);
        pulled.map(|_| ()).map_err(|error| match &error {
            PullError::Registry(error) => self.told(name, error),
            PullError::NotInCatalogue { .. } | PullError::NotFound { .. } | PullError::NoSuchFile { .. } => {
                LibraryError::Unknown { name: name.to_owned(), message: error.to_string() }
            }
            PullError::NoName { .. } | PullError::NotAModel { .. } | PullError::Denied { .. } => {
                refused(error.to_string())
            }
            PullError::NoRoom { .. } => LibraryError::NoRoom { message: error.to_string() },
            PullError::Stopped => LibraryError::Interrupted { name: name.to_owned() },
            _ => LibraryError::Failed { message: error.to_string() },
        })
    }

    fn copy(&self, from: &str, to: &str) -> Result<(), LibraryError> {
        let (source, target) = (self.required_name(from)?, self.required_name(to)?);
        self.registry.copy(&source, &target).map(|_| ()).map_err(|error| self.told(from, &error))
    }

    fn remove(&self, name: &str) -> Result<(), LibraryError> {
        let parsed = self.required_name(name)?;
        self.registry.remove(&parsed).map(|_| ()).map_err(|error| self.told(name, &error))
    }

    fn create(&self, name: &str, recipe: &Recipe) -> Result<(), LibraryError> {
        let parsed = self.required_name(name)?;
        let modelfile = modelfile(recipe)?;
        self.check_template(&modelfile)?;
        check_modelfile(&modelfile, self.template_check)?;
        let created = self.registry.create(&parsed, &modelfile, PathRule::Refused, &mut ignore_progress);
        created.map(|_| ()).map_err(|error| match &error {
            RegistryError::Unknown { .. } => self.told(&modelfile.from, &error),
            _ => self.told(name, &error),
        })
    }

    fn has_blob(&self, digest: &str) -> Result<bool, LibraryError> {
        Ok(self.registry.has_blob(&hash(digest)?))
    }

    fn add_blob(&self, digest: &str, bytes: &mut dyn Read, limits: &UploadLimits) -> Result<(), LibraryError> {
        let hash = hash(digest)?;
        let UploadLimits { announced, most_bytes, reserve } = *limits;
        let upload = Upload { announced, most_bytes, reserve };
        self.registry.add_blob(&hash, bytes, &upload).map(|_| ()).map_err(|error| self.told(digest, &error))
    }

    fn adapter_file(&self, digest: &str) -> Result<PathBuf, LibraryError> {
        self.registry.adapter_file(&hash(digest)?).map_err(|error| self.told(digest, &error))
    }

    fn sweep(&self) {
        self.registry.sweep();
    }
}

/// What clients hear of; a step that has no words of its own is the search for the files.
fn pull_step(progress: &Progress) -> Option<PullStep> {
    Some(match progress {
        Progress::Resolving | Progress::Waiting | Progress::Fetching { .. } => PullStep::Manifest,
        Progress::Downloading { digest, done, total } => {
            let digest = digest.map(|digest| format!("sha256:{digest}")).unwrap_or_default();
            PullStep::Bytes { digest, total: *total, completed: *done }
        }
        Progress::Copying { done, total } => {
            PullStep::Bytes { digest: String::new(), total: Some(*total), completed: *done }
        }
        Progress::Verifying { .. } => PullStep::Verifying,
        Progress::Installing => PullStep::Writing,
        _ => return None,
    })
}

fn hash(digest: &str) -> Result<Sha256, LibraryError> {
    Sha256::parse(digest).ok_or_else(|| LibraryError::Refused {
        message: "a file is named by sha256: and 64 hexadecimal digits; send its hash".to_owned(),
    })
}

fn hash_bytes(hash: &Sha256) -> Option<[u8; 32]> {
    let digits = hash.to_hex();
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Both forms of a create request as one Modelfile; fields of the request stand over those of its text.
fn modelfile(recipe: &Recipe) -> Result<Modelfile, LibraryError> {
    let refused = |message: String| LibraryError::Refused { message };
    let mut modelfile = match &recipe.modelfile {
        Some(text) => Modelfile::parse(text).map_err(|error| refused(error.to_string()))?,
        None => Modelfile::default(),
    };
    let uploaded = |(_, digest): &(String, String)| hash(digest).map(|hash| format!("@sha256:{hash}"));
    match (recipe.files.as_slice(), &recipe.from) {
        ([], Some(from)) => modelfile.from.clone_from(from),
        ([], None) if modelfile.from.is_empty() => {
            return Err(refused("from: name a model that is here, or send files".to_owned()));
        }
        ([], None) => {}
        ([file], _) => modelfile.from = uploaded(file)?,
        (files, _) => {
            return Err(refused(format!("files: there are {}, and a model is made of one GGUF file", files.len())));
        }
    }
    for adapter in &recipe.adapters {
        modelfile.adapters.push(uploaded(adapter)?);
    }
    for (name, value) in &recipe.defaults.parameters {
        let set = modelfile.parameters.set_json(name, value);
        set.map_err(|error| refused(format!("parameters.{name}: {error}")))?;
    }
    let defaults = &recipe.defaults;
    modelfile.system = defaults.system.clone().or(modelfile.system);
    modelfile.template = defaults.template.clone().or(modelfile.template);
    if !recipe.license.is_empty() {
        modelfile.license.clone_from(&recipe.license);
    }
    for (at, (role, content)) in defaults.messages.iter().enumerate() {
        let role = Role::parse(role).ok_or_else(|| {
            refused(format!("messages[{at}].role: it is {role:?} and must be system, user or assistant"))
        })?;
        modelfile.messages.push(Message { role, content: content.clone() });
    }
    Ok(modelfile)
}
