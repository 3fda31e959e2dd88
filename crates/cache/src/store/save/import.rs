//! From a fetched chain to rows of this cache.
//!
//! Called by I/O threads through `Cache::import`. Nothing of a chain is believed: form, checksums, namespace, names,
//! tokens and order are checked before a row is entered, and then it is a row like any other. Rows of two origins are never
//! mixed: a local row of the same name with other bytes is replaced if nothing uses it, or else the chain is joined into one
//! row that builds on nothing. It must never panic on any bytes.

use std::ops::Range;

use bytes::Bytes;

use super::{SaveOutcome, SaveRequest, Saver};
use crate::format::{FormatError, NewPart, RowMeta, VERSION_CHAINED, canonical_prefix, crc32c, decode_prefix};
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::index::rows::PayloadPart;
use crate::kinds::{PartKind, SaveReason};
use crate::remote::{CanonicalRow, Chain, NO_TENANT};
use crate::store::lookup::{HeldRow, Lookup};

/// Joins the attention parts of consecutive rows into one for a range of tokens. Only the model's library knows the form of
/// these bytes. `None` if they do not fit together.
pub type JoinParts<'a> = &'a dyn Fn(&[&[u8]], Range<u32>) -> Option<Vec<u8>>;

/// Tries for one row: others may save, compact and evict meanwhile.
const TRIES: usize = 4;

/// Why a chain was not imported. The prompt is computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It is not the chain that was asked for.
    #[error("a fetched chain is of another owner, model or prompt than asked for; it is dropped")]
    Other,
    /// A row is not a file of this format.
    #[error("fetched row {key} is not a row: {source}; it is dropped")]
    Format {
        /// The row.
        key: Key,
        /// What is wrong.
        source: FormatError,
    },
    /// A row is not in canonical form, or its description is not the one beside it.
    #[error("fetched row {key} is not in canonical form; it is dropped")]
    NotCanonical {
        /// The row.
        key: Key,
    },
    /// A part does not have its checksum.
    #[error("fetched row {key}: {kind} does not have its checksum; it is dropped")]
    Damaged {
        /// The row.
        key: Key,
        /// Which part.
        kind: PartKind,
    },
    /// A name is not that of the tokens, or a row does not build on the one before it.
    #[error("fetched row {key} does not belong into its chain; it is dropped")]
    BrokenChain {
        /// The row.
        key: Key,
    },
    /// The cache already has a row of that name with other bytes, and it is in use.
    #[error("row {key} is in use with other bytes; the fetched one is dropped")]
    Conflict {
        /// The row.
        key: Key,
    },
    /// The cache has no room for it.
    #[error("row {key} was not kept: {reason}; raise the quota of its tier")]
    NotKept {
        /// The row.
        key: Key,
        /// Why.
        reason: String,
    },
}

impl ImportError {
    /// Whether the bytes are wrong, and would be again.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        !matches!(self, Self::Conflict { .. } | Self::NotKept { .. })
    }
}

/// What is expected of a chain.
#[derive(Debug, Clone, Copy)]
pub struct ImportRequest<'a> {
    /// Who asked for it.
    pub owner: OwnerId,
    /// The namespace of the prompt.
    pub namespace: &'a Namespace,
    /// The tokens that the last row must begin.
    pub prompt: &'a [u32],
}

/// An imported row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// The row.
    pub key: Key,
    /// The row is the state after this many tokens.
    pub tokens: u32,
    /// Rows that the cache did not have.
    pub rows: usize,
}

/// A row that passed all checks.
struct Checked {
    key: Key,
    meta: RowMeta,
    /// All tokens, from the first.
    tokens: Vec<u32>,
    parts: Vec<PayloadPart>,
}

impl Checked {
    fn part(&self, kind: PartKind) -> Option<&Bytes> {
        self.parts.iter().find(|part| part.kind == kind).map(|part| &part.bytes)
    }
}

/// Enters fetched rows. The parts of the store that it needs.
pub(crate) struct Importer<'a> {
    pub(crate) lookup: &'a Lookup,
    pub(crate) saver: &'a Saver,
    /// Drops a row that nothing holds and nothing builds on. Returns whether it left.
    pub(crate) remove: &'a dyn Fn(&Key) -> bool,
}

