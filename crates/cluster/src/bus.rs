//! Hints over a real network: NATS for announcements and the registry, direct questions over TCP.
//!
//! `station` runs a node's side and `lookout` a router's side, over any [`Bus`]; `nats` is the one that ships. Everything
//! that leaves the process is sealed with the cluster key. With the bus away, nodes that are known are asked directly, and
//! nothing here may hold up a request, except for a prefix that another node is computing (`awaited`).

mod awaited;
mod corrections;
mod frames;
mod lookout;
mod nats;
mod station;

use async_trait::async_trait;

pub use awaited::Awaited;
pub use lookout::{Chosen, Lookout, Prompt};
pub use nats::NatsBus;
pub use station::{Place, Report, Station};

/// What a message on the bus is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// A heartbeat.
    Beat,
    /// Rows that changed.
    Rows,
}

impl Topic {
    /// Its name in subjects and seals.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Beat => "beat",
            Self::Rows => "rows",
        }
    }
}

/// A message that came over the bus, still sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// What it is about.
    pub topic: Topic,
    /// The node that it claims to be from; the seal decides.
    pub node: String,
    /// The sealed bytes.
    pub sealed: Vec<u8>,
}

/// Why something on the network did not work. Everything is tried again.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The bus.
    #[error("the NATS server {server} cannot be used: {reason}; write --cluster nats://HOST:PORT")]
    Bus {
        /// Its address.
        server: String,
        /// What it reports.
        reason: String,
    },
    /// A node's name.
    #[error("`{name}` cannot be the name of a node; use letters, digits, `-` and `_`")]
    Name {
        /// The name.
        name: String,
    },
    /// The socket for questions.
    #[error("cannot listen on {address} for questions of routers: {source}; choose another address")]
    Listen {
        /// The address.
        address: String,
        /// What the system reports.
        source: std::io::Error,
    },
    /// The key.
    #[error(transparent)]
    Key(#[from] crate::seal::KeyError),
    /// The node is unknown.
    #[error("the cluster has no node {node}; `poncho cluster status` lists its nodes")]
    NoNode {
        /// Its name.
        node: String,
    },
    /// A node did not answer.
    #[error("{address} does not answer: {reason}; it is asked again")]
    Ask {
        /// Its address.
        address: String,
        /// What happened.
        reason: String,
    },
}

/// A network for announcements. Messages may get lost, repeated and reordered.
#[async_trait]
pub trait Bus: Send + Sync {
    /// Sends a message to all routers, if that works at the moment.
    async fn publish(&self, topic: Topic, node: &str, sealed: Vec<u8>);

    /// Notes a node in the registry for a few seconds.
    async fn register(&self, node: &str, sealed: Vec<u8>);

    /// The nodes in the registry with their last beats.
    async fn registered(&self) -> Vec<Heard>;

    /// The next message; waits while the bus is away.
    async fn next(&self) -> Heard;
}

/// Whether a name can be part of a subject.
fn check_name(name: &str) -> Result<(), BusError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
        return Err(BusError::Name { name: name.to_owned() });
    }
    Ok(())
}
