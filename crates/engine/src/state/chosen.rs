//! What of a plan is put back, which parts of it are at hand, and which have to be read first.
//!
//! Made by the restorer before anything is read or set, and held by a request while its parts are being read. It reads nothing
//! itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use poncho_cache::{Cache, PartKind, Readable, RestorePlan, Tier};

use crate::state::restore::Failure;
use crate::state::segment_reader::{PartId, Parts};

/// Whether a choice may count on what has to be read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Where the cache lets it.
    Allowed,
    /// Only what is at hand counts.
    No,
}

/// What of a plan is put back.
pub(crate) struct Chosen {
    pub(crate) plan: Arc<RestorePlan>,
    /// Leading tokens of the prompt; 0 for nothing.
    pub(crate) n_past: usize,
    /// Rows whose attention state is set, by their places in the plan.
    pub(crate) rows: Vec<usize>,
    /// The row whose partial state is set.
    pub(crate) partial: Option<usize>,
    /// The row whose logits are wanted.
    pub(crate) logits: Option<usize>,
    /// Whether it reads from a tier that was late before.
    pub(crate) is_probe: bool,
}

impl Chosen {
    pub(crate) fn nothing(plan: Arc<RestorePlan>) -> Self {
        Self { plan, n_past: 0, rows: Vec::new(), partial: None, logits: None, is_probe: false }
    }

    fn parts(&self) -> impl Iterator<Item = PartId> {
        let rows = self.rows.iter().map(|row| (*row, PartKind::Attention));
        let partial = self.partial.map(|row| (row, PartKind::Partial));
        let logits = self.logits.map(|row| (row, PartKind::Logits));
        rows.chain(partial).chain(logits)
    }

    /// The parts that are not in memory.
    pub(crate) fn missing(&self) -> Vec<PartId> {
        let is_missing = |(row, kind): &PartId| self.plan.rows().get(*row).is_none_or(|row| row.bytes(*kind).is_none());
        self.parts().filter(is_missing).collect()
    }

    /// Bytes of some of its parts.
    pub(crate) fn bytes_of(&self, parts: &[PartId]) -> u64 {
        let length = |(row, kind): &PartId| self.plan.rows().get(*row).and_then(|row| row.length(*kind));
        parts.iter().filter_map(length).sum()
    }

    /// The tiers that some of its parts are read from.
    pub(crate) fn tiers_of(&self, parts: &[PartId]) -> impl Iterator<Item = Tier> {
        let is_among = |tier: Tier| {
            parts.iter().any(|(row, kind)| self.plan.rows().get(*row).and_then(|row| row.tier_of(*kind)) == Some(tier))
        };
        [Tier::RamFile, Tier::Disk].into_iter().filter(move |tier| is_among(*tier))
    }

    /// A part: from memory, or from what was read.
    pub(crate) fn load<'p>(&self, (row, kind): PartId, parts: &'p Parts) -> Result<Loaded<'p>, Failure> {
        let pinned = self.plan.rows().get(row).ok_or(Failure::Refused)?;
        match pinned.bytes(kind) {
            Some(bytes) => Ok(Loaded { bytes: Held::Shared(bytes), took: Duration::ZERO, tier: Tier::Ram }),
            None => {
                let (bytes, took) = parts.get((row, kind)).ok_or(Failure::Refused)?;
                let tier = pinned.tier_of(kind).unwrap_or(Tier::Disk);
                Ok(Loaded { bytes: Held::Read(bytes), took, tier })
            }
        }
    }
}

/// Which parts of a plan can be had: each tier is asked at most once.
pub(crate) struct Reach<'a> {
    pub(crate) plan: &'a RestorePlan,
    pub(crate) have: &'a Parts,
    pub(crate) cache: &'a Cache,
    pub(crate) reads: Reads,
    pub(crate) asked: [Option<Readable>; Tier::ALL.len()],
}

impl Reach<'_> {
    pub(crate) fn has(&mut self, (row, kind): PartId) -> bool {
        let Some(pinned) = self.plan.rows().get(row) else { return false };
        match pinned.tier_of(kind) {
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