impl Importer<'_> {
    /// Enters a chain that passes all checks. Returns the last row and all its tokens.
    pub(crate) fn import(
        &self,
        chain: &Chain,
        request: ImportRequest<'_>,
        join: Option<JoinParts<'_>>,
    ) -> Result<Imported, ImportError> {
        let rows = check(chain, &request)?;
        let last = rows.last().ok_or(ImportError::Other)?;
        let entered = if self.lookup.hold(&last.key).is_some() {
            Ok(0)
        } else {
            self.enter(&rows, request.owner).or_else(|error| match (error, join) {
                (ImportError::Conflict { .. }, Some(join)) => self.enter_joined(&rows, request.owner, join),
                (error, _) => Err(error),
            })
        };
        entered.map(|rows| Imported { key: last.key, tokens: last.meta.token_count, rows })
    }

    /// Enters the rows one after the other, each built on the one before. Returns how many were new.
    fn enter(&self, rows: &[Checked], owner: OwnerId) -> Result<usize, ImportError> {
        // Everything below the next row is held, so that nothing under it can change.
        let mut held: Vec<HeldRow> = Vec::with_capacity(rows.len());
        let mut new = 0;
        for row in rows {
            let entered = self.enter_one(row, owner, &mut new)?;
            held.push(entered);
        }
        Ok(new)
    }

    fn enter_one(&self, row: &Checked, owner: OwnerId, new: &mut usize) -> Result<HeldRow, ImportError> {
        let key = row.key;
        for _ in 0..TRIES {
            match self.lookup.hold(&key) {
                Some(held) if is_same(&held, row) => return Ok(held),
                Some(held) => {
                    drop(held);
                    if !(self.remove)(&key) {
                        return Err(ImportError::Conflict { key });
                    }
                }
                None => {
                    self.save_row(row, row.meta.parent, row.parts.clone(), owner)?;
                    *new += 1;
                }
            }
        }
        Err(ImportError::Conflict { key })
    }

    /// Enters the last row with the state of all its tokens.
    fn enter_joined(&self, rows: &[Checked], owner: OwnerId, join: JoinParts<'_>) -> Result<usize, ImportError> {
        let last = rows.last().ok_or(ImportError::Other)?;
        let conflict = ImportError::Conflict { key: last.key };
        let mut end = last.meta.token_count;
        let mut segments: Vec<&[u8]> = Vec::with_capacity(rows.len());
        for row in rows.iter().rev() {
            if end > row.meta.start {
                let Some(attention) = row.part(PartKind::Attention) else { return Err(conflict) };
                segments.push(attention);
                end = row.meta.start;
            }
        }
        segments.reverse();
        let Some(joined) = join(&segments, 0..last.meta.token_count) else { return Err(conflict) };
        let mut parts = vec![PayloadPart { kind: PartKind::Attention, bytes: joined.into() }];
        parts.extend(last.parts.iter().filter(|part| part.kind != PartKind::Attention).cloned());
        self.save_row(last, None, parts, owner).map(|()| 1)
    }

    fn save_row(
        &self,
        row: &Checked,
        parent: Option<Key>,
        parts: Vec<PayloadPart>,
        owner: OwnerId,
    ) -> Result<(), ImportError> {
        let key = row.key;
        let not_kept = |reason: String| ImportError::NotKept { key, reason };
        let base = match parent {
            Some(parent) => {
                let base = self.lookup.base_at(&parent, row.meta.start);
                Some(base.ok_or_else(|| not_kept(format!("row {parent} has left the cache")))?)
            }
            None => None,
        };
        let request = SaveRequest {
            namespace: row.meta.namespace,
            mode: row.meta.mode,
            tokens: &row.tokens,
            base: base.as_ref(),
            parts,
            reason: SaveReason::Unknown,
            flags: row.meta.flags,
            context_size: row.meta.context_size,
            text: String::new(),
            tier: None,
            owner: Some(owner).filter(|owner| *owner != NO_TENANT),
        };
        let saved = self.saver.save(request, false);
        match saved.map_err(|error| not_kept(error.to_string()))?.outcome {
            SaveOutcome::Dropped(reason) => Err(not_kept(format!("{reason:?}"))),
            SaveOutcome::Published | SaveOutcome::Queued | SaveOutcome::AlreadyPresent | SaveOutcome::KeptInRam => {
                Ok(())
            }
        }
    }
}

