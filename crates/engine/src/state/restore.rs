//! From a prompt to a sequence that holds as much of it as is known: live sequences, the cache, or nothing.
//!
//! Called by the worker when a request is admitted. A restore has three steps: choose what of a plan to put back, read what of
//! it is not in memory (`segment_reader.rs`, on other threads and with a deadline), and set it. Every restored state is checked before
//! it is trusted; on any doubt the request goes on colder. It must never leave a sequence in a state that the task does not
//! know of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::{Cache, HitKind, Namespace, Needs, PartKind, PinnedRow, RestorePlan, Tier};

use crate::backend::{Context, MemoryKind, SeqId, StateError, StoredRow};
use crate::sequence::exact::Grid;
use crate::state::chosen::{Chosen, Loaded, Reach, Reads};
use crate::state::cost::{self, Estimates};
use crate::state::save::logits_from_bytes;
use crate::state::segment_reader::{Buffers, PartId, Parts, Readers, Reading};

/// Rows that may turn out unusable before the request goes cold.
pub(crate) const ATTEMPTS: usize = 8;
/// A tier whose reads were late gets this part of the usual time when it is tried again.
const PROBE_SHARE: u32 = 10;

/// What restoring needs of the worker.
pub(crate) struct Restorer<'a> {
    pub(crate) context: &'a mut dyn Context,
    pub(crate) cache: &'a Cache,
    pub(crate) estimates: &'a mut Estimates,
    pub(crate) readers: &'a Readers,
    pub(crate) buffers: Buffers,
    /// How long reads are waited for at least.
    pub(crate) read_wait: Duration,
    pub(crate) n_vocab: u32,
}

/// What a sequence holds after a restore.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    /// Leading tokens of the prompt.
    pub(crate) n_past: usize,
    /// The logits after all of the prompt, if they were stored: nothing has to be decoded.
    pub(crate) logits: Option<Vec<f32>>,
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

/// What a model of this kind needs in order to go on from a row.
pub(crate) fn needs_of(memory: MemoryKind) -> Option<Needs> {
    match memory {
        MemoryKind::Attention => Some(Needs::ATTENTION),
        MemoryKind::Window { .. } | MemoryKind::Hybrid => Some(Needs::ATTENTION_AND_PARTIAL),
        MemoryKind::Recurrent => Some(Needs::PARTIAL),
        MemoryKind::None => None,
    }
}

/// A prompt whose state is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) prompt: &'a [u32],
    /// For exact requests: where states may be taken up.
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

    /// The same if the logits cannot be had: the last token is computed again, which only a model that can be cut allows.
    fn without_logits(&self, reach: usize) -> usize {
        let prompt = self.prompt.len();
        self.grid.map_or_else(|| reach.min(prompt.saturating_sub(1)), |grid| grid.usable(reach, prompt))
    }

    /// Whether a model can go on from a plan: from its very end, or from before it if it can be cut.
    fn is_usable(&self, plan: &RestorePlan, memory: MemoryKind) -> bool {
        let (usable, _) = self.usable(plan);
        memory.can_cut() || usable == plan.reach() as usize
    }
}

/// The best that the cache has for a prompt: the named row if it fits, else the longest prefix.
pub(crate) fn find_plan(
    cache: &Cache,
    memory: MemoryKind,
    wanted: &Wanted<'_>,
    parent: Option<poncho_cache::Key>,
) -> Option<RestorePlan> {
    let needs = needs_of(memory)?;
    let Wanted { namespace, prompt, .. } = *wanted;
    // Whoever waits for the row has done so before: the worker has others to serve.
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
        // The whole prompt is stored but its logits are not, or the row ends beside the grid, and this model cannot take
        // a token back.
        limit = wanted.usable(&plan).0;
    }
    None
}

