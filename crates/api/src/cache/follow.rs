//! The rows of a cache as they come and go, for those who keep something in step with it.
//!
//! Sent by the engine, read by the process that announces rows to other machines. Tokens are in plain: nothing of this
//! leaves the machine without being hashed or encrypted.

use poncho_kinds::{Key, Tier};
use serde::{Deserialize, Serialize};

/// Some changes in their order. The first batches of a stream contain all rows that there are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RowBatch {
    /// Whether the reader forgets everything first.
    pub resets: bool,
    /// What changed.
    pub changes: Vec<RowChange>,
}

/// What happened to a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowChange {
    /// It was stored, or it moved to another tier.
    Stored(StoredRow),
    /// It is gone. The reader may not know it.
    Removed(Key),
}

/// A row with all its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRow {
    /// Its name.
    pub key: Key,
    /// The row that it builds on.
    pub parent: Option<Key>,
    /// What its state depends on besides the tokens: model, adapters, context, and the tenant if it is isolated.
    pub namespace: [u8; 32],
    /// The first token that it stores itself.
    pub start: u32,
    /// All tokens, from the first one of the chain.
    pub tokens: Vec<u32>,
    /// Whether a sequence can go on from its end.
    pub resumable: bool,
    /// The fastest tier that holds it.
    pub tier: Tier,
    /// Bytes that it takes in that tier.
    pub bytes: u64,
}
