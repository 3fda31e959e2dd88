//! The KVC file: the bytes of a row before its payload, checksums, and file names.
//!
//! A row is stored as one file: a header of 72 bytes, the prompt text, TLV records, the payload. This module
//! turns everything before the payload into a `RowPrefix` and back; the store reads and writes the payload.
//! `docs/format.md` holds the byte table. It does no input or output, never trusts a length before it is
//! checked against the bytes that are there, and never panics on any bytes.

mod crc;
mod decode;
mod encode;
mod error;
mod file_name;
mod header;
mod parts;
mod reader;
mod tlv;

pub use crc::{Crc32c, crc32c, crc32c_combine};
pub use decode::{decode_prefix, prefix_length};
#[cfg(any(test, feature = "testing"))]
pub use encode::encode_v1;
pub use encode::{NewRow, Touch, encode_prefix, encode_touch};
pub use error::{Field, FormatError};
pub use file_name::{
    FileNameKind, LOCK_FILE_NAME, bad_path, classify, is_row_folder_name, row_file_name, row_folder, row_path, tmp_path,
};
pub use parts::{NewPart, Part};
pub use tlv::Tag;

use crate::key::{Key, Namespace};
use crate::owner::OwnerId;
use crate::words::{FingerprintMode, PartKind, SaveReason};

/// The first bytes of every file.
pub const MAGIC: [u8; 3] = *b"KVC";

/// The version of files that hold a whole row as one blob. Read, never written.
pub const VERSION_WHOLE: u8 = 1;

/// The version of files that form chains and whose payload has parts. The one that is written.
pub const VERSION_CHAINED: u8 = 2;

/// The length of the fixed header: a reader needs this much to learn how long the prefix is.
pub const HEADER_LENGTH: usize = 72;

/// The most bytes before the payload. A million tokens take 4 MB and a long prompt's text about as much, so this
/// leaves room, and it bounds what a damaged length can make a reader allocate.
pub const MAX_PREFIX: u64 = 64 * 1024 * 1024;

/// Where the hit count is, a little-endian `u32` that is rewritten in place.
pub const HITS_OFFSET: usize = 12;

/// Where the time of last use is, a little-endian `u64` that is rewritten in place.
pub const LAST_USED_OFFSET: usize = 32;

/// Flag of version 2: the state was computed on the cold-exact grid.
pub const FLAG_GRID: u16 = 1;

/// The codec of payloads stored as they are.
const CODEC_RAW: u8 = 0;

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
fn check_parent(start: u32, parent: Option<Key>) -> Result<(), FormatError> {
    if (start > 0) == parent.is_some() {
        return Ok(());
    }
    Err(FormatError::Parent { start, parent: parent.map(|key| key.to_hex()) })
}
