//! Finding and fetching a chain: one round for the manifests, one for the segments.
//!
//! Called by the tier on its own runtime. Nothing is handed out before its length and its SHA-256 are checked. Dropping
//! the future ends the requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use poncho_cache::{Chain, HitTier, Key, Namespace, OwnerId, RemoteRow};

use super::vitals::Vitals;
use crate::content::manifest::{self, Damage, Manifest, SegmentPlan};
use crate::content::tenant::{ClusterSecret, Tenant};
use crate::content::{names, segments};
use crate::objects::access::{Objects, Trouble, Write};
use crate::settings::Sizes;

/// Candidates that are asked for at once; more of them are not looked at.
const MOST_CANDIDATES: usize = 64;

/// Why a chain was not fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotFetched {
    /// The store failed.
    Trouble(Trouble),
    /// The row is not what it promises.
    Damaged(Damage),
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub(crate) objects: Objects,
    pub(crate) secret: ClusterSecret,
    pub(crate) sizes: Sizes,
    pub(crate) vitals: Arc<Vitals>,
}

/// A candidate of a lookup.
enum Candidate {
    Absent,
    Failed(Trouble),
    Present(RemoteRow),
}

impl Reader {
    /// The first key that has a usable manifest.
    pub(crate) async fn find(
        &self,
        owner: OwnerId,
        namespace: Namespace,
        keys: Vec<Key>,
    ) -> Result<Option<RemoteRow>, Trouble> {
        let tenant = self.secret.tenant(owner);
        let ask = |(at, key)| {
            let tenant = &tenant;
            async move { (at, self.candidate(tenant, owner, namespace, key).await) }
        };
        let count = keys.len().min(MOST_CANDIDATES);
        let mut asked: FuturesUnordered<_> = keys.into_iter().take(count).enumerate().map(ask).collect();
        let mut answers: Vec<Option<Candidate>> = (0..count).map(|_| None).collect();
        while let Some((at, answer)) = asked.next().await {
            if let Some(place) = answers.get_mut(at) {
                *place = Some(answer);
            }
            // All longer ones are absent: no need to wait for the shorter ones.
            let first = answers.iter_mut().find(|answer| !matches!(answer, Some(Candidate::Absent)));
            if let Some(Some(Candidate::Present(row))) = first {
                return Ok(Some(row.clone()));
            }
        }
        let mut failed = None;
        for answer in answers.into_iter().flatten() {
            match answer {
                Candidate::Present(row) => return Ok(Some(row)),
                Candidate::Failed(trouble) => failed = Some(trouble),
                Candidate::Absent => {}
            }
        }
        failed.map_or(Ok(None), Err)
    }

    async fn candidate(&self, tenant: &Tenant, owner: OwnerId, namespace: Namespace, key: Key) -> Candidate {
        let path = tenant.row_path(&namespace, &key);
        if self.vitals.is_distrusted(&path) {
            return Candidate::Absent;
        }
        let object = match self.objects.get(&path, manifest::MOST_BYTES).await {
            Ok(object) => object,
            Err(Trouble::Missing) => return Candidate::Absent,
            Err(Trouble::TooLarge) => {
                self.vitals.damaged(&path, Damage::Malformed);
                return Candidate::Absent;
            }
            Err(trouble) => return Candidate::Failed(trouble),
        };
        match Manifest::open(&object.bytes, tenant, &namespace, &key, path.as_ref()) {
            Ok(manifest) => {
                let ticket = ticket(object.meta.last_modified.timestamp_millis(), &object.bytes);
                let (tokens, bytes) = (manifest.tokens(), manifest.bytes());
                let tier = HitTier::Shared;
                Candidate::Present(RemoteRow { owner, namespace, key, tokens, bytes, tier, manifest: ticket })
            }
            Err(damage) => {
                self.vitals.damaged(&path, damage);
                Candidate::Absent
            }
        }
    }

    /// What a found row carries, made from a manifest that is never refreshed.
    pub(crate) fn ticket_of(manifest: &[u8]) -> Bytes {
        ticket(0, manifest)
    }

