//! The stages of publishing a file, and the observer that learns of them.
//!
//! Reported by the publisher; set by tests through `CacheConfig::observer`. An observer must never be needed for a row to
//! be published.

use std::fmt::Debug;

use crate::identity::key::Key;

/// A point in the life of a file that is being published, reported right after it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The key is reserved; nothing is on the disk yet.
    Reserved,
    /// The temporary file is complete and synced.
    TmpWritten,
    /// The reservation was still ours, and stays so.
    Checked,
    /// The final name exists; the temporary name too.
    Linked,
    /// The temporary name is gone.
    TmpRemoved,
    /// The folder is synced.
    FolderSynced,
    /// The row is announced.
    Announced,
}

impl Stage {
    /// All stages in their order.
    pub const ALL: [Self; 7] = [
        Self::Reserved,
        Self::TmpWritten,
        Self::Checked,
        Self::Linked,
        Self::TmpRemoved,
        Self::FolderSynced,
        Self::Announced,
    ];
}

/// Learns of each stage. Tests kill the process or fail there.
pub trait StageObserver: Send + Sync + Debug {
    /// `key` has just reached `stage`.
    fn reached(&self, stage: Stage, key: &Key);
}
