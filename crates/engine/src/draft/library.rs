//! The stored rows as a source of drafts: one corpus for each namespace and owner, kept in step with the cache.
//!
//! One value per model, asked by the worker and filled by a thread of its own. Tokens come from the index of the cache, so
//! nothing is read from a disk and a restarted server is warm at once. A request finds rows of its own owner only: how fast a
//! reply comes would reveal what others have sent. The worker never waits: while the thread changes a corpus, or has not yet
//! seen that a row was evicted, there are no stored drafts.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use poncho_cache::{Cache, Key, Namespace, OwnerId, StoredPrompt};

use crate::backend::Token;
use crate::draft::Draft;
use crate::draft::corpus::Corpus;

/// How long an idle thread may hold tokens of a row that was evicted without a request.
const IDLE: Duration = Duration::from_secs(2);
/// Tokens that all corpora of a model hold together; some hundred megabytes.
const MOST_TOKENS: usize = 6_000_000;
/// Owners with a corpus; the one that was used longest ago makes room.
const MOST_CORPORA: usize = 64;
/// A smaller corpus is not worth compacting.
const WORTH_COMPACTING: usize = 65_536;

/// The rows that a request may be drafted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    pub(crate) namespace: Namespace,
    /// `None` for rows that no owner claims.
    pub(crate) owner: Option<OwnerId>,
}

impl Scope {
    fn has(&self, row: &StoredPrompt) -> bool {
        let is_own = match self.owner {
            Some(owner) => row.owners.contains(&owner),
            None => row.owners.is_empty(),
        };
        is_own && self.namespace == row.namespace
    }
}

/// See the module.
pub(crate) struct Library {
    cache: Arc<Cache>,
    shelves: Arc<Mutex<Shelves>>,
    /// Closing it ends the thread.
    wake: Option<SyncSender<()>>,
    size: Arc<Size>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the corpora take, for reports.
#[derive(Debug, Default)]
struct Size {
    tokens: AtomicUsize,
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Shelves {
    corpora: HashMap<Scope, Shelf>,
    /// Scopes that were asked for and have no corpus yet.
    wanted: Vec<Scope>,
    /// Removals of the cache that the corpora have followed; `None` before the first time.
    removals: Option<u64>,
    clock: u64,
}

#[derive(Default)]
struct Shelf {
    corpus: Corpus,
    /// Larger is later.
    used: u64,
}

impl Library {
    /// A library of the rows of a cache. If its thread cannot be started, it stays empty.
    pub(crate) fn new(cache: &Arc<Cache>) -> Self {
        let (wake, woken) = sync_channel(1);
        let shelves: Arc<Mutex<Shelves>> = Arc::default();
        let size: Arc<Size> = Arc::default();
        let stopping: Arc<AtomicBool> = Arc::default();
        let mut keeper = Keeper {
            stopping: Arc::clone(&stopping),
            cache: Arc::clone(cache),
            shelves: Arc::clone(&shelves),
            size: Arc::clone(&size),
            point: 0,
            most_tokens: MOST_TOKENS,
        };
        let thread = std::thread::Builder::new().name("poncho-drafts".to_owned());
        let thread = thread
            .spawn(move || keeper.run(&woken))
            .inspect_err(|error| tracing::warn!(%error, "stored drafts are off: their thread could not be started"));
        Self { cache: Arc::clone(cache), shelves, wake: Some(wake), size, stopping, thread: thread.ok() }
    }

    /// Something may have changed in the cache.
    pub(crate) fn nudge(&self) {
        // One that is waiting serves for all.
        let _ = self.wake.as_ref().map(|wake| wake.try_send(()));
    }

    /// A corpus of these rows will be asked for.
    pub(crate) fn want(&self, scope: Scope) {
        lock(&self.shelves).want(scope);
        self.nudge();
    }

