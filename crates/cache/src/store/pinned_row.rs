//! A stored row that a plan holds, and reading its parts.
//!
//! Handed out by lookups, read by the engine. Reading takes no lock of the index. A part that cannot be read is reported
//! as unusable and its row leaves the cache; the engine looks up again and goes on colder. It must never return bytes
//! that do not have their checksum.

pub(crate) mod check;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::removal::{Descendants, Remover};
use crate::format::{Crc32c, FilePart, RowMeta};
use crate::identity::key::Key;
use crate::index::Link;
use crate::index::rows::{FileSpot, Payload, Row, RowId};
use crate::io::clock::Clock;
use crate::io::files::NotRegular;
use crate::kinds::{PartKind, Tier};

/// Bytes that are read and checked at a time: small enough to be checked while they are in the processor's cache.
const READ_STEP: usize = 256 << 10;

/// Reads the files of rows, and gives up those that cannot be read.
pub(crate) struct RowReader {
    pub(crate) remover: Arc<Remover>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// One row of a chain and how to load it.
pub struct PinnedRow {
    reader: Arc<RowReader>,
    id: RowId,
    key: Key,
    meta: RowMeta,
    from: u32,
    to: u32,
    memory: Option<Payload>,
    spots: Vec<(Tier, FileSpot)>,
}

/// Why a part of a row cannot be used. The row has left the cache; look up again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// The file is gone.
    #[error("row {key} vanished from its folder; it is computed again")]
    Vanished {
        /// The row.
        key: Key,
    },
    /// The bytes do not have their checksum.
    #[error("row {key}: {kind} has checksum {got:08x}, expected {expected:08x}; it is moved aside and computed again")]
    Damaged {
        /// The row.
        key: Key,
        /// Which part.
        kind: PartKind,
        /// The checksum in the file.
        expected: u32,
        /// The checksum of the bytes.
        got: u32,
    },
    /// The file cannot be read.
    #[error("row {key} cannot be read: {source}; it is computed again")]
    Unreadable {
        /// The row.
        key: Key,
        /// Why.
        source: io::Error,
    },
    /// The row has no such part.
    #[error("row {key} has no part {kind}")]
    NoSuchPart {
        /// The row.
        key: Key,
        /// Which part.
        kind: PartKind,
    },
    /// The part is longer than any state can be, or than there is memory.
    #[error(
        "part {kind} of row {key} has {length} bytes, and at most {limit} can be taken; it is computed again. Run `poncho cache verify`"
    )]
    TooLarge {
        /// The row.
        key: Key,
        /// Which part.
        kind: PartKind,
        /// Bytes of the part.
        length: u64,
        /// The most bytes that the caller takes.
        limit: u64,
    },
    /// The buffer does not fit the part.
    #[error("part {kind} of row {key} has {expected} bytes, the buffer {got}; ask `length` first")]
    WrongLength {
        /// The row.
        key: Key,
        /// Which part.
        kind: PartKind,
        /// Bytes of the part.
        expected: u64,
        /// Bytes of the buffer.
        got: u64,
    },
}

impl fmt::Debug for PinnedRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tier, own) = (self.tier(), self.meta.own_range());
        write!(formatter, "PinnedRow({} {}..{} of {own:?} in {tier})", self.key, self.from, self.to)
    }
}

impl PinnedRow {
    /// A row that the caller holds a lease on.
    pub(super) fn new(reader: &Arc<RowReader>, row: &Row, link: Link) -> Self {
        let spot = |tier| row.spot(tier).map(|spot| (tier, spot.clone()));
        Self {
            reader: Arc::clone(reader),
            id: link.row,
            key: row.key,
            meta: row.meta,
            from: link.from,
            to: link.to,
            memory: row.memory.clone(),
            spots: Tier::FILES.into_iter().filter_map(spot).collect(),
        }
    }

