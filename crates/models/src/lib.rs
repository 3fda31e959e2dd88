//! The registry of models: a folder of content-addressed files and of manifests that give them names.
//!
//! Called by the server (off its async threads) and by the command line; every call may block. Names are checked before
//! they are used and never become paths by themselves. Nothing here may load a model, run async code or serve HTTP, and
//! a crash at any point must leave the folder readable.

mod agent_models;
mod catalogue;
mod digest;
mod error;
mod modelfile;
mod name;
mod progress;
mod pull;
mod reference;
mod registry;
mod suggestions;

pub use agent_models::{AGENT_MODELS, AgentModel, agent_model_for};
pub use catalogue::{CATALOGUE, CatalogueEntry, DEFAULT_MODEL, KnownFile, PackageFile};
pub use digest::Sha256;
pub use error::RegistryError;
pub use modelfile::{Message, Modelfile, ModelfileError, ModelfileProblem, ParameterError, Parameters, Role};
pub use name::{ModelName, NameError};
pub use poncho_gguf::file::FileStamp;
pub use poncho_gguf::{Facts, GgufError, NotGguf, read_facts};
pub use progress::{Progress, ProgressSink, ignore_progress};
pub use pull::{PullError, PullOptions};
pub use reference::{HubChoice, HubReference, Reference, ReferenceError};
pub use registry::{
    Blob, Damaged, Installed, Manifest, PathRule, Registry, Removed, Resolved, Source, SourceKind, Upload,
};
pub use suggestions::nearest;
