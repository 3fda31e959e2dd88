//! Saving a row: checks, room, the place in the chain, and the hand-over to memory or to the write queue.
//!
//! Called by the engine between two ticks. The payload comes in by reference and is never copied here. A save
//! that cannot be done now is dropped and says why; only a save that contradicts itself is an error.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{BadSave, CacheError};
use crate::format::{HEADER_LENGTH, MAX_PREFIX};
use crate::index::{Gone, Index, NewRow, Use, will_be_durable};
use crate::key::{Key, Namespace};
use crate::lease::Lease;
use crate::owner::OwnerId;
use crate::publish::Draft;
use crate::rows::{Payload, PayloadPart, Row, RowId, payload_bytes};
use crate::store::Store;
use crate::words::{FingerprintMode, PartKind, SaveReason, Tier};
use crate::writer::{Done, Job, JobEnd};

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
    /// More about the reason, for people.
    pub reason_detail: Option<String>,
    /// Header flags (`format::FLAG_GRID`).
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

/// A stored row that a new one builds on, held until the save is made.
#[derive(Debug)]
pub struct SaveBase {
    /// Keeps the row; dropped with the base.
    pub(crate) _lease: Lease,
    pub(crate) row: RowId,
    pub(crate) key: Key,
    pub(crate) start: u32,
}

impl SaveBase {
    /// The first token that the new row has to store itself.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.start
    }

    /// The row.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// The same row, of which less is used: the new one stores the tokens from `start` on itself. `None` if nothing of
    /// it is used then.
    #[must_use]
    pub fn starting_at(mut self, start: u32) -> Option<Self> {
        self.start = self.start.min(start);
        (self.start > 0).then_some(self)
    }
}

/// What became of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// The name of the row, whatever became of it.
    pub key: Key,
    /// What became of it.
    pub outcome: SaveOutcome,
}

/// What became of a save.
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
    /// The key is being written or removed by somebody else.
    Conflict,
}

impl Store {
    /// Saves a row; with `waits`, returns when its file is written or the time for that is over.
    pub(crate) fn save(self: &Arc<Self>, request: SaveRequest<'_>, waits: bool) -> Result<Saved, CacheError> {
        let start = request.base.map_or(0, |base| base.start);
        check(&request, start)?;
        let tier = request.tier.unwrap_or_else(|| self.config.default_tier());
        let payload: Payload = Arc::from(request.parts);
        let suffix = request.tokens.get(start as usize..).unwrap_or(&[]);
        let bytes = match tier {
            Tier::Ram => payload_bytes(&payload),
            Tier::RamFile | Tier::Disk => {
                let detail = request.reason_detail.as_ref().map_or(0, String::len);
                let owners = request.owner.as_ref().map_or(0, |owner| owner_bytes(std::slice::from_ref(owner)));
                file_bytes(&payload, suffix.len(), request.text.len() + detail + owners)
            }
        };
        let quota = self.config.quota(tier);
        if quota == 0 {
            return Err(CacheError::TierOff { tier });
        }
        if bytes > quota {
            self.counters.saves_dropped.increment();
            return Err(CacheError::QuotaTooSmall { tier, bytes, quota });
        }
        let created = self.config.clock.unix_seconds();
        let draft = Draft {
            key: request.namespace.key(request.tokens),
            namespace: request.namespace,
            mode: request.mode,
            reason: request.reason,
            reason_detail: request.reason_detail,
            owners: request.owner.into_iter().collect(),
            flags: request.flags,
            context_size: request.context_size,
            created,
            parent: request.base.map(|base| base.key),
            start,
            tokens: suffix.to_vec(),
            text: request.text,
        };
        let key = draft.key;
        let pending = Pending { store: self, tier, payload, bytes, draft, waits };
        let outcome = pending.enter(request.tokens, request.base.map(|base| base.row))?;
        match outcome {
            SaveOutcome::Dropped(_) => self.counters.saves_dropped.increment(),
            SaveOutcome::AlreadyPresent => self.counters.duplicate_dropped.increment(),
            SaveOutcome::Published | SaveOutcome::Queued | SaveOutcome::KeptInRam => {}
        }
        Ok(Saved { key, outcome })
    }

