//! The canonical form of a KVC file: its bytes depend on the namespace, the tokens and the state alone.
//!
//! Used by the export of rows and by the check of fetched ones, which makes the prefix again and compares. It must never
//! contain anything that depends on the machine, the time, the owners, the text or the number of hits.

use super::encode::{PrefixDraft, encode_prefix};
use super::error::FormatError;
use super::parts::NewPart;
use super::row_meta::RowMeta;
use crate::kinds::SaveReason;

/// The bytes before the payload of a canonical file.
pub(crate) fn canonical_prefix(meta: &RowMeta, tokens: &[u32], parts: &[NewPart]) -> Result<Vec<u8>, FormatError> {
    let meta = RowMeta { reason: SaveReason::Unknown, context_size: 0, created: 0, last_used: 0, hits: 0, ..*meta };
    encode_prefix(&PrefixDraft::new(meta, tokens, parts))
}