    /// Guesses how `tokens` go on.
    pub(crate) fn draft(&self, scope: &Scope, tokens: &[Token], most: usize) -> Option<Draft> {
        let mut shelves = match self.shelves.try_lock() {
            Ok(shelves) => shelves,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let is_current = shelves.removals == Some(self.cache.removals());
        let known = shelves.corpora.contains_key(scope);
        if !known {
            shelves.want(*scope);
        }
        if !known || !is_current {
            drop(shelves);
            self.nudge();
            return None;
        }
        shelves.clock += 1;
        let clock = shelves.clock;
        let shelf = shelves.corpora.get_mut(scope)?;
        shelf.used = clock;
        shelf.corpus.draft(tokens, most)
    }

    /// Tokens in all corpora, and the bytes that they take.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.size.tokens.load(Ordering::Relaxed), self.size.bytes.load(Ordering::Relaxed))
    }
}

impl Drop for Library {
    /// Ends the thread: once a model is gone, nothing of it holds the cache.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        drop(self.wake.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shelves {
    fn want(&mut self, scope: Scope) {
        if !self.corpora.contains_key(&scope) && !self.wanted.contains(&scope) && self.wanted.len() < MOST_CORPORA {
            self.wanted.push(scope);
        }
    }
}

fn lock(shelves: &Mutex<Shelves>) -> MutexGuard<'_, Shelves> {
    shelves.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's side: the only one that changes a corpus.
struct Keeper {
    cache: Arc<Cache>,
    shelves: Arc<Mutex<Shelves>>,
    size: Arc<Size>,
    /// How far the changes of the cache were followed.
    point: u64,
    most_tokens: usize,
    /// The model is gone.
    stopping: Arc<AtomicBool>,
}

impl Keeper {
    fn run(&mut self, woken: &Receiver<()>) {
        loop {
            match woken.recv_timeout(IDLE) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => self.follow(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Brings all corpora to where the cache is.
    fn follow(&mut self) {
        let new = self.enter_wanted();
        let changes = self.cache.changes_since(self.point);
        let all: Vec<Scope> = lock(&self.shelves).corpora.keys().copied().collect();
        let stale = if changes.keys.is_none() { &all } else { &new };
        for scope in stale {
            self.list(scope);
        }
        // What was just listed is up to date, and rows that were too many stay away.
        let rest: Vec<Scope> = all.iter().filter(|scope| !new.contains(scope)).copied().collect();
        let mut seen = HashSet::new();
        for key in changes.keys.into_iter().flatten().filter(|key| seen.insert(*key)) {
            self.follow_row(&key, &rest);
        }
        self.point = changes.next;
        lock(&self.shelves).removals = Some(changes.removals);
        self.bound();
    }

    /// Makes room for the scopes that were asked for.
    fn enter_wanted(&self) -> Vec<Scope> {
        let mut shelves = lock(&self.shelves);
        let wanted = std::mem::take(&mut shelves.wanted);
        for scope in &wanted {
            if shelves.corpora.len() >= MOST_CORPORA {
                let oldest = shelves.corpora.iter().min_by_key(|(_, shelf)| shelf.used).map(|(scope, _)| *scope);
                oldest.map(|oldest| shelves.corpora.remove(&oldest));
            }
            shelves.clock += 1;
            let used = shelves.clock;
            shelves.corpora.insert(*scope, Shelf { corpus: Corpus::default(), used });
        }
        wanted
    }

    /// Compares a corpus with all rows of the cache.
    fn list(&self, scope: &Scope) {
        let keys = self.cache.keys_of(&scope.namespace);
        let there: HashSet<&Key> = keys.iter().collect();
        let gone: Vec<Key> =
            self.with(scope, |corpus| corpus.keys().filter(|key| !there.contains(key)).copied().collect());
        for key in gone {
            self.with(scope, |corpus| corpus.remove(&key));
        }
        for key in &keys {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            self.follow_row(key, std::slice::from_ref(scope));
            if self.with(scope, |corpus| corpus.len()) / 2 > self.most_tokens {
                self.bound();
            }
        }
    }

    /// Follows what happened to one row.
    fn follow_row(&self, key: &Key, scopes: &[Scope]) {
        let row = self.cache.prompt_of(key);
        for scope in scopes {
            let is_there = self.with(scope, |corpus| corpus.contains(key));
            match row.as_ref().filter(|row| scope.has(row)) {
                // It left, or a key claimed it.
                None if is_there => self.with(scope, |corpus| corpus.remove(key)),
                Some(row) if !is_there => self.with(scope, |corpus| corpus.add(*key, &row.tokens)),
                _ => {}
            }
        }
    }

    /// Keeps all corpora together within their bound.
    fn bound(&self) {
        let mut sizes: Vec<(u64, usize, Scope)> = {
            let shelves = lock(&self.shelves);
            shelves.corpora.iter().map(|(scope, shelf)| (shelf.used, shelf.corpus.len(), *scope)).collect()
        };
        sizes.sort_unstable_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let mut left = self.most_tokens;
        for (_, len, scope) in sizes {
            let is_over = len > left;
            if is_over {
                self.with(&scope, |corpus| corpus.shrink_to(left));
            }
            let is_due =
                self.with(&scope, |corpus| corpus.is_mostly_dead() && (is_over || corpus.len() >= WORTH_COMPACTING));
            if is_due {
                // Nobody else changes it, so it can be copied without the lock.
                let copy = self.with(&scope, |corpus| corpus.clone());
                let compacted = copy.compacted();
                self.with(&scope, |corpus| *corpus = compacted);
            }
            left = left.saturating_sub(self.with(&scope, |corpus| corpus.len()));
        }
        let shelves = lock(&self.shelves);
        let corpora = || shelves.corpora.values().map(|shelf| &shelf.corpus);
        self.size.tokens.store(corpora().map(Corpus::len).sum(), Ordering::Relaxed);
        self.size.bytes.store(corpora().map(Corpus::heap_bytes).sum(), Ordering::Relaxed);
    }

    /// Uses a corpus under the lock, for one short step.
    fn with<T: Default>(&self, scope: &Scope, step: impl FnOnce(&mut Corpus) -> T) -> T {
        lock(&self.shelves).corpora.get_mut(scope).map(|shelf| step(&mut shelf.corpus)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
