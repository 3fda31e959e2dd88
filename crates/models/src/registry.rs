//! The registry folder: creates, finds, copies, checks and removes models by name.
//!
//! Called by the server and by the command line, from several processes at once. Readers take no lock; an operation
//! that changes names or removes files holds the folder's lock. A folder that does not exist is an empty registry, and
//! only a change creates it. The steps of a change are ordered so that a crash leaves at most files without a name.

pub(crate) mod blobs;
mod clean;
mod create;
pub(crate) mod layout;
pub(crate) mod lock;
mod manifest;
mod stamp;
mod store;
mod upload;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use poncho_gguf::file::FileStamp;
use poncho_gguf::{Facts, GgufError, read_facts};

use crate::catalogue::{self, CATALOGUE};
use crate::error::RegistryError;
use crate::name::ModelName;
use crate::progress::ProgressSink;
use crate::reference::Reference;
use crate::suggestions::nearest;

use blobs::{hash_file, is_linked};
use layout::Layout;

pub use blobs::Blob;
pub(crate) use create::Ready;
pub use manifest::{Manifest, Source, SourceKind};
pub use upload::Upload;

/// A registry folder.
#[derive(Debug, Clone)]
pub struct Registry {
    pub(crate) layout: Layout,
}

/// A model that is here.
#[derive(Debug, Clone, PartialEq)]
pub struct Installed {
    /// Its name.
    pub name: ModelName,
    /// Its file.
    pub model: PathBuf,
    /// The files of its adapters, in order.
    pub adapters: Vec<PathBuf>,
    /// Everything else about it.
    pub manifest: Manifest,
}

/// A manifest that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// The name that its file stands for, if it is one of ours.
    pub name: Option<ModelName>,
    /// Its file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// What a text led to.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolved {
    /// A model of the registry.
    Installed(Box<Installed>),
    /// A GGUF file somewhere else.
    File {
        /// Its path.
        path: PathBuf,
        /// What its header says.
        facts: Box<Facts>,
    },
}

impl Resolved {
    /// The model's file.
    #[must_use]
    pub fn model(&self) -> &Path {
        match self {
            Self::Installed(installed) => &installed.model,
            Self::File { path, .. } => path,
        }
    }

    /// The adapters' files.
    #[must_use]
    pub fn adapters(&self) -> &[PathBuf] {
        match self {
            Self::Installed(installed) => &installed.adapters,
            Self::File { .. } => &[],
        }
    }
}

/// What a removal gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    /// Files that no other name needed.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Whether FROM and ADAPTER may name files of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathRule<'a> {
    /// They may; a relative path starts at this folder, which is the Modelfile's.
    From(&'a Path),
    /// They may not: the text came from a client.
    Refused,
}

impl Registry {
    /// Opens a folder and removes what a crash left in it. A folder that is not there is an empty registry.
    ///
    /// # Errors
    /// When the path is not a folder, or cannot be looked at.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, RegistryError> {
        let folder = folder.into();
        // Paths of files leave the registry, and their readers may work in another folder.
        let layout = Layout { root: std::path::absolute(&folder).unwrap_or(folder) };
        match fs::metadata(&layout.root) {
            Ok(metadata) if metadata.is_dir() => clean::clean(&layout),
            Ok(_) => {
                return Err(RegistryError::io("open", &layout.root, io::Error::other("it is a file, not a folder")));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(RegistryError::io("open", &layout.root, source)),
        }
        Ok(Self { layout })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.layout.root
    }

    /// Every model that can be used, by name. Those that cannot are in [`Registry::damaged`].
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Installed>, RegistryError> {
        let read = store::read_all(&self.layout)?;
        Ok(read.good.into_iter().map(|manifest| self.installed(manifest)).collect())
    }

