//! Threads that fetch rows of other machines into the cache, so that the worker never waits for a network.
//!
//! The queue starts a fetch before its request takes a sequence. A thread asks the tier for the longest of some prefixes,
//! fetches its chain, has the cache check and publish it, and wakes the worker; from then on it is a row like any other.
//! Dropping the last [`Fetching`] of a fetch cancels it. Whatever goes wrong is a miss: it must never fail a request, and
//! nothing ever waits for one of these threads to end.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use poncho_cache::{
    Cache, Cancellation, HitTier, ImportRequest, Key, Namespace, OwnerId, Patience, RemoteError, RemoteQuery,
    RemoteTier,
};

use crate::backend::SegmentJoiner;
use crate::calls::request::RequestId;
use crate::state::buffer_pool::free_memory;
use crate::state::cost::FetchCost;
use crate::state::segment_reader::Wake;

/// Fetches at the same time. Further requests are computed: the network is busy already.
const THREADS: usize = 4;

/// Fetches rows for one worker. See the module.
pub(crate) struct RemoteFetcher {
    parts: Arc<Parts>,
    /// Fetches that run, so that requests with the same prefix share one.
    open: Vec<(Key, OwnerId, Weak<Shared>)>,
}

struct Parts {
    remote: Arc<dyn RemoteTier>,
    cache: Arc<Cache>,
    /// `None` for a model without attention segments.
    joiner: Option<Arc<dyn SegmentJoiner>>,
    wake: Wake,
    interrupt: Interrupt,
    threads: AtomicUsize,
}

/// Ends the decode call that runs if it computes this request and nothing else.
pub(crate) type Interrupt = Arc<dyn Fn(RequestId) + Send + Sync>;

/// A prefix to fetch.
pub(crate) struct FetchRequest {
    pub(crate) owner: OwnerId,
    pub(crate) namespace: Namespace,
    pub(crate) prompt: Vec<u32>,
    /// Lengths of prefixes that may be stored, ascending.
    pub(crate) boundaries: Vec<usize>,
    /// Tokens that are known without the shared tier.
    pub(crate) known: usize,
    pub(crate) cost: FetchCost,
}

/// A fetch that runs or is over. Clones share it; the last one that is dropped cancels it.
#[derive(Clone)]
pub(crate) struct Fetching(Arc<Shared>);

struct Shared {
    cancelled: Cancellation,
    /// `None` while it runs, then the row that was imported, if any.
    outcome: Mutex<Option<Option<Arrived>>>,
    /// Requests that compute beside it.
    beside: Mutex<Vec<RequestId>>,
}

/// A row that was fetched and imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// The row is the state after this many tokens.
    pub(crate) tokens: usize,
    /// Where it came from.
    pub(crate) tier: HitTier,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.cancelled.cancel();
    }
}

impl Fetching {
    /// Whether it is over, successfully or not.
    pub(crate) fn is_over(&self) -> bool {
        self.outcome().is_some()
    }

    /// The row that it brought into the cache.
    pub(crate) fn imported(&self) -> Option<Arrived> {
        self.outcome().flatten()
    }

