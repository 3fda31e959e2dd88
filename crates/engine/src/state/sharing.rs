//! Which rows are offered to the shared tier, and when: on a thread of its own that the first of them starts.
//!
//! The worker reports rows that it saved or restored and never waits. A row is offered at once when a second conversation
//! used it, when its sequence was given up or when the model ends, and else when its conversation has been quiet for a
//! while. The tier exports and uploads it on its own threads. Without a shared tier there is no thread, and reporting costs
//! nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use poncho_cache::{Cache, Key, NO_TENANT, Offer, OfferReason, OwnerId, RemoteTier, RowInfo, SaveReason};

/// How long a conversation is quiet before its rows are offered.
const QUIET: Duration = Duration::from_secs(30);
/// Reports that may wait for the thread; more are lost, and their rows are offered when they are used.
const QUEUE: usize = 256;
/// Rows that may wait for their conversation to become quiet; the oldest are offered early.
const MOST_WAITING: usize = 4096;
/// Bytes of a chain that is offered although its conversation has gone on.
const LARGEST_PASSED: u64 = 256 << 20;
/// Rows that are known to have been offered.
const MOST_OFFERED: usize = 4096;

/// Reports rows for one worker. See the module.
pub(crate) struct Sharing {
    remote: Arc<dyn RemoteTier>,
    cache: Arc<Cache>,
    quiet: Duration,
    thread: Option<(SyncSender<Candidate>, JoinHandle<()>)>,
}

/// A row that may be offered.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    key: Key,
    owner: OwnerId,
    /// `None`: once its conversation is quiet.
    now: Option<OfferReason>,
}

impl Sharing {
    /// For the shared tier of a cache; `None` if it has none.
    pub(crate) fn new(cache: &Arc<Cache>) -> Option<Self> {
        let remote = Arc::clone(cache.remote()?);
        Some(Self { remote, cache: Arc::clone(cache), quiet: QUIET, thread: None })
    }

    /// A row was saved, or was there already when it would have been.
    pub(crate) fn saved(&mut self, key: Key, owner: Option<OwnerId>, reason: SaveReason) {
        let now = match reason {
            SaveReason::Evict => Some(OfferReason::Evicted),
            SaveReason::Shutdown => Some(OfferReason::Drain),
            SaveReason::Unknown | SaveReason::Cold | SaveReason::Continued | SaveReason::Finish => None,
        };
        self.report(Candidate { key, owner: owner.unwrap_or(NO_TENANT), now });
    }

    /// A request was restored from a row.
    pub(crate) fn used(&mut self, key: Key, owner: Option<OwnerId>) {
        self.report(Candidate { key, owner: owner.unwrap_or(NO_TENANT), now: Some(OfferReason::Reused) });
    }

    fn report(&mut self, candidate: Candidate) {
        if self.thread.is_none() {
            let (sender, receiver) = sync_channel(QUEUE);
            let waiting = Waiting {
                remote: Arc::clone(&self.remote),
                cache: Arc::clone(&self.cache),
                quiet: self.quiet,
                rows: VecDeque::new(),
                offered: VecDeque::new(),
            };
            match std::thread::Builder::new().name("poncho-sharing".to_owned()).spawn(move || waiting.run(&receiver)) {
                Ok(handle) => self.thread = Some((sender, handle)),
                Err(error) => {
                    tracing::warn!(%error, "no thread for the shared tier; rows are not shared");
                    return;
                }
            }
        }
        if let Some((sender, _)) = &self.thread {
            let _ = sender.try_send(candidate);
        }
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        let Some((sender, handle)) = self.thread.take() else { return };
        drop(sender);
        // It only hands rows over, which never blocks.
        let _ = handle.join();
    }
}

/// The thread's own data.
struct Waiting {
    remote: Arc<dyn RemoteTier>,
    cache: Arc<Cache>,
    quiet: Duration,
    /// By their time.
    rows: VecDeque<(Instant, Candidate)>,
    offered: VecDeque<(Key, OwnerId)>,
}

