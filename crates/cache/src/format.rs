//! The KVC file: the bytes of a row before its payload, checksums, and file names.
//!
//! A row is stored as one file: a header of 72 bytes, the prompt text, TLV records, the payload. This room turns
//! everything before the payload into a `RowPrefix` and back; the store reads and writes the payload.
//! `docs/format.md` holds the byte table. It does no input or output, never trusts a length before it is
//! checked against the bytes that are there, and never panics on any bytes.

mod canonical;
mod crc;
mod decode;
mod encode;
mod error;
mod file_name;
mod header;
mod layout;
mod parts;
mod prefix;
mod reader;
mod row_meta;
mod tlv;

pub(crate) use canonical::canonical_prefix;
pub use crc::{Crc32c, crc32c, crc32c_combine};
pub use decode::{decode_prefix, prefix_length};
#[cfg(any(test, feature = "testing"))]
pub use encode::encode_v1;
pub use encode::{PrefixDraft, Touch, encode_prefix, encode_touch};
pub use error::{FormatError, FormatField};
pub use file_name::{
    FileNameKind, LOCK_FILE_NAME, bad_path, classify, is_row_folder_name, row_file_name, row_folder, row_path, tmp_path,
};
pub use layout::{
    FLAG_GRID, HEADER_LENGTH, HITS_OFFSET, LAST_USED_OFFSET, MAGIC, MAX_PREFIX, VERSION_CHAINED, VERSION_WHOLE,
};
pub use parts::{FilePart, NewPart};
pub use prefix::RowPrefix;
pub use row_meta::RowMeta;
pub use tlv::RecordTag;