    fn wait_for_write(&self, done: &Done) -> SaveOutcome {
        match done.wait(Duration::from_millis(self.config.gates.evict_save_timeout_ms)) {
            Some(JobEnd::Published) => SaveOutcome::Published,
            Some(JobEnd::Failed) => SaveOutcome::Dropped(DropReason::WriteFailed),
            None => SaveOutcome::Dropped(DropReason::TimedOut),
        }
    }
}

/// A checked save on its way into the index.
struct Pending<'a> {
    store: &'a Arc<Store>,
    tier: Tier,
    payload: Payload,
    bytes: u64,
    draft: Draft,
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
        let store = self.store;
        let mut index = store.index.lock();
        if let Some(parent) = parent {
            if index.row(parent).is_none_or(|row| row.doomed) {
                return Ok(SaveOutcome::Dropped(DropReason::ParentGone));
            }
            check_parent(&index, parent, &self.draft, tokens)?;
        }
        let existing = index.by_key(&self.draft.key);
        if let Some(id) = existing
            && !index.row(id).is_some_and(|row| self.completes(row, parent))
        {
            index.touch_chain(id, self.draft.created, Use::Extended);
            index.add_owners(id, &self.draft.owners);
            return Ok(SaveOutcome::AlreadyPresent);
        }
        let now = store.config.clock.now();
        // A file of that name that is being removed is gone before the row is written: writers wait for removals.
        if self.tier != Tier::Ram && index.reservations.is_being_written(self.draft.key, self.tier, now) {
            return Ok(SaveOutcome::Dropped(DropReason::Conflict));
        }
        let mut gone = Vec::new();
        let new = self.new_row(tokens, parent);
        let placed = self
            .make_room(&mut index, existing, parent, &mut gone)
            .and_then(|room| self.place(&mut index, existing, &new, room).map(|id| (id, room)));
        let (id, room) = match placed {
            Ok(placed) => placed,
            Err(reason) => {
                store.queue.push_removal(gone);
                drop(index);
                store.changed.notify_all();
                return Ok(SaveOutcome::Dropped(reason));
            }
        };
        let (tier, reason) = (self.tier, self.draft.reason);
        let done = self.waits.then(|| Arc::new(Done::default()));
        if room.file {
            // Before anybody else sees the row: one that builds on it must not get into the queue before it.
            store.queue.push(self.job(id, done.clone()));
        }
        // Not here: the caller has others to serve, and a disk may take its time.
        store.queue.push_removal(gone);
        drop(index);
        store.changed.notify_all();
        if !room.file {
            store.counters.saved(reason);
            return Ok(if tier == Tier::Ram { SaveOutcome::Published } else { SaveOutcome::KeptInRam });
        }
        Ok(done.map_or(SaveOutcome::Queued, |done| store.wait_for_write(&done)))
    }

    /// Evicts what has to leave for this row. In an order in which nothing leaves for a save that is refused then.
    fn make_room(
        &self,
        index: &mut Index,
        existing: Option<RowId>,
        parent: Option<RowId>,
        gone: &mut Vec<Gone>,
    ) -> Result<Room, DropReason> {
        let store = self.store;
        let tier_works = store.file_tier(self.tier).is_some_and(|tier| tier.is_on(store.config.clock.now()));
        let to_file = self.tier != Tier::Ram && tier_works;
        let parent = parent.and_then(|id| index.row(id));
        if to_file && !parent.is_none_or(|parent| will_be_durable(parent, self.tier)) {
            return Err(DropReason::ParentGone);
        }
        if to_file && !store.queue.has_room(self.waits) {
            return Err(DropReason::QueueFull);
        }
        let ram_bytes = existing.and_then(|id| index.row(id)).map_or(0, |row| row.bytes_in(Tier::Ram));
        let growth = payload_bytes(&self.payload).saturating_sub(ram_bytes);
        // A row that is completed must not be evicted to make room for itself.
        existing.inspect(|id| index.pin(*id));
        let mut evict = |tier, bytes| {
            let evicted = index.make_room(tier, bytes);
            store.counters.evictions.add(evicted.rows);
            gone.extend(evicted.gone);
            evicted.enough
        };
        let file = to_file && evict(self.tier, self.bytes);
        let wants_ram = if to_file { file && (store.config.keep_hot || ram_bytes > 0) } else { true };
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
        new: &NewRow<'_>,
        room: Room,
    ) -> Result<RowId, DropReason> {
        let id = match existing {
            Some(id) => {
                index.redescribe(id, new);
                if !room.ram {
                    // What grows without room must not be counted as a row of the tier.
                    index.leave_ram(id);
                }
                id
            }
            None => index.insert(new).map_err(|_| DropReason::NoRoom)?,
        };
        if room.file {
            index.set_pending(id, self.tier, Arc::clone(&self.payload), self.bytes);
        }
        if room.ram {
            index.set_ram(id, Some(Arc::clone(&self.payload)));
        }
        index.touch_chain(id, self.draft.created, Use::Extended);
        Ok(id)
    }

    fn job(self, row: RowId, done: Option<Arc<Done>>) -> Job {
        Job { row, tier: self.tier, draft: self.draft, payload: self.payload, bytes: self.bytes, done, was: None }
    }

    fn new_row<'t>(&'t self, tokens: &'t [u32], parent: Option<RowId>) -> NewRow<'t> {
        NewRow {
            key: self.draft.key,
            namespace: self.draft.namespace,
            tokens,
            start: self.draft.start,
            parent,
            version: crate::format::VERSION_CHAINED,
            reason: self.draft.reason,
            flags: self.draft.flags,
            mode: self.draft.mode,
            context_size: self.draft.context_size,
            created: self.draft.created,
            last_used: self.draft.created,
            hits: 0,
            owners: &self.draft.owners,
        }
    }

    /// A stored row takes a second save only if that adds a part or a more durable tier and changes nothing else:
    /// the logits of a boundary that was first passed without them, for example. Nobody may be reading or writing
    /// it meanwhile, and bytes that were computed in another way (flags) are not the same row's.
    fn completes(&self, row: &Row, parent: Option<RowId>) -> bool {
        let given = |kind| self.payload.iter().any(|part| part.kind == kind);
        let adds = self.payload.iter().any(|part| !row.has_part(part.kind));
        let keeps = PartKind::ALL.into_iter().all(|kind| !row.has_part(kind) || given(kind));
        let more_durable = !row.is_as_durable_as(self.tier);
        let free = row.pins == 0 && row.pending.is_none();
        let same = row.parent == parent && row.start == self.draft.start && row.flags == self.draft.flags;
        (adds || more_durable) && keeps && free && same
    }
}

