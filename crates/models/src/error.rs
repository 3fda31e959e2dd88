//! The errors of the registry, each with what to try next.
//!
//! Returned to the server and to the command line. Errors of downloads are in `pull/error.rs`; those of names,
//! references, Modelfiles and GGUF headers are beside the types that they belong to.

use std::io;
use std::path::{Path, PathBuf};

use poncho_gguf::GgufError;
use thiserror::Error;

use crate::digest::Sha256;
use crate::name::ModelName;
use crate::reference::ReferenceError;
use crate::suggestions::did_you_mean_or;

/// All errors of the registry.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No model of that name.
    #[error("there is no model `{}` here{} {}", .name.short(), did_you_mean_or(.near), if *.in_catalogue { format!("`poncho pull {}` fetches it", .name.short()) } else { "`poncho list` shows the installed models".to_owned() })]
    Unknown {
        /// What was asked for.
        name: ModelName,
        /// Names that may have been meant, of installed models and of the catalogue.
        near: Vec<String>,
        /// Whether the catalogue has it.
        in_catalogue: bool,
    },
    /// The text is not a name, a path or a reference.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The text means something on the network that is not here.
    #[error("`{reference}` is not here; `poncho pull {reference}` fetches it")]
    NotPulled {
        /// The reference.
        reference: String,
    },
    /// A file that cannot be used as a model.
    #[error("{} cannot be used: {source}", .path.display())]
    NotAModel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: GgufError,
    },
    /// A LoRA adapter in place of a model, or the other way round.
    #[error("{} is {is}, not {wanted}; {advice}", .path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// What it is.
        is: &'static str,
        /// What was asked for.
        wanted: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// An adapter for other weights.
    #[error(
        "the adapter {adapter} is for {made_for} models, and this is a {model} model; apply it to the model that it was trained on"
    )]
    OtherArchitecture {
        /// The adapter, as it was named.
        adapter: String,
        /// The architecture that it changes.
        made_for: String,
        /// The model's.
        model: String,
    },
    /// One file of a model in several files.
    #[error("{} is one of {count} files of a split model, which the registry does not support; serve it by its path, or join the files with `llama-gguf-split --merge`", .path.display())]
    Split {
        /// The file.
        path: PathBuf,
        /// Files of the model.
        count: u64,
    },
    /// A path in a place where none may be read.
    #[error(
        "`{path}` is a path, and only the names of installed models are allowed here; import the file first with `poncho pull {path}`"
    )]
    PathRefused {
        /// The text.
        path: String,
    },
    /// A blob that was named by its hash and is not here.
    #[error("no uploaded file has the hash {digest}; upload it first")]
    NoBlob {
        /// The hash.
        digest: Sha256,
    },
    /// A file with bytes that do not match its hash.
    #[error("{} is damaged: {found}; `poncho rm` and `poncho pull` the model again", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// The manifest cannot be used.
    #[error("the manifest {} cannot be used: {reason}; use a newer release of poncho, or remove the model with `poncho rm` and pull it again", .path.display())]
    BadManifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Bytes that do not have the hash they were announced with.
    #[error("the bytes have the SHA-256 {got}, and {expected} was expected; fetch them again")]
    WrongHash {
        /// As announced.
        expected: Sha256,
        /// As received.
        got: Sha256,
    },
    /// No room.
    #[error("the disk is full: {} could not be written; free some space, or choose another folder with --models-dir", .path.display())]
    DiskFull {
        /// What was written.
        path: PathBuf,
    },
    /// Not enough room, detected before the disk is full.
    #[error(
        "{needed} bytes are needed in {}, and {free} are available; free some space, or choose another folder with --models-dir", .folder.display()
    )]
    NoRoom {
        /// Bytes that are still to come.
        needed: u64,
        /// Bytes that may be used for them.
        free: u64,
        /// Where.
        folder: PathBuf,
    },
    /// A file that a client sends is larger than it may be.
    #[error(
        "the file is larger than the upload limit of {limit} bytes; raise the limit with --max-upload, or import the file with `poncho pull` on the server"
    )]
    TooLarge {
        /// The most that it may have.
        limit: u64,
    },
    /// A file was written to while it was being read.
    #[error("{} changed while it was being read; wait until it is complete and try again", .path.display())]
    SourceChanged {
        /// The file.
        path: PathBuf,
    },
    /// The caller stopped it.
    #[error("the download was interrupted; run the same command again to resume it")]
    Stopped,
    /// A file system operation failed.
    #[error("cannot {action} {}: {source}; check the path, its permissions and the disk", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl RegistryError {
    /// An error of the file system; a full disk becomes [`RegistryError::DiskFull`].
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path: path.to_owned() },
            _ => Self::Io { action, path: path.to_owned(), source },
        }
    }
}
