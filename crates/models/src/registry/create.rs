//! New models: from a file, from a Modelfile, from files that a client sent.
//!
//! A file is brought in, read, hashed and synced without the folder's lock, which is then held for the two renames: the
//! file gets its name, then the manifest.

use std::path::{Path, PathBuf};

use poncho_gguf::Facts;
use poncho_gguf::file::FileStamp;

use crate::digest::Sha256;
use crate::error::RegistryError;
use crate::modelfile::Modelfile;
use crate::name::ModelName;
use crate::progress::{Progress, ProgressSink};
use crate::reference::Reference;

use super::blobs::{self, Blob, Hashed, hash_file, is_linked, sync_file, tell};
use super::layout::Incoming;
use super::manifest::{Manifest, Source, SourceKind};
use super::{Installed, PathRule, Registry, Resolved, facts_of, usable_model};

/// A whole, checked file that waits for its name.
#[derive(Debug)]
pub(crate) struct Ready {
    data: PathBuf,
    pub(crate) blob: Blob,
    /// The file when it was hashed.
    stamp: Option<FileStamp>,
    facts: Facts,
    /// Removed when this is dropped; `None` for a file outside `incoming/`.
    _incoming: Option<Incoming>,
}

impl Ready {
    /// A fetched and hashed file on the same file system as the registry.
    pub(crate) fn fetched(data: PathBuf, hashed: Hashed) -> Result<Self, RegistryError> {
        let facts = usable_file(&data, &data)?;
        Ok(Self { data, blob: hashed.blob, stamp: Some(hashed.stamp), facts, _incoming: None })
    }

    /// A file that was hashed while it was written into its folder under `incoming/`.
    pub(crate) fn incoming(incoming: Incoming, blob: Blob) -> Result<Self, RegistryError> {
        let data = incoming.data();
        let facts = usable_file(&data, &data)?;
        let stamp = FileStamp::of(&data).ok();
        Ok(Self { data, blob, stamp, facts, _incoming: Some(incoming) })
    }

    /// Gives the file its name. The caller holds the folder's lock.
    fn place(&self, registry: &Registry) -> Result<(), RegistryError> {
        blobs::place(&registry.layout, &self.data, &self.blob, self.stamp.as_ref())
    }
}

/// A part of a new model: a file that has its name already, or one that waits for it.
enum Part {
    Here(Blob),
    Ready(Box<Ready>),
}

impl Part {
    fn blob(&self) -> Blob {
        match self {
            Self::Here(blob) => *blob,
            Self::Ready(ready) => ready.blob,
        }
    }
}

