//! The handle of an open cache: what the engine and the command line call.
//!
//! It owns the writer threads and the pressure watcher; dropping it writes what is queued, then ends them. A disk that
//! does not answer is waited for up to a limit, then left alone with its threads. Every method is a thin door to the store; none of them holds a lock while it waits for a disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::compact::Compaction;
use crate::config::CacheConfig;
use crate::error::CacheError;
use crate::explain::{self, Explanation};
use crate::index::{Cut, Needs};
use crate::key::{Key, Namespace};
use crate::owner::OwnerId;
use crate::plan::RestorePlan;
use crate::policy::Policy;
use crate::pressure::PressureWatcher;
use crate::save::{SaveBase, SaveOutcome, SaveRequest, Saved};
use crate::stats::CounterSnapshot;
use crate::store::Store;
use crate::sync::thread::{self, JoinHandle};
use crate::tier::{FileTier, Readable, TierHealth};
use crate::words::{FingerprintMode, PartKind, SaveReason, Tier};
use crate::writer::Queue;

/// An open cache. Share it with `Arc`.
pub struct Cache {
    store: Arc<Store>,
    writers: Vec<JoinHandle<()>>,
    pressure: PressureWatcher,
}

/// What the index knows of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowInfo {
    /// Its name.
    pub key: Key,
    /// What it depends on besides the tokens.
    pub namespace: Namespace,
    /// How many tokens it has.
    pub tokens: u32,
    /// The first token that it stores itself.
    pub start: u32,
    /// The row it builds on.
    pub parent: Option<Key>,
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
    /// How often it was used.
    pub hits: u32,
    /// Last use, unix seconds.
    pub last_used: u64,
    /// Creation, unix seconds.
    pub created: u64,
    /// How the fingerprint of its namespace was made.
    pub mode: FingerprintMode,
    /// Why it was saved.
    pub reason: SaveReason,
    /// File version.
    pub version: u8,
    /// Who has sent all of its tokens, as far as is remembered.
    pub owners: Vec<OwnerId>,
}

impl Cache {
    /// Opens a cache: takes its folders, registers what is in them, starts the writers.
    ///
    /// # Errors
    /// Settings that make no sense, or a folder that cannot be used or belongs to another process.
    pub fn open(config: CacheConfig) -> Result<Self, CacheError> {
        let store = Arc::new(Store::new(config)?);
        store.recover()?;
        let evict = {
            let store = Arc::clone(&store);
            Box::new(move |bytes, tiers: &[Tier]| store.evict_bytes(bytes, tiers, None))
        };
        let pressure = PressureWatcher::start(store.config.pressure.clone(), evict)?;
        let writers = if store.file_tiers().is_empty() { 0 } else { store.config.writers };
        let writers = (0..writers)
            .map(|_| {
                let writing = Queue::enter(&store);
                thread::spawn(move || writing.run())
            })
            .collect();
        Ok(Self { store, writers, pressure })
    }

    /// The longest stored prefix of `tokens` that a model with these needs can use, pinned; or nothing.
    #[must_use]
    pub fn lookup(&self, namespace: &Namespace, tokens: &[u32], needs: Needs) -> Option<RestorePlan> {
        self.store.lookup(namespace, tokens, needs)
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
        self.store.resume(namespace, tokens, key, needs)
    }

