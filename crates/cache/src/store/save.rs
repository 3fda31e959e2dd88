//! Saving a row: checks, room, the place in the chain, and the hand-over to memory or to the write queue.
//!
//! Called by the engine between two ticks. The payload comes in by reference and is never copied here. A save
//! that cannot be done now is dropped with its reason; only a save that contradicts itself is an error.

pub(crate) mod import;

use std::sync::Arc;
use std::time::Duration;

use super::job::{Done, Job, JobEnd, RowDraft};
use super::lease::SaveBase;
use super::queue::WriteQueue;
use super::removal::Remover;
use crate::config::CacheConfig;
use crate::error::{BadSave, CacheError};
use crate::format::{MAX_PREFIX, RowMeta};
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::index::rows::{Payload, PayloadPart, Row, RowId, payload_bytes};
use crate::index::{DroppedFile, Index, Use, will_be_durable};
use crate::io::clock::Clock;
use crate::kinds::{EvictionCause, FingerprintMode, PartKind, SaveReason, Tier};

/// A row to save: the state after exactly `tokens`.
#[derive(Debug)]
pub struct SaveRequest<'a> {
    /// What the state depends on besides the tokens.
    pub namespace: Namespace,
    /// How the fingerprint in it was made.
    pub mode: FingerprintMode,
    /// All tokens, from the first.
    pub tokens: &'a [u32],
    /// The row that already holds the first tokens (`Cache::base_for`); `None` if this row holds them all.
    pub base: Option<&'a SaveBase>,
    /// The payload. The attention part covers the tokens from the base's start on.
    pub parts: Vec<PayloadPart>,
    /// Why it is saved.
    pub reason: SaveReason,
    /// Header flags (`FLAG_GRID`).
    pub flags: u16,
    /// Context size of the model that made the state.
    pub context_size: u32,
    /// The prompt, for people.
    pub text: String,
    /// Where to; `None` for the configured tier.
    pub tier: Option<Tier>,
    /// Who sent the tokens.
    pub owner: Option<OwnerId>,
}

impl<'a> SaveRequest<'a> {
    /// A prompt that was computed, by nobody in particular, in a row that holds all its tokens.
    #[must_use]
    pub const fn new(namespace: Namespace, tokens: &'a [u32], parts: Vec<PayloadPart>) -> Self {
        Self {
            namespace,
            mode: FingerprintMode::Safe,
            tokens,
            base: None,
            parts,
            reason: SaveReason::Cold,
            flags: 0,
            context_size: 0,
            text: String::new(),
            tier: None,
            owner: None,
        }
    }
}

/// The row of a save and the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// The name of the row, also if it was dropped.
    pub key: Key,
    /// The outcome.
    pub outcome: SaveOutcome,
}

/// The outcome of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveOutcome {
    /// It is in its tier.
    Published,
    /// It is readable from memory and will be written.
    Queued,
    /// It was there already.
    AlreadyPresent,
    /// Its tier does not work; it is kept in memory.
    KeptInRam,
    /// It was given up.
    Dropped(DropReason),
}

/// Why a save was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The write queue is full.
    QueueFull,
    /// The tier is switched off after a fault.
    TierOff,
    /// Everything in the tier is in use.
    NoRoom,
    /// The row it builds on is not in the tier.
    ParentGone,
    /// The write failed.
    WriteFailed,
    /// A synchronous save took too long; it may still be written.
    TimedOut,
    /// The key is being written or removed.
    Conflict,
}

/// See the module.
pub(crate) struct Saver {
    queue: Arc<WriteQueue>,
    remover: Arc<Remover>,
    clock: Arc<dyn Clock>,
    default_tier: Tier,
    quotas: [u64; 3],
    /// Rows saved to files are kept in memory too.
    keep_hot: bool,
    /// How long a synchronous save waits.
    timeout: Duration,
}

impl Saver {
    pub(crate) fn new(config: &CacheConfig, queue: Arc<WriteQueue>, remover: Arc<Remover>) -> Self {
        Self {
            queue,
            remover,
            clock: Arc::clone(&config.clock),
            default_tier: config.default_tier(),
            quotas: Tier::ALL.map(|tier| config.quota(tier)),
            keep_hot: config.keep_hot,
            timeout: Duration::from_millis(config.gates.evict_save_timeout_ms),
        }
    }

