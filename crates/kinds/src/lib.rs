//! Poncho's vocabulary: the kinds, keys and small values that the cache writes into its files and that logs, metrics
//! and JSON name.
//!
//! The cache and the api both speak of them, and neither depends on the other. Plain data, with one spelling and one
//! serde form for each value. This crate must never do more I/O than looking at a file's times.

mod fair_lru;
mod gates;
mod key;
mod owner;
mod remote_counts;
mod stamp;
mod words;

pub use fair_lru::FairLru;
pub use gates::Gates;
pub use key::{Key, to_hex};
pub use owner::OwnerId;
pub use remote_counts::RemoteCounts;
pub use stamp::FileStamp;
pub use words::{EvictionCause, FingerprintMode, HitKind, HitTier, PartKind, SaveReason, Tier};
