//! The shared tier as the engine uses it: the trait of the cache over an object store.
//!
//! Opened by the command line if `--shared` is set; without it no thread exists. The tier has a runtime of its own, so that
//! its blocking calls work on any thread. It must never make a caller wait past its patience, and never hand out bytes that
//! were not checked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use object_store::ObjectStore;
use poncho_cache::{
    Chain, Key, Offer, Patience, RemoteCounts, RemoteError, RemoteQuery, RemoteRates, RemoteRow, RemoteStatus,
    RemoteTier,
};
use tokio::sync::mpsc;

use crate::content::manifest::Damage;
use crate::content::tenant::ClusterSecret;
use crate::error::SharedError;
use crate::measure;
use crate::objects::access::{Objects, Trouble};
use crate::objects::location::Location;
use crate::settings::Settings;
use crate::transfer::read::{NotFetched, Reader};
use crate::transfer::spare::Spare;
use crate::transfer::upload::Uploader;
use crate::transfer::vitals::{Vitals, add, load};
use crate::transfer::waiter::Waiter;

/// How often a call that waits for the tier itself looks at it.
const LOOK: Duration = Duration::from_millis(10);
/// Uploads are not waited for if the store has failed for this long.
const HOPELESS: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct SharedTier {
    reader: Reader,
    vitals: Arc<Vitals>,
    offers: mpsc::Sender<Offer>,
    pending: Arc<Pending>,
    waiter: Waiter,
}

impl SharedTier {
    /// Opens the store of the settings. Sends no request before it returns; the first measurement runs in the
    /// background, and the tier is not used before it is done.
    ///
    /// # Errors
    /// The address, the credentials or the key file cannot be used.
    pub fn open(settings: &Settings) -> Result<Self, SharedError> {
        Self::with_location(settings, Location::open(settings)?)
    }

    /// Opens a tier over a store that the caller made.
    ///
    /// # Errors
    /// The key file cannot be used.
    pub fn with_store(settings: &Settings, store: Arc<dyn ObjectStore>) -> Result<Self, SharedError> {
        Self::with_location(settings, Location::given(settings, store))
    }

    fn with_location(settings: &Settings, location: Location) -> Result<Self, SharedError> {
        let vitals = Arc::new(Vitals::new(location.name.clone(), &settings.timing));
        let secret = ClusterSecret::open(settings.key_file.as_deref())?;
        let waiter = Waiter::start("poncho-shared")?;
        let objects = Objects::new(location, settings.timing);
        let (offers, queue) = mpsc::channel(settings.sizes.queue.max(1));
        let pending = Arc::new(Pending::default());
        let limits = (settings.quota, settings.upload_bytes_per_second);
        let uploader = Uploader::new(objects.clone(), secret.clone(), settings.sizes, limits, Arc::clone(&vitals));
        waiter.spawn(upload_all(uploader, queue, Arc::clone(&pending)));
        waiter.spawn(keep_measuring(objects.clone(), Arc::clone(&vitals)));
        let (sizes, spare) = (settings.sizes, Spare::default());
        let reader = Reader { objects, secret, sizes, vitals: Arc::clone(&vitals), spare };
        Ok(Self { reader, vitals, offers, pending, waiter })
    }

    /// Waits until the store was tried for the first time, so that the next request can use it. Returns whether it was.
    #[must_use]
    pub fn wait_until_tried(&self, deadline: Instant) -> bool {
        while !self.vitals.is_tried() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        self.vitals.is_tried()
    }

    /// Rows and segments that were refused for a reason.
    #[must_use]
    pub fn damaged(&self, damage: Damage) -> u64 {
        self.vitals.counters.damage(damage)
    }

    fn available(&self) -> Result<(), RemoteError> {
        if self.vitals.is_readable() {
            return Ok(());
        }
        Err(RemoteError::Unavailable { retry_in: self.vitals.read_retry_in() })
    }

    fn failed(&self, trouble: &Trouble) -> RemoteError {
        self.vitals.read_failed(&trouble.to_string());
        RemoteError::Failed { detail: trouble.to_string() }
    }

    fn damage(&self, row: &RemoteRow, damage: Damage) -> RemoteError {
        let tenant = self.reader.secret.tenant(row.owner);
        self.vitals.damaged(&tenant.row_path(&row.namespace, &row.key), damage);
        match damage {
            Damage::MissingSegment => RemoteError::Gone { key: row.key },
            other => RemoteError::Damaged { key: row.key, detail: other.as_str().to_owned() },
        }
    }
}

