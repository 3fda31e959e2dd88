//! The handle of an open cache: what the engine and the command line call.
//!
//! It puts the parts of the store together and hands each call to one of them. Dropping it writes what is queued, then
//! ends the threads. No method may hold a lock while it waits for a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config::{CacheConfig, CheckedConfig};
use crate::error::CacheError;
use crate::folder::notes;
use crate::format::RowMeta;
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::index::journal::Changes;
use crate::index::rows::Row;
use crate::index::user_pins::{Pinned, UserPins};
use crate::index::{Cut, Index, Needs};
use crate::inspect::explain::{self, Explanation, LendIndex, Scope, Then};
use crate::inspect::sketch::Sketches;
use crate::io::sync::Mutex;
use crate::kinds::{EvictionCause, PartKind, Tier};
use crate::policy::Policy;
use crate::pressure::watcher::PressureWatcher;
use crate::remote::{Chain, NO_TENANT, RemoteTier};
use crate::stats::evictions::{EvictionLog, Evictions};
use crate::stats::{CounterSnapshot, Counters};
use crate::store::compact::{Compaction, Compactor};
use crate::store::evict::Evictor;
use crate::store::lease::SaveBase;
use crate::store::lookup::export::ExportError;
use crate::store::lookup::{Lookup, RestorePlan};
use crate::store::pinned_row::RowReader;
use crate::store::pinned_row::check::CheckedCopy;
use crate::store::publish::Publisher;
use crate::store::queue::WriteQueue;
use crate::store::recover::recover;
use crate::store::removal::Remover;
use crate::store::save::import::{ImportError, ImportRequest, Imported, Importer, JoinParts};
use crate::store::save::{SaveOutcome, SaveRequest, Saved, Saver};
use crate::store::shared_index::SharedIndex;
use crate::store::tier::{FileTier, FileTiers, Readable, TierHealth};
use crate::store::touch::Touches;
use crate::store::writer::{Writer, WriterPool};

/// An open cache. Share it with `Arc`.
pub struct Cache {
    config: CheckedConfig,
    index: Arc<SharedIndex>,
    tiers: Arc<FileTiers>,
    counters: Arc<Counters>,
    evictions: Arc<EvictionLog>,
    lookup: Lookup,
    saver: Saver,
    compactor: Compactor,
    evictor: Arc<Evictor>,
    writers: WriterPool,
    pressure: PressureWatcher,
    /// Made by explanations, for the next one.
    sketches: Sketches,
    removals: Arc<AtomicU64>,
    /// Held while pins are written.
    noting: Mutex<()>,
}

/// What the index knows of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowInfo {
    /// Its name.
    pub key: Key,
    /// What describes it.
    pub meta: RowMeta,
    /// How many rows build on it.
    pub children: usize,
    /// Tiers that hold it, fastest first.
    pub tiers: Vec<Tier>,
    /// Whether a write of it is queued or running.
    pub pending: bool,
    /// Bytes it takes, all tiers together.
    pub bytes: u64,
    /// Parts that it has.
    pub parts: Vec<PartKind>,
    /// The owners that sent all of its tokens, as far as they are remembered.
    pub owners: Vec<OwnerId>,
    /// Whether somebody pinned it; in a list of one owner's rows, whether that owner did.
    pub pinned: bool,
}

/// The tokens of a row, and who has sent all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPrompt {
    /// What the state depends on besides the tokens.
    pub namespace: Namespace,
    /// The owners that sent all of the tokens, as far as they are remembered.
    pub owners: Vec<OwnerId>,
    /// All tokens, from the first.
    pub tokens: Vec<u32>,
}

