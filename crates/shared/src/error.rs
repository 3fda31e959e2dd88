//! Errors of opening, probing, listing and collecting a shared tier.
//!
//! Requests never see them: the tier itself answers the engine with `RemoteError`. Messages name the store without its
//! credentials.

use std::path::PathBuf;

/// Why the shared tier cannot do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The address is not one of a store.
    #[error(
        "`{url}` is not the address of a store: {detail}; use file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
    )]
    Address {
        /// The address.
        url: String,
        /// Why not.
        detail: String,
    },
    /// The store's settings are incomplete.
    #[error(
        "cannot set up {location}: {detail}; set the store's usual variables, for example AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT"
    )]
    Setup {
        /// The store.
        location: String,
        /// What the client reported.
        detail: String,
    },
    /// The key file cannot be used.
    #[error(
        "cannot use the key file {path}: {detail}; it holds one line of 64 hexadecimal digits, which `openssl rand -hex 32` makes"
    )]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        detail: String,
    },
    /// A request failed.
    #[error("cannot {action} in {location}: {detail}; check the address, the credentials and the network")]
    Store {
        /// What was tried.
        action: &'static str,
        /// The store.
        location: String,
        /// What the store reported.
        detail: String,
    },
    /// Another process collects.
    #[error("another machine collects garbage in {location}; try again in a few minutes")]
    Leased {
        /// The store.
        location: String,
    },
    /// No runtime could be started.
    #[error("cannot start the threads of the shared tier: {detail}; raise the limit on threads")]
    Threads {
        /// What the system reported.
        detail: String,
    },
}
