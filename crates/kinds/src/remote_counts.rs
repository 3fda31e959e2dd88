//! What a tier of other machines has done, as numbers: the cache counts, reports and metrics show them.
//!
//! Part of the cache's status of a remote tier and of the api's report of it. Nothing here decides anything.

use serde::{Deserialize, Serialize};

/// What a tier of other machines has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RemoteCounts {
    /// Lookups that found a row.
    pub found: u64,
    /// Lookups that found none.
    pub missed: u64,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// Calls that failed or came too late.
    pub failures: u64,
    /// Rows uploaded.
    pub uploaded_rows: u64,
    /// Bytes uploaded.
    pub uploaded_bytes: u64,
    /// Rows that were not uploaded: known already, no room in the queue, failed.
    pub dropped_offers: u64,
    /// Rows that wait for their upload.
    pub queued_offers: u64,
}

impl RemoteCounts {
    /// The counts of two tiers together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            found: self.found.saturating_add(other.found),
            missed: self.missed.saturating_add(other.missed),
            fetched_bytes: self.fetched_bytes.saturating_add(other.fetched_bytes),
            failures: self.failures.saturating_add(other.failures),
            uploaded_rows: self.uploaded_rows.saturating_add(other.uploaded_rows),
            uploaded_bytes: self.uploaded_bytes.saturating_add(other.uploaded_bytes),
            dropped_offers: self.dropped_offers.saturating_add(other.dropped_offers),
            queued_offers: self.queued_offers.saturating_add(other.queued_offers),
        }
    }
}