    /// Manifests that cannot be used, and why.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn damaged(&self) -> Result<Vec<Damaged>, RegistryError> {
        Ok(store::read_all(&self.layout)?.bad)
    }

    /// The model of a name.
    ///
    /// # Errors
    /// When there is none (with the nearest names), or its manifest or file cannot be used.
    pub fn get(&self, name: &ModelName) -> Result<Installed, RegistryError> {
        let manifest = store::read(&self.layout, name)?.ok_or_else(|| self.unknown(name))?;
        let installed = self.installed(manifest);
        let sizes = installed.manifest.blobs().map(|blob| blob.bytes);
        for (path, bytes) in std::iter::once(&installed.model).chain(&installed.adapters).zip(sizes) {
            let found = match fs::metadata(path) {
                Ok(metadata) if metadata.len() == bytes => continue,
                Ok(metadata) => format!("it has {} bytes instead of {bytes}", metadata.len()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => "it is missing".to_owned(),
                Err(source) => return Err(RegistryError::io("look at", path, source)),
            };
            return Err(RegistryError::Damaged { path: path.clone(), found });
        }
        Ok(installed)
    }

    /// What a text means that names a model which is here: an installed name, a hub reference that was pulled, or the
    /// path of a GGUF file.
    ///
    /// # Errors
    /// When it leads nowhere; the message says what to do.
    pub fn resolve(&self, text: &str) -> Result<Resolved, RegistryError> {
        let reference = Reference::parse(text)?;
        match &reference {
            Reference::Path(path) => {
                let facts = usable_model(path)?;
                Ok(Resolved::File { path: path.clone(), facts: Box::new(facts) })
            }
            Reference::Name(name) => self.get(name).map(|installed| Resolved::Installed(Box::new(installed))),
            Reference::Hub(_) | Reference::Url(_) => {
                let not_pulled = || RegistryError::NotPulled { reference: reference.to_string() };
                let name = reference.default_name().ok_or_else(not_pulled)?;
                match self.get(&name) {
                    Err(RegistryError::Unknown { .. }) => Err(not_pulled()),
                    found => found.map(|installed| Resolved::Installed(Box::new(installed))),
                }
            }
        }
    }

    /// How a model's file was when it was hashed; `None` if nobody wrote that down.
    #[must_use]
    pub fn stamp(&self, installed: &Installed) -> Option<FileStamp> {
        stamp::read(&self.layout.stamp(&installed.manifest.model.sha256))
    }

    /// Files of models that have a second name, under which they may be changed: releases before this one made one for
    /// a file that was pulled by its path. [`Registry::verify`] gives such a model a file of its own.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn linked(&self) -> Result<Vec<Installed>, RegistryError> {
        let is_shared =
            |model: &Installed| std::iter::once(&model.model).chain(&model.adapters).any(|path| is_linked(path));
        Ok(self.list()?.into_iter().filter(is_shared).collect())
    }

    /// Removes what a crash left and uploads that no model was made of within a day, as [`Registry::open`] does;
    /// nothing that is in use.
    pub fn sweep(&self) {
        clean::clean(&self.layout);
    }

    /// Reads every byte of a model's files and compares their hashes. A file with a second name is copied, so that
    /// nobody can change it under that name any longer.
    ///
    /// # Errors
    /// When a file is missing or damaged.
    pub fn verify(&self, name: &ModelName, progress: ProgressSink<'_>) -> Result<Installed, RegistryError> {
        let installed = self.get(name)?;
        let paths = std::iter::once(&installed.model).chain(&installed.adapters);
        for (path, blob) in paths.zip(installed.manifest.blobs()) {
            let found = hash_file(path, progress)?;
            if found.blob != *blob {
                let found = format!("its SHA-256 is {}", found.blob.sha256);
                return Err(RegistryError::Damaged { path: path.clone(), found });
            }
            if is_linked(path) {
                self.detach(path, blob, progress)?;
            } else if let Ok(_writing) = self.layout.lock_for_writing() {
                // Where nothing can be written, the file is read again when it is loaded.
                let _ = stamp::write(&found.stamp, &self.layout.stamp(&blob.sha256));
            }
        }
        Ok(installed)
    }

    pub(crate) fn installed(&self, manifest: Manifest) -> Installed {
        Installed {
            name: manifest.name.clone(),
            model: self.layout.blob(&manifest.model.sha256),
            adapters: manifest.adapters.iter().map(|blob| self.layout.blob(&blob.sha256)).collect(),
            manifest,
        }
    }

    /// The error about a name that is not here.
    pub(crate) fn unknown(&self, name: &ModelName) -> RegistryError {
        let installed: Vec<String> =
            store::names(&self.layout).unwrap_or_default().iter().map(ToString::to_string).collect();
        let known = installed.iter().map(String::as_str).chain(CATALOGUE.iter().map(|entry| entry.name));
        let in_catalogue = catalogue::find(name).is_some();
        let near = if in_catalogue { Vec::new() } else { nearest(&name.to_string(), known) };
        RegistryError::Unknown { name: name.clone(), near, in_catalogue }
    }
}

/// The facts of a file that can be served as a model.
pub(crate) fn usable_model(path: &Path) -> Result<Facts, RegistryError> {
    let facts = facts_of(path)?;
    if facts.is_adapter() {
        return Err(RegistryError::WrongKind {
            path: path.to_owned(),
            is: "a LoRA adapter",
            wanted: "a model",
            advice: "name it with ADAPTER in a Modelfile",
        });
    }
    Ok(facts)
}

/// The facts of any GGUF file.
pub(crate) fn facts_of(path: &Path) -> Result<Facts, RegistryError> {
    read_facts(path).map_err(|source| match source {
        GgufError::Io(source) => RegistryError::io("open", path, source),
        source => RegistryError::NotAModel { path: path.to_owned(), source },
    })
}
