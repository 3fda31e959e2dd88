//! Calls about single rows of the cache, and its evictions over time.
//!
//! Made by the engine, shown by the server's own endpoints. Plain owned data.

use poncho_kinds::{EvictionCause, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The outcome of pinning a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PinOutcome {
    /// It is pinned: it stays while others are evicted.
    Pinned,
    /// The caller has no row with this key.
    NoRow,
    /// Pinned rows would take more than half of a tier.
    TooLarge {
        /// Bytes that they may take there.
        limit: u64,
    },
    /// There are too many pins.
    TooMany {
        /// Pins that there may be.
        limit: usize,
    },
}

/// The check of one copy of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CopyCheck {
    /// The tier that holds it.
    #[schemars(with = "String", extend("enum" = Tier::ALL.map(Tier::as_str)))]
    pub tier: Tier,
    /// Bytes that were compared with their checksums. Memory has none.
    pub checked_bytes: u64,
    /// The problem, if it has one. A damaged copy has left the cache.
    pub problem: Option<String>,
}

/// The tokens of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowTokens {
    /// The model's fingerprint with its adapters folded in.
    pub fingerprint: [u8; 32],
    /// All tokens, from the first.
    pub tokens: Vec<u32>,
}

/// Rows that left a tier within one hour for one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EvictionSum {
    /// The beginning of the hour, unix seconds.
    pub hour: u64,
    /// The tier that they left.
    #[schemars(with = "String", extend("enum" = Tier::ALL.map(Tier::as_str)))]
    pub tier: Tier,
    /// Why they left.
    #[schemars(with = "String", extend("enum" = EvictionCause::ALL.map(EvictionCause::as_str)))]
    pub cause: EvictionCause,
    /// How many rows.
    pub rows: u64,
    /// Their bytes in that tier.
    pub bytes: u64,
}