    /// The request computes beside the fetch from now on. A decode call of its own ends when the row is there: what it
    /// computes would be thrown away.
    pub(crate) fn computes_beside(&self, id: RequestId) {
        self.0.beside.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    fn outcome(&self) -> Option<Option<Arrived>> {
        *self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteFetcher {
    /// A fetcher for the shared tier of a cache; `None` if it has none.
    pub(crate) fn new(
        cache: &Arc<Cache>,
        joiner: Option<Arc<dyn SegmentJoiner>>,
        wake: Wake,
        interrupt: Interrupt,
    ) -> Option<Self> {
        let remote = Arc::clone(cache.remote()?);
        let parts = Parts { remote, cache: Arc::clone(cache), joiner, wake, interrupt, threads: AtomicUsize::new(0) };
        Some(Self { parts: Arc::new(parts), open: Vec::new() })
    }

    /// Starts a fetch, or joins one for the same prefix. `None` if it cannot pay, or if too many run.
    pub(crate) fn start(&mut self, request: FetchRequest) -> Option<Fetching> {
        let longest = *request.boundaries.last()?;
        let saved = longest.checked_sub(request.known).filter(|saved| *saved > 0)?;
        if !request.cost.pays(saved, None, self.parts.remote.rates()?) {
            return None;
        }
        let mut keys = request.namespace.prefix_keys(&request.prompt, &request.boundaries);
        keys.reverse();
        let longest = *keys.first()?;
        self.open.retain(|(_, _, running)| running.strong_count() > 0);
        let same = self.open.iter().find(|(key, owner, _)| *key == longest && *owner == request.owner);
        if let Some(running) = same.and_then(|(_, _, running)| running.upgrade()) {
            return Some(Fetching(running));
        }
        if self.parts.threads.fetch_add(1, Ordering::AcqRel) >= THREADS {
            self.parts.threads.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        let patience =
            Patience { deadline: Instant::now() + request.cost.deadline(saved), cancelled: Cancellation::default() };
        let shared = Arc::new(Shared {
            cancelled: patience.cancelled.clone(),
            outcome: Mutex::default(),
            beside: Mutex::default(),
        });
        let owner = request.owner;
        let (parts, weak) = (Arc::clone(&self.parts), Arc::downgrade(&shared));
        let run = move || parts.run(&request, &keys, &patience, &weak);
        match std::thread::Builder::new().name("poncho-fetch".to_owned()).spawn(run) {
            Ok(_) => {
                self.open.push((longest, owner, Arc::downgrade(&shared)));
                Some(Fetching(shared))
            }
            Err(error) => {
                self.parts.threads.fetch_sub(1, Ordering::AcqRel);
                tracing::warn!(%error, "no thread for the shared tier; the prompt is computed");
                None
            }
        }
    }
}

impl Parts {
    /// The life of a thread.
    fn run(&self, request: &FetchRequest, keys: &[Key], patience: &Patience, shared: &Weak<Shared>) {
        let fetched = catch_unwind(AssertUnwindSafe(|| self.fetch(request, keys, patience)));
        let arrived = match fetched {
            Ok(Ok(arrived)) => arrived,
            Ok(Err(error)) => {
                tracing::debug!(%error, "nothing came from other machines");
                None
            }
            Err(_) => {
                tracing::error!("the shared tier panicked; the prompt is computed");
                None
            }
        };
        self.threads.fetch_sub(1, Ordering::AcqRel);
        // Nobody waits if the request is gone.
        if let Some(shared) = shared.upgrade() {
            *shared.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(arrived);
            if arrived.is_some() {
                shared
                    .beside
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .drain(..)
                    .for_each(|id| (self.interrupt)(id));
            }
            drop(shared);
            (self.wake)();
        }
    }

    /// The row that was imported, if any.
    fn fetch(&self, request: &FetchRequest, keys: &[Key], patience: &Patience) -> Result<Option<Arrived>, RemoteError> {
        let FetchRequest { owner, namespace, .. } = request;
        let (owner, started) = (*owner, Instant::now());
        let Some(row) = self.remote.find(RemoteQuery { owner, namespace, keys }, patience)? else { return Ok(None) };
        let found = started.elapsed();
        let Some(rates) = self.remote.rates_of(&row) else { return Ok(None) };
        let saved = (row.tokens as usize).saturating_sub(request.known);
        if row.bytes > free_memory() / 2 || !request.cost.pays(saved, Some(row.bytes), rates) {
            tracing::debug!(key = %row.key, bytes = row.bytes, tier = %row.tier, "computing is faster than fetching");
            return Ok(None);
        }
        let chain = self.remote.fetch(&row, patience)?;
        if patience.cancelled.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        let fetched = started.elapsed();
        let expected = ImportRequest { owner, namespace, prompt: &request.prompt };
        let joiner = self.joiner.as_deref();
        let join = |segments: &[&[u8]], range: Range<u32>| {
            let joiner = joiner?;
            let mut joined = vec![0; joiner.joined_len(&range)];
            joiner.join(segments, range, &mut joined).ok()?;
            Some(joined)
        };
        match self.cache.import(&chain, expected, Some(&join)) {
            Ok(imported) => {
                tracing::debug!(
                    key = %imported.key, tokens = imported.tokens, rows = imported.rows, bytes = chain.bytes(),
                    find_us = found.as_micros(), fetch_us = (fetched - found).as_micros(),
                    import_us = (started.elapsed() - fetched).as_micros(), tier = %row.tier,
                    "row fetched from another machine"
                );
                Ok(Some(Arrived { tokens: imported.tokens as usize, tier: row.tier }))
            }
            Err(error) => {
                tracing::warn!(key = %row.key, %error, "a fetched row was not taken; the prompt is computed");
                if error.is_damage() {
                    self.remote.distrust(&row);
                }
                Ok(None)
            }
        }
    }
}
