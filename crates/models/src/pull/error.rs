//! The errors of downloads, each with what to try next.
//!
//! Returned to the server and to the command line. Addresses in these messages must be without user, password and
//! query, and no message may hold a token.

use thiserror::Error;

use crate::digest::Sha256;
use crate::error::RegistryError;
use crate::name::ModelName;
use crate::reference::without_secrets;
use crate::suggestions::did_you_mean_or;

/// Why a pull failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PullError {
    /// The catalogue has no such name.
    #[error("the catalogue has no model `{}`{} any GGUF file can be pulled as hf:owner/repo, as hf:owner/repo:Q4_K_M or by its https:// address", .name.short(), did_you_mean_or(.near))]
    NotInCatalogue {
        /// The name.
        name: ModelName,
        /// Names that may have been meant.
        near: Vec<String>,
    },
    /// Nothing to call it.
    #[error("cannot derive a name from `{reference}`; give one with --name")]
    NoName {
        /// The reference.
        reference: String,
    },
    /// The source has no such file.
    #[error("{url} does not exist (HTTP {status}); check the address")]
    NotFound {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },
    /// The source requires authentication.
    #[error("access to {url} is denied (HTTP {status}): {}", if *.with_token { "the token in HF_TOKEN has no access to it; accept the model's terms on its page, or use another token" } else { "it does not exist, or it is private or gated; check the name, or set HF_TOKEN to an access token" })]
    Denied {
        /// The address.
        url: String,
        /// The status.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The source is busy or broken.
    #[error("{url} answered HTTP {status}; try again later")]
    Server {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },
    /// No connection.
    #[error(
        "{url} cannot be reached: {reason}; check the network (HTTPS_PROXY is respected), or fetch the file elsewhere and `poncho pull ./file.gguf`"
    )]
    Unreachable {
        /// The address.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// The connection was lost more often than the options allow.
    #[error("the download of {url} was interrupted after {done} bytes{}: {reason}; run the same command again to resume it", .total.map(|total| format!(" of {total}")).unwrap_or_default())]
    Interrupted {
        /// The address.
        url: String,
        /// Bytes that are here.
        done: u64,
        /// All bytes, where known.
        total: Option<u64>,
        /// What went wrong.
        reason: String,
    },
    /// The server has a file of another size than was announced.
    #[error(
        "{url} has {got} bytes, and {expected} were expected; the file was replaced there, so pull it by its address, or report this"
    )]
    WrongSize {
        /// The address.
        url: String,
        /// As announced.
        expected: u64,
        /// As offered.
        got: u64,
    },
    /// All bytes arrived, and their hash is wrong.
    #[error(
        "{url} arrived with the SHA-256 {got}, and {expected} was expected; the file was discarded, so run the same command again"
    )]
    WrongHash {
        /// The address.
        url: String,
        /// As announced.
        expected: Sha256,
        /// As received.
        got: Sha256,
    },
    /// The fetched file is not a model.
    #[error("{url} is not a model: {reason}")]
    NotAModel {
        /// The address.
        url: String,
        /// What it looks like.
        reason: String,
    },
    /// The repository has no file that fits.
    #[error("{repository} has no file for `{wanted}`; {}", if .there.is_empty() { "it has no GGUF files at all, so look for a repository with a name that ends in -GGUF".to_owned() } else { format!("it has {}", .there.join(", ")) })]
    NoSuchFile {
        /// The repository.
        repository: String,
        /// What was asked for.
        wanted: String,
        /// What it has.
        there: Vec<String>,
    },
    /// The answer of the hub cannot be understood.
    #[error("{url} did not answer like a model hub: {reason}; check HF_ENDPOINT")]
    BadListing {
        /// The address.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// The Python package could not be fetched or opened.
    #[error("the Python package {requirement} could not be used: {reason}")]
    Package {
        /// Name and version.
        requirement: String,
        /// What went wrong.
        reason: String,
    },
    /// Not enough room for the rest.
    #[error(
        "{needed} bytes are needed in {folder}, and {free} are available; free some space, or choose another folder with --models-dir"
    )]
    NoRoom {
        /// Bytes that are still to come.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// Where.
        folder: String,
    },
    /// Every source failed.
    #[error("all sources failed.\n  first: {first}\n  second: {second}")]
    AllSources {
        /// Of the first source.
        first: Box<PullError>,
        /// Of the second.
        second: Box<PullError>,
    },
    /// The caller stopped it.
    #[error("the download was interrupted; run the same command again to resume it")]
    Stopped,
    /// The registry failed.
    #[error(transparent)]
    Registry(RegistryError),
}

impl From<RegistryError> for PullError {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Stopped => Self::Stopped,
            error => Self::Registry(error),
        }
    }
}

impl PullError {
    /// Whether no other source can help.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Stopped
                | Self::NoRoom { .. }
                | Self::Registry(RegistryError::DiskFull { .. } | RegistryError::NoRoom { .. })
        )
    }

    /// An error about a fetched file, with the address in place of the temporary path, which means nothing to the user.
    pub(super) fn from_registry(error: RegistryError, url: &str) -> Self {
        let url = without_secrets(url);
        match error {
            RegistryError::NotAModel { source, .. } => Self::NotAModel { url, reason: source.to_string() },
            RegistryError::WrongKind { is, advice, .. } => {
                Self::NotAModel { url, reason: format!("it is {is}; {advice}") }
            }
            RegistryError::Split { count, .. } => Self::NotAModel {
                url,
                reason: format!(
                    "it is one of {count} files of a split model; join them with `llama-gguf-split --merge`"
                ),
            },
            error => error.into(),
        }
    }
}