    /// The row's name.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// The tokens that this plan takes from it.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<u32> {
        self.from..self.to
    }

    /// The tokens of its own segment. Where they go past `range`, the rest is to be cut off.
    #[must_use]
    pub fn stored_range(&self) -> std::ops::Range<u32> {
        self.meta.own_range()
    }

    /// What describes the row.
    #[must_use]
    pub fn meta(&self) -> &RowMeta {
        &self.meta
    }

    /// The fastest tier that it can be loaded from.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the index drops a row that is in no tier")]
    pub fn tier(&self) -> Tier {
        match &self.memory {
            Some(_) => Tier::Ram,
            None => self.spots.first().expect("invariant: a stored row is in memory or in a file").0,
        }
    }

    /// Where a part is loaded from: memory if it is there, else the fastest tier of files. `None` if the row has no such part.
    #[must_use]
    pub fn tier_of(&self, kind: PartKind) -> Option<Tier> {
        let in_memory = self.in_memory(kind).map(|_| Tier::Ram);
        in_memory.or_else(|| self.in_files(kind).next().map(|(tier, _, _)| tier))
    }

    /// Bytes of a part, `None` if the row has no such part.
    #[must_use]
    pub fn length(&self, kind: PartKind) -> Option<u64> {
        let in_memory = self.in_memory(kind).map(|bytes| bytes.len() as u64);
        in_memory.or_else(|| self.in_files(kind).next().map(|(_, _, part)| part.length))
    }

    /// The bytes of a part by reference, if they are in memory.
    #[must_use]
    pub fn bytes(&self, kind: PartKind) -> Option<Bytes> {
        self.in_memory(kind).cloned()
    }

    /// Reads a part straight into `buffer`, which must have its `length`, and checks it.
    ///
    /// # Errors
    /// The part cannot be used; the row has left the cache.
    pub fn read(&self, kind: PartKind, buffer: &mut [u8]) -> Result<(), Unusable> {
        let started = Instant::now();
        let length = buffer.len() as u64;
        let expected = self.length(kind).ok_or(Unusable::NoSuchPart { key: self.key, kind })?;
        if expected != length {
            return Err(Unusable::WrongLength { key: self.key, kind, expected, got: length });
        }
        if let Some(bytes) = self.in_memory(kind) {
            buffer.copy_from_slice(bytes);
        } else {
            self.read_some_file(kind, buffer)?;
        }
        let counters = &self.reader.remover.counters;
        counters.load_nanos.add_nanos(started.elapsed());
        counters.load_bytes.add(length);
        Ok(())
    }

    /// The bytes of a part, read into memory of their own unless they are in memory, and checked. Takes memory only if the
    /// part has at most `limit` bytes: a file may promise more than any state has.
    ///
    /// # Errors
    /// As [`PinnedRow::read`]; also if the part is longer than `limit` or there is not that much memory. The row then stays.
    pub fn load(&self, kind: PartKind, limit: u64) -> Result<Bytes, Unusable> {
        if let Some(bytes) = self.bytes(kind) {
            return Ok(bytes);
        }
        let key = self.key;
        let length = self.length(kind).ok_or(Unusable::NoSuchPart { key, kind })?;
        let too_large = || Unusable::TooLarge { key, kind, length, limit };
        let needed = usize::try_from(length).ok().filter(|_| length <= limit).ok_or_else(too_large)?;
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(needed).map_err(|_| too_large())?;
        buffer.resize(needed, 0);
        self.read(kind, &mut buffer)?;
        Ok(buffer.into())
    }

    fn in_memory(&self, kind: PartKind) -> Option<&Bytes> {
        self.memory.as_ref()?.iter().find(|part| part.kind == kind).map(|part| &part.bytes)
    }

    fn in_files(&self, kind: PartKind) -> impl Iterator<Item = (Tier, &FileSpot, &FilePart)> {
        self.spots.iter().flat_map(move |(tier, spot)| {
            spot.parts.iter().filter(move |part| part.kind == kind).map(move |part| (*tier, spot, part))
        })
    }

    /// From the fastest tier that gives it; copies that fail on the way leave the cache.
    fn read_some_file(&self, kind: PartKind, buffer: &mut [u8]) -> Result<(), Unusable> {
        let length = buffer.len() as u64;
        let mut result = Err(Unusable::NoSuchPart { key: self.key, kind });
        for (tier, spot, part) in self.in_files(kind).filter(|(_, _, part)| part.length == length) {
            result = self.reader.read(self.id, &self.key, tier, spot, part, buffer);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

impl RowReader {
    fn read(
        &self,
        row: RowId,
        key: &Key,
        tier: Tier,
        spot: &FileSpot,
        part: &FilePart,
        buffer: &mut [u8],
    ) -> Result<(), Unusable> {
        let tiers = &self.remover.tiers;
        let file_tier = tiers.of(tier);
        let mut sum = || -> io::Result<u32> {
            let file = tiers.fs().open(&file_tier.row_path(key))?;
            let mut offset = spot.payload_offset.saturating_add(part.offset);
            let mut crc = Crc32c::new();
            for step in buffer.chunks_mut(READ_STEP) {
                file.read_exact_at(step, offset)?;
                crc.update(step);
                offset += step.len() as u64;
            }
            Ok(crc.finish())
        };
        let key = *key;
        match sum() {
            Ok(got) if got == part.crc => {
                file_tier.read_came(self.clock.now());
                Ok(())
            }
            Ok(got) => {
                self.remover.condemn(row, &key, tier);
                Err(Unusable::Damaged { key, kind: part.kind, expected: part.crc, got })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.remover.forget(row, &key, tier, Descendants::Remove);
                Err(Unusable::Vanished { key })
            }
            // Cut off, or something else took its name.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof || NotRegular::is_cause_of(&error) => {
                self.remover.condemn(row, &key, tier);
                Err(Unusable::Unreadable { key, source: error })
            }
            Err(source) => {
                // The device may recover, so the files stay; this process does not ask for them again.
                tracing::warn!(%key, tier = tier.as_str(), error = %source, "cache file unreadable; computed again");
                self.remover.forget(row, &key, tier, Descendants::Keep);
                Err(Unusable::Unreadable { key, source })
            }
        }
    }
}
