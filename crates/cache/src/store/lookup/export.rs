//! From a stored row to its chain in canonical form.
//!
//! Called by upload threads through `Cache::export`: it reads files. The same state gives the same bytes on every machine,
//! at any time and after any number of hits. It must never export a row that its owner has not sent: a chain may run through
//! a longer row of somebody else.

use bytes::Bytes;

use super::{HeldRow, Lookup};
use crate::format::{FormatError, NewPart, canonical_prefix, crc32c};
use crate::identity::key::Key;
use crate::identity::owner::OwnerId;
use crate::index::rows::PayloadPart;
use crate::kinds::PartKind;
use crate::remote::{CanonicalRow, Chain, NO_TENANT};
use crate::store::pinned_row::Unusable;

/// Why a row was not exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The row has left the cache.
    #[error("row {key} has left the cache; there is nothing to share")]
    Gone {
        /// The row.
        key: Key,
    },
    /// A row of the chain was not sent by this owner.
    #[error("row {key} builds on tokens that its owner has not sent; it is not shared")]
    NotOwned {
        /// The row of the chain.
        key: Key,
    },
    /// A file of the chain cannot be read.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// The row cannot be written as a file.
    #[error("row {key} cannot be exported: {source}; it is not shared")]
    Format {
        /// The row.
        key: Key,
        /// Why.
        source: FormatError,
    },
    /// There is not enough memory for a copy of the row.
    #[error("row {key} has {bytes} bytes and there is not enough memory to export it; it is not shared")]
    NoMemory {
        /// The row.
        key: Key,
        /// Bytes of the row.
        bytes: u64,
    },
}

impl Lookup {
    /// A row with everything it builds on, in canonical form.
    pub(crate) fn export(&self, key: &Key, owner: OwnerId) -> Result<Chain, ExportError> {
        let held = self.ancestry(key).ok_or(ExportError::Gone { key: *key })?;
        let may_see = |row: &HeldRow| match owner {
            NO_TENANT => row.owners.is_empty(),
            owner => row.owners.contains(&owner),
        };
        if let Some(foreign) = held.iter().find(|row| !may_see(row)) {
            return Err(ExportError::NotOwned { key: foreign.row.key() });
        }
        let namespace = held.last().map(|row| row.row.meta().namespace).ok_or(ExportError::Gone { key: *key })?;
        let rows = held.iter().map(canonical_row).collect::<Result<_, _>>()?;
        Ok(Chain { owner, namespace, rows })
    }
}

fn canonical_row(held: &HeldRow) -> Result<CanonicalRow, ExportError> {
    let (row, key) = (&held.row, held.row.key());
    // In the order of the kinds, whatever order the row was saved in.
    let kinds = PartKind::ALL.into_iter().filter(|kind| *kind != PartKind::Whole && row.length(*kind).is_some());
    let parts: Vec<PayloadPart> = kinds
        .map(|kind| row.load(kind, u64::MAX).map(|bytes| PayloadPart { kind, bytes }))
        .collect::<Result<_, _>>()?;
    let meta = row.meta();
    let described: Vec<NewPart> = parts
        .iter()
        .map(|part| NewPart { kind: part.kind, length: part.bytes.len() as u64, crc: crc32c(&part.bytes) })
        .collect();
    let mut bytes =
        canonical_prefix(meta, &held.tokens, &described).map_err(|source| ExportError::Format { key, source })?;
    let payload: usize = parts.iter().map(|part| part.bytes.len()).sum();
    bytes.try_reserve_exact(payload).map_err(|_| ExportError::NoMemory { key, bytes: payload as u64 })?;
    parts.iter().for_each(|part| bytes.extend_from_slice(&part.bytes));
    Ok(CanonicalRow { key, start: meta.start, end: meta.token_count, bytes: Bytes::from(bytes) })
}
