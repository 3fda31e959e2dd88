//! What a lookup returns: the stored rows that serve a prompt, pinned, with everything needed to load them.
//!
//! The engine walks the segments in order, copies each into its sequence, and drops the plan before it
//! generates. Loading takes no lock of the index. A segment that cannot be read is reported as unusable and
//! leaves the cache; the engine looks up again and goes on colder.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::io::files::NotRegular;
use crate::format::{Crc32c, Part};
use crate::index::{Found, Index, Link, Needs, Use};
use crate::identity::key::{Key, Namespace};
use crate::store::lease::Lease;
use crate::index::rows::{FileSpot, Payload, RowId};
use crate::store::save::SaveBase;
use crate::store::store::Store;
use crate::kinds::{PartKind, SaveReason, Tier};

/// Bytes that are read and checked at a time: small enough to be checked while they are in the processor's cache.
const READ_STEP: usize = 256 << 10;

/// Stored rows that serve the first `reach` tokens of a prompt.
#[derive(Debug)]
pub struct RestorePlan {
    segments: Vec<Segment>,
    reach: u32,
    ends_on_row: bool,
    /// Keeps the rows; dropped with the plan.
    _lease: Lease,
}

/// One row of a chain and how to load it.
pub struct Segment {
    store: Arc<Store>,
    row: RowId,
    key: Key,
    from: u32,
    to: u32,
    start: u32,
    token_count: u32,
    context_size: u32,
    version: u8,
    flags: u16,
    reason: SaveReason,
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
        /// What the file says.
        expected: u32,
        /// What was read.
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
        /// The most that the caller takes.
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

impl fmt::Debug for Segment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tier = self.tier();
        write!(
            formatter,
            "Segment({} {}..{} of {}..{} in {tier})",
            self.key, self.from, self.to, self.start, self.token_count
        )
    }
}

impl RestorePlan {
    /// The rows, first tokens first. Together their ranges cover `0..reach`. Where `ends_on_row`, the last one is
    /// the row of exactly those tokens (its own range may be empty).
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// How many leading tokens of the prompt are covered.
    #[must_use]
    pub fn reach(&self) -> u32 {
        self.reach
    }

    /// The row that ends exactly at `reach`: its partial state and logits fit.
    #[must_use]
    pub fn boundary(&self) -> Option<&Segment> {
        self.segments.last().filter(|_| self.ends_on_row)
    }

    /// Whether the logits after the last covered token are stored.
    #[must_use]
    pub fn has_logits(&self) -> bool {
        self.boundary().is_some_and(|row| row.length(PartKind::Logits).is_some())
    }
}

impl Segment {
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

    /// The tokens that its attention part holds. Where they go past `range`, the rest is to be cut off.
    #[must_use]
    pub fn stored_range(&self) -> std::ops::Range<u32> {
        self.start..self.token_count
    }

    /// Context size of the model that made it.
    #[must_use]
    pub fn context_size(&self) -> u32 {
        self.context_size
    }

