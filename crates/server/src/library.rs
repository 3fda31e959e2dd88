//! Where models come from when they are not loaded: what the server asks of a folder of models.
//!
//! The manager finds a model here when a request names one; the Ollama endpoints list, pull, copy, create and delete.
//! Implemented over the registry on disk, and by tests. Every call may block and runs off the async threads. A name
//! is whatever a client wrote: an implementation must never make a path out of it.

mod loading;

use std::io::Read;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::SystemTime;

use poncho_api::{LoadModel, ModelConfig};
use serde_json::{Map, Value};

pub use loading::LoadingParameters;

/// Models that can be loaded by name.
pub trait ModelLibrary: Send + Sync {
    /// The model of that name; `None` if there is none, also for a text that is not a valid name.
    ///
    /// # Errors
    /// The library cannot be read.
    fn find(&self, name: &str) -> Result<Option<LibraryModel>, LibraryError>;

    /// Every model, by name.
    ///
    /// # Errors
    /// The library cannot be read.
    fn list(&self) -> Result<Vec<LibraryModel>, LibraryError>;

    /// Fetches a model. `step` is notified of the progress and may end it.
    ///
    /// # Errors
    /// There is no such model, it cannot be fetched, or `step` ended it.
    fn pull(&self, name: &str, _step: &mut dyn FnMut(PullStep) -> ControlFlow<()>) -> Result<(), LibraryError> {
        Err(LibraryError::ReadOnly { name: name.to_owned() })
    }

    /// Gives a model a second name.
    ///
    /// # Errors
    /// There is no such model, or the new name cannot be used.
    fn copy(&self, _from: &str, to: &str) -> Result<(), LibraryError> {
        Err(LibraryError::ReadOnly { name: to.to_owned() })
    }

    /// Forgets a name; the files go with the last one.
    ///
    /// # Errors
    /// There is no such model.
    fn remove(&self, name: &str) -> Result<(), LibraryError> {
        Err(LibraryError::ReadOnly { name: name.to_owned() })
    }

    /// Makes a model out of another one.
    ///
    /// # Errors
    /// What it is made from is not there, or something about it cannot be used.
    fn create(&self, name: &str, _recipe: &Recipe) -> Result<(), LibraryError> {
        Err(LibraryError::ReadOnly { name: name.to_owned() })
    }

    /// Whether a file of that hash (`sha256:` and 64 hexadecimal digits) is here, for clients that bring their own files.
    ///
    /// # Errors
    /// The text is not a hash, or the library takes no files.
    fn has_blob(&self, digest: &str) -> Result<bool, LibraryError> {
        Err(LibraryError::ReadOnly { name: digest.to_owned() })
    }

    /// Takes a file that must have that hash, within these limits.
    ///
    /// # Errors
    /// It has another hash, is too large, cannot be read or kept, or the library takes no files.
    fn add_blob(&self, digest: &str, _bytes: &mut dyn Read, _limits: &UploadLimits) -> Result<(), LibraryError> {
        Err(LibraryError::ReadOnly { name: digest.to_owned() })
    }

    /// The file of a LoRA adapter of that hash, which a client sent before.
    ///
    /// # Errors
    /// The text is not a hash, there is no such file, it is not an adapter, or the library takes no files.
    fn adapter_file(&self, digest: &str) -> Result<PathBuf, LibraryError> {
        Err(LibraryError::ReadOnly { name: digest.to_owned() })
    }

    /// Removes files that clients sent and nobody made a model of. Called from time to time while the server runs.
    fn sweep(&self) {}
}

/// What a file that a client sends may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadLimits {
    /// Bytes that the client announced, if it did.
    pub announced: Option<u64>,
    /// The most bytes that it may have.
    pub most_bytes: u64,
    /// Bytes of the disk that must stay free.
    pub reserve: u64,
}

