//! What can be wrong with a KVC file, or with a row that is to become one.
//!
//! Returned by the encoder and the decoder of this module; the store adds the path of the file. Each
//! variant carries the facts that were compared. It must never hold bytes of a prompt: errors are logged.

use std::fmt;

use super::tlv::RecordTag;

/// The piece of a file that an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatField {
    /// The fixed 72 bytes at the start.
    Header,
    /// Everything before the payload.
    Prefix,
    /// The prompt text with its length.
    Text,
    /// The block of TLV records with its length.
    Records,
    /// One TLV record with this tag byte.
    Record(u8),
    /// The tokens of the covered range.
    Tokens,
    /// The save reason byte of the header.
    SaveReason,
    /// The fingerprint mode byte.
    FingerprintMode,
    /// A part of the payload.
    Part,
    /// The kind byte of a part.
    PartKind,
    /// The payload.
    Payload,
}

impl fmt::Display for FormatField {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Header => "header",
            Self::Prefix => "prefix",
            Self::Text => "prompt text",
            Self::Records => "TLV records",
            Self::Record(tag) => return write!(formatter, "record with tag {tag:#04x}"),
            Self::Tokens => "tokens",
            Self::SaveReason => "save reason",
            Self::FingerprintMode => "fingerprint mode",
            Self::Part => "payload part",
            Self::PartKind => "part kind",
            Self::Payload => "payload",
        };
        formatter.write_str(name)
    }
}

