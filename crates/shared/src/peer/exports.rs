//! Rows on their way to other nodes: exported once, kept in memory for the ranges that follow, bounded.
//!
//! Used by the server of rows. Bytes count against the limit until the last answer that holds them is sent. A row that
//! leaves the cache is not served any longer, even if its bytes are still here. It must never export for an owner who has
//! not sent the tokens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use poncho_cache::{Cache, CanonicalRow, Key, NO_TENANT, Namespace, OwnerId, RowInfo};
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::PullLimits;
use super::protocol::{Found, Question};
use crate::content::manifest::{Manifest, RowRange, SegmentPlan, StoredSegment};
use crate::content::tenant::ClusterSecret;

/// Memory is counted in pieces of this many bytes.
const UNIT: u64 = 4096;
/// Rows are joined until a segment has this many bytes.
const JOINED: usize = 4 << 20;
/// Exports that run at once; each reads files and hashes.
const EXPORTS_AT_ONCE: usize = 2;

/// Why a row is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotServed {
    /// The owner has no row with this key.
    Missing,
    /// There is no room for it now, or it can never fit.
    Busy,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Exports {
    cache: CacheHandle,
    secret: ClusterSecret,
    limits: PullLimits,
    memory: Arc<Semaphore>,
    running: Semaphore,
    open: Mutex<HashMap<(OwnerId, Key), Arc<Slot>>>,
}

/// The cache keeps the tier, and the tier this server: a strong reference would keep all of them forever.
struct CacheHandle(Weak<Cache>);

impl std::fmt::Debug for CacheHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Cache")
    }
}

/// A row that is being exported or was.
#[derive(Debug)]
struct Slot {
    export: OnceCell<Arc<Export>>,
    used: Mutex<Instant>,
}

#[derive(Debug)]
struct Export {
    tenant: String,
    manifest: Bytes,
    segments: HashMap<[u8; 32], Bytes>,
    /// Frees the memory when the last holder is gone.
    _memory: OwnedSemaphorePermit,
}