/// A model that can be loaded.
#[derive(Debug, Clone)]
pub struct LibraryModel {
    /// How it is loaded; its id is the model's full name.
    pub config: ModelConfig,
    /// Adapters that are attached when it is loaded.
    pub adapters: Vec<PathBuf>,
    /// The defaults for fields that a request leaves out.
    pub defaults: ModelDefaults,
    /// What is known of it without loading it.
    pub facts: LibraryFacts,
}

impl LibraryModel {
    /// A model without defaults, of which only the settings are known.
    #[must_use]
    pub fn new(config: ModelConfig) -> Self {
        let (defaults, facts) = (ModelDefaults::default(), LibraryFacts::default());
        Self { config, adapters: Vec::new(), defaults, facts }
    }

    /// Its full name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.id
    }

    /// How it is loaded, with the context and the other settings that the defaults ask for.
    #[must_use]
    pub fn load(&self) -> LoadModel {
        let mut config = self.config.clone();
        LoadingParameters::of(&self.defaults.parameters).set(&mut config);
        LoadModel { config, adapters: self.adapters.clone() }
    }
}

/// What a Modelfile says about requests that leave something out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelDefaults {
    /// The system prompt of conversations that have none.
    pub system: Option<String>,
    /// A prompt template instead of the model's own.
    pub template: Option<String>,
    /// Messages before those of the request, as role and content.
    pub messages: Vec<(String, String)>,
    /// Values for options, under Ollama's names.
    pub parameters: Map<String, Value>,
}

/// What is known of a model that is not loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LibraryFacts {
    /// Bytes of its files.
    pub size: u64,
    /// SHA-256 of the model file in hexadecimal digits.
    pub digest: String,
    /// When it was installed or changed.
    pub modified: Option<SystemTime>,
    /// The architecture's name, such as `llama`.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// The name of its quantisation; empty if unknown.
    pub quantisation: String,
    /// The context that it was trained with.
    pub context_length: u64,
    /// Its license, if known.
    pub license: Option<String>,
}

/// What a new model is made of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recipe {
    /// A Modelfile, for clients that send one; the other fields come on top of it.
    pub modelfile: Option<String>,
    /// The model it is made from.
    pub from: Option<String>,
    /// Its own file, by name of file and hash of an uploaded blob.
    pub files: Vec<(String, String)>,
    /// Adapters, by name of file and hash of an uploaded blob.
    pub adapters: Vec<(String, String)>,
    /// Licenses.
    pub license: Vec<String>,
    /// System prompt, template, parameters and messages.
    pub defaults: ModelDefaults,
}

/// What happens while a model is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullStep {
    /// Finding out what to fetch.
    Manifest,
    /// Bytes of a file.
    Bytes {
        /// The file's SHA-256 in hexadecimal digits, or whatever names it.
        digest: String,
        /// All of them, if known.
        total: Option<u64>,
        /// Those that are here.
        completed: u64,
    },
    /// Comparing hashes.
    Verifying,
    /// Making it known under its name.
    Writing,
}

/// Why a library did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// No such model.
    #[error("{message}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// What is wrong, with what to try.
        message: String,
    },
    /// The request cannot be carried out as it is.
    #[error("{message}")]
    Refused {
        /// What is wrong, with what to try.
        message: String,
    },
    /// A file is larger than it may be.
    #[error("{message}")]
    TooLarge {
        /// What is wrong, with what to try.
        message: String,
    },
    /// The disk has no room for it.
    #[error("{message}")]
    NoRoom {
        /// What is missing, with what to try.
        message: String,
    },
    /// It was ended before it was done.
    #[error("the download of {name} was interrupted; send the request again to resume it")]
    Interrupted {
        /// The model.
        name: String,
    },
    /// Something failed that should not.
    #[error("{message}")]
    Failed {
        /// What failed, with what to try.
        message: String,
    },
    /// There is no folder to change.
    #[error("{name} cannot be changed here: this server has no folder of models; start it with --models-dir")]
    ReadOnly {
        /// The model.
        name: String,
    },
}