    /// The chain of a row that was found. `progress` counts the bytes that came.
    pub(crate) async fn fetch(&self, row: &RemoteRow, progress: &AtomicU64) -> Result<Chain, NotFetched> {
        let tenant = self.secret.tenant(row.owner);
        let path = tenant.row_path(&row.namespace, &row.key);
        let (modified, bytes) = open_ticket(&row.manifest).ok_or(NotFetched::Damaged(Damage::Malformed))?;
        let manifest = Manifest::open(bytes, &tenant, &row.namespace, &row.key, path.as_ref());
        let manifest = manifest.map_err(NotFetched::Damaged)?;

        let parts: Vec<Part> = manifest.segments.iter().enumerate().flat_map(|plan| self.parts(plan)).collect();
        let read = |part: Part| self.read(&tenant, &manifest, part, progress);
        let mut read = stream::iter(parts).map(read).buffered(self.sizes.parallel_parts.max(1));
        let mut checks = Vec::with_capacity(manifest.segments.len());
        let mut open = BytesMut::new();
        while let Some((part, bytes)) = read.try_next().await? {
            let Some(plan) = manifest.segments.get(part.segment) else { continue };
            let is_whole = part.start == 0 && part.is_last;
            if !is_whole {
                open.reserve(usize::try_from(part.remaining).unwrap_or(0));
                open.put(bytes.clone());
            }
            if part.is_last {
                let stored = if is_whole { bytes } else { std::mem::take(&mut open).freeze() };
                let (plan, tenant) = (plan.clone(), tenant.clone());
                checks.push(tokio::task::spawn_blocking(move || segments::open(stored, &plan, &tenant)));
            }
        }
        let mut plain = Vec::with_capacity(checks.len());
        for check in checks {
            let checked = check.await.map_err(|error| NotFetched::Trouble(Trouble::Failed(error.to_string())))?;
            plain.push(checked.map_err(NotFetched::Damaged)?);
        }
        let rows = segments::unpack(&manifest, plain).map_err(NotFetched::Damaged)?;
        self.refresh(&path, modified, bytes);
        Ok(Chain { owner: row.owner, namespace: row.namespace, rows })
    }

    /// The ranges of a segment.
    fn parts(&self, (segment, plan): (usize, &SegmentPlan)) -> impl Iterator<Item = Part> + use<> {
        let (length, step) = (plan.stored.length, self.sizes.part.max(1) as u64);
        (0..length.div_ceil(step)).map(move |number| {
            let start = number * step;
            let end = (start + step).min(length);
            Part { segment, start, end, remaining: length - start, is_last: end == length }
        })
    }

    async fn read(
        &self,
        tenant: &Tenant,
        manifest: &Manifest,
        part: Part,
        progress: &AtomicU64,
    ) -> Result<(Part, Bytes), NotFetched> {
        let plan = manifest.segments.get(part.segment).ok_or(NotFetched::Damaged(Damage::Malformed))?;
        let path = names::segment(tenant.name(), &plan.stored.digest);
        match self.objects.part(&path, part.start..part.end).await {
            Ok(bytes) if bytes.len() as u64 == part.end - part.start => {
                progress.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Ok((part, bytes))
            }
            Ok(_) => Err(NotFetched::Damaged(Damage::Length)),
            Err(Trouble::Missing) => Err(NotFetched::Damaged(Damage::MissingSegment)),
            Err(trouble) => {
                // A range outside a shorter object is an error of the object, not of the store.
                let is_shorter = self.objects.head(&path).await.is_ok_and(|meta| meta.size != plan.stored.length);
                Err(if is_shorter { NotFetched::Damaged(Damage::Length) } else { NotFetched::Trouble(trouble) })
            }
        }
    }

    /// Writes the manifest again if it was not used for long, so that collection takes others first.
    fn refresh(&self, path: &Path, modified: i64, bytes: &[u8]) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let modified = Duration::from_millis(u64::try_from(modified).unwrap_or(0));
        if now.saturating_sub(modified) < self.objects.timing().refresh_after {
            return;
        }
        let (objects, path, bytes) = (self.objects.clone(), path.clone(), Bytes::copy_from_slice(bytes));
        tokio::spawn(async move {
            if let Err(trouble) = objects.put(&path, bytes, Write::Replace).await {
                tracing::debug!(row = %path, %trouble, "cannot refresh a row of the shared tier");
            }
        });
    }
}

/// A range of a segment.
#[derive(Debug, Clone, Copy)]
struct Part {
    segment: usize,
    start: u64,
    end: u64,
    /// Bytes from here to the end of the segment.
    remaining: u64,
    is_last: bool,
}

/// What a found row carries for its fetch: when the manifest was written, and its bytes.
fn ticket(modified: i64, manifest: &[u8]) -> Bytes {
    [&modified.to_le_bytes(), manifest].concat().into()
}

fn open_ticket(ticket: &[u8]) -> Option<(i64, &[u8])> {
    let (modified, manifest) = ticket.split_first_chunk()?;
    Some((i64::from_le_bytes(*modified), manifest))
}