    /// File version: 1 has one part `Whole`.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version
    }

    /// Header flags.
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// Why it was saved.
    #[must_use]
    pub fn reason(&self) -> SaveReason {
        self.reason
    }

    /// The fastest tier that it can be loaded from.
    #[must_use]
    pub fn tier(&self) -> Tier {
        if self.memory.is_some() { Tier::Ram } else { self.spots.first().map_or(Tier::Ram, |(tier, _)| *tier) }
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
        self.store.counters.load_nanos.add_nanos(started.elapsed());
        self.store.counters.load_bytes.add(length);
        Ok(())
    }

    /// The bytes of a part, read into memory of their own unless they are in memory, and checked. Takes memory only if the
    /// part has at most `limit` bytes: a file may promise more than any state has.
    ///
    /// # Errors
    /// As [`Segment::read`]; also if the part is longer than `limit` or there is not that much memory. The row then stays.
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

    fn in_files(&self, kind: PartKind) -> impl Iterator<Item = (Tier, &FileSpot, &Part)> {
        self.spots.iter().flat_map(move |(tier, spot)| {
            spot.parts.iter().filter(move |part| part.kind == kind).map(move |part| (*tier, spot, part))
        })
    }

    /// From the fastest tier that gives it; copies that fail on the way leave the cache.
    fn read_some_file(&self, kind: PartKind, buffer: &mut [u8]) -> Result<(), Unusable> {
        let length = buffer.len() as u64;
        let mut result = Err(Unusable::NoSuchPart { key: self.key, kind });
        for (tier, spot, part) in self.in_files(kind).filter(|(_, _, part)| part.length == length) {
            result = self.read_file(tier, spot, part, buffer);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn read_file(&self, tier: Tier, spot: &FileSpot, part: &Part, buffer: &mut [u8]) -> Result<(), Unusable> {
        let key = self.key;
        let Some(file_tier) = self.store.file_tier(tier) else { return Err(Unusable::Vanished { key }) };
        let read = || -> io::Result<u32> {
            let file = self.store.fs().open(&file_tier.row_path(&key))?;
            let mut offset = spot.payload_offset.saturating_add(part.offset);
            let mut crc = Crc32c::new();
            for step in buffer.chunks_mut(READ_STEP) {
                file.read_exact_at(step, offset)?;
                crc.update(step);
                offset += step.len() as u64;
            }
            Ok(crc.finish())
        };
        match { read }() {
            Ok(got) if got == part.crc => {
                file_tier.read_came(self.store.config.clock.now());
                Ok(())
            }
            Ok(got) => {
                self.store.condemn(self.row, &key, tier);
                Err(Unusable::Damaged { key, kind: part.kind, expected: part.crc, got })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.store.forget(self.row, &key, tier, Descendants::Remove);
                Err(Unusable::Vanished { key })
            }
            // Cut off, or something else took its name.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof || NotRegular::is_cause_of(&error) => {
                self.store.condemn(self.row, &key, tier);
                Err(Unusable::Unreadable { key, source: error })
            }
            Err(source) => {
                // The device may recover, so the files stay; this process does not ask for them again.
                tracing::warn!(%key, tier = tier.as_str(), error = %source, "cache file unreadable; computed again");
                self.store.forget(self.row, &key, tier, Descendants::Keep);
                Err(Unusable::Unreadable { key, source })
            }
        }
    }
}

impl Store {
    /// The longest stored prefix of a prompt, pinned.
    pub(crate) fn lookup(self: &Arc<Self>, namespace: &Namespace, tokens: &[u32], needs: Needs) -> Option<RestorePlan> {
        let started = Instant::now();
        self.counters.probes.increment();
        let mut index = self.index.lock();
        let found = index.find(namespace, tokens, needs);
        let plan = found.map(|found| self.plan(&mut index, &found, Use::Hit));
        drop(index);
        self.counters.lookup_nanos.add_nanos(started.elapsed());
        match &plan {
            Some(plan) if plan.reach as usize == tokens.len() && plan.ends_on_row => {
                self.counters.hits_exact.increment()
            }
            Some(_) => self.counters.hits_longest_prefix.increment(),
            None => self.counters.misses.increment(),
        }
        plan
    }

    /// The named row, if it is stored and all its tokens begin the prompt.
    pub(crate) fn resume(
        self: &Arc<Self>,
        namespace: &Namespace,
        tokens: &[u32],
        key: &Key,
        needs: Needs,
    ) -> Option<RestorePlan> {
        let started = Instant::now();
        let plan = self.named_row(namespace, tokens, key, needs);
        self.counters.lookup_nanos.add_nanos(started.elapsed());
        if plan.is_some() {
            self.counters.hits_resume.increment();
        }
        plan
    }