/// Bytes of the file that a row becomes, a little on the safe side: records besides texts and tokens are short.
pub(crate) fn file_bytes(payload: &Payload, tokens: usize, text: usize) -> u64 {
    const OTHER_RECORDS: usize = 512;
    payload_bytes(payload) + (HEADER_LENGTH + OTHER_RECORDS + tokens * 4 + text) as u64
}

/// Bytes of the record that names a row's owners.
pub(crate) const fn owner_bytes(owners: &[OwnerId]) -> usize {
    owners.len() * OwnerId::LENGTH
}

fn check(request: &SaveRequest<'_>, start: u32) -> Result<(), BadSave> {
    let tokens = request.tokens.len();
    if tokens == 0 {
        return Err(BadSave::NoTokens);
    }
    if tokens as u64 * 4 + request.text.len() as u64 + 4096 > MAX_PREFIX {
        return Err(BadSave::TooManyTokens { tokens, text: request.text.len(), limit: MAX_PREFIX });
    }
    if start as usize > tokens {
        return Err(BadSave::EmptyRange { start: start as usize, end: tokens });
    }
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
    Ok(())
}

/// The base was chosen by tokens, but the caller may have changed them since.
fn check_parent(index: &Index, parent: RowId, draft: &Draft, tokens: &[u32]) -> Result<(), BadSave> {
    let Some(row) = index.row(parent) else { return Err(BadSave::NoParent { start: draft.start as usize }) };
    let key = row.key;
    if index.namespace_of(row) != Some(draft.namespace) {
        return Err(BadSave::OtherNamespace { parent: key });
    }
    if row.has_part(PartKind::Whole) {
        return Err(BadSave::WholeParent { parent: key });
    }
    let theirs = index.tokens_of(parent).unwrap_or_default();
    let agree = theirs.iter().zip(tokens).take_while(|(one, two)| one == two).count();
    if agree < draft.start as usize {
        return Err(BadSave::ParentDiffers { parent: key, agree, start: draft.start as usize });
    }
    Ok(())
}