impl RemoteTier for SharedTier {
    fn find(&self, query: RemoteQuery<'_>, patience: &Patience) -> Result<Option<RemoteRow>, RemoteError> {
        self.available()?;
        if query.keys.is_empty() {
            return Ok(None);
        }
        let started = Instant::now();
        let (reader, owner, namespace) = (self.reader.clone(), query.owner, *query.namespace);
        let keys: Vec<Key> = query.keys.to_vec();
        match self.waiter.wait(patience, async move { reader.find(owner, namespace, keys).await }) {
            Ok(Ok(found)) => {
                self.vitals.small_read(started.elapsed());
                let counters = &self.vitals.counters;
                add(if found.is_some() { &counters.found } else { &counters.missed }, 1);
                Ok(found)
            }
            Ok(Err(trouble)) => Err(self.failed(&trouble)),
            Err(RemoteError::Late) => {
                self.vitals.read_failed(&format!("no answer within {} ms", started.elapsed().as_millis()));
                Err(RemoteError::Late)
            }
            Err(error) => Err(error),
        }
    }

    fn fetch(&self, row: &RemoteRow, patience: &Patience) -> Result<Chain, RemoteError> {
        self.available()?;
        let started = Instant::now();
        let progress = Arc::new(AtomicU64::new(0));
        let (reader, wanted, counted) = (self.reader.clone(), row.clone(), Arc::clone(&progress));
        let fetched = async move { reader.fetch(&wanted, &counted).await };
        match self.waiter.wait_for_transfer(patience, (row.bytes, &progress), fetched) {
            Ok(Ok(chain)) => {
                self.vitals.fetched(progress.load(Ordering::Relaxed), started.elapsed());
                Ok(chain)
            }
            Ok(Err(NotFetched::Damaged(damage))) => Err(self.damage(row, damage)),
            Ok(Err(NotFetched::Trouble(trouble))) => Err(self.failed(&trouble)),
            Err(RemoteError::Late) => {
                self.vitals.read_late(progress.load(Ordering::Relaxed), started.elapsed());
                Err(RemoteError::Late)
            }
            Err(error) => Err(error),
        }
    }

    fn distrust(&self, row: &RemoteRow) {
        let tenant = self.reader.secret.tenant(row.owner);
        self.vitals.damaged(&tenant.row_path(&row.namespace, &row.key), Damage::Content);
    }

    fn offer(&self, offer: Offer) {
        self.pending.begin();
        if self.offers.try_send(offer).is_err() {
            self.pending.end();
            add(&self.vitals.counters.dropped_offers, 1);
        }
    }

    fn flush(&self, deadline: Instant) -> bool {
        let mut failing_since = None;
        loop {
            let now = Instant::now();
            if self.pending.wait(deadline.min(now + LOOK)) {
                return true;
            }
            let fails = self.vitals.is_tried() && !self.vitals.is_readable();
            failing_since = if fails { failing_since.or(Some(now)) } else { None };
            if now >= deadline || failing_since.is_some_and(|since| now.duration_since(since) >= HOPELESS) {
                return false;
            }
        }
    }

    fn rates(&self) -> Option<RemoteRates> {
        let meter = self.vitals.meter();
        let rates = RemoteRates { bytes_per_second: meter.bytes_per_second(), round_trip: meter.round_trip() };
        self.vitals.is_readable().then_some(rates)
    }

    fn status(&self) -> RemoteStatus {
        let counters = &self.vitals.counters;
        RemoteStatus {
            location: self.reader.objects.name().to_owned(),
            available: self.vitals.is_readable(),
            last_error: self.vitals.last_error(),
            counts: RemoteCounts {
                found: load(&counters.found),
                missed: load(&counters.missed),
                fetched_bytes: load(&counters.fetched_bytes),
                failures: load(&counters.failures) + counters.damaged.iter().map(load).sum::<u64>(),
                uploaded_rows: load(&counters.uploaded_rows),
                uploaded_bytes: load(&counters.uploaded_bytes),
                dropped_offers: load(&counters.dropped_offers),
                queued_offers: self.pending.count(),
            },
        }
    }
}

async fn upload_all(mut uploader: Uploader, mut queue: mpsc::Receiver<Offer>, pending: Arc<Pending>) {
    while let Some(offer) = queue.recv().await {
        uploader.handle(offer).await;
        pending.end();
    }
}

/// Tries a store that failed, and measures a healthy one that is in use.
async fn keep_measuring(objects: Objects, vitals: Arc<Vitals>) {
    let again = objects.timing().measure_again;
    loop {
        // Before the look at the state: a failure in between wakes it.
        let changed = vitals.changed.notified();
        if vitals.is_readable() {
            let woken = tokio::time::timeout(again, changed).await.is_ok();
            if vitals.is_readable() && (woken || !vitals.take_used()) {
                continue;
            }
        } else {
            tokio::time::sleep(vitals.read_retry_in()).await;
        }
        match measure::sample(&objects).await {
            Ok(sample) => vitals.probed(sample.bytes_per_second, sample.round_trip),
            Err(trouble) => vitals.probe_failed(trouble.to_string()),
        }
    }
}

/// Offers that wait or are on their way.
#[derive(Debug, Default)]
struct Pending {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Pending {
    fn begin(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn end(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(1);
        drop(count);
        self.changed.notify_all();
    }

    fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, _) =
            self.changed.wait_timeout_while(count, left, |count| *count > 0).unwrap_or_else(PoisonError::into_inner);
        *count == 0
    }
}

#[cfg(test)]
mod tests;