impl Registry {
    /// Installs a GGUF file of this machine. Its blocks are shared where the file system can, else it is copied.
    ///
    /// # Errors
    /// When the file is not a model or the folder cannot be written.
    pub fn import(
        &self,
        path: &Path,
        name: &ModelName,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, RegistryError> {
        self.import_checked(path, name, None, progress)
    }

    /// The same; the file must have that hash, if one is given.
    pub(crate) fn import_checked(
        &self,
        path: &Path,
        name: &ModelName,
        sha256: Option<Sha256>,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, RegistryError> {
        let ready = self.bring(path, progress)?;
        if let Some(expected) = sha256.filter(|expected| *expected != ready.blob.sha256) {
            return Err(RegistryError::WrongHash { expected, got: ready.blob.sha256 });
        }
        let source = Source { kind: SourceKind::File, reference: absolute(path) };
        self.install(name, source, &ready, progress)
    }

    /// Gives a file that is ready its name.
    pub(crate) fn install(
        &self,
        name: &ModelName,
        source: Source,
        ready: &Ready,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, RegistryError> {
        tell(progress, Progress::Installing)?;
        let manifest = Manifest::new(name, source, ready.blob, ready.facts.clone());
        let _writing = self.layout.lock_for_writing()?;
        ready.place(self)?;
        self.replace(manifest)
    }

    /// Makes a model from a Modelfile. Settings that the Modelfile does not give come from the model in FROM.
    ///
    /// # Errors
    /// When FROM or an ADAPTER leads nowhere, or the folder cannot be written.
    pub fn create(
        &self,
        name: &ModelName,
        modelfile: &Modelfile,
        paths: PathRule<'_>,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, RegistryError> {
        let (model, below) = self.find_model(name, &modelfile.from, paths, progress)?;
        let mut adapters: Vec<Part> = below.adapters.iter().map(|blob| Part::Here(*blob)).collect();
        for adapter in &modelfile.adapters {
            let part = self.find_adapter(adapter, paths, progress)?;
            fits(adapter, &part, &below)?;
            adapters.push(part);
        }
        tell(progress, Progress::Installing)?;
        // An empty text takes away the one below.
        let text = |own: &Option<String>, below: Option<String>| own.clone().or(below).filter(|text| !text.is_empty());
        let list = |own: &[String], below: Vec<String>| if own.is_empty() { below } else { own.to_vec() };
        let manifest = Manifest {
            adapters: adapters.iter().map(Part::blob).collect(),
            parameters: below.parameters.overlaid(&modelfile.parameters),
            system: text(&modelfile.system, below.system),
            template: text(&modelfile.template, below.template),
            messages: if modelfile.messages.is_empty() { below.messages } else { modelfile.messages.clone() },
            license: list(&modelfile.license, below.license),
            ..Manifest::new(name, below.source, model.blob(), below.facts)
        };
        self.layout.prepare()?;
        let _writing = self.layout.lock_for_writing()?;
        for part in std::iter::once(&model).chain(&adapters) {
            match part {
                Part::Ready(ready) => ready.place(self)?,
                // The name it was found by may have been removed since.
                Part::Here(blob) if self.layout.blob(&blob.sha256).exists() => {}
                Part::Here(blob) => return Err(RegistryError::NoBlob { digest: blob.sha256 }),
            }
        }
        self.replace(manifest)
    }

    /// The file of FROM, and the manifest that the new one starts from.
    fn find_model(
        &self,
        name: &ModelName,
        from: &str,
        paths: PathRule<'_>,
        progress: ProgressSink<'_>,
    ) -> Result<(Part, Manifest), RegistryError> {
        let file = match (uploaded(from), Reference::parse(from)) {
            (Some(digest), _) => FromFile { ready: self.take_upload(&digest, progress)?, reference: from.to_owned() },
            (None, Ok(Reference::Path(path))) => {
                let path = allowed(&path, from, paths)?;
                FromFile { reference: absolute(&path), ready: self.bring(&path, progress)? }
            }
            // A relative path without `./` in front, as users write it; only if paths are allowed.
            (None, Err(_)) if matches!(paths, PathRule::From(base) if base.join(from).is_file()) => {
                let path = allowed(Path::new(from), from, paths)?;
                FromFile { reference: absolute(&path), ready: self.bring(&path, progress)? }
            }
            (None, Err(error)) => return Err(error.into()),
            (None, Ok(_)) => match self.resolve(from)? {
                Resolved::Installed(installed) => {
                    let reference = installed.name.to_string();
                    let mut manifest = installed.manifest;
                    manifest.source = Source { kind: SourceKind::Model, reference };
                    return Ok((Part::Here(manifest.model), manifest));
                }
                Resolved::File { .. } => return Err(RegistryError::PathRefused { path: from.to_owned() }),
            },
        };
        if file.ready.facts.is_adapter() {
            usable_model(&file.ready.data)?;
        }
        let source = Source { kind: SourceKind::File, reference: file.reference };
        let below = Manifest::new(name, source, file.ready.blob, file.ready.facts.clone());
        Ok((Part::Ready(Box::new(file.ready)), below))
    }

    fn find_adapter(&self, text: &str, paths: PathRule<'_>, progress: ProgressSink<'_>) -> Result<Part, RegistryError> {
        let ready = match uploaded(text) {
            Some(digest) => self.take_upload(&digest, progress)?,
            None => self.bring_any(&allowed(Path::new(text), text, paths)?, progress)?,
        };
        if !ready.facts.is_adapter() {
            return Err(RegistryError::WrongKind {
                path: text.into(),
                is: "a model",
                wanted: "a LoRA adapter",
                advice: "name it with FROM",
            });
        }
        Ok(Part::Ready(Box::new(ready)))
    }

    /// Brings a model's file in, and hashes it there.
    pub(crate) fn bring(&self, path: &Path, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        usable_file(path, path)?;
        self.bring_any(path, progress)
    }

    fn bring_any(&self, path: &Path, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        // Looked at before anything is copied, and again in the copy, which is what counts.
        facts_of(path)?;
        let incoming = self.layout.receive()?;
        blobs::bring(&self.layout, path, &incoming, progress)?;
        let data = incoming.data();
        let Hashed { blob, stamp } = hash_file(&data, progress)?;
        sync_file(&data)?;
        let facts = facts_of(&data)?;
        Ok(Ready { data, blob, stamp: Some(stamp), facts, _incoming: Some(incoming) })
    }

    /// A model's file of this folder, as [`Registry::own_file`] takes it.
    pub(crate) fn own_model(&self, path: &Path, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        usable_file(path, path)?;
        self.own_file(path, progress)
    }

    /// Hashes a file of the registry folder in place: it has no second hard link, so no copy is needed.
    pub(super) fn own_file(&self, path: &Path, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        if is_linked(path) {
            return self.bring_any(path, progress);
        }
        let Hashed { blob, stamp } = hash_file(path, progress)?;
        let facts = facts_of(path)?;
        Ok(Ready { data: path.to_owned(), blob, stamp: Some(stamp), facts, _incoming: None })
    }

    /// Puts a copy in the place of a file that has a second name.
    pub(super) fn detach(&self, path: &Path, blob: &Blob, progress: ProgressSink<'_>) -> Result<(), RegistryError> {
        let ready = self.bring_any(path, progress)?;
        if ready.blob != *blob {
            return Err(RegistryError::SourceChanged { path: path.to_owned() });
        }
        let _writing = self.layout.lock_for_writing()?;
        ready.place(self)
    }
}

struct FromFile {
    ready: Ready,
    reference: String,
}

/// The hash in `@sha256:HEX`.
fn uploaded(text: &str) -> Option<Sha256> {
    text.strip_prefix('@').and_then(Sha256::parse)
}

fn allowed(path: &Path, text: &str, paths: PathRule<'_>) -> Result<PathBuf, RegistryError> {
    match paths {
        PathRule::From(base) => Ok(base.join(path)),
        PathRule::Refused => Err(RegistryError::PathRefused { path: text.to_owned() }),
    }
}

/// The facts of a file that the registry can hold, with `shown` in messages.
pub(super) fn usable_file(path: &Path, shown: &Path) -> Result<Facts, RegistryError> {
    let facts = usable_model(path)?;
    if facts.split_count > 1 {
        return Err(RegistryError::Split { path: shown.to_owned(), count: facts.split_count });
    }
    Ok(facts)
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Checks that an adapter is for the architecture of the model. The engine checks the sizes when it applies the
/// adapter.
fn fits(adapter: &str, part: &Part, below: &Manifest) -> Result<(), RegistryError> {
    let Part::Ready(ready) = part else { return Ok(()) };
    match (&ready.facts.architecture, &below.facts.architecture) {
        (Some(made_for), Some(model)) if made_for != model => Err(RegistryError::OtherArchitecture {
            adapter: adapter.to_owned(),
            made_for: made_for.clone(),
            model: model.clone(),
        }),
        _ => Ok(()),
    }
}