/// Bytes that keep their export.
struct Sent {
    bytes: Bytes,
    _export: Arc<Export>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Exports {
    pub(super) fn new(cache: &Arc<Cache>, secret: ClusterSecret, limits: PullLimits) -> Self {
        let units = usize::try_from(limits.memory / UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            cache: CacheHandle(Arc::downgrade(cache)),
            secret,
            limits,
            memory: Arc::new(Semaphore::new(units)),
            running: Semaphore::new(EXPORTS_AT_ONCE),
            open: Mutex::default(),
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<(OwnerId, Key), Arc<Slot>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first row of a question that there is. Reads the index alone.
    pub(super) fn find(&self, question: &Question) -> Option<Found> {
        let namespace = question.namespace();
        question.keys.iter().find_map(|key| {
            let (tokens, bytes) = self.held(key, &namespace, question.owner)?;
            (bytes <= self.limits.memory).then_some(Found { key: *key, tokens, bytes })
        })
    }

    /// Tokens and bytes of a chain that this owner may have.
    fn held(&self, key: &Key, namespace: &Namespace, owner: OwnerId) -> Option<(u32, u64)> {
        let cache = self.cache.0.upgrade()?;
        let row = cache.row(key).filter(|row| row.meta.namespace == *namespace)?;
        let (tokens, mut bytes, mut next) = (row.meta.token_count, 0_u64, Some(row));
        while let Some(row) = next {
            let may_see = if owner == NO_TENANT { row.owners.is_empty() } else { row.owners.contains(&owner) };
            if !may_see {
                return None;
            }
            bytes = bytes.saturating_add(bytes_of(&row));
            // A parent that left meanwhile takes its descendants along; the export detects it.
            next = row.meta.parent.and_then(|parent| cache.row(&parent));
        }
        Some((tokens, bytes))
    }

    /// The manifest of a row, exported if it is not here yet.
    pub(super) async fn manifest(&self, question: &Question) -> Result<Bytes, NotServed> {
        let (owner, namespace) = (question.owner, question.namespace());
        let key = *question.keys.first().ok_or(NotServed::Missing)?;
        let (_, bytes) = self.held(&key, &namespace, owner).ok_or(NotServed::Missing)?;
        self.forget_unused();
        let slot = Arc::clone(
            self.open()
                .entry((owner, key))
                .or_insert_with(|| Arc::new(Slot { export: OnceCell::new(), used: Mutex::new(Instant::now()) })),
        );
        slot.touch();
        let export = slot.export.get_or_try_init(|| self.export(owner, namespace, key, bytes)).await;
        if export.is_err() {
            // Unless another question has tried again meanwhile.
            self.open().retain(|name, other| *name != (owner, key) || !Arc::ptr_eq(other, &slot));
        }
        export.map(|export| export.manifest.clone())
    }

    /// A range of a segment that was opened before. `None`: it is not here, or its row has left the cache.
    pub(super) fn segment(&self, tenant: &str, digest: &[u8; 32]) -> Option<Bytes> {
        let mut open = self.open();
        let found = open.iter().find_map(|(name, slot)| {
            let export = slot.export.get().filter(|export| export.tenant == tenant)?;
            let bytes = export.segments.get(digest)?.clone();
            Some((*name, Arc::clone(slot), Sent { bytes, _export: Arc::clone(export) }))
        });
        let (name, slot, sent) = found?;
        if !self.cache.0.upgrade().is_some_and(|cache| cache.contains(&name.1)) {
            open.remove(&name);
            return None;
        }
        slot.touch();
        Some(Bytes::from_owner(sent))
    }

    fn forget_unused(&self) {
        let keep = self.limits.keep;
        self.open().retain(|_, slot| slot.unused_for() < keep);
    }

    /// Makes room: the export that was not used for longest goes.
    fn forget_oldest(&self) -> bool {
        let mut open = self.open();
        let done = open.iter().filter(|(_, slot)| slot.export.initialized());
        let oldest = done.max_by_key(|(_, slot)| slot.unused_for()).map(|(name, _)| *name);
        oldest.is_some_and(|name| open.remove(&name).is_some())
    }

    fn reserve(&self, bytes: u64) -> Result<OwnedSemaphorePermit, NotServed> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).map_err(|_| NotServed::Busy)?;
        loop {
            match Arc::clone(&self.memory).try_acquire_many_owned(units) {
                Ok(permit) => return Ok(permit),
                Err(_) if bytes <= self.limits.memory && self.forget_oldest() => {}
                Err(_) => return Err(NotServed::Busy),
            }
        }
    }

    async fn export(
        &self,
        owner: OwnerId,
        namespace: Namespace,
        key: Key,
        expected: u64,
    ) -> Result<Arc<Export>, NotServed> {
        let _turn = self.running.acquire().await.map_err(|_| NotServed::Busy)?;
        let mut memory = self.reserve(expected)?;
        let cache = self.cache.0.upgrade().ok_or(NotServed::Missing)?;
        let exported = tokio::task::spawn_blocking(move || cache.export(&key, owner)).await;
        let chain = exported.map_err(|_| NotServed::Missing)?.map_err(|error| {
            tracing::debug!(%key, %error, "a row is not served to another node");
            NotServed::Missing
        })?;
        if chain.namespace != namespace {
            return Err(NotServed::Missing);
        }
        let bytes = chain.bytes();
        if bytes > expected {
            memory.merge(self.reserve(bytes - expected)?);
        }
        let range = |row: &CanonicalRow| RowRange {
            key: row.key,
            start: row.start,
            end: row.end,
            length: row.bytes.len() as u64,
        };
        let rows: Vec<RowRange> = chain.rows.iter().map(range).collect();
        let segments = hashed(cut(&chain.rows, JOINED, self.limits.part)).await.ok_or(NotServed::Missing)?;
        let plan = |(digest, bytes): &([u8; 32], Bytes)| SegmentPlan {
            stored: StoredSegment { digest: *digest, length: bytes.len() as u64 },
            plain: *digest,
        };
        let manifest = Manifest { rows, segments: segments.iter().map(plan).collect() };
        let tenant = self.secret.tenant(owner);
        let path = tenant.row_path(&namespace, &key);
        let manifest = manifest.encode(&tenant, &namespace, path.as_ref()).ok_or(NotServed::Busy)?;
        let tenant = tenant.name().to_owned();
        let segments = segments.into_iter().collect();
        Ok(Arc::new(Export { tenant, manifest: manifest.into(), segments, _memory: memory }))
    }
}

impl Slot {
    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn unused_for(&self) -> std::time::Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// Bytes of one copy of a row.
fn bytes_of(row: &RowInfo) -> u64 {
    row.bytes / (row.tiers.len() as u64).max(1)
}

/// The rows as segments of about `joined` to `most` bytes. Only small rows are copied.
fn cut(rows: &[CanonicalRow], joined: usize, most: usize) -> Vec<Bytes> {
    let mut segments = Vec::new();
    let mut open = BytesMut::new();
    for row in rows {
        if open.is_empty() && row.bytes.len() >= joined {
            pieces(&row.bytes, most, &mut segments);
            continue;
        }
        open.extend_from_slice(&row.bytes);
        if open.len() >= joined {
            pieces(&std::mem::take(&mut open).freeze(), most, &mut segments);
        }
    }
    pieces(&open.freeze(), most, &mut segments);
    segments
}

fn pieces(bytes: &Bytes, most: usize, segments: &mut Vec<Bytes>) {
    let mut rest = bytes.clone();
    while !rest.is_empty() {
        segments.push(rest.split_to(rest.len().min(most.max(1))));
    }
}

/// The segments with their digests, computed on all cores.
async fn hashed(segments: Vec<Bytes>) -> Option<Vec<([u8; 32], Bytes)>> {
    let mut running = JoinSet::new();
    for (place, bytes) in segments.into_iter().enumerate() {
        running.spawn_blocking(move || (place, Sha256::digest(&bytes).into(), bytes));
    }
    let mut done: Vec<(usize, [u8; 32], Bytes)> = Vec::new();
    while let Some(one) = running.join_next().await {
        done.push(one.ok()?);
    }
    done.sort_unstable_by_key(|(place, ..)| *place);
    Some(done.into_iter().map(|(_, digest, bytes)| (digest, bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_in_order_are_the_rows_in_order() {
        let row = |length: usize, byte: u8| CanonicalRow {
            key: Key::from_bytes([byte; 32]),
            start: 0,
            end: 1,
            bytes: vec![byte; length].into(),
        };
        let rows = [row(3, 1), row(4, 2), row(25, 3), row(1, 4), row(9, 5), row(12, 6), row(2, 7)];
        let segments = cut(&rows, 10, 8);
        assert!(segments.iter().all(|segment| (1..=8).contains(&segment.len())), "{segments:?}");
        let joined: Vec<u8> = segments.concat();
        assert_eq!(joined, rows.iter().flat_map(|row| row.bytes.to_vec()).collect::<Vec<u8>>());
        assert!(cut(&[], 10, 8).is_empty());
    }
}
