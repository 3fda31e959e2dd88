//! From a prompt to a sequence that holds as much of it as is known: live sequences, the cache, or nothing.
//!
//! Called by the worker when a request is admitted. Every restored state is checked before it is trusted; on any
//! doubt the request goes on colder. It must never leave a sequence in a state that the task does not know of.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use poncho_cache::{Cache, HitKind, Namespace, Needs, PartKind, RestorePlan, Segment, Tier};

use crate::backend::{Backend, Context, KvLayout, MemoryKind, SeqId, StateError, StatePart, StoredRow};
use crate::estimate::{self, Estimates};
use crate::exact::Grid;
use crate::gathered::Gathered;
use crate::save::logits_from_bytes;
use crate::staging::{Staged, Staging};

/// Below this many bytes a chain is read by the worker itself: a thread costs more than it hides.
const READ_AHEAD_BYTES: u64 = 4 << 20;
/// Rows that may turn out unusable before the request goes cold.
const ATTEMPTS: usize = 8;

/// What restoring needs of the worker.
pub(crate) struct Restorer<'a> {
    pub(crate) context: &'a mut dyn Context,
    pub(crate) backend: &'a dyn Backend,
    pub(crate) cache: &'a Cache,
    pub(crate) estimates: &'a mut Estimates,
    pub(crate) staging: &'a Staging,
    pub(crate) n_vocab: u32,
}

/// What a sequence holds after a restore.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    /// Leading tokens of the prompt.
    pub(crate) n_past: usize,
    /// The logits after all of the prompt, if they were stored: nothing has to be decoded.
    pub(crate) logits: Option<Vec<f32>>,
    /// The state was there and the context had no room for it.
    pub(crate) no_room: bool,
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
        // Without logits the last token is computed again, which only a model that can be cut allows.
        (self.grid.map_or_else(|| reach.min(prompt.saturating_sub(1)), |grid| grid.usable(reach, prompt)), false)
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

impl<'a> Restorer<'a> {
    /// Fills `seq` from the cache as far as that pays. Whatever `seq` held is gone.
    pub(crate) fn restore(&mut self, seq: SeqId, wanted: &Wanted<'_>, first: Option<RestorePlan>) -> Restored {
        let memory = self.context.info().memory;
        let mut next = first;
        for _ in 0..ATTEMPTS {
            let Some(plan) = next.take() else { break };
            match self.try_plan(seq, wanted, &plan) {
                Ok(restored) => return restored,
                // The row is out of the cache; what lies before it may still serve.
                Err(Failure::Unusable) => next = find_plan(self.cache, memory, wanted, None),
                Err(Failure::NoRoom) => {
                    self.context.remove(seq, 0..u32::MAX);
                    return Restored { no_room: true, ..Restored::default() };
                }
                Err(Failure::Refused) => break,
            }
        }
        self.context.remove(seq, 0..u32::MAX);
        Restored::default()
    }

