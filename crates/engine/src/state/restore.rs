//! What to restore for a prompt: which plan of the cache, which of its segments, and how long to wait for reads.
//!
//! A restore has three steps: choose what of a plan to restore, read the parts that are not in memory (`segment_reader.rs`,
//! on other threads and with a deadline), and fill a sequence with them (`sequence/slots`, which owns the context). This file
//! chooses and reads; it must never touch the context. On any doubt it chooses less, and the prompt is computed instead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::{Cache, HitKind, HitTier, Key, Namespace, Needs, PartKind, PinnedRow, RestorePlan, Tier};

use crate::backend::MemoryKind;
use crate::schedule::grid::Grid;
use crate::state::chosen::{Chosen, Loaded, Reach, Reads};
use crate::state::cost::{ChainSegment, Estimates};
use crate::state::failure::Failure;
use crate::state::segment_reader::{Buffers, PartId, Parts, Readers, Reading, Wake};

/// Rows that may turn out to be unusable before the prompt is computed.
pub(crate) const ATTEMPTS: usize = 8;
/// A tier with late reads gets this fraction of the usual time when it is tried again.
const PROBE_SHARE: u32 = 10;

/// Chooses and reads what a prompt is restored from. One for each worker.
pub(crate) struct Restorer {
    pub(crate) cache: Arc<Cache>,
    pub(crate) estimates: Estimates,
    pub(crate) readers: Arc<Readers>,
    pub(crate) buffers: Buffers,
    /// Called when a read is over that nobody blocks on.
    pub(crate) wake: Wake,
    /// The shortest time to wait for reads.
    pub(crate) read_wait: Duration,
    pub(crate) memory: MemoryKind,
    /// Tokens that a sequence may hold.
    pub(crate) n_ctx: u32,
    /// Entries of a row of logits.
    pub(crate) n_vocab: u32,
}

/// What a sequence holds after a restore.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    /// Leading tokens of the prompt.
    pub(crate) n_past: usize,
    /// The logits after all of the prompt, if they were stored: nothing has to be decoded.
    pub(crate) logits: Option<Vec<f32>>,
    /// Where it was; `None` if nothing was found.
    pub(crate) tier: Option<HitTier>,
}

impl Restored {
    pub(crate) fn hit(&self) -> HitKind {
        match (self.n_past, &self.logits) {
            (0, _) => HitKind::Cold,
            (_, Some(_)) => HitKind::Exact,
            (_, None) => HitKind::Partial,
        }
    }
}

/// The parts of a row that a model of this kind needs to resume from it.
pub(crate) fn needs_of(memory: MemoryKind) -> Option<Needs> {
    match memory {
        MemoryKind::Attention => Some(Needs::ATTENTION),
        MemoryKind::Window { .. } | MemoryKind::Hybrid => Some(Needs::ATTENTION_AND_PARTIAL),
        MemoryKind::Recurrent => Some(Needs::PARTIAL),
        MemoryKind::None => None,
    }
}

/// A prompt to restore.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) prompt: &'a [u32],
    /// For exact requests: where states may be resumed.
    pub(crate) grid: Option<Grid>,
}

impl Wanted<'_> {
    /// How many tokens of the prompt a plan is good for, and whether that is all of it with its logits.
    pub(crate) fn usable(&self, plan: &RestorePlan) -> (usize, bool) {
        let (reach, prompt) = (plan.reach() as usize, self.prompt.len());
        if reach == prompt && plan.has_logits() {
            return (reach, true);
        }
        (self.without_logits(reach), false)
    }

    /// The same without logits: the last token is computed again, which needs a model that can be cut.
    fn without_logits(&self, reach: usize) -> usize {
        let prompt = self.prompt.len();
        self.grid.map_or_else(|| reach.min(prompt.saturating_sub(1)), |grid| grid.usable(reach, prompt))
    }

    /// Whether a model can resume from a plan: from its very end, or from before it if it can be cut.
    fn is_usable(&self, plan: &RestorePlan, memory: MemoryKind) -> bool {
        let (usable, _) = self.usable(plan);
        memory.can_cut() || usable == plan.reach() as usize
    }
}

