//! What describes a row, besides its key, its tokens and its payload.
//!
//! One struct for a row that is saved, stored in a file, held by the index or pinned by a plan: each of them embeds it.
//! The key is not part of it, because a file does not hold its own name. Plain data that is copied without an
//! allocation; it must never hold anything on the heap.

use std::ops::Range;

use super::error::FormatError;
use super::layout::{FLAG_GRID, VERSION_CHAINED};
use crate::identity::key::{Key, Namespace};
use crate::kinds::{FingerprintMode, SaveReason};

/// What describes a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMeta {
    /// The version of the file format that the row is stored in.
    pub version: u8,
    /// What the state depends on besides the tokens.
    pub namespace: Namespace,
    /// How the fingerprint in `namespace` was made.
    pub mode: FingerprintMode,
    /// Why the row was saved.
    pub reason: SaveReason,
    /// `FLAG_GRID` or 0; bits that no version defines are kept as they are in a file.
    pub flags: u16,
    /// The context size of the model that made the state.
    pub context_size: u32,
    /// Creation time, unix seconds.
    pub created: u64,
    /// Time of last use, unix seconds. Outside every checksum.
    pub last_used: u64,
    /// How often the row was used. Outside every checksum.
    pub hits: u32,
    /// The row that holds the tokens before `start`. There exactly when `start` > 0.
    pub parent: Option<Key>,
    /// The first token of the row's own segment; the chain above holds the ones before it.
    pub start: u32,
    /// The row is the state after this many tokens.
    pub token_count: u32,
}

impl RowMeta {
    /// A row that holds all its tokens itself: no parent, no flags, no reason given, never used.
    #[must_use]
    pub const fn new(namespace: Namespace, token_count: u32) -> Self {
        Self {
            version: VERSION_CHAINED,
            namespace,
            mode: FingerprintMode::Safe,
            reason: SaveReason::Unknown,
            flags: 0,
            context_size: 0,
            created: 0,
            last_used: 0,
            hits: 0,
            parent: None,
            start: 0,
            token_count,
        }
    }

    /// Whether the state was computed on the cold-exact grid. Version 1 cannot express that, so its rows were not.
    #[must_use]
    pub const fn is_grid(&self) -> bool {
        self.version >= VERSION_CHAINED && self.flags & FLAG_GRID != 0
    }

    /// The tokens of the row's own segment.
    #[must_use]
    pub const fn own_range(&self) -> Range<u32> {
        self.start..self.token_count
    }

    /// A parent is named exactly when there are tokens that the row leaves to it.
    pub(super) fn check_parent(&self) -> Result<(), FormatError> {
        if (self.start > 0) == self.parent.is_some() {
            return Ok(());
        }
        Err(FormatError::Parent { start: self.start, parent: self.parent.map(|key| key.to_hex()) })
    }

    /// The row holds exactly this number of tokens itself, as `declared` states too.
    pub(super) fn check_tokens(&self, declared: u32, ids: usize) -> Result<(), FormatError> {
        if self.token_count.checked_sub(self.start) == Some(declared) && u64::from(declared) == ids as u64 {
            return Ok(());
        }
        Err(FormatError::TokenCount { header: self.token_count, start: self.start, declared, ids: ids as u64 })
    }
}