impl Restorer<'_> {
    /// Fills `seq` from the cache as far as that pays, waiting for reads as long as that pays. Whatever `seq` held is gone.
    /// For what runs alone anyway: others wait meanwhile.
    pub(crate) fn restore(&mut self, seq: SeqId, wanted: &Wanted<'_>, first: Option<RestorePlan>) -> Restored {
        let memory = self.context.info().memory;
        let (mut next, mut until) = (first, None);
        for _ in 0..ATTEMPTS {
            let Some(plan) = next.take() else { break };
            match self.try_plan(seq, wanted, Arc::new(plan), &mut until) {
                Ok(restored) => return restored,
                // The row is out of the cache; what lies before it may still serve.
                Err(Failure::Unusable) => next = find_plan(self.cache, memory, wanted, None),
                Err(Failure::NoRoom | Failure::Refused) => break,
            }
        }
        self.context.remove(seq, 0..u32::MAX);
        Restored::default()
    }

    fn try_plan(
        &mut self,
        seq: SeqId,
        wanted: &Wanted<'_>,
        plan: Arc<RestorePlan>,
        until: &mut Option<Instant>,
    ) -> Result<Restored, Failure> {
        let chosen = self.choose(wanted, plan, &Parts::default(), Reads::Allowed)?;
        let missing = chosen.missing();
        if missing.is_empty() {
            return self.set(seq, &chosen, &Parts::default(), Duration::ZERO);
        }
        let until = *until.get_or_insert_with(|| Instant::now() + self.patience(&chosen));
        let reading = self.readers.read(self.buffers.clone(), &chosen.plan, &missing, None)?;
        reading.wait(until);
        let (chosen, parts, took) = self.gather(wanted, chosen, &missing, reading)?;
        self.set(seq, &chosen, &parts, took)
    }

    /// Chooses what of a plan to put back: what is at hand or can be read, and is not cheaper to compute.
    pub(crate) fn choose(
        &mut self,
        wanted: &Wanted<'_>,
        plan: Arc<RestorePlan>,
        have: &Parts,
        reads: Reads,
    ) -> Result<Chosen, Failure> {
        let memory = self.context.info().memory;
        let (mut n_past, mut with_logits) = wanted.usable(&plan);
        if n_past as u64 > u64::from(self.context.info().n_ctx) {
            return Err(Failure::Refused);
        }
        let mut reach = Reach { plan: &plan, have, cache: self.cache, reads, asked: [None; Tier::ALL.len()] };
        let boundary = plan.boundary().and_then(|_| plan.rows().len().checked_sub(1));
        if with_logits && !boundary.is_some_and(|row| reach.has((row, PartKind::Logits))) {
            if !memory.can_cut() {
                return Ok(Chosen::nothing(plan));
            }
            (n_past, with_logits) = (wanted.without_logits(n_past), false);
        }
        let is_needed = |row: &PinnedRow| !row.range().is_empty() && (row.range().start as usize) < n_past;
        let needed = plan.rows().iter().enumerate().filter(|(_, row)| is_needed(row));
        let mut rows: Vec<usize> = needed.map(|(row, _)| row).collect();
        let partial = boundary.filter(|_| memory.has_partial());
        if partial.is_some_and(|row| !reach.has((row, PartKind::Partial))) {
            return Ok(Chosen::nothing(plan));
        }
        if memory.has_segments() {
            let at_hand = rows.iter().take_while(|row| reach.has((**row, PartKind::Attention))).count();
            let used = self.estimate(&plan, &rows, at_hand, wanted.prompt.len(), memory);
            if used < rows.len() {
                rows.truncate(used);
                let last = rows.last().and_then(|row| plan.rows().get(*row));
                let end = last.map_or(0, |last| last.range().end as usize);
                let end = wanted.grid.map_or(end, |grid| grid.floor(end));
                with_logits &= end >= n_past;
                n_past = end.min(n_past);
                // On a grid, a row may begin where the last whole chunk ends.
                let starts_before =
                    |row: &usize| plan.rows().get(*row).is_some_and(|row| (row.range().start as usize) < n_past);
                rows.retain(starts_before);
            }
        } else {
            rows.clear();
        }
        if n_past == 0 {
            return Ok(Chosen::nothing(plan));
        }
        let is_probe = reach.is_probe();
        let logits = boundary.filter(|_| with_logits);
        Ok(Chosen { n_past, rows, partial, logits, is_probe, plan })
    }

    /// How many of the first rows to restore; the rest is cheaper to compute.
    fn estimate(
        &mut self,
        plan: &RestorePlan,
        rows: &[usize],
        at_hand: usize,
        prompt: usize,
        memory: MemoryKind,
    ) -> usize {
        let last = rows.len().saturating_sub(1);
        let offered: Vec<cost::Segment> = rows
            .iter()
            .take(at_hand)
            .filter_map(|row| plan.rows().get(*row))
            .enumerate()
            .map(|(place, row)| cost::Segment {
                tokens: row.range().len(),
                bytes: row.length(PartKind::Attention).unwrap_or(0),
                tier: row.tier(),
                resumable: memory.can_cut() || (place == last && plan.boundary().is_some()),
            })
            .collect();
        self.estimates.choose(&offered, prompt).segments
    }

    /// How long what was chosen may be waited for: half of what computing it would take, but at least so long that a healthy
    /// disk beside a fast model is not cut off.
    pub(crate) fn patience(&self, chosen: &Chosen) -> Duration {
        let floor = if chosen.is_probe { self.read_wait / PROBE_SHARE } else { self.read_wait };
        self.estimates.patience(chosen.n_past, floor)
    }

    /// What a reading brought, and what is put back of it. What did not come in time is computed, and its tier is left alone for a
    /// while.
    pub(crate) fn gather(
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

    /// Puts back what was chosen. After an error the sequence may hold anything.
    pub(crate) fn set(
        &mut self,
        seq: SeqId,
        chosen: &Chosen,
        parts: &Parts,
        reading: Duration,
    ) -> Result<Restored, Failure> {
        let memory = self.context.info().memory;
        let n_past = chosen.n_past;
        if n_past == 0 {
            self.context.remove(seq, 0..u32::MAX);
            return Ok(Restored::default());
        }
        let partial = chosen.partial.map(|row| chosen.load((row, PartKind::Partial), parts)).transpose()?;
        let refused = |error| match error {
            StateError::NoRoom { .. } => Failure::NoRoom,
            error => {
                tracing::warn!(%error, "a stored state was refused; the prompt is computed instead");
                Failure::Refused
            }
        };
        let end = u32::try_from(n_past).unwrap_or(u32::MAX);
        self.context.restore_begin(seq, end, partial.as_deref()).map_err(refused)?;
        if memory.has_segments() {
            self.set_rows(chosen, parts, reading)?;
        }
        self.context.restore_finish().map_err(refused)?;
        let Some(row) = chosen.logits else { return Ok(Restored { n_past, logits: None }) };
        // Logits of another vocabulary size cannot be of this model; nothing else of the row is trusted either.
        let logits = logits_from_bytes(&chosen.load((row, PartKind::Logits), parts)?, self.n_vocab);
        Ok(Restored { n_past, logits: Some(logits.ok_or(Failure::Refused)?) })
    }

    /// Copies rows into the context in one call, from where they lie.
    fn set_rows(&mut self, chosen: &Chosen, parts: &Parts, reading: Duration) -> Result<(), Failure> {
        let mut loaded = Vec::with_capacity(chosen.rows.len());
        for row in &chosen.rows {
            let pinned = chosen.plan.rows().get(*row).ok_or(Failure::Refused)?;
            loaded.push((pinned.range().end, chosen.load((*row, PartKind::Attention), parts)?));
        }
        let started = Instant::now();
        let rows: Vec<StoredRow<'_>> = loaded.iter().map(|(end, row)| StoredRow { bytes: row, end: *end }).collect();
        self.context.restore_rows(&rows).map_err(|error| match error {
            StateError::NoRoom { .. } => Failure::NoRoom,
            error => {
                let ends: Vec<u32> = rows.iter().map(|row| row.end).collect();
                tracing::warn!(?ends, %error, "stored segments were refused; the prompt is computed instead");
                Failure::Refused
            }
        })?;
        self.record(&loaded, reading, started.elapsed());
        Ok(())
    }

    /// Notes what rows cost that were restored at once: a tier's share in the reading by what its rows took, for they were read
    /// side by side, and in the copying by their bytes.
    fn record(&mut self, rows: &[(u32, Loaded<'_>)], reading: Duration, copying: Duration) {
        let took = |part: Duration, whole: Duration| part.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE);
        let sum = |(bytes, read): (usize, Duration), row: &Loaded<'_>| (bytes + row.len(), read + row.took);
        let rows = || rows.iter().map(|(_, row)| row);
        let (all_bytes, all_reading) = rows().fold((0, Duration::ZERO), sum);
        for tier in [Tier::Ram, Tier::RamFile, Tier::Disk] {
            let (bytes, read) = rows().filter(|row| row.tier == tier).fold((0, Duration::ZERO), sum);
            if bytes > 0 {
                let reading = reading.mul_f64(took(read, all_reading).min(1.0));
                let copying = copying.mul_f64(bytes as f64 / all_bytes as f64);
                self.estimates.record_restore(tier, bytes as u64, reading + copying);
            }
        }
    }
}

/// Why a plan did not work out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A row cannot be read; it has left the cache.
    Unusable,
    /// The context has no free cells for the bytes; whoever holds some may give them up.
    NoRoom,
    /// The context does not take the bytes.
    Refused,
}
