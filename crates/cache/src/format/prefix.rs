//! Everything that a file says before its payload.
//!
//! Made by the decoder, read by recovery and by the inspection tools. Plain data; it must never be trusted further than
//! the checks of the decoder go.

use super::error::FormatError;
use super::layout::{FLAG_GRID, VERSION_CHAINED};
use super::parts::Part;
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::kinds::{FingerprintMode, PartKind, SaveReason};

/// Everything in a file before its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPrefix {
    /// The version of the file.
    pub version: u8,
    /// Bits per weight as the header has them, for people: `namespace` decides.
    pub quant_bits: u8,
    /// Why the row was saved.
    pub reason: SaveReason,
    /// All bits as they are in the file, also those that no version defines.
    pub flags: u16,
    /// The row is the state after so many tokens.
    pub token_count: u32,
    /// How often the row was used. Outside every checksum.
    pub hits: u32,
    /// The context size of the model that wrote the row.
    pub context_size: u32,
    /// Creation time, unix seconds.
    pub created: u64,
    /// Time of last use, unix seconds. Outside every checksum.
    pub last_used: u64,
    /// What the state depends on besides the tokens.
    pub namespace: Namespace,
    /// How the fingerprint in `namespace` was made.
    pub fingerprint_mode: FingerprintMode,
    /// The row whose first `start` tokens are the first `start` tokens of this one. There exactly when `start` > 0.
    pub parent: Option<Key>,
    /// The first token that this file covers.
    pub start: u32,
    /// The tokens from `start` to `token_count`.
    pub tokens: Vec<u32>,
    /// The known parts of the payload, in ascending order.
    pub parts: Vec<Part>,
    /// The prompt, for people. Never trusted.
    pub text: String,
    /// The machine that wrote the file.
    pub host: Option<String>,
    /// The release that wrote the file.
    pub writer: Option<String>,
    /// More about the save reason.
    pub reason_detail: Option<String>,
    /// Who has sent all tokens of the row, as far as the file knows.
    pub owners: Vec<OwnerId>,
    /// Where the payload starts: the length of the prefix.
    pub payload_offset: u64,
    /// The length of the payload.
    pub payload_length: u64,
    /// The CRC-32C of the whole payload.
    pub payload_crc: u32,
}

impl RowPrefix {
    /// Whether the state was computed on the cold-exact grid. Version 1 does not say, so it was not.
    #[must_use]
    pub const fn is_grid(&self) -> bool {
        self.version >= VERSION_CHAINED && self.flags & FLAG_GRID != 0
    }

    /// The length of the whole file.
    #[must_use]
    pub const fn file_length(&self) -> u64 {
        self.payload_offset.saturating_add(self.payload_length)
    }

    /// The part of that kind, if the row has it.
    #[must_use]
    pub fn part(&self, kind: PartKind) -> Option<&Part> {
        self.parts.iter().find(|part| part.kind == kind)
    }
}

/// A parent is named exactly when there are tokens that the file leaves to it.
pub(super) fn check_parent(start: u32, parent: Option<Key>) -> Result<(), FormatError> {
    if (start > 0) == parent.is_some() {
        return Ok(());
    }
    Err(FormatError::Parent { start, parent: parent.map(|key| key.to_hex()) })
}
