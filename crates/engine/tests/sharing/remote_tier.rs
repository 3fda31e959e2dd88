//! A shared tier in memory, with faults on demand. Used by the tests of the shared tier; it holds no test.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use poncho_cache::{
    Chain, HitTier, Key, Offer, OfferReason, OwnerId, Patience, RemoteError, RemoteQuery, RemoteRates, RemoteRow,
    RemoteStatus, RemoteTier,
};

/// What the store does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// Every call fails.
    Errors,
    /// No call is answered before its caller gives up.
    BlackHole,
    /// Rows are found and gone when they are fetched.
    Gone,
    /// One bit of each row is wrong.
    WrongBytes,
    /// Each row is cut.
    Truncated,
    /// The rows of another prompt come.
    OtherRow,
    /// It panics.
    Panics,
}

impl StoreFault {
    pub(crate) const ALL: [Self; 7] =
        [Self::Errors, Self::BlackHole, Self::Gone, Self::WrongBytes, Self::Truncated, Self::OtherRow, Self::Panics];
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct MemoryTier {
    rows: Mutex<HashMap<(OwnerId, Key), Chain>>,
    pub(crate) reasons: Mutex<Vec<OfferReason>>,
    fault: Mutex<Option<StoreFault>>,
    /// Fetches wait while it is shut.
    gate: Mutex<bool>,
    opened: Condvar,
    pub(crate) is_off: AtomicBool,
    pub(crate) finds: AtomicUsize,
    pub(crate) fetches: AtomicUsize,
    /// Silent calls that ended.
    pub(crate) given_up: AtomicUsize,
    pub(crate) distrusted: AtomicUsize,
}

impl MemoryTier {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub(crate) fn break_with(&self, fault: Option<StoreFault>) {
        *self.fault.lock().unwrap() = fault;
    }

    pub(crate) fn shut(&self) {
        *self.gate.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.gate.lock().unwrap() = false;
        self.opened.notify_all();
    }

    pub(crate) fn chain(&self, owner: OwnerId, key: Key) -> Option<Chain> {
        self.rows.lock().unwrap().get(&(owner, key)).cloned()
    }

    fn fault(&self) -> Option<StoreFault> {
        *self.fault.lock().unwrap()
    }

    /// Errors, silence and panics.
    fn fail(&self, patience: &Patience) -> Result<(), RemoteError> {
        match self.fault() {
            Some(StoreFault::Errors) => Err(RemoteError::Failed { detail: "status 500".to_owned() }),
            Some(StoreFault::BlackHole) => {
                while !patience.is_over(Instant::now()) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.given_up.fetch_add(1, Ordering::SeqCst);
                Err(if patience.cancelled.is_cancelled() { RemoteError::Cancelled } else { RemoteError::Late })
            }
            Some(StoreFault::Panics) => panic!("the store of this test panics"),
            _ => Ok(()),
        }
    }
}

impl RemoteTier for MemoryTier {
    fn find(&self, query: RemoteQuery<'_>, patience: &Patience) -> Result<Option<RemoteRow>, RemoteError> {
        self.finds.fetch_add(1, Ordering::SeqCst);
        self.fail(patience)?;
        let rows = self.rows.lock().unwrap();
        let found = query.keys.iter().find_map(|key| Some((*key, rows.get(&(query.owner, *key))?)));
        Ok(found.map(|(key, chain)| RemoteRow {
            owner: query.owner,
            namespace: *query.namespace,
            key,
            tokens: chain.rows.last().map_or(0, |row| row.end),
            bytes: chain.bytes(),
            tier: HitTier::Shared,
            manifest: bytes::Bytes::new(),
        }))
    }

    fn fetch(&self, row: &RemoteRow, patience: &Patience) -> Result<Chain, RemoteError> {
        let mut shut = self.gate.lock().unwrap();
        while *shut {
            shut = self.opened.wait(shut).unwrap();
        }
        drop(shut);
        self.fetches.fetch_add(1, Ordering::SeqCst);
        self.fail(patience)?;
        let rows = self.rows.lock().unwrap();
        let mut chain = rows.get(&(row.owner, row.key)).cloned().ok_or(RemoteError::Gone { key: row.key })?;
        match self.fault() {
            Some(StoreFault::Gone) => return Err(RemoteError::Gone { key: row.key }),
            Some(StoreFault::WrongBytes) => {
                for row in &mut chain.rows {
                    let mut bytes = row.bytes.to_vec();
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 4;
                    row.bytes = bytes.into();
                }
            }
            Some(StoreFault::Truncated) => {
                for row in &mut chain.rows {
                    row.bytes = row.bytes.slice(..row.bytes.len() / 2);
                }
            }
            Some(StoreFault::OtherRow) => {
                let other = rows.iter().find(|((owner, key), _)| *owner == row.owner && *key != row.key);
                chain = other.map(|(_, chain)| chain.clone()).ok_or(RemoteError::Gone { key: row.key })?;
            }
            _ => {}
        }
        Ok(chain)
    }

    fn distrust(&self, _: &RemoteRow) {
        self.distrusted.fetch_add(1, Ordering::SeqCst);
    }

    fn offer(&self, offer: Offer) {
        if let Some(chain) = (offer.export)() {
            assert_eq!(chain.key(), Some(offer.key));
            self.reasons.lock().unwrap().push(offer.reason);
            self.rows.lock().unwrap().insert((offer.owner, offer.key), chain);
        }
    }

    fn flush(&self, _: Instant) -> bool {
        true
    }

    fn rates(&self) -> Option<RemoteRates> {
        let rates = RemoteRates { bytes_per_second: Some(1e9), round_trip: Some(Duration::from_micros(100)) };
        (!self.is_off.load(Ordering::SeqCst)).then_some(rates)
    }

    fn status(&self) -> RemoteStatus {
        RemoteStatus { location: "memory".to_owned(), available: true, ..RemoteStatus::default() }
    }
}