    /// Waits until a row is readable (published or queued), at most so long. Says whether it is.
    pub fn wait_for(&self, key: &Key, wait: Duration) -> bool {
        let started = Instant::now();
        let mut index = self.store.index.lock();
        loop {
            if index.by_key(key).is_some() {
                return true;
            }
            match wait.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
                Some(left) => index = self.store.changed.wait_for(index, left),
                None => return false,
            }
        }
    }

    /// The stored row that a new row for `tokens` should build on, held until it is dropped. `None`: the new row
    /// has to hold all its tokens itself.
    #[must_use]
    pub fn base_for(&self, namespace: &Namespace, tokens: &[u32], tier: Option<Tier>) -> Option<SaveBase> {
        self.store.base_for(namespace, tokens, tier.unwrap_or_else(|| self.store.config.default_tier()))
    }

    /// Saves a row. Asynchronous for the reasons `cold`, `continued` and `finish`: it is readable at once and
    /// written later. For the others it waits for the file, up to `evict_save_timeout_ms`.
    ///
    /// # Errors
    /// A save that contradicts itself or can never fit. A save that cannot be done now is dropped instead.
    pub fn save(&self, request: SaveRequest<'_>) -> Result<Saved, CacheError> {
        let waits = request.reason.is_synchronous();
        self.store.save(request, waits)
    }

    /// Saves a row without waiting for its file, whatever the reason. For callers that serve others meanwhile: a disk may not
    /// answer for minutes.
    ///
    /// # Errors
    /// As [`Cache::save`]. A save for which the queue has no room is dropped.
    pub fn save_later(&self, request: SaveRequest<'_>) -> Result<Saved, CacheError> {
        self.store.save(request, false)
    }

    /// If a row's chain has at least `limit` links: the token from which on they are better joined into one
    /// ([`Cache::compact`]).
    #[must_use]
    pub fn long_chain(&self, key: &Key, limit: usize) -> Option<u32> {
        self.store.long_chain(key, limit)
    }

    /// The attention state of all tokens of a row, pinned, whoever may need it. Does not count as a hit.
    #[must_use]
    pub fn chain_of(&self, key: &Key) -> Option<RestorePlan> {
        self.store.chain_of(key)
    }

    /// Shortens the chain of a row. The row keeps its name and is there all the time; it is given up for now if somebody
    /// reads it.
    ///
    /// # Errors
    /// As [`Cache::save`].
    pub fn compact(&self, compaction: Compaction<'_>) -> Result<SaveOutcome, CacheError> {
        self.store.compact(compaction)
    }

    /// Drops a row that nobody holds and nothing builds on. Says whether it left.
    pub fn remove(&self, key: &Key) -> bool {
        self.store.remove_row(key)
    }

    /// The rows whose tokens begin these, shortest first.
    #[must_use]
    pub fn boundaries(&self, namespace: &Namespace, tokens: &[u32]) -> Vec<RowInfo> {
        let index = self.store.index.lock();
        let matched = index.match_tokens(namespace, tokens);
        let rows = matched.iter().flat_map(|matched| matched.boundaries.iter());
        rows.filter_map(|(_, id)| index.row(*id).and_then(|row| row_info(&index, row))).collect()
    }

    /// Whether a row of that name is readable.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.store.index.lock().by_key(key).is_some()
    }

    /// What the index knows of one row.
    #[must_use]
    pub fn row(&self, key: &Key) -> Option<RowInfo> {
        let index = self.store.index.lock();
        let id = index.by_key(key)?;
        index.row(id).and_then(|row| row_info(&index, row))
    }

    /// All rows, by key.
    #[must_use]
    pub fn rows(&self) -> Vec<RowInfo> {
        let index = self.store.index.lock();
        let mut rows: Vec<RowInfo> = index.rows().filter_map(|(_, row)| row_info(&index, row)).collect();
        drop(index);
        rows.sort_by_key(|row| row.key);
        rows
    }

    /// The rows of one owner, by key. Nothing in them tells of rows that are not its own.
    #[must_use]
    pub fn rows_of(&self, owner: OwnerId) -> Vec<RowInfo> {
        let index = self.store.index.lock();
        let is_own = |row: &crate::rows::Row| row.is_owned_by(owner);
        let own = index.rows().filter(|(_, row)| is_own(row)).filter_map(|(_, row)| {
            let info = row_info(&index, row)?;
            let parent = row.parent.and_then(|parent| index.row(parent)).filter(|parent| is_own(parent));
            let children = row.children.iter().filter(|child| index.row(**child).is_some_and(is_own)).count();
            Some(RowInfo { parent: parent.map(|parent| parent.key), children, owners: vec![owner], ..info })
        });
        let mut rows: Vec<RowInfo> = own.collect();
        drop(index);
        rows.sort_by_key(|row| row.key);
        rows
    }

    /// Notes that an owner has sent these tokens: rows that hold a beginning of them are its own from now on.
    pub fn claim(&self, namespace: &Namespace, tokens: &[u32], owner: OwnerId) {
        self.store.index.lock().claim(namespace, tokens, owner);
    }

    /// How many leading tokens the rows of one owner hold.
    #[must_use]
    pub fn owned_reach(&self, namespace: &Namespace, tokens: &[u32], owner: OwnerId) -> usize {
        self.store.index.lock().owned_reach(namespace, tokens, owner)
    }

    /// All tokens of a row.
    #[must_use]
    pub fn tokens_of(&self, key: &Key) -> Option<Vec<u32>> {
        let index = self.store.index.lock();
        index.by_key(key).and_then(|id| index.tokens_of(id))
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.index.lock().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How far the best stored prefix reaches and where it parts.
    #[must_use]
    pub fn explain(&self, namespace: &Namespace, tokens: &[u32], cut: Cut) -> Explanation {
        explain::explain(&self.store.index.lock(), namespace, tokens, cut, None)
    }

    /// The same for one owner: rows of others are as if they were not there.
    #[must_use]
    pub fn explain_for(&self, owner: OwnerId, namespace: &Namespace, tokens: &[u32], cut: Cut) -> Explanation {
        explain::explain(&self.store.index.lock(), namespace, tokens, cut, Some(owner))
    }

    /// Drops every row that nobody holds. Returns the bytes freed.
    pub fn gc(&self) -> u64 {
        self.store.gc()
    }

    /// Frees at least `bytes` in the tiers, oldest rows first, as far as rows are free to go.
    pub fn evict_bytes(&self, bytes: u64, tiers: &[Tier]) -> u64 {
        self.store.evict_bytes(bytes, tiers, None)
    }

    /// The same among the rows of one owner. Rows that others have sent too, or that theirs build on, stay.
    pub fn evict_bytes_of(&self, owner: OwnerId, bytes: u64, tiers: &[Tier]) -> u64 {
        self.store.evict_bytes(bytes, tiers, Some(owner))
    }

    /// Waits until every queued save is written or given up, and hit counts are in the files.
    pub fn flush(&self) {
        self.store.queue.wait_idle();
        self.store.write_touches();
    }

    /// Waits until every queued save is written or given up, at most so long. Says whether they are.
    pub fn drain(&self, limit: Duration) -> bool {
        self.store.queue.wait_idle_for(limit)
    }

    /// The counters, and what the tiers hold.
    #[must_use]
    pub fn counters(&self) -> CounterSnapshot {
        self.store.snapshot()
    }

    /// Counts a packed state; the engine packs, the counters are here.
    pub fn count_pack(&self, bytes: u64, time: Duration) {
        self.store.counters.pack_bytes.add(bytes);
        self.store.counters.pack_nanos.add_nanos(time);
    }

    /// Whether rows of a tier may be read now. Asked before reading: a tier whose reads were late is left alone for a while, then
    /// one caller is told to try.
    #[must_use]
    pub fn may_read(&self, tier: Tier) -> Readable {
        self.store.file_tier(tier).map_or(Readable::Yes, |file_tier| file_tier.may_read(self.store.config.clock.now()))
    }

    /// A restore did not wait any longer for a read from this tier.
    pub fn read_late(&self, tier: Tier, waited: Duration) {
        self.store.counters.reads_late.increment();
        if let Some(file_tier) = self.store.file_tier(tier) {
            file_tier.read_late(waited, self.store.config.clock.now());
        }
    }

    /// What was read from this tier came in time.
    pub fn read_in_time(&self, tier: Tier) {
        if let Some(file_tier) = self.store.file_tier(tier) {
            file_tier.read_in_time();
        }
    }

    /// Whether each configured file tier works.
    #[must_use]
    pub fn health(&self) -> Vec<TierHealth> {
        self.store.file_tiers().iter().map(FileTier::health).collect()
    }

    /// The checked save gates.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.store.policy
    }

    /// The settings that it was opened with.
    #[must_use]
    pub fn config(&self) -> &CacheConfig {
        &self.store.config
    }

    /// The memory pressure watcher.
    #[must_use]
    pub fn pressure(&self) -> &PressureWatcher {
        &self.pressure
    }

    /// Rows that a lease or a write holds at the moment.
    #[must_use]
    pub fn pinned_rows(&self) -> usize {
        self.store.index.lock().pinned()
    }

    /// Saves that wait for a writer or are being written.
    #[must_use]
    pub fn queue_depth(&self) -> usize {
        self.store.queue.depth()
    }

    /// Approximate memory of the index itself, payloads not counted.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.store.index.lock().memory_bytes()
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.store.queue.close();
        let limit = self.store.config.drain_limit;
        if !self.store.queue.wait_until_left(limit) {
            let (rows, seconds) = (self.store.queue.depth(), limit.as_secs_f64());
            tracing::warn!(rows, seconds, "the cache folder does not answer; what is not written yet is given up");
            return;
        }
        for writer in self.writers.drain(..) {
            // A writer catches the panics of its jobs; there is nothing to do about one that still ended.
            let _ = writer.join();
        }
    }
}

fn row_info(index: &crate::index::Index, row: &crate::rows::Row) -> Option<RowInfo> {
    Some(RowInfo {
        key: row.key,
        namespace: index.namespace_of(row)?,
        tokens: row.token_count,
        start: row.start,
        parent: row.parent.and_then(|parent| index.row(parent)).map(|parent| parent.key),
        children: row.children.len(),
        tiers: Tier::ALL.into_iter().filter(|tier| row.resides_in(*tier)).collect(),
        pending: row.pending.is_some(),
        bytes: Tier::ALL.into_iter().map(|tier| row.bytes_in(tier)).sum(),
        parts: PartKind::ALL.into_iter().filter(|kind| row.has_part(*kind)).collect(),
        hits: row.hits,
        last_used: row.last_used,
        created: row.created,
        mode: row.mode,
        reason: row.reason,
        version: row.version,
        owners: row.owners.clone(),
    })
}