impl RowInfo {
    fn of(index: &Index, row: &Row) -> Self {
        Self {
            key: row.key,
            meta: row.meta,
            children: row.children.len(),
            tiers: Tier::ALL.into_iter().filter(|tier| row.resides_in(*tier)).collect(),
            pending: row.pending.is_some(),
            bytes: Tier::ALL.into_iter().map(|tier| row.bytes_in(tier)).sum(),
            parts: PartKind::ALL.into_iter().filter(|kind| row.has_part(*kind)).collect(),
            owners: row.owners.clone(),
            pinned: index.user_pins.contains(&row.key),
        }
    }
}

impl LendIndex for SharedIndex {
    fn lend<T>(&self, step: impl FnOnce(&Index) -> T) -> T {
        step(&self.lock())
    }
}

impl Cache {
    /// Opens a cache: takes its folders, registers what is in them, starts the writers.
    ///
    /// # Errors
    /// Settings that make no sense, or a folder that cannot be used or belongs to another process.
    pub fn open(config: CacheConfig) -> Result<Self, CacheError> {
        let config = config.checked()?;
        let settings = config.settings();
        let index = Arc::new(SharedIndex::new(Tier::ALL.map(|tier| settings.quota(tier))));
        let tiers = Arc::new(FileTiers::open(settings)?);
        let counters = Arc::new(Counters::default());
        let evictions = Arc::new(EvictionLog::default());
        let remover = Arc::new(Remover::new(&index, &tiers, &counters, &evictions, &settings.clock));
        if let Some(folder) = tiers.notes() {
            let note = |name| notes::read(folder, name);
            index.lock().user_pins = UserPins::from_text(&note(notes::PINS));
            let noted = note(notes::EVICTIONS);
            if !noted.is_empty() {
                evictions.add_text(&noted, settings.clock.unix_seconds());
            }
        }
        let evictor = Arc::new(Evictor { remover: Arc::clone(&remover) });
        recover(&evictor)?;
        let pressure = {
            let evictor = Arc::clone(&evictor);
            let evict =
                Box::new(move |bytes, tiers: &[Tier]| evictor.evict_bytes(bytes, tiers, None, EvictionCause::Pressure));
            PressureWatcher::start(settings.pressure.clone(), evict)?
        };
        let removals = Arc::clone(index.lock().journal.removals());
        let clock = || Arc::clone(&settings.clock);
        let queue = Arc::new(WriteQueue::new(settings.queue));
        let writer = Writer {
            queue: Arc::clone(&queue),
            publisher: Publisher::new(settings, Arc::clone(&index), Arc::clone(&counters)),
            remover: Arc::clone(&remover),
            touches: Touches::new(Arc::clone(&index), Arc::clone(&tiers), Arc::clone(&evictions), clock()),
            clock: clock(),
        };
        Ok(Self {
            lookup: Lookup::new(RowReader { remover: Arc::clone(&remover), clock: clock() }),
            saver: Saver::new(settings, Arc::clone(&queue), Arc::clone(&remover)),
            compactor: Compactor { queue, remover, clock: clock() },
            evictor,
            writers: WriterPool::start(writer, settings.writers, settings.drain_limit),
            pressure,
            removals,
            index,
            tiers,
            counters,
            evictions,
            config,
            sketches: Sketches::default(),
            noting: Mutex::default(),
        })
    }

    /// The longest stored prefix of `tokens` that a model with these needs can use, pinned. `None` if there is none.
    #[must_use]
    pub fn lookup(&self, namespace: &Namespace, tokens: &[u32], needs: Needs) -> Option<RestorePlan> {
        self.lookup.longest(namespace, tokens, needs)
    }

    /// How many leading tokens a model with these needs could resume from. Holds nothing and counts as nothing.
    #[must_use]
    pub fn reach(&self, namespace: &Namespace, tokens: &[u32], needs: Needs) -> usize {
        self.index.lock().find(namespace, tokens, needs).map_or(0, |found| found.reach as usize)
    }