/// Whether a local row is the fetched one, bit for bit. Logits may be missing: they follow from the state.
fn is_same(held: &HeldRow, row: &Checked) -> bool {
    let meta = held.row.meta();
    let same_place = meta.start == row.meta.start && meta.parent == row.meta.parent && meta.flags == row.meta.flags;
    same_place
        && row.parts.iter().filter(|part| part.kind != PartKind::Logits).all(|part| {
            held.row.length(part.kind) == Some(part.bytes.len() as u64)
                && held.row.load(part.kind, part.bytes.len() as u64).is_ok_and(|bytes| is_equal(&bytes, &part.bytes))
        })
}

fn is_equal(one: &Bytes, two: &Bytes) -> bool {
    (one.as_ptr() == two.as_ptr() && one.len() == two.len()) || one == two
}

/// All checks that need no index: what recovery checks of a folder, and that the chain is the one asked for.
fn check(chain: &Chain, request: &ImportRequest<'_>) -> Result<Vec<Checked>, ImportError> {
    if chain.owner != request.owner || chain.namespace != *request.namespace {
        return Err(ImportError::Other);
    }
    let mut rows: Vec<Checked> = Vec::with_capacity(chain.rows.len());
    for row in &chain.rows {
        let checked = check_row(row, rows.last(), request.namespace)?;
        rows.push(checked);
    }
    let last = rows.last().ok_or(ImportError::Other)?;
    if !request.prompt.starts_with(&last.tokens) {
        return Err(ImportError::Other);
    }
    Ok(rows)
}

fn check_row(row: &CanonicalRow, above: Option<&Checked>, namespace: &Namespace) -> Result<Checked, ImportError> {
    let key = row.key;
    let bad_format = |source| ImportError::Format { key, source };
    let not_canonical = || ImportError::NotCanonical { key };
    let broken = || ImportError::BrokenChain { key };
    let prefix = decode_prefix(&row.bytes, row.bytes.len() as u64).map_err(bad_format)?;
    let meta = prefix.meta;
    if meta.version != VERSION_CHAINED || meta.own_range() != (row.start..row.end) {
        return Err(not_canonical());
    }
    let mut parts = Vec::with_capacity(prefix.parts.len());
    for part in &prefix.parts {
        let start = prefix.payload_offset.checked_add(part.offset).and_then(|start| usize::try_from(start).ok());
        let length = usize::try_from(part.length).ok();
        let range = start.zip(length).and_then(|(start, length)| Some(start..start.checked_add(length)?));
        let range = range.filter(|range| range.end <= row.bytes.len()).ok_or_else(not_canonical)?;
        let bytes = row.bytes.slice(range);
        if crc32c(&bytes) != part.crc {
            return Err(ImportError::Damaged { key, kind: part.kind });
        }
        parts.push(PayloadPart { kind: part.kind, bytes });
    }
    // Made again, the prefix must be the same: this covers the fields that no checksum covers.
    let described: Vec<NewPart> =
        prefix.parts.iter().map(|part| NewPart { kind: part.kind, length: part.length, crc: part.crc }).collect();
    let again = canonical_prefix(&meta, &prefix.tokens, &described).map_err(bad_format)?;
    if row.bytes.get(..again.len()) != Some(again.as_slice()) {
        return Err(not_canonical());
    }
    let above_key = above.map(|above| above.key);
    let reaches = above.is_none_or(|above| meta.start <= above.meta.token_count);
    if meta.namespace != *namespace || meta.parent != above_key || !reaches {
        return Err(broken());
    }
    let mut tokens = match above {
        Some(above) => above.tokens.get(..meta.start as usize).ok_or_else(broken)?.to_vec(),
        None => Vec::new(),
    };
    tokens.extend_from_slice(&prefix.tokens);
    if namespace.key(&tokens) != key {
        return Err(broken());
    }
    Ok(Checked { key, meta, tokens, parts })
}