/// Why bytes are not a KVC prefix that this code can use, or why a row cannot be written as one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file does not start with `KVC`.
    #[error("not a KVC file: it starts with {got:02x?}; move it out of the cache folder")]
    WrongMagic {
        /// The first three bytes.
        got: [u8; 3],
    },
    /// A version that this code does not know.
    #[error("KVC version {version} is not known here; read it with the release that wrote it, or remove it by hand")]
    UnknownVersion {
        /// The version byte.
        version: u8,
    },
    /// A codec that this code does not know.
    #[error("payload codec {codec} is not known here; read it with the release that wrote it, or remove it by hand")]
    UnsupportedCodec {
        /// The codec byte.
        codec: u8,
    },
    /// Fewer bytes were given than the piece needs.
    #[error("{field} is cut off: {needed} bytes needed, {got} there; remove the file, the row will be computed again")]
    Truncated {
        /// The piece that does not fit.
        field: FormatField,
        /// Bytes needed from the start of the file.
        needed: u64,
        /// Bytes there.
        got: u64,
    },
    /// A length inside the file points past the piece that must hold it.
    #[error("{field} would end at {end}, past the limit {limit}; remove the file, the row will be computed again")]
    Overrun {
        /// The piece that is too long.
        field: FormatField,
        /// Where it would end, from the start of the section that holds it.
        end: u64,
        /// The length of that section.
        limit: u64,
    },
    /// The payload does not end where the file ends.
    #[error("the file should have {expected} bytes and has {got}; remove it, the row will be computed again")]
    FileLength {
        /// Payload offset plus payload length (the largest `u64` when the sum does not fit).
        expected: u64,
        /// The real length.
        got: u64,
    },
    /// Most of the file was never written.
    #[error("of the file's {length} bytes hardly any is stored; remove it, the row will be computed again")]
    Hollow {
        /// Its length.
        length: u64,
    },
    /// The payload would start before the header and the two length fields end.
    #[error("payload offset {offset} is below {least}; remove the file, the row will be computed again")]
    PayloadOffset {
        /// The offset in the header.
        offset: u64,
        /// The least that is possible.
        least: u64,
    },
    /// The bytes before the payload are more than a reader accepts.
    #[error("the prefix has {length} bytes, more than {limit}; save the row as a chain of shorter ones")]
    PrefixTooLong {
        /// Its length.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// The two payload lengths of the header differ.
    #[error("the header says {count} and {length} payload bytes; remove the file, the row will be computed again")]
    PayloadLengths {
        /// The payload byte count at 40..48.
        count: u64,
        /// The payload length at 56..64.
        length: u64,
    },
    /// The four statements about the number of tokens do not agree.
    #[error(
        "header says {header} tokens from {start} on, the count record {declared}, and {ids} ids are there; \
         remove the file, the row will be computed again"
    )]
    TokenCount {
        /// The token count of the header.
        header: u32,
        /// The range start.
        start: u32,
        /// The value of the count record.
        declared: u32,
        /// How many ids there are.
        ids: u64,
    },
    /// A row with a start needs a parent, a row without must have none.
    #[error("range start {start} with parent {parent:?}; name the parent exactly when the start is above 0")]
    Parent {
        /// The range start.
        start: u32,
        /// The parent's key in hexadecimal, if there is one.
        parent: Option<String>,
    },
    /// The bytes before the payload are not those that were written.
    #[error("prefix CRC is {got:#010x}, expected {expected:#010x}; remove the file, the row will be computed again")]
    PrefixCrc {
        /// The CRC in the header.
        expected: u32,
        /// The CRC of the bytes.
        got: u32,
    },
    /// A byte has a value that its version does not define.
    #[error("{field} has the undefined value {got}; remove the file, the row will be computed again")]
    BadField {
        /// The field.
        field: FormatField,
        /// Its value.
        got: u8,
    },
    /// Text that must be UTF-8 is not.
    #[error("{field} is not UTF-8 after {valid} bytes; remove the file, the row will be computed again")]
    NotUtf8 {
        /// The text.
        field: FormatField,
        /// How many bytes are right.
        valid: usize,
    },
    /// A record has the wrong length for its tag.
    #[error("tag {tag} has {got} bytes, expected {expected}; remove the file, the row will be computed again")]
    TagLength {
        /// The tag.
        tag: RecordTag,
        /// The length it must have.
        expected: usize,
        /// The length it has.
        got: usize,
    },
    /// A record that is a table does not hold whole entries.
    #[error("tag {tag} has {got} bytes, no multiple of {unit}; remove the file, the row will be computed again")]
    TagUnit {
        /// The tag.
        tag: RecordTag,
        /// Bytes of one entry.
        unit: usize,
        /// The length it has.
        got: usize,
    },
    /// A known tag occurs twice.
    #[error("tag {tag} occurs twice; remove the file, the row will be computed again")]
    DuplicateTag {
        /// The tag.
        tag: RecordTag,
    },
    /// A required tag is absent.
    #[error("tag {tag} is missing; remove the file, the row will be computed again")]
    MissingTag {
        /// The tag.
        tag: RecordTag,
    },
    /// A tag that a later version brought occurs in an older file: most likely the version byte is damaged.
    #[error("tag {tag} does not belong to version {version}; remove the file, the row will be computed again")]
    ForeignTag {
        /// The tag.
        tag: RecordTag,
        /// The version of the file.
        version: u8,
    },
    /// A part begins before the one in front of it ends.
    #[error("part at {offset} begins before {previous_end}; remove the file, the row will be computed again")]
    PartOrder {
        /// The offset of the part in the payload.
        offset: u64,
        /// Where the part in front of it ends.
        previous_end: u64,
    },
    /// A known kind of part occurs twice.
    #[error("part kind {kind} occurs twice; give each kind once")]
    DuplicatePart {
        /// The kind byte.
        kind: u8,
    },
    /// A value to be written does not fit its length field.
    #[error("{field} is too long to be stored; save the row as a chain of shorter ones")]
    TooLong {
        /// What does not fit.
        field: FormatField,
    },
}

impl FormatError {
    /// Whether the file may be a good one of a later release: it must then be reported, and neither moved nor removed.
    #[must_use]
    pub const fn leave_alone(&self) -> bool {
        matches!(self, Self::UnknownVersion { .. } | Self::UnsupportedCodec { .. })
    }
}
