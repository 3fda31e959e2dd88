//! The chosen part of a plan: what of it is restored, which parts are in memory, and which have to be read first.
//!
//! Made by the restorer before anything is read, and kept by a request while its parts are being read. It reads nothing
//! itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use poncho_cache::{Cache, HitTier, Key, PartKind, PinnedRow, Readable, RestorePlan, Tier};

use crate::state::failure::Failure;
use crate::state::segment_reader::{PartId, Parts};

/// Whether a choice may include parts that have to be read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Where the cache allows it.
    Allowed,
    /// Only parts in memory count.
    No,
}

/// The part of a plan that is restored.
pub(crate) struct Chosen {
    pub(crate) plan: Arc<RestorePlan>,
    /// Leading tokens of the prompt; 0 for nothing.
    pub(crate) n_past: usize,
    /// The segments to restore, by their places in the plan.
    pub(crate) segments: Vec<usize>,
    /// The row with the partial state.
    pub(crate) partial: Option<usize>,
    /// The row with the logits.
    pub(crate) logits: Option<usize>,
    /// Whether it reads from a tier that was late before.
    pub(crate) is_probe: bool,
}

impl Chosen {
    pub(crate) fn nothing(plan: Arc<RestorePlan>) -> Self {
        Self { plan, n_past: 0, segments: Vec::new(), partial: None, logits: None, is_probe: false }
    }

    fn parts(&self) -> impl Iterator<Item = PartId> {
        let segments = self.segments.iter().map(|segment| (*segment, PartKind::Attention));
        let partial = self.partial.map(|row| (row, PartKind::Partial));
        let logits = self.logits.map(|row| (row, PartKind::Logits));
        segments.chain(partial).chain(logits)
    }

    /// The parts that are not in memory.
    pub(crate) fn missing(&self) -> Vec<PartId> {
        let is_missing =
            |(row, kind): &PartId| self.plan.rows().get(*row).is_none_or(|segment| segment.bytes(*kind).is_none());
        self.parts().filter(is_missing).collect()
    }

    /// Bytes of some of its parts.
    pub(crate) fn bytes_of(&self, parts: &[PartId]) -> u64 {
        let length = |(row, kind): &PartId| self.plan.rows().get(*row).and_then(|segment| segment.length(*kind));
        parts.iter().filter_map(length).sum()
    }

    /// The tiers that some of its parts are read from.
    pub(crate) fn tiers_of(&self, parts: &[PartId]) -> impl Iterator<Item = Tier> {
        let is_among = |tier: Tier| {
            parts
                .iter()
                .any(|(row, kind)| self.plan.rows().get(*row).and_then(|segment| segment.tier_of(*kind)) == Some(tier))
        };
        [Tier::RamFile, Tier::Disk].into_iter().filter(move |tier| is_among(*tier))
    }

    /// The slowest tier that it is read from.
    pub(crate) fn hit_tier(&self) -> HitTier {
        self.tiers_of(&self.missing()).last().map_or(HitTier::Ram, HitTier::from)
    }

    /// The longest of its rows that is restored whole.
    pub(crate) fn whole_row(&self) -> Option<Key> {
        let ends_inside = |row: &&PinnedRow| row.stored_range().end as usize <= self.n_past;
        self.plan.rows().iter().rfind(ends_inside).map(PinnedRow::key)
    }

    /// A part: from memory, or from what was read.
    pub(crate) fn load<'p>(&self, (row, kind): PartId, parts: &'p Parts) -> Result<Loaded<'p>, Failure> {
        let segment = self.plan.rows().get(row).ok_or(Failure::Refused)?;
        match segment.bytes(kind) {
            Some(bytes) => Ok(Loaded { bytes: Held::Shared(bytes), took: Duration::ZERO, tier: Tier::Ram }),
            None => {
                let (bytes, took) = parts.get((row, kind)).ok_or(Failure::Refused)?;
                let tier = segment.tier_of(kind).unwrap_or(Tier::Disk);
                Ok(Loaded { bytes: Held::Read(bytes), took, tier })
            }
        }
    }
}

/// Which parts of a plan are available. Each tier is asked at most once.
pub(crate) struct Reach<'a> {
    pub(crate) plan: &'a RestorePlan,
    pub(crate) have: &'a Parts,
    pub(crate) cache: &'a Cache,
    pub(crate) reads: Reads,
    pub(crate) asked: [Option<Readable>; Tier::ALL.len()],
}

impl Reach<'_> {
    pub(crate) fn has(&mut self, (row, kind): PartId) -> bool {
        let Some(segment) = self.plan.rows().get(row) else { return false };
        match segment.tier_of(kind) {
            None => false,
            Some(Tier::Ram) => true,
            Some(_) if self.have.get((row, kind)).is_some() => true,
            Some(_) if self.reads == Reads::No => false,
            Some(tier) => self
                .asked
                .get_mut(tier.index())
                .is_some_and(|asked| *asked.get_or_insert_with(|| self.cache.may_read(tier)) != Readable::No),
        }
    }

    pub(crate) fn is_probe(&self) -> bool {
        self.asked.contains(&Some(Readable::Probe))
    }
}

/// Bytes of a part, how long reading them took, and where from.
pub(crate) struct Loaded<'p> {
    bytes: Held<'p>,
    pub(crate) took: Duration,
    pub(crate) tier: Tier,
}

enum Held<'p> {
    Shared(Bytes),
    Read(&'p [u8]),
}

impl std::ops::Deref for Loaded<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Held::Shared(bytes) => bytes,
            Held::Read(bytes) => bytes,
        }
    }
}