    fn named_row(
        self: &Arc<Self>,
        namespace: &Namespace,
        tokens: &[u32],
        key: &Key,
        needs: Needs,
    ) -> Option<RestorePlan> {
        self.counters.probes.increment();
        let mut index = self.index.lock();
        let id = index.by_key(key)?;
        let row = index.row(id)?;
        let count = row.token_count;
        if index.namespace_of(row) != Some(*namespace) {
            return None;
        }
        let theirs = index.tokens_of(id)?;
        if !tokens.starts_with(&theirs) {
            return None;
        }
        let found = index.chain(id, count, needs)?;
        Some(self.plan(&mut index, &found, Use::Hit))
    }

    /// The attention state of all tokens of a row. Not a hit: nobody asked for it.
    pub(crate) fn chain_of(self: &Arc<Self>, key: &Key) -> Option<RestorePlan> {
        let mut index = self.index.lock();
        let id = index.by_key(key)?;
        let found = index.chain(id, index.row(id)?.token_count, Needs::ATTENTION)?;
        Some(self.plan(&mut index, &found, Use::Extended))
    }

    /// The row that a new one should build on, pinned.
    pub(crate) fn base_for(self: &Arc<Self>, namespace: &Namespace, tokens: &[u32], tier: Tier) -> Option<SaveBase> {
        let mut index = self.index.lock();
        let (row, start) = index.base(namespace, tokens, tier)?;
        let key = index.row(row)?.key;
        let lease = Lease::take(self, &mut index, vec![row]);
        Some(SaveBase { _lease: lease, row, key, start })
    }

    fn plan(self: &Arc<Self>, index: &mut Index, found: &Found, kind: Use) -> RestorePlan {
        let mut links = found.links.clone();
        // A boundary row without tokens of its own still brings its partial state and logits.
        if let Some(boundary) = found.boundary
            && links.last().is_none_or(|link| link.row != boundary)
        {
            links.push(Link { row: boundary, from: found.reach, to: found.reach });
        }
        let segments = links.iter().filter_map(|link| self.segment(index, *link)).collect();
        let rows: Vec<RowId> = links.iter().map(|link| link.row).collect();
        let now = self.config.clock.unix_seconds();
        if let Some(last) = rows.last() {
            index.touch_chain(*last, now, kind);
        }
        let lease = Lease::take(self, index, rows);
        RestorePlan { segments, reach: found.reach, ends_on_row: found.boundary.is_some(), _lease: lease }
    }

    fn segment(self: &Arc<Self>, index: &Index, link: Link) -> Option<Segment> {
        let row = index.row(link.row)?;
        let spots = [Tier::RamFile, Tier::Disk]
            .into_iter()
            .filter_map(|tier| row.spot(tier).map(|spot| (tier, spot.clone())))
            .collect();
        Some(Segment {
            store: Arc::clone(self),
            row: link.row,
            key: row.key,
            from: link.from,
            to: link.to,
            start: row.start,
            token_count: row.token_count,
            context_size: row.context_size,
            version: row.version,
            flags: row.flags,
            reason: row.reason,
            memory: row.memory.clone(),
            spots,
        })
    }

    /// The row's file is gone or cannot be read. Without a copy in another tier, the row and all that build on it leave.
    fn forget(&self, row: RowId, key: &Key, tier: Tier, descendants: Descendants) {
        let Some(gone) = self.index.lock().lose(row, key, tier) else { return };
        let (removed, kept): (Vec<_>, Vec<_>) =
            gone.into_iter().partition(|file| descendants == Descendants::Remove && file.key != *key);
        self.counters.orphans_dropped.add(removed.len() as u64);
        self.remove_files(&removed);
        let mut index = self.index.lock();
        for file in kept {
            index.reservations.end_removal(file.key, file.tier);
        }
        drop(index);
        self.changed.notify_all();
    }
}

/// What becomes of the files of rows that build on a lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Descendants {
    /// They can never be used again.
    Remove,
    /// They may be usable after a restart.
    Keep,
}