    /// The row `key`, if all its tokens begin `tokens`. Waits up to `wait` for it to be saved.
    #[must_use]
    pub fn resume(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        key: &Key,
        needs: Needs,
        wait: Duration,
    ) -> Option<RestorePlan> {
        self.wait_for(key, wait);
        self.lookup.resume(namespace, tokens, key, needs)
    }

    /// Waits until a row is readable (published or queued), at most for `wait`. Returns whether it is.
    pub fn wait_for(&self, key: &Key, wait: Duration) -> bool {
        self.index.wait_for_row(key, wait)
    }

    /// The stored row that a new row for `tokens` should build on, held until it is dropped. `None`: the new row
    /// has to hold all its tokens itself.
    #[must_use]
    pub fn base_for(&self, namespace: &Namespace, tokens: &[u32], tier: Option<Tier>) -> Option<SaveBase> {
        self.lookup.base_for(namespace, tokens, tier.unwrap_or_else(|| self.config().default_tier()))
    }

    /// Saves a row. Asynchronous for the reasons `cold`, `continued` and `finish`: it is readable at once and
    /// written later. For the others it waits for the file, up to `evict_save_timeout_ms`.
    ///
    /// # Errors
    /// A save that contradicts itself or can never fit. A save that cannot be done now is dropped instead.
    pub fn save(&self, request: SaveRequest<'_>) -> Result<Saved, CacheError> {
        let waits = request.reason.is_synchronous();
        self.saver.save(request, waits)
    }

    /// Saves a row without waiting for its file, whatever the reason. For callers that serve others meanwhile: a disk may not
    /// answer for minutes.
    ///
    /// # Errors
    /// As [`Cache::save`]. A save for which the queue has no room is dropped.
    pub fn save_later(&self, request: SaveRequest<'_>) -> Result<Saved, CacheError> {
        self.saver.save(request, false)
    }

    /// If a row's chain has at least `limit` links: the token from which on they are better joined into one
    /// ([`Cache::compact`]).
    #[must_use]
    pub fn long_chain(&self, key: &Key, limit: usize) -> Option<u32> {
        self.compactor.long_chain(key, limit)
    }

    /// The attention state of all tokens of a row, pinned, for any model. Does not count as a hit.
    #[must_use]
    pub fn chain_of(&self, key: &Key) -> Option<RestorePlan> {
        self.lookup.chain_of(key)
    }

    /// A row with everything it builds on, in canonical form. Reads files.
    ///
    /// # Errors
    /// The row or a part of its chain is gone, cannot be read, or was not sent by this owner.
    pub fn export(&self, key: &Key, owner: OwnerId) -> Result<Chain, ExportError> {
        self.lookup.export(key, owner)
    }

    /// Publishes a fetched chain as rows of this cache, owned by the one who asked for it. With `join`, a chain that would
    /// have to be mixed with local rows becomes one row.
    ///
    /// # Errors
    /// The chain fails a check, or the cache cannot take it.
    pub fn import(
        &self,
        chain: &Chain,
        request: ImportRequest<'_>,
        join: Option<JoinParts<'_>>,
    ) -> Result<Imported, ImportError> {
        let importer = Importer { lookup: &self.lookup, saver: &self.saver, remove: &|key| self.remove(key) };
        let imported = importer.import(chain, request, join)?;
        if let Some(tokens) = request.prompt.get(..imported.tokens as usize).filter(|_| request.owner != NO_TENANT) {
            self.claim(request.namespace, tokens, request.owner);
        }
        Ok(imported)
    }

    /// Shortens the chain of a row. The row keeps its name and is there all the time; the compaction is dropped if the row
    /// is being read or written.
    pub fn compact(&self, compaction: Compaction<'_>) -> SaveOutcome {
        self.compactor.compact(compaction)
    }

    /// Drops a row that nothing holds and nothing builds on, and that nobody pinned: other rows stand for it. Returns
    /// whether it left.
    pub fn remove(&self, key: &Key) -> bool {
        self.compactor.remove_row(key, EvictionCause::Thinned)
    }

