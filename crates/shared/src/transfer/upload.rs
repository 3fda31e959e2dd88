//! Uploads: segments first, the manifest last, in the background and under a bandwidth cap.
//!
//! One task takes offers from the queue. A store that has the row costs one request. A failed upload is dropped: the row
//! is offered again when it is used again. It must never overwrite a manifest that others may be reading, except one that
//! is known to be damaged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use poncho_cache::Offer;

use super::pace::Pace;
use super::vitals::{Vitals, add};
use crate::content::names;
use crate::content::segments::{Packed, PackedSegment, pack};
use crate::content::tenant::{ClusterSecret, Tenant};
use crate::error::SharedError;
use crate::objects::access::{Objects, Trouble, Write};
use crate::quota::collect::{Limit, ReadBefore, collect};
use crate::quota::condemned::Condemned;
use crate::quota::ledger;
use crate::settings::Sizes;

/// Names that are remembered, at most.
const MOST_KNOWN: usize = 1 << 16;
/// Segments that are written at once.
const PARALLEL: usize = 4;

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Uploaded,
    /// The store has it.
    Known,
    /// It left the cache before its turn.
    Gone,
    /// The quota is used up.
    NoRoom,
    /// It took longer than collection allows for.
    TooSlow,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Uploader {
    objects: Objects,
    secret: ClusterSecret,
    sizes: Sizes,
    quota: Option<u64>,
    pace: Arc<Pace>,
    vitals: Arc<Vitals>,
    known: HashMap<Path, Instant>,
    read_before: ReadBefore,
    collected: Option<Instant>,
}

impl Uploader {
    pub(crate) fn new(
        objects: Objects,
        secret: ClusterSecret,
        sizes: Sizes,
        limits: (Option<u64>, Option<u64>),
        vitals: Arc<Vitals>,
    ) -> Self {
        let (quota, bytes_per_second) = limits;
        let pace = Arc::new(Pace::new(bytes_per_second));
        let (known, read_before) = (HashMap::new(), ReadBefore::default());
        Self { objects, secret, sizes, quota, pace, vitals, known, read_before, collected: None }
    }

    /// Handles one offer, once the store may be written to.
    pub(crate) async fn handle(&mut self, offer: Offer) {
        self.until_writable().await;
        match self.upload(offer).await {
            Ok(Outcome::Uploaded) => self.vitals.write_worked(),
            Ok(outcome) => {
                add(&self.vitals.counters.dropped_offers, 1);
                tracing::debug!(?outcome, "an offer to the shared tier was not uploaded");
            }
            Err(trouble) => {
                add(&self.vitals.counters.dropped_offers, 1);
                self.vitals.write_failed(trouble.to_string());
            }
        }
    }