/// The best plan of the cache for a prompt: the named row if it fits, else the longest prefix.
pub(crate) fn find_plan(
    cache: &Cache,
    memory: MemoryKind,
    wanted: &Wanted<'_>,
    parent: Option<Key>,
) -> Option<RestorePlan> {
    let needs = needs_of(memory)?;
    let Wanted { namespace, prompt, .. } = *wanted;
    // The request has waited for the row before admission: the worker has others to serve.
    if let Some(key) = parent
        && let Some(plan) = cache.resume(namespace, prompt, &key, needs, Duration::ZERO)
        && wanted.is_usable(&plan, memory)
    {
        return Some(plan);
    }
    let mut limit = prompt.len();
    while limit > 0 {
        let plan = cache.lookup(namespace, prompt.get(..limit)?, needs)?;
        if wanted.is_usable(&plan, memory) {
            return Some(plan);
        }
        // The whole prompt is stored without its logits, or the row does not end on the grid, and this model cannot drop
        // a token.
        limit = wanted.usable(&plan).0;
    }
    None
}

impl Restorer {
    /// The best plan of the cache for a prompt.
    pub(crate) fn find(&self, wanted: &Wanted<'_>) -> Option<RestorePlan> {
        find_plan(&self.cache, self.memory, wanted, None)
    }

    /// Starts to read the missing parts of what was chosen; the worker is woken when that is over.
    pub(crate) fn read(&self, chosen: &Chosen, missing: &[PartId]) -> Result<Reading, Failure> {
        self.readers.read(self.buffers.clone(), &chosen.plan, missing, Some(Arc::clone(&self.wake)))
    }

    /// Reads the missing parts of what was chosen, and blocks until they are there or `until` has passed.
    pub(crate) fn read_blocking(
        &mut self,
        wanted: &Wanted<'_>,
        chosen: Chosen,
        missing: &[PartId],
        until: Instant,
    ) -> Result<(Chosen, Parts, Duration), Failure> {
        let reading = self.readers.read(self.buffers.clone(), &chosen.plan, missing, None)?;
        reading.wait(until);
        self.collect(wanted, chosen, missing, reading)
    }

    /// Chooses what of a plan to restore: what is in memory or can be read, and is not cheaper to compute.
    pub(crate) fn choose(
        &mut self,
        wanted: &Wanted<'_>,
        plan: Arc<RestorePlan>,
        have: &Parts,
        reads: Reads,
    ) -> Result<Chosen, Failure> {
        let memory = self.memory;
        let (mut n_past, mut with_logits) = wanted.usable(&plan);
        if n_past as u64 > u64::from(self.n_ctx) {
            return Err(Failure::Refused);
        }
        let mut reach = Reach { plan: &plan, have, cache: &self.cache, reads, asked: [None; Tier::ALL.len()] };
        let boundary = plan.boundary().and_then(|_| plan.rows().len().checked_sub(1));
        if with_logits && !boundary.is_some_and(|row| reach.has((row, PartKind::Logits))) {
            if !memory.can_cut() {
                return Ok(Chosen::nothing(plan));
            }
            (n_past, with_logits) = (wanted.without_logits(n_past), false);
        }
        let is_needed = |segment: &PinnedRow| !segment.range().is_empty() && (segment.range().start as usize) < n_past;
        let needed = plan.rows().iter().enumerate().filter(|(_, segment)| is_needed(segment));
        let mut segments: Vec<usize> = needed.map(|(segment, _)| segment).collect();
        let partial = boundary.filter(|_| memory.has_partial());
        if partial.is_some_and(|row| !reach.has((row, PartKind::Partial))) {
            return Ok(Chosen::nothing(plan));
        }
        if memory.has_segments() {
            let at_hand = segments.iter().take_while(|segment| reach.has((**segment, PartKind::Attention))).count();
            let offered = offer(&plan, &segments, at_hand, memory);
            let used = self.estimates.choose(&offered, wanted.prompt.len()).segments;
            if used < segments.len() {
                segments.truncate(used);
                let last = segments.last().and_then(|segment| plan.rows().get(*segment));
                let end = last.map_or(0, |last| last.range().end as usize);
                let end = wanted.grid.map_or(end, |grid| grid.floor(end));
                with_logits &= end >= n_past;
                n_past = end.min(n_past);
                // On a grid, a segment may begin where the last whole chunk ends.
                let starts_before = |segment: &usize| {
                    plan.rows().get(*segment).is_some_and(|segment| (segment.range().start as usize) < n_past)
                };
                segments.retain(starts_before);
            }
        } else {
            segments.clear();
        }
        if n_past == 0 {
            return Ok(Chosen::nothing(plan));
        }
        let is_probe = reach.is_probe();
        let logits = boundary.filter(|_| with_logits);
        Ok(Chosen { n_past, segments, partial, logits, is_probe, plan })
    }