    /// The same because somebody asked for it.
    pub fn evict_row(&self, key: &Key) -> bool {
        self.compactor.remove_row(key, EvictionCause::Asked)
    }

    /// Pins a row: it stays while others are evicted, and so do the rows that it builds on. With an owner, only a row of
    /// its own. Pins are kept over restarts if there is a folder.
    pub fn pin_row(&self, key: &Key, owner: Option<OwnerId>) -> Pinned {
        let pinned = self.index.lock().pin_for(key, owner);
        if pinned == Pinned::Yes {
            self.note_pins();
        }
        pinned
    }

    /// Removes the pin of an owner; without one, all pins of the row. Returns whether there was one.
    pub fn unpin_row(&self, key: &Key, owner: Option<OwnerId>) -> bool {
        let is_removed = self.index.lock().user_pins.remove(key, owner);
        if is_removed {
            self.note_pins();
        }
        is_removed
    }

    fn note_pins(&self) {
        let Some(folder) = self.tiers.notes() else { return };
        // One at a time: an older note must not replace a newer one.
        let _turn = self.noting.lock();
        let text = self.index.lock().user_pins.to_text();
        if let Err(error) = notes::write(folder, notes::PINS, &text, true) {
            tracing::warn!(%error, "the pins of the cache were not written; they end with this process");
        }
    }

    /// Compares the stored copies of a row with their checksums; a damaged one is moved aside. Reads files. With an owner,
    /// only a row of its own. `None` if the row is unknown.
    #[must_use]
    pub fn verify_row(&self, key: &Key, owner: Option<OwnerId>) -> Option<Vec<CheckedCopy>> {
        let held = self.lookup.hold(key)?;
        owner.is_none_or(|owner| held.owners.contains(&owner)).then(|| held.row.check())
    }

    /// Evictions of the last 30 days by hour, tier and cause, the oldest first.
    #[must_use]
    pub fn evictions(&self) -> Vec<Evictions> {
        self.evictions.all()
    }

    /// The rows with tokens that begin these, shortest first.
    #[must_use]
    pub fn boundaries(&self, namespace: &Namespace, tokens: &[u32]) -> Vec<RowInfo> {
        let index = self.index.lock();
        let matched = index.match_tokens(namespace, tokens);
        let rows = matched.iter().flat_map(|matched| matched.boundaries.iter());
        rows.map(|(_, id)| RowInfo::of(&index, index.row(*id))).collect()
    }

