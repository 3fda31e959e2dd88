//! Pulls between nodes: a node serves the rows of its cache over HTTP, and another one fetches them.
//!
//! | File | What it holds |
//! | --- | --- |
//! | `protocol` | the requests of a pull, and how they are signed |
//! | `server`, `exports` | the side that has the rows: answers, and what it keeps for pulls under way |
//! | `client`, `tier`, `edges` | the side that wants them: requests, the tier of the engine, what is known of each node |
//!
//! The bytes of a row travel as those of the shared tier do: a manifest, then segments by range, read and checked by the
//! same code. All requests are signed with a secret of the cluster. Off loopback both ends show certificates.

pub(crate) mod client;
mod edges;
mod exports;
mod protocol;
pub(crate) mod server;
pub(crate) mod tier;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use poncho_cache::Key;

/// The secret with which requests are signed. All nodes of a cluster derive the same one from their key.
#[derive(Clone, Copy)]
pub struct PullSecret([u8; 32]);

impl PullSecret {
    /// A secret from its bytes.
    #[must_use]
    pub const fn from_bytes(secret: [u8; 32]) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PullSecret")
    }
}

/// A node that may have a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Where it serves its rows, as `HOST:PORT`.
    pub address: String,
    /// The row.
    pub key: Key,
}

/// Who has which row, as far as is known here. A wrong answer costs a request.
pub trait Whereabouts: Send + Sync + fmt::Debug {
    /// The nodes that have one of these rows, for each node the first of its rows in this order. Must not wait.
    fn holders(&self, keys: &[Key]) -> Vec<Holder>;

    /// Whether there are other nodes at all.
    fn has_peers(&self) -> bool;
}

/// The certificates of one end, as TLS uses them.
#[derive(Debug, Clone)]
pub struct PullTls {
    /// For requests to other nodes: shows a certificate and demands one of the same authority.
    pub client: Arc<rustls::ClientConfig>,
    /// For requests of other nodes: the same.
    pub server: Arc<rustls::ServerConfig>,
}

/// What pulls may take.
#[derive(Debug, Clone, Copy)]
pub struct PullLimits {
    /// Connections that are served at once; further ones are closed.
    pub connections: usize,
    /// Bytes of rows that are kept in memory for pulls under way.
    pub memory: u64,
    /// How long they are kept after their last use.
    pub keep: Duration,
    /// Longest time of a connection that serves rows.
    pub connection: Duration,
    /// Bytes of a range.
    pub part: usize,
    /// Ranges that are pulled at once.
    pub parallel_parts: usize,
    /// First pause after a node failed; each further failure doubles it.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self {
            connections: 64,
            memory: 1 << 30,
            keep: Duration::from_secs(30),
            connection: Duration::from_secs(300),
            part: 8 << 20,
            parallel_parts: 4,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
        }
    }
}

/// Why pulls cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// Other machines can reach the address, and there are no certificates.
    #[error(
        "other machines can reach {address}, and stored states are served there with certificates only; set --node-cert, --node-key and --node-ca, or use an address of this machine"
    )]
    NeedsTls {
        /// Where it would listen.
        address: std::net::SocketAddr,
    },
    /// The address cannot be used.
    #[error("cannot serve stored states to other nodes: {0}; choose another address with --pull-listen")]
    Listen(#[from] std::io::Error),
    /// The client cannot be made.
    #[error("cannot set up requests to other nodes: {detail}; check the certificates")]
    Client {
        /// What the library reports.
        detail: String,
    },
    /// No threads.
    #[error(transparent)]
    Threads(#[from] crate::error::SharedError),
}
