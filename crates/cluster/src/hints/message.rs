//! The messages of the hint protocol, and their bytes (MessagePack).
//!
//! Sealed by the sender before they leave the process. Fields are named on the wire, so that a newer sender may add some.

use poncho_kinds::Key;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::index::Row;
use crate::member::{Load, Rates, State};

/// One life of a node's process. A later one is greater; announcements of an earlier one mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// Milliseconds since 1970 when it began.
    pub started_ms: u64,
    /// Distinguishes two that began in the same millisecond.
    pub random: u64,
}

/// A model of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelBeat {
    /// The name that requests use.
    pub name: String,
    /// What its rows are interchangeable with: model, context and adapters, without a tenant.
    pub namespace: [u8; 32],
    /// Whether its states may be cut at any token; else saved boundaries count.
    pub can_cut: bool,
    /// How fast the node runs it.
    pub rates: Rates,
    /// What it is doing.
    pub load: Load,
}

/// A node says that it lives, how it is, and how far its announcements go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Its name.
    pub node: String,
    /// Where requests reach it.
    pub address: String,
    /// Where questions about its rows reach it.
    pub hints: String,
    /// Where other nodes pull its rows, if it serves them.
    #[serde(default)]
    pub rows: Option<String>,
    /// Its life.
    pub incarnation: Incarnation,
    /// Counts its beats. One that is not greater than the last one is a repetition.
    pub beat: u64,
    /// The number of its last change.
    pub head: u64,
    /// Whether it takes requests.
    pub state: State,
    /// Its models.
    pub models: Vec<ModelBeat>,
}

impl Beat {
    /// Names it among all beats of all lives of its node.
    #[must_use]
    pub fn number(&self) -> (Incarnation, u64) {
        (self.incarnation, self.beat)
    }
}

/// What happened to a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// It was stored, or it moved to another tier.
    Stored(Row),
    /// It is gone.
    Removed(Key),
}

/// Changes in their order; the first one has the number `first`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    /// The node.
    pub node: String,
    /// Its life.
    pub incarnation: Incarnation,
    /// The number of the first change.
    pub first: u64,
    /// The changes, numbered without a gap.
    pub changes: Vec<Change>,
}

/// A router asks a node for what it missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The life that the router knows; `None` if it knows nothing.
    pub incarnation: Option<Incarnation>,
    /// The last change that it has.
    pub since: u64,
    /// The `base` of the answer with which it started over.
    pub base: u64,
    /// Returned in the answer, so that an old answer is not taken for a new one.
    pub nonce: u64,
}

/// An operator asks a node to take no more requests. It names the life that it means, so that a recorded one has no effect
/// on a later life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The node.
    pub node: String,
    /// Its life.
    pub incarnation: Incarnation,
    /// Returned in the answer.
    pub nonce: u64,
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The node as it is now.
    pub beat: Beat,
    /// The question's nonce.
    pub nonce: u64,
    /// Whether the router forgets what it knows of the node first.
    pub resets: bool,
    /// The node's last change when the router started over: rows that were removed before are in no page of it.
    pub base: u64,
    /// The rows that changed, as they are now.
    pub changes: Vec<Change>,
    /// The change up to which this is complete.
    pub upto: u64,
}

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
#[error("a message of the cluster cannot be read ({0}); update all nodes to the same version")]
pub struct WireError(String);

/// The bytes of a message.
///
/// # Errors
///
/// Never for the messages of this module.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    rmp_serde::to_vec_named(message).map_err(|error| WireError(error.to_string()))
}

/// A message from its bytes.
///
/// # Errors
///
/// They are something else.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    rmp_serde::from_slice(bytes).map_err(|error| WireError(error.to_string()))
}