impl Waiting {
    fn run(mut self, reports: &Receiver<Candidate>) {
        loop {
            let next = self.rows.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
            let report = match next {
                Some(time) => reports.recv_timeout(time),
                None => reports.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match report {
                Ok(candidate) => self.take(candidate),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = Instant::now();
            while self.rows.front().is_some_and(|(due, _)| *due <= now) || self.rows.len() > MOST_WAITING {
                let Some((_, candidate)) = self.rows.pop_front() else { break };
                self.offer(candidate, OfferReason::Idle);
            }
        }
        for (_, candidate) in std::mem::take(&mut self.rows) {
            self.offer(candidate, OfferReason::Drain);
        }
    }

    fn take(&mut self, candidate: Candidate) {
        self.rows.retain(|(_, waiting)| waiting.key != candidate.key || waiting.owner != candidate.owner);
        match candidate.now {
            Some(reason) => self.offer(candidate, reason),
            None => self.rows.push_back((Instant::now() + self.quiet, candidate)),
        }
    }

    fn offer(&mut self, candidate: Candidate, reason: OfferReason) {
        let Candidate { key, owner, .. } = candidate;
        if self.offered.contains(&(key, owner)) {
            return;
        }
        let Some(row) = self.cache.row(&key) else { return };
        let bytes = self.chain_bytes(&row);
        // The conversation has gone on: its last row brings this one along. Others may ask for a prompt by its own name, but
        // hardly for where a reply ended or paused, and a long chain is not read again for a name.
        let is_prompt = row.meta.reason == SaveReason::Cold && bytes <= LARGEST_PASSED;
        let is_passed = row.children == 1 && row.meta.start > 0 && !is_prompt;
        if is_passed && matches!(reason, OfferReason::Idle | OfferReason::Drain) {
            return;
        }
        if self.offered.len() >= MOST_OFFERED {
            self.offered.pop_front();
        }
        self.offered.push_back((key, owner));
        let cache = Arc::clone(&self.cache);
        let export = move || {
            let exported = cache.export(&key, owner);
            exported.inspect_err(|error| tracing::debug!(%key, %error, "a row is not shared")).ok()
        };
        self.remote.offer(Offer {
            owner,
            namespace: row.meta.namespace,
            key,
            tokens: row.meta.token_count,
            bytes,
            reason,
            export: Box::new(export),
        });
    }

    /// Bytes of a row with everything it builds on.
    fn chain_bytes(&self, row: &RowInfo) -> u64 {
        let above = |row: &RowInfo| self.cache.row(&row.meta.parent?);
        std::iter::successors(Some(row.clone()), above).map(|row| row.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use poncho_cache::{
        CacheConfig, Chain, FingerprintMode, Namespace, PartKind, Patience, PayloadPart, QuantType, RemoteError,
        RemoteQuery, RemoteRates, RemoteRow, RemoteStatus, SaveRequest,
    };

    use super::*;

    /// Remembers what it was offered.
    #[derive(Debug, Default)]
    struct Offered(Mutex<Vec<(Key, OfferReason, usize)>>);

    impl RemoteTier for Offered {
        fn find(&self, _: RemoteQuery<'_>, _: &Patience) -> Result<Option<RemoteRow>, RemoteError> {
            Ok(None)
        }

        fn fetch(&self, row: &RemoteRow, _: &Patience) -> Result<Chain, RemoteError> {
            Err(RemoteError::Gone { key: row.key })
        }

        fn distrust(&self, _: &RemoteRow) {}

        fn offer(&self, offer: Offer) {
            let rows = (offer.export)().map_or(0, |chain| chain.rows.len());
            self.0.lock().unwrap().push((offer.key, offer.reason, rows));
        }

        fn flush(&self, _: Instant) -> bool {
            true
        }

        fn rates(&self) -> Option<RemoteRates> {
            None
        }

        fn status(&self) -> RemoteStatus {
            RemoteStatus::default()
        }
    }

    fn save(cache: &Cache, tokens: &[u32], reason: SaveReason) -> Key {
        let namespace = Namespace { fingerprint: [1; 32], quant: QuantType::F16, context_hash: [2; 32] };
        let base = cache.base_for(&namespace, tokens, None);
        let request = SaveRequest {
            namespace,
            mode: FingerprintMode::Safe,
            tokens,
            base: base.as_ref(),
            parts: vec![PayloadPart { kind: PartKind::Attention, bytes: vec![7; 100].into() }],
            reason,
            flags: 0,
            context_size: 0,
            text: String::new(),
            tier: None,
            owner: None,
        };
        cache.save_later(request).unwrap().key
    }

    #[test]
    fn a_row_is_offered_once_when_its_conversation_is_quiet_or_the_model_ends() {
        let tier = Arc::new(Offered::default());
        let config = CacheConfig { remote: Some(Arc::<Offered>::clone(&tier)), ..CacheConfig::in_memory(1 << 20) };
        let cache = Arc::new(Cache::open(config).unwrap());
        let tokens: Vec<u32> = (0..40).collect();
        let ends = [(10, SaveReason::Cold), (20, SaveReason::Finish), (30, SaveReason::Cold), (40, SaveReason::Finish)];
        let keys = ends.map(|(end, reason)| (save(&cache, &tokens[..end], reason), reason));
        // An hour of quiet: nothing is offered before the end.
        let mut sharing = Sharing::new(&cache).unwrap();
        sharing.quiet = Duration::from_secs(3600);
        for (key, reason) in keys {
            sharing.saved(key, None, reason);
            sharing.saved(key, None, reason);
        }
        sharing.used(keys[1].0, None);
        drop(sharing);
        let offered = std::mem::take(&mut *tier.0.lock().unwrap());
        let expected = [
            (keys[1].0, OfferReason::Reused, 2),
            (keys[0].0, OfferReason::Drain, 1),
            (keys[2].0, OfferReason::Drain, 3),
            (keys[3].0, OfferReason::Drain, 4),
        ];
        assert_eq!(offered, expected);
        // No quiet at all: at once, except for the end of a reply that the conversation has passed.
        let mut sharing = Sharing::new(&cache).unwrap();
        sharing.quiet = Duration::ZERO;
        keys.into_iter().for_each(|(key, reason)| sharing.saved(key, None, reason));
        drop(sharing);
        let offered: Vec<Key> = tier.0.lock().unwrap().iter().map(|(key, _, _)| *key).collect();
        assert_eq!(offered, [keys[0].0, keys[2].0, keys[3].0]);
    }

    #[test]
    fn without_a_shared_tier_there_is_nothing_to_report_to() {
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
        assert!(Sharing::new(&cache).is_none());
    }
}