    /// Saves a row; with `waits`, returns when its file is written or the time for that is over.
    pub(crate) fn save(&self, request: SaveRequest<'_>, waits: bool) -> Result<Saved, CacheError> {
        let tier = request.tier.unwrap_or(self.default_tier);
        let SaveRequest { tokens, base, .. } = request;
        let start = base.map_or(0, |base| base.start);
        let (token_count, own_tokens) = check(&request, start)?;
        let created = self.clock.unix_seconds();
        let meta = RowMeta {
            mode: request.mode,
            reason: request.reason,
            flags: request.flags,
            context_size: request.context_size,
            created,
            last_used: created,
            parent: base.map(|base| base.key),
            start,
            ..RowMeta::new(request.namespace, token_count)
        };
        let key = request.namespace.key(tokens);
        let owners = request.owner.into_iter().collect();
        let draft = RowDraft { key, meta, owners, tokens: own_tokens.to_vec(), text: request.text };
        let payload: Payload = Arc::from(request.parts);
        let bytes = match tier {
            Tier::Ram => payload_bytes(&payload),
            Tier::RamFile | Tier::Disk => draft.file_bytes(&payload),
        };
        let quota = tier.pick(&self.quotas);
        let counters = &self.remover.counters;
        if quota == 0 {
            return Err(CacheError::TierOff { tier });
        }
        if bytes > quota {
            counters.saves_dropped.increment();
            return Err(CacheError::QuotaTooSmall { tier, bytes, quota });
        }
        let pending = Pending { saver: self, tier, payload, bytes, draft, waits };
        let outcome = pending.enter(tokens, base.map(|base| base.row))?;
        match outcome {
            SaveOutcome::Dropped(_) => counters.saves_dropped.increment(),
            SaveOutcome::AlreadyPresent => counters.duplicate_dropped.increment(),
            SaveOutcome::Published | SaveOutcome::Queued | SaveOutcome::KeptInRam => {}
        }
        Ok(Saved { key, outcome })
    }

    fn wait_for_write(&self, done: &Done) -> SaveOutcome {
        match done.wait(self.timeout) {
            Some(JobEnd::Published) => SaveOutcome::Published,
            Some(JobEnd::Failed) => SaveOutcome::Dropped(DropReason::WriteFailed),
            None => SaveOutcome::Dropped(DropReason::TimedOut),
        }
    }
}

/// A checked save on its way into the index.
struct Pending<'a> {
    saver: &'a Saver,
    tier: Tier,
    payload: Payload,
    bytes: u64,
    draft: RowDraft,
    /// Whether the caller waits for the file.
    waits: bool,
}

/// Where a save has found room.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// In the file tier that it is meant for.
    file: bool,
    /// In memory, as a row of the ram tier.
    ram: bool,
}

