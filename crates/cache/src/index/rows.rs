//! One row as the index knows it: its place in the chain, where its payload lives, who holds it.
//!
//! Plain data with small questions; changed only by `Index` under the store's lock. It must never do I/O.

use std::cmp::Reverse;
use std::sync::Arc;

use bytes::Bytes;

use crate::format::{FilePart, RowMeta, RowPrefix};
use crate::identity::key::Key;
use crate::identity::owner::OwnerId;
use crate::index::trie::NodeId;
use crate::kinds::{PartKind, Tier};

/// One piece of a row's payload in memory, shared by reference.
#[derive(Debug, Clone)]
pub struct PayloadPart {
    /// What it is.
    pub kind: PartKind,
    /// Its bytes. `Bytes::from_owner` takes any buffer, page-locked ones too, without a copy.
    pub bytes: Bytes,
}

/// A payload in memory.
pub(crate) type Payload = Arc<[PayloadPart]>;

/// Index of a row in the table; reused only after the row is gone and unpinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowId(pub(crate) u32);

/// Index of a namespace in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NamespaceId(pub(crate) u32);

/// Where a row's payload is in a file.
#[derive(Debug, Clone)]
pub(crate) struct FileSpot {
    /// Bytes of the whole file.
    pub(crate) file_length: u64,
    /// Where the payload starts in it.
    pub(crate) payload_offset: u64,
    /// The pieces of the payload.
    pub(crate) parts: Arc<[FilePart]>,
}

impl FileSpot {
    /// The payload of the file that begins with this prefix.
    pub(crate) fn of(prefix: &RowPrefix) -> Self {
        Self {
            file_length: prefix.file_length(),
            payload_offset: prefix.payload_offset,
            parts: Arc::from(prefix.parts.as_slice()),
        }
    }
}

/// A row: the state after exactly `meta.token_count` tokens.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) key: Key,
    /// Its description. The parent in it is always the key of `parent`.
    pub(crate) meta: RowMeta,
    /// The owners that sent all of its tokens, as far as they are remembered.
    pub(crate) owners: Vec<OwnerId>,
    pub(crate) namespace: NamespaceId,
    /// End of its tokens in the namespace's trie.
    pub(crate) node: NodeId,
    /// The row that holds the tokens before `meta.start`. Set if and only if that is above 0.
    pub(crate) parent: Option<RowId>,
    /// Rows that name this one as their parent.
    pub(crate) children: Vec<RowId>,
    /// The payload in memory: while a write is pending, and as long as the row is in the ram tier.
    pub(crate) memory: Option<Payload>,
    /// Whether the payload in memory is counted as a row of the ram tier.
    pub(crate) in_ram: bool,
    /// The file tier that a queued or running write goes to.
    pub(crate) pending: Option<Tier>,
    /// Where the payload is in the file tiers (`ram_file`, `disk`).
    pub(crate) spots: [Option<FileSpot>; 2],
    /// Leases. A pinned row is never evicted.
    pub(crate) pins: u32,
    /// Taken out of the index while pinned; its slot is freed with the last pin.
    pub(crate) doomed: bool,
    /// Hits or last use changed since the file was written.
    pub(crate) dirty: bool,
}

/// Order of eviction inside a tier: oldest use first, then fewest hits, then the longest row, so that a
/// row always comes before the rows of its chain, which were used whenever it was.
pub(crate) type LruKey = (u64, u32, Reverse<u32>, RowId);

impl Row {
    pub(crate) fn lru_key(&self, id: RowId) -> LruKey {
        (self.meta.last_used, self.meta.hits, Reverse(self.meta.token_count), id)
    }

    pub(crate) fn spot(&self, tier: Tier) -> Option<&FileSpot> {
        match tier {
            Tier::Ram => None,
            Tier::RamFile => self.spots.first().and_then(Option::as_ref),
            Tier::Disk => self.spots.get(1).and_then(Option::as_ref),
        }
    }

    pub(crate) fn spot_mut(&mut self, tier: Tier) -> Option<&mut Option<FileSpot>> {
        match tier {
            Tier::Ram => None,
            Tier::RamFile => self.spots.first_mut(),
            Tier::Disk => self.spots.get_mut(1),
        }
    }

    pub(crate) fn resides_in(&self, tier: Tier) -> bool {
        match tier {
            Tier::Ram => self.in_ram,
            Tier::RamFile | Tier::Disk => self.spot(tier).is_some(),
        }
    }

    /// Whether the row will outlive everything that tier `tier` outlives.
    pub(crate) fn is_as_durable_as(&self, tier: Tier) -> bool {
        Tier::ALL.into_iter().any(|other| other >= tier && self.resides_in(other))
    }

    /// The fastest tier that holds it.
    pub(crate) fn best_tier(&self) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| self.resides_in(*tier))
    }

    /// The most durable tier that holds it.
    pub(crate) fn durable_tier(&self) -> Option<Tier> {
        Tier::ALL.into_iter().rev().find(|tier| self.resides_in(*tier))
    }

    pub(crate) fn is_stored(&self) -> bool {
        self.pending.is_some() || self.best_tier().is_some()
    }

    /// Whether nothing holds the row, writes it or builds on it.
    pub(crate) fn is_idle(&self) -> bool {
        self.pins == 0 && self.pending.is_none() && self.children.is_empty()
    }

    /// Whether a payload has every part that the row has.
    pub(crate) fn is_covered_by(&self, payload: &[PayloadPart]) -> bool {
        let given = |kind| payload.iter().any(|part| part.kind == kind);
        PartKind::ALL.into_iter().all(|kind| !self.has_part(kind) || given(kind))
    }

    /// Bytes that the row counts for in a tier.
    pub(crate) fn bytes_in(&self, tier: Tier) -> u64 {
        match tier {
            Tier::Ram if self.in_ram => self.memory.as_ref().map_or(0, |payload| payload_bytes(payload)),
            Tier::Ram => 0,
            Tier::RamFile | Tier::Disk => self.spot(tier).map_or(0, |spot| spot.file_length),
        }
    }

    pub(crate) fn has_part(&self, kind: PartKind) -> bool {
        self.part_length(kind).is_some()
    }

    pub(crate) fn part_length(&self, kind: PartKind) -> Option<u64> {
        let in_memory = self.memory.iter().flat_map(|payload| payload.iter());
        in_memory.filter(|part| part.kind == kind).map(|part| part.bytes.len() as u64).next().or_else(|| {
            let in_files = self.spots.iter().flatten().flat_map(|spot| spot.parts.iter());
            in_files.filter(|part| part.kind == kind).map(|part| part.length).next()
        })
    }
}

/// Bytes of a payload in memory.
pub(crate) fn payload_bytes(payload: &[PayloadPart]) -> u64 {
    payload.iter().map(|part| part.bytes.len() as u64).sum()
}