    /// How long to wait for the reads of a choice: half of what computing the tokens would take, and at least long enough
    /// that a healthy disk beside a fast model is not cut off.
    pub(crate) fn patience(&self, chosen: &Chosen) -> Duration {
        let floor = if chosen.is_probe { self.read_wait / PROBE_SHARE } else { self.read_wait };
        self.estimates.patience(chosen.n_past, floor)
    }

    /// Takes the result of a reading and chooses again if some of it is late. Late parts are computed, and the cache does
    /// not read from their tier for a while.
    pub(crate) fn collect(
        &mut self,
        wanted: &Wanted<'_>,
        chosen: Chosen,
        missing: &[PartId],
        reading: Reading,
    ) -> Result<(Chosen, Parts, Duration), Failure> {
        let waited = reading.waited();
        let came = reading.take();
        match came.outcome {
            Some(Ok(())) => {
                chosen.tiers_of(missing).for_each(|tier| self.cache.read_in_time(tier));
                Ok((chosen, came.parts, came.took))
            }
            Some(Err(failure)) => Err(failure),
            None => {
                let late: Vec<PartId> =
                    missing.iter().copied().filter(|part| came.parts.get(*part).is_none()).collect();
                tracing::debug!(parts = late.len(), waited_ms = waited.as_millis(), "stored rows did not come in time");
                chosen.tiers_of(&late).for_each(|tier| self.cache.read_late(tier, waited));
                let chosen = self.choose(wanted, chosen.plan, &came.parts, Reads::No)?;
                Ok((chosen, came.parts, waited))
            }
        }
    }

    /// Records what restoring some segments cost. A tier's share of the reading follows from the time of its own reads,
    /// because they ran side by side, and its share of the copying from its bytes.
    pub(crate) fn record(&mut self, segments: &[(u32, Loaded<'_>)], reading: Duration, copying: Duration) {
        let took = |part: Duration, whole: Duration| part.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE);
        let sum = |(bytes, read): (usize, Duration), one: &Loaded<'_>| (bytes + one.len(), read + one.took);
        let loaded = || segments.iter().map(|(_, segment)| segment);
        let (all_bytes, all_reading) = loaded().fold((0, Duration::ZERO), sum);
        for tier in Tier::ALL {
            let (bytes, read) = loaded().filter(|segment| segment.tier == tier).fold((0, Duration::ZERO), sum);
            if bytes > 0 {
                let reading = reading.mul_f64(took(read, all_reading).min(1.0));
                let copying = copying.mul_f64(bytes as f64 / all_bytes as f64);
                self.estimates.record_restore(tier, bytes as u64, reading + copying);
            }
        }
    }
}

/// The first `at_hand` segments as the estimates see them.
fn offer(plan: &RestorePlan, segments: &[usize], at_hand: usize, memory: MemoryKind) -> Vec<ChainSegment> {
    let last = segments.len().saturating_sub(1);
    let stored = segments.iter().take(at_hand).filter_map(|segment| plan.rows().get(*segment));
    stored
        .enumerate()
        .map(|(place, segment)| ChainSegment {
            tokens: segment.range().len(),
            bytes: segment.length(PartKind::Attention).unwrap_or(0),
            tier: segment.tier(),
            resumable: memory.can_cut() || (place == last && plan.boundary().is_some()),
        })
        .collect()
}
