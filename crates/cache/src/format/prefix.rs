//! Everything that a file holds before its payload.
//!
//! Made by the decoder, read by recovery and by the inspection tools. Plain data; it must never be trusted further than
//! the checks of the decoder go.

use super::parts::FilePart;
use super::row_meta::RowMeta;
use crate::identity::owner::OwnerId;
use crate::kinds::PartKind;

/// Everything in a file before its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPrefix {
    /// The description of the row.
    pub meta: RowMeta,
    /// Bits per weight as the header has them, for people: the namespace decides.
    pub quant_bits: u8,
    /// The tokens of the row's own segment, from `meta.start` to `meta.token_count`.
    pub tokens: Vec<u32>,
    /// The owners that sent all tokens of the row, as far as the file names them.
    pub owners: Vec<OwnerId>,
    /// The known parts of the payload, in ascending order.
    pub parts: Vec<FilePart>,
    /// The prompt, for people. Never trusted.
    pub text: String,
    /// The machine that wrote the file.
    pub host: Option<String>,
    /// The release that wrote the file.
    pub writer: Option<String>,
    /// More about the save reason, if the writer gave it.
    pub reason_detail: Option<String>,
    /// Where the payload starts: the length of the prefix.
    pub payload_offset: u64,
    /// The length of the payload.
    pub payload_length: u64,
    /// The CRC-32C of the whole payload.
    pub payload_crc: u32,
}

impl RowPrefix {
    /// The length of the whole file.
    #[must_use]
    pub const fn file_length(&self) -> u64 {
        self.payload_offset.saturating_add(self.payload_length)
    }

    /// The part of that kind, if the row has it.
    #[must_use]
    pub fn part(&self, kind: PartKind) -> Option<&FilePart> {
        self.parts.iter().find(|part| part.kind == kind)
    }
}