    /// Whether a row of that name is readable.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.index.lock().by_key(key).is_some()
    }

    /// What the index knows of one row.
    #[must_use]
    pub fn row(&self, key: &Key) -> Option<RowInfo> {
        let index = self.index.lock();
        index.by_key(key).map(|id| RowInfo::of(&index, index.row(id)))
    }

    /// All rows, by key.
    #[must_use]
    pub fn rows(&self) -> Vec<RowInfo> {
        let index = self.index.lock();
        by_key(index.rows().map(|row| RowInfo::of(&index, row)).collect())
    }

    /// The rows of one owner, by key. Nothing in them reveals rows that are not its own.
    #[must_use]
    pub fn rows_of(&self, owner: OwnerId) -> Vec<RowInfo> {
        let index = self.index.lock();
        let is_own = |row: &&Row| row.is_owned_by(owner);
        let own = index.rows().filter(is_own).map(|row| {
            let parent = row.parent.map(|parent| index.row(parent)).filter(is_own).map(|parent| parent.key);
            let children = row.children.iter().map(|child| index.row(*child)).filter(is_own).count();
            let info = RowInfo::of(&index, row);
            let pinned = index.user_pins.is_pinned_by(&row.key, Some(owner));
            RowInfo { meta: RowMeta { parent, ..info.meta }, children, owners: vec![owner], pinned, ..info }
        });
        by_key(own.collect())
    }

    /// Notes that an owner has sent these tokens: rows that hold a beginning of them are its own from now on.
    pub fn claim(&self, namespace: &Namespace, tokens: &[u32], owner: OwnerId) {
        self.index.lock().claim(namespace, tokens, owner);
    }

    /// How many leading tokens the rows of one owner hold.
    #[must_use]
    pub fn owned_reach(&self, namespace: &Namespace, tokens: &[u32], owner: OwnerId) -> usize {
        self.index.lock().owned_reach(namespace, tokens, owner)
    }

    /// All tokens of a row.
    #[must_use]
    pub fn tokens_of(&self, key: &Key) -> Option<Vec<u32>> {
        let index = self.index.lock();
        index.by_key(key).map(|id| index.tokens_of(id))
    }

    /// A row as readers of the journal keep it. `None` if it has left.
    #[must_use]
    pub fn prompt_of(&self, key: &Key) -> Option<StoredPrompt> {
        let index = self.index.lock();
        let id = index.by_key(key)?;
        let row = index.row(id);
        Some(StoredPrompt { namespace: row.meta.namespace, owners: row.owners.clone(), tokens: index.tokens_of(id) })
    }

    /// The rows of a namespace, the oldest first.
    #[must_use]
    pub fn keys_of(&self, namespace: &Namespace) -> Vec<Key> {
        let index = self.index.lock();
        let own = index.rows().filter(|row| row.meta.namespace == *namespace);
        let mut rows: Vec<_> = own.map(|row| (row.meta.created, row.meta.token_count, row.key)).collect();
        drop(index);
        rows.sort_unstable();
        rows.into_iter().map(|(_, _, key)| key).collect()
    }

    /// Which rows appeared, moved to another tier, got an owner or left since a point; 0 for the start.
    #[must_use]
    pub fn changes_since(&self, point: u64) -> Changes {
        self.index.lock().journal.since(point)
    }

    /// Rows that were removed since the cache was opened. Takes no lock, so a reader can compare it before each use of
    /// what it has copied.
    #[must_use]
    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.lock().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How far the best stored prefix reaches, where it parts, and the stored prompt that is most like these tokens.
    /// Takes milliseconds to seconds the first time: stored prompts are read in the index.
    #[must_use]
    pub fn explain(&self, namespace: &Namespace, tokens: &[u32], cut: Cut) -> Explanation {
        explain::explain(&*self.index, &self.sketches, Scope { namespace, owner: None, then: None }, tokens, cut)
    }

    /// The same for one owner: rows of others are as if they were not there.
    #[must_use]
    pub fn explain_for(&self, owner: OwnerId, namespace: &Namespace, tokens: &[u32], cut: Cut) -> Explanation {
        let scope = Scope { namespace, owner: Some(owner), then: None };
        explain::explain(&*self.index, &self.sketches, scope, tokens, cut)
    }

    /// The same for tokens that were looked up and computed before: rows that were saved since do not count.
    #[must_use]
    pub fn explain_past(
        &self,
        owner: Option<OwnerId>,
        namespace: &Namespace,
        tokens: &[u32],
        cut: Cut,
        then: Then,
    ) -> Explanation {
        // Nothing was missing: all rows count.
        let then = Some(then).filter(|then| then.found.saturating_add(1) < tokens.len());
        explain::explain(&*self.index, &self.sketches, Scope { namespace, owner, then }, tokens, cut)
    }

    /// Drops every row that nothing holds. Returns the bytes freed.
    pub fn clear(&self) -> u64 {
        self.evictor.clear()
    }

    /// Removes files that can never be used again: those moved aside as damaged. Usable rows stay. Returns the bytes
    /// freed. Unfinished writes and rows with a broken chain are removed when the folder is opened.
    pub fn gc(&self) -> u64 {
        self.evictor.gc()
    }

    /// Moves the file of a row aside that a check found damaged, and drops the rows that build on it. Returns whether
    /// the row was there. [`gc`](Self::gc) removes what was moved aside.
    pub fn condemn(&self, key: &Key, tier: Tier) -> bool {
        let Some(id) = self.index.lock().by_key(key) else { return false };
        self.evictor.remover.condemn(id, key, tier);
        true
    }

    /// Frees at least `bytes` in the tiers, oldest rows first, as far as rows are free to go.
    pub fn evict_bytes(&self, bytes: u64, tiers: &[Tier]) -> u64 {
        self.evictor.evict_bytes(bytes, tiers, None, EvictionCause::Asked)
    }

    /// The same among the rows of one owner. Rows that others have sent too, or that theirs build on, stay.
    pub fn evict_bytes_of(&self, owner: OwnerId, bytes: u64, tiers: &[Tier]) -> u64 {
        self.evictor.evict_bytes(bytes, tiers, Some(owner), EvictionCause::Asked)
    }

    /// Waits until every queued save is written or given up, and hit counts are in the files.
    pub fn flush(&self) {
        self.writers.flush();
    }

    /// Waits until every queued save is written or given up, at most for `limit`. Returns whether they are.
    pub fn drain(&self, limit: Duration) -> bool {
        self.writers.queue().wait_idle_for(limit)
    }

    /// The counters, and what the tiers hold.
    #[must_use]
    pub fn counters(&self) -> CounterSnapshot {
        let mut snapshot = self.counters.snapshot();
        self.index.count_tiers(&mut snapshot);
        snapshot
    }

    /// Counts a packed state; the engine packs, the counters are here.
    pub fn count_pack(&self, bytes: u64, time: Duration) {
        self.counters.pack_bytes.add(bytes);
        self.counters.pack_nanos.add_nanos(time);
    }

    /// Whether rows of a tier may be read now. Asked before reading: a tier with late reads is left alone for a while, then
    /// one caller may probe it.
    #[must_use]
    pub fn may_read(&self, tier: Tier) -> Readable {
        self.tiers.get(tier).map_or(Readable::Yes, |file_tier| file_tier.may_read(self.config().clock.now()))
    }

    /// A restore stopped waiting for a read from this tier.
    pub fn read_late(&self, tier: Tier, waited: Duration) {
        self.counters.reads_late.increment();
        if let Some(file_tier) = self.tiers.get(tier) {
            file_tier.read_late(waited, self.config().clock.now());
        }
    }

    /// A read from this tier came in time.
    pub fn read_in_time(&self, tier: Tier) {
        if let Some(file_tier) = self.tiers.get(tier) {
            file_tier.read_in_time();
        }
    }

    /// Whether each configured file tier works.
    #[must_use]
    pub fn health(&self) -> Vec<TierHealth> {
        self.tiers.all().iter().map(FileTier::health).collect()
    }

    /// The tier that other machines share, if there is one.
    #[must_use]
    pub fn remote(&self) -> Option<&Arc<dyn RemoteTier>> {
        self.config().remote.as_ref()
    }

    /// The checked save gates.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.config.policy()
    }

    /// The settings that it was opened with.
    #[must_use]
    pub fn config(&self) -> &CacheConfig {
        self.config.settings()
    }

    /// The memory pressure watcher.
    #[must_use]
    pub fn pressure(&self) -> &PressureWatcher {
        &self.pressure
    }

    /// Rows that a lease or a write holds at the moment.
    #[must_use]
    pub fn pinned_rows(&self) -> usize {
        self.index.lock().pinned()
    }

    /// Saves that wait for a writer or are being written.
    #[must_use]
    pub fn queue_depth(&self) -> usize {
        self.writers.queue().depth()
    }

    /// Approximate memory of the index itself, payloads not counted.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.index.lock().memory_bytes()
    }
}

fn by_key(mut rows: Vec<RowInfo>) -> Vec<RowInfo> {
    rows.sort_by_key(|row| row.key);
    rows
}