    fn try_plan(&mut self, seq: SeqId, wanted: &Wanted<'_>, plan: &RestorePlan) -> Result<Restored, Failure> {
        let memory = self.context.info().memory;
        let (usable, exact) = wanted.usable(plan);
        let mut n_past = usable;
        if n_past as u64 > u64::from(self.context.info().n_ctx) {
            return Err(Failure::Refused);
        }
        let is_needed = |segment: &&Segment| !segment.range().is_empty() && (segment.range().start as usize) < n_past;
        let segments: Vec<&Segment> = plan.segments().iter().filter(is_needed).collect();
        let whole = segments.iter().any(|segment| segment.length(PartKind::Whole).is_some());
        let mut used = segments.len();
        if memory.has_segments() && !whole {
            let choice = self.choose(&segments, plan, wanted.prompt.len(), memory);
            if choice < used {
                used = choice;
                let end = segments.get(..used).and_then(<[_]>::last).map_or(0, |last| last.range().end as usize);
                n_past = wanted.grid.map_or(end, |grid| grid.floor(end)).min(n_past);
            }
        }
        if n_past == 0 {
            self.context.remove(seq, 0..u32::MAX);
            return Ok(Restored::default());
        }
        let exact = exact && n_past == usable;
        let boundary = plan.boundary();
        if whole {
            self.restore_whole(seq, &segments, n_past, memory)?;
        } else {
            let partial = match boundary.filter(|_| memory.has_partial()) {
                Some(row) => Some(self.load(row, PartKind::Partial)?),
                None => None,
            };
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
                self.restore_segments(segments.get(..used).unwrap_or(&[]))?;
            }
            self.context.restore_finish().map_err(refused)?;
        }
        let logits = match boundary.filter(|_| exact) {
            Some(row) => logits_from_bytes(&self.load(row, PartKind::Logits)?, self.n_vocab),
            None => None,
        };
        if exact && logits.is_none() {
            // Logits of another vocabulary size cannot be of this model; nothing else of the row is trusted either.
            return Err(Failure::Refused);
        }
        Ok(Restored { n_past, logits, no_room: false })
    }

    /// How many segments to restore; the rest is cheaper to compute.
    fn choose(&mut self, segments: &[&Segment], plan: &RestorePlan, prompt: usize, memory: MemoryKind) -> usize {
        let last = segments.len().saturating_sub(1);
        let offered: Vec<estimate::Segment> = segments
            .iter()
            .enumerate()
            .map(|(place, segment)| estimate::Segment {
                tokens: segment.range().len(),
                bytes: segment.length(PartKind::Attention).unwrap_or(0),
                tier: segment.tier(),
                resumable: memory.can_cut() || (place == last && plan.boundary().is_some()),
            })
            .collect();
        self.estimates.choose(&offered, prompt).segments
    }

    fn restore_whole(
        &mut self,
        seq: SeqId,
        segments: &[&Segment],
        n_past: usize,
        memory: MemoryKind,
    ) -> Result<(), Failure> {
        let [segment] = segments else { return Err(Failure::Refused) };
        let bytes = self.load(segment, PartKind::Whole)?;
        self.context.remove(seq, 0..u32::MAX);
        self.context.state_write(seq, StatePart::Whole, &bytes).map_err(|error| {
            tracing::warn!(%error, "a stored whole state was refused; the prompt is computed instead");
            Failure::Refused
        })?;
        let held = self.context.pos_max(seq).map_or(0, |last| last as usize + 1);
        let cut = held > n_past;
        let fits = held >= n_past && (!cut || memory.can_cut());
        let end = u32::try_from(n_past).map_err(|_| Failure::Refused)?;
        if !fits || (cut && !self.context.remove(seq, end..u32::MAX)) {
            return Err(Failure::Refused);
        }
        Ok(())
    }

    /// Copies segments into the context: those in memory as one state, from where they lie. Of others the next one is read while
    /// one is copied, unless a sequence with cells of its own takes them only at once.
    fn restore_segments(&mut self, segments: &[&Segment]) -> Result<(), Failure> {
        let in_files = |segment: &&&Segment| segment.tier() != Tier::Ram;
        if self.context.info().kv == KvLayout::Split || !segments.iter().any(|segment| in_files(&segment)) {
            return self.restore_at_once(segments);
        }
        let in_files = segments.iter().filter(in_files);
        let bytes_in_files: u64 = in_files.filter_map(|segment| segment.length(PartKind::Attention)).sum();
        if segments.len() < 2 || bytes_in_files < READ_AHEAD_BYTES {
            for segment in segments {
                let started = Instant::now();
                let bytes = self.load(segment, PartKind::Attention)?;
                self.put_rows(&[row(segment, &bytes)])?;
                self.estimates.record_restore(segment.tier(), bytes.len() as u64, started.elapsed());
            }
            return Ok(());
        }
        let (backend, staging) = (self.backend, self.staging);
        std::thread::scope(|scope| {
            // One segment ahead, one being copied: more would only take memory.
            let (sender, receiver) = sync_channel::<Result<(Loaded<'_>, Duration), Failure>>(1);
            scope.spawn(move || {
                for segment in segments {
                    let started = Instant::now();
                    let loaded =
                        load(backend, staging, segment, PartKind::Attention).map(|bytes| (bytes, started.elapsed()));
                    let failed = loaded.is_err();
                    if sender.send(loaded).is_err() || failed {
                        break;
                    }
                }
            });
            for segment in segments {
                let (bytes, reading) = receiver.recv().map_err(|_| Failure::Refused)??;
                let started = Instant::now();
                self.put_rows(&[row(segment, &bytes)])?;
                // Reading and copying overlap, so the slower of the two is what a segment costs.
                self.estimates.record_restore(segment.tier(), bytes.len() as u64, reading.max(started.elapsed()));
            }
            Ok(())
        })
    }

    /// Copies segments into the context in one call, after all of them were read.
    fn restore_at_once(&mut self, segments: &[&Segment]) -> Result<(), Failure> {
        let started = Instant::now();
        let gathered = Gathered::read(self.backend, self.staging, segments)?;
        let reading = started.elapsed();
        let started = Instant::now();
        let rows: Vec<StoredRow<'_>> =
            segments.iter().zip(gathered.rows()).map(|(segment, (bytes, _))| row(segment, bytes)).collect();
        self.put_rows(&rows)?;
        self.record(segments, &gathered, reading, started.elapsed());
        Ok(())
    }

    /// Notes what rows cost that were restored at once: a tier's share in the reading by what its rows took, for they were read
    /// side by side, and in the copying by their bytes.
    fn record(&mut self, segments: &[&Segment], gathered: &Gathered<'_>, reading: Duration, copying: Duration) {
        let took = |part: Duration, whole: Duration| part.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE);
        let (all_bytes, all_reading) =
            gathered.rows().fold((0, Duration::ZERO), |sum, row| (sum.0 + row.0.len(), sum.1 + row.1));
        for tier in [Tier::Ram, Tier::RamFile, Tier::Disk] {
            let rows = segments.iter().zip(gathered.rows()).filter(|(segment, _)| segment.tier() == tier);
            let (bytes, read) = rows.fold((0, Duration::ZERO), |sum, (_, row)| (sum.0 + row.0.len(), sum.1 + row.1));
            if bytes > 0 {
                let reading = reading.mul_f64(took(read, all_reading).min(1.0));
                let copying = copying.mul_f64(bytes as f64 / all_bytes as f64);
                self.estimates.record_restore(tier, bytes as u64, reading + copying);
            }
        }
    }

    /// Copies rows that follow each other into the context.
    fn put_rows(&mut self, rows: &[StoredRow<'_>]) -> Result<(), Failure> {
        self.context.restore_rows(rows).map_err(|error| match error {
            StateError::NoRoom { .. } => Failure::NoRoom,
            error => {
                let ends: Vec<u32> = rows.iter().map(|row| row.end).collect();
                tracing::warn!(?ends, %error, "stored segments were refused; the prompt is computed instead");
                Failure::Refused
            }
        })
    }

    fn load(&self, segment: &Segment, kind: PartKind) -> Result<Loaded<'a>, Failure> {
        load(self.backend, self.staging, segment, kind)
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

fn row<'a>(segment: &Segment, bytes: &'a [u8]) -> StoredRow<'a> {
    StoredRow { bytes, end: segment.range().end }
}

/// Bytes of a part: by reference if they are in memory, else read.
enum Loaded<'a> {
    Shared(Bytes),
    Read(Staged<'a>),
}

impl std::ops::Deref for Loaded<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Read(buffer) => buffer.as_ref(),
        }
    }
}

fn load<'a>(
    backend: &dyn Backend,
    staging: &'a Staging,
    segment: &Segment,
    kind: PartKind,
) -> Result<Loaded<'a>, Failure> {
    if let Some(bytes) = segment.bytes(kind) {
        return Ok(Loaded::Shared(bytes));
    }
    let length = segment.length(kind).and_then(|length| usize::try_from(length).ok()).ok_or(Failure::Refused)?;
    let mut buffer = staging.take(backend, length);
    segment.read(kind, buffer.as_mut()).map_err(|error| {
        tracing::debug!(%error, "a row is unusable");
        Failure::Unusable
    })?;
    Ok(Loaded::Read(buffer))
}