    async fn until_writable(&self) {
        loop {
            let changed = self.vitals.changed.notified();
            let pause = self.vitals.write_retry_in();
            if !self.vitals.is_readable() {
                let _ = tokio::time::timeout(Duration::from_secs(1), changed).await;
            } else if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            } else {
                return;
            }
        }
    }

    async fn upload(&mut self, offer: Offer) -> Result<Outcome, Trouble> {
        let started = Instant::now();
        let tenant = self.secret.tenant(offer.owner);
        let path = tenant.row_path(&offer.namespace, &offer.key);
        let afresh = self.vitals.is_distrusted(&path);
        if !afresh && self.exists(&path).await? {
            return Ok(Outcome::Known);
        }
        let Some((packed, manifest)) = self.export(offer, &tenant, &path).await? else { return Ok(Outcome::Gone) };

        let condemned = Condemned::read(&self.objects).await?;
        let mut needed = Vec::new();
        for segment in packed.segments {
            let segment_path = names::segment(tenant.name(), &segment.plan.stored.digest);
            let is_needed = afresh || condemned.contains(&segment_path) || !self.exists(&segment_path).await?;
            // A chain may hold the same segment twice.
            if is_needed && !needed.iter().any(|(known, _)| *known == segment_path) {
                needed.push((segment_path, segment));
            }
        }
        let lengths = needed.iter().map(|(_, segment)| segment.bytes.len() as u64);
        let bytes = lengths.clone().sum::<u64>() + manifest.len() as u64;
        let cost = lengths.map(ledger::cost_of_segment).sum::<u64>() + manifest.len() as u64;
        let reservation = match self.quota {
            None => None,
            Some(quota) => match self.reserve(quota, cost).await? {
                Some(reservation) => Some(reservation),
                None => return Ok(Outcome::NoRoom),
            },
        };
        let written = self.write(&path, needed, manifest, started, afresh).await;
        if let Some(reservation) = reservation {
            // The bytes count even after a failure: some of them may be there.
            ledger::settle(&self.objects, &reservation, cost).await?;
        }
        let outcome = written?;
        if outcome == Outcome::Uploaded {
            add(&self.vitals.counters.uploaded_rows, 1);
            add(&self.vitals.counters.uploaded_bytes, bytes);
            self.vitals.trust(&path);
            self.remember(path);
        }
        Ok(outcome)
    }

    /// Makes the chain and packs it, on a thread that may block.
    async fn export(&self, offer: Offer, tenant: &Tenant, path: &Path) -> Result<Option<(Packed, Vec<u8>)>, Trouble> {
        let (tenant, path, sizes) = (tenant.clone(), path.to_string(), self.sizes);
        let exported = tokio::task::spawn_blocking(move || {
            let chain = (offer.export)()?;
            if chain.key() != Some(offer.key) || chain.owner != offer.owner || chain.namespace != offer.namespace {
                tracing::error!(key = %offer.key, "the exported chain is not the one that was offered; it is dropped");
                return None;
            }
            let packed = pack(&chain, &tenant, &sizes).ok()?;
            let manifest = packed.manifest.encode(&tenant, &chain.namespace, &path)?;
            Some((packed, manifest))
        });
        exported.await.map_err(|error| Trouble::Failed(error.to_string()))
    }

    /// Segments, then the manifest.
    async fn write(
        &mut self,
        path: &Path,
        needed: Vec<(Path, PackedSegment)>,
        manifest: Vec<u8>,
        started: Instant,
        afresh: bool,
    ) -> Result<Outcome, Trouble> {
        let parallel = if self.pace.is_capped() { 1 } else { PARALLEL };
        let longest = self.objects.timing().grace / 2;
        let put = |(path, segment): (Path, PackedSegment)| {
            let (pace, objects) = (Arc::clone(&self.pace), self.objects.clone());
            async move {
                pace.wait(segment.bytes.len() as u64).await;
                // The reservation ends after the grace period: what is written then may have no room.
                if started.elapsed() > longest {
                    return Ok(None);
                }
                objects.put(&path, segment.bytes, Write::Replace).await?;
                Ok::<Option<Path>, Trouble>(Some(path))
            }
        };
        let put: Vec<Option<Path>> = stream::iter(needed).map(put).buffer_unordered(parallel).try_collect().await?;
        let is_whole = put.iter().all(Option::is_some);
        for segment in put.into_iter().flatten() {
            self.remember(segment);
        }
        self.pace.wait(manifest.len() as u64).await;
        if !is_whole || started.elapsed() > longest {
            return Ok(Outcome::TooSlow);
        }
        let write = if afresh { Write::Replace } else { Write::Create };
        match self.objects.put(path, manifest.clone().into(), write).await {
            Ok(()) => Ok(Outcome::Uploaded),
            // Another machine was first. Its manifest names its own segments: both are whole.
            Err(Trouble::Conflict) => Ok(Outcome::Known),
            Err(Trouble::Unsupported) => {
                self.objects.put(path, manifest.into(), Write::Replace).await?;
                Ok(Outcome::Uploaded)
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Reserves room; makes some if there is none.
    async fn reserve(&mut self, quota: u64, cost: u64) -> Result<Option<ledger::Reservation>, Trouble> {
        if let Some(reservation) = ledger::reserve(&self.objects, quota, cost).await? {
            return Ok(Some(reservation));
        }
        let pause = (self.objects.timing().grace / 4).min(Duration::from_secs(60));
        // A chain of half the quota is not worth all others.
        if cost > quota / 2 || self.collected.is_some_and(|last| last.elapsed() < pause) {
            return Ok(None);
        }
        self.collected = Some(Instant::now());
        match collect(&self.objects, Limit { quota: Some(quota), wanted: cost }, &mut self.read_before).await {
            Ok(done) => tracing::info!(?done, "the shared tier was over its quota; the oldest rows leave"),
            Err(SharedError::Leased { .. }) => return Ok(None),
            Err(error) => return Err(Trouble::Failed(error.to_string())),
        }
        ledger::reserve(&self.objects, quota, cost).await
    }

    /// Whether the store has an object, by memory or by asking.
    async fn exists(&mut self, path: &Path) -> Result<bool, Trouble> {
        let fresh = self.objects.timing().grace / 2;
        if self.known.get(path).is_some_and(|since| since.elapsed() < fresh) {
            return Ok(true);
        }
        match self.objects.head(path).await {
            Ok(_) => {
                self.remember(path.clone());
                Ok(true)
            }
            Err(Trouble::Missing) => Ok(false),
            Err(trouble) => Err(trouble),
        }
    }

    fn remember(&mut self, path: Path) {
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(path, Instant::now());
    }
}