impl Pending<'_> {
    fn enter(self, tokens: &[u32], parent: Option<RowId>) -> Result<SaveOutcome, CacheError> {
        let Saver { queue, remover, clock, .. } = self.saver;
        let RowDraft { key, meta, .. } = self.draft;
        let mut index = remover.index.lock();
        if let Some(parent) = parent {
            // The base pins it, but it may have been found damaged since.
            if index.row(parent).doomed {
                return Ok(SaveOutcome::Dropped(DropReason::ParentGone));
            }
            check_parent(&index, parent, &meta, tokens)?;
        }
        let existing = index.by_key(&key);
        if let Some(id) = existing
            && !self.completes(index.row(id), parent)
        {
            index.touch_chain(id, meta.created, Use::Extended);
            index.add_owners(id, &self.draft.owners);
            return Ok(SaveOutcome::AlreadyPresent);
        }
        // A file of that name that is being removed is gone before the row is written: writers wait for removals.
        if self.tier != Tier::Ram && index.reservations.is_being_written(key, self.tier, clock.now()) {
            return Ok(SaveOutcome::Dropped(DropReason::Conflict));
        }
        let mut dropped = Vec::new();
        let placed = self
            .make_room(&mut index, existing, parent, &mut dropped)
            .and_then(|room| self.place(&mut index, existing, tokens, parent, room).map(|id| (id, room)));
        let (id, room) = match placed {
            Ok(placed) => placed,
            Err(reason) => {
                queue.push_removal(dropped);
                drop(index);
                remover.index.notify();
                return Ok(SaveOutcome::Dropped(reason));
            }
        };
        let tier = self.tier;
        let done = self.waits.then(|| Arc::new(Done::default()));
        let saver = self.saver;
        if room.file {
            // Before the row is visible: one that builds on it must not get into the queue before it.
            queue.push(self.job(id, done.clone()));
        }
        // Not here: the caller has others to serve, and a disk may take its time.
        queue.push_removal(dropped);
        drop(index);
        remover.index.notify();
        if !room.file {
            remover.counters.saved(meta.reason);
            return Ok(if tier == Tier::Ram { SaveOutcome::Published } else { SaveOutcome::KeptInRam });
        }
        Ok(done.map_or(SaveOutcome::Queued, |done| saver.wait_for_write(&done)))
    }

    /// Evicts what has to leave for this row. In an order in which nothing leaves for a save that is refused then.
    fn make_room(
        &self,
        index: &mut Index,
        existing: Option<RowId>,
        parent: Option<RowId>,
        dropped: &mut Vec<DroppedFile>,
    ) -> Result<Room, DropReason> {
        let Saver { queue, remover, clock, keep_hot, .. } = self.saver;
        let tier_works = remover.tiers.get(self.tier).is_some_and(|tier| tier.is_on(clock.now()));
        let to_file = self.tier != Tier::Ram && tier_works;
        if to_file && !parent.is_none_or(|parent| will_be_durable(index.row(parent), self.tier)) {
            return Err(DropReason::ParentGone);
        }
        if to_file && !queue.has_room(self.waits) {
            return Err(DropReason::QueueFull);
        }
        let ram_bytes = existing.map_or(0, |id| index.row(id).bytes_in(Tier::Ram));
        let growth = payload_bytes(&self.payload).saturating_sub(ram_bytes);
        // A row that is completed must not be evicted to make room for itself.
        existing.inspect(|id| index.pin(*id));
        let mut evict = |tier, bytes| {
            let evicted = index.make_room(tier, bytes);
            remover.count(&evicted, EvictionCause::Room);
            dropped.extend(evicted.dropped);
            evicted.enough
        };
        let file = to_file && evict(self.tier, self.bytes);
        let wants_ram = if to_file { file && (*keep_hot || ram_bytes > 0) } else { true };
        let ram = wants_ram && evict(Tier::Ram, growth);
        existing.inspect(|id| index.unpin(*id));
        match (file, ram) {
            (false, false) if self.tier != Tier::Ram && !tier_works => Err(DropReason::TierOff),
            (false, false) => Err(DropReason::NoRoom),
            (file, ram) => Ok(Room { file, ram }),
        }
    }

    /// Enters the row, or completes the one that is there.
    fn place(
        &self,
        index: &mut Index,
        existing: Option<RowId>,
        tokens: &[u32],
        parent: Option<RowId>,
        room: Room,
    ) -> Result<RowId, DropReason> {
        let RowDraft { key, meta, owners, .. } = &self.draft;
        let id = match existing {
            Some(id) => {
                index.redescribe(id, meta, owners);
                if !room.ram {
                    // What grows without room must not be counted as a row of the tier.
                    index.leave_ram(id);
                }
                id
            }
            None => index.insert(*key, *meta, tokens, owners, parent).map_err(|_| DropReason::NoRoom)?,
        };
        if room.file {
            index.set_pending(id, self.tier, Arc::clone(&self.payload), self.bytes);
        }
        if room.ram {
            index.set_ram(id, Arc::clone(&self.payload));
        }
        index.touch_chain(id, meta.created, Use::Extended);
        Ok(id)
    }

    fn job(self, row: RowId, done: Option<Arc<Done>>) -> Job {
        Job { row, tier: self.tier, draft: self.draft, payload: self.payload, bytes: self.bytes, done, old_base: None }
    }

    /// A stored row takes a second save only if that adds a part or a more durable tier and changes nothing else:
    /// the logits of a boundary that was first passed without them, for example. Nothing may be reading or writing
    /// it meanwhile, and bytes that were computed in another way (flags) are not the same row's.
    fn completes(&self, row: &Row, parent: Option<RowId>) -> bool {
        let meta = &self.draft.meta;
        let adds = self.payload.iter().any(|part| !row.has_part(part.kind));
        let more_durable = !row.is_as_durable_as(self.tier);
        let free = row.pins == 0 && row.pending.is_none();
        let same = row.parent == parent && row.meta.start == meta.start && row.meta.flags == meta.flags;
        (adds || more_durable) && row.is_covered_by(&self.payload) && free && same
    }
}

/// How many tokens the row has, and those that it stores itself, if the request does not contradict itself.
fn check<'a>(request: &SaveRequest<'a>, start: u32) -> Result<(u32, &'a [u32]), BadSave> {
    let tokens = request.tokens.len();
    if tokens == 0 {
        return Err(BadSave::NoTokens);
    }
    let too_many = BadSave::TooManyTokens { tokens, text: request.text.len(), limit: MAX_PREFIX };
    if tokens as u64 * 4 + request.text.len() as u64 + 4096 > MAX_PREFIX {
        return Err(too_many);
    }
    let own_tokens = request.tokens.get(start as usize..);
    let own_tokens = own_tokens.ok_or(BadSave::EmptyRange { start: start as usize, end: tokens })?;
    if request.parts.is_empty() {
        return Err(BadSave::NoParts);
    }
    for (position, part) in request.parts.iter().enumerate() {
        if part.kind == PartKind::Whole {
            return Err(BadSave::WholePart);
        }
        if request.parts.iter().take(position).any(|other| other.kind == part.kind) {
            return Err(BadSave::PartTwice { kind: part.kind });
        }
    }
    Ok((u32::try_from(tokens).map_err(|_| too_many)?, own_tokens))
}

/// The base was chosen by tokens, but the caller may have changed them since.
fn check_parent(index: &Index, parent: RowId, meta: &RowMeta, tokens: &[u32]) -> Result<(), BadSave> {
    let row = index.row(parent);
    if row.meta.namespace != meta.namespace {
        return Err(BadSave::OtherNamespace { parent: row.key });
    }
    let theirs = index.tokens_of(parent);
    let agree = theirs.iter().zip(tokens).take_while(|(one, two)| one == two).count();
    if agree < meta.start as usize {
        return Err(BadSave::ParentDiffers { parent: row.key, agree, start: meta.start as usize });
    }
    Ok(())
}
