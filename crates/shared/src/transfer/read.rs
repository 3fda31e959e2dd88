//! Finding and fetching a chain: one round for the manifests, one for the segments.
//!
//! Called by the tier on its own runtime. Nothing is handed out before its length and its SHA-256 are checked. Dropping
//! the future ends the requests.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use poncho_cache::{Chain, HitTier, Key, Namespace, OwnerId, RemoteRow};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use super::spare::Spare;
use super::vitals::Vitals;
use crate::content::manifest::{self, Damage, Manifest, SegmentPlan};
use crate::content::tenant::{ClusterSecret, Tenant};
use crate::content::{names, segments};
use crate::objects::access::{Objects, Trouble, Write};
use crate::settings::Sizes;

/// Candidates that are asked for at once; more of them are not looked at.
const MOST_CANDIDATES: usize = 64;

/// A chain may have this many bytes beyond twice its estimate: a node does not know the length of what it never wrote.
const MORE_THAN_ESTIMATED: u64 = 64 << 20;

/// A part may be longer by this: encryption adds a few bytes to a segment of the usual size.
const SEAL: u64 = 1024;

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
    pub(crate) spare: Spare,
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
    pub(crate) async fn fetch(&self, row: &RemoteRow, progress: &Arc<AtomicU64>) -> Result<Chain, NotFetched> {
        let tenant = self.secret.tenant(row.owner);
        let path = tenant.row_path(&row.namespace, &row.key);
        let (modified, bytes) = open_ticket(&row.manifest).ok_or(NotFetched::Damaged(Damage::Malformed))?;
        let manifest = Manifest::open(bytes, &tenant, &row.namespace, &row.key, path.as_ref());
        let manifest = manifest.map_err(NotFetched::Damaged)?;

        // What the caller agreed to may be an estimate; nothing far beyond it is allocated.
        let stored = manifest.segments.iter().map(|plan| plan.stored.length).fold(0, u64::saturating_add);
        let agreed = row.bytes.saturating_mul(2).saturating_add(MORE_THAN_ESTIMATED);
        if stored > agreed || usize::try_from(stored).is_err() {
            return Err(NotFetched::Damaged(Damage::MissingSegment));
        }
        let permits = Arc::new(Semaphore::new(self.sizes.parallel_parts.max(1)));
        // Each segment has a task of its own: several threads copy and hash. Dropped, the set ends them.
        let mut tasks = JoinSet::new();
        let rooms = rooms(&manifest, tenant.encrypts(), &self.spare);
        for (place, (plan, room)) in manifest.segments.iter().cloned().zip(rooms).enumerate() {
            let (reader, tenant) = (self.clone(), tenant.clone());
            let (permits, progress) = (Arc::clone(&permits), Arc::clone(progress));
            tasks.spawn(async move { (place, reader.segment(&tenant, plan, room, &permits, &progress).await) });
        }
        let mut opened: Vec<Option<BytesMut>> = manifest.segments.iter().map(|_| None).collect();
        while let Some(ended) = tasks.join_next().await {
            let (place, segment) = ended.map_err(|error| NotFetched::Trouble(Trouble::Failed(error.to_string())))?;
            if let Some(slot) = opened.get_mut(place) {
                *slot = Some(segment?);
            }
        }
        let mut plain = segments::Joined::default();
        opened.into_iter().flatten().for_each(|segment| plain.push(segment));
        self.spare.prepare(plain.longest());
        let rows = segments::unpack(&manifest, plain.into_pieces()).map_err(NotFetched::Damaged)?;
        self.refresh(&path, modified, bytes);
        Ok(Chain { owner: row.owner, namespace: row.namespace, rows })
    }

    /// A segment, checked and plain.
    async fn segment(
        &self,
        tenant: &Tenant,
        plan: SegmentPlan,
        room: BytesMut,
        permits: &Semaphore,
        progress: &AtomicU64,
    ) -> Result<BytesMut, NotFetched> {
        let path = names::segment(tenant.name(), &plan.stored.digest);
        let (length, step) = (plan.stored.length, self.sizes.part.max(1) as u64);
        if length > step + SEAL {
            return self.long_segment(tenant, plan, &path, room, permits, progress).await;
        }
        // Hashed chunk by chunk: what has just come is still in the cache of the processor.
        let mut hash = Sha256::new();
        let part = Part { range: 0..length, room };
        let stored = self.read(&path, &plan, part, permits, progress, |chunk| hash.update(chunk)).await?;
        let digest: [u8; 32] = hash.finalize().into();
        if !tenant.encrypts() {
            return segments::open_hashed(stored, digest, &plan, tenant).map_err(NotFetched::Damaged);
        }
        let tenant = tenant.clone();
        checked(tokio::task::spawn_blocking(move || segments::open_hashed(stored, digest, &plan, &tenant))).await
    }

    /// The same in parts that are read at once, and hashed one after the other while the next ones are on their way.
    async fn long_segment(
        &self,
        tenant: &Tenant,
        plan: SegmentPlan,
        path: &Path,
        mut room: BytesMut,
        permits: &Semaphore,
        progress: &AtomicU64,
    ) -> Result<BytesMut, NotFetched> {
        let (length, step) = (plan.stored.length, self.sizes.part.max(1) as u64);
        let part = |number: u64| {
            let range = number * step..(number * step + step).min(length);
            Part { room: split_room(&mut room, range.end - range.start), range }
        };
        let parts: Vec<Part> = (0..length.div_ceil(step)).map(part).collect();
        let read = |part: Part| self.read(path, &plan, part, permits, progress, |_| {});
        let mut read = stream::iter(parts).map(read).buffered(self.sizes.parallel_parts.max(1));
        // Without a sender the check ends.
        let (send, receive) = mpsc::unbounded_channel();
        let check = {
            let (plan, tenant) = (plan.clone(), tenant.clone());
            tokio::task::spawn_blocking(move || segments::open(received(receive), &plan, &tenant))
        };
        while let Some(part) = read.try_next().await? {
            // A check that is over has found damage, which is reported below.
            let _ = send.send(part);
        }
        drop(send);
        checked(check).await
    }

    /// Reads a part of a segment into its room, and shows each chunk as it comes.
    async fn read(
        &self,
        path: &Path,
        plan: &SegmentPlan,
        Part { range, mut room }: Part,
        permits: &Semaphore,
        progress: &AtomicU64,
        mut seen: impl FnMut(&[u8]),
    ) -> Result<BytesMut, NotFetched> {
        let _permit = permits.acquire().await;
        let wanted = range.end - range.start;
        let counting = |chunk: &[u8]| {
            progress.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            seen(chunk);
        };
        match self.objects.read_part(path, range, &mut room, counting).await {
            Ok(()) if room.len() as u64 == wanted => Ok(room),
            Ok(()) | Err(Trouble::TooLarge) => Err(NotFetched::Damaged(Damage::Length)),
            Err(Trouble::Missing) => Err(NotFetched::Damaged(Damage::MissingSegment)),
            Err(trouble) => {
                // A range outside a shorter object is an error of the object, not of the store.
                let is_shorter = self.objects.head(path).await.is_ok_and(|meta| meta.size != plan.stored.length);
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

/// A range of a segment and the memory for it.
struct Part {
    range: Range<u64>,
    room: BytesMut,
}

/// The memory of each segment. Segments without a row's end between them get one piece of memory, so that the rows in them
/// are put together without a copy, and no row that stays keeps the memory of others than its own group. Encrypted ones are
/// decrypted in place, each by itself.
fn rooms(manifest: &Manifest, encrypted: bool, spare: &Spare) -> Vec<BytesMut> {
    let ends = |lengths: &mut dyn Iterator<Item = u64>| -> Vec<u64> {
        lengths
            .scan(0_u64, |end, length| {
                *end = end.saturating_add(length);
                Some(*end)
            })
            .collect()
    };
    let row_ends = ends(&mut manifest.rows.iter().map(|row| row.length));
    let segment_ends = ends(&mut manifest.segments.iter().map(|plan| plan.stored.length));
    let mut rooms = Vec::with_capacity(segment_ends.len());
    let mut group = Vec::new();
    for (plan, end) in manifest.segments.iter().zip(&segment_ends) {
        group.push(plan.stored.length);
        if encrypted || row_ends.binary_search(end).is_ok() || Some(end) == segment_ends.last() {
            let bytes = group.iter().fold(0, |sum: u64, length| sum.saturating_add(*length));
            let mut rest = spare.take(usize::try_from(bytes).unwrap_or(0));
            rooms.extend(group.drain(..).map(|length| split_room(&mut rest, length)));
        }
    }
    rooms
}

/// The first bytes of an empty buffer, still empty; the rest stays. They touch, and can be put together again.
fn split_room(rest: &mut BytesMut, bytes: u64) -> BytesMut {
    let bytes = usize::try_from(bytes).unwrap_or(0).min(rest.capacity());
    let after = rest.split_off(bytes);
    std::mem::replace(rest, after)
}

async fn checked(check: JoinHandle<Result<BytesMut, Damage>>) -> Result<BytesMut, NotFetched> {
    let checked = check.await.map_err(|error| NotFetched::Trouble(Trouble::Failed(error.to_string())))?;
    checked.map_err(NotFetched::Damaged)
}

/// What comes through a channel until its senders are gone.
fn received(mut parts: mpsc::UnboundedReceiver<BytesMut>) -> impl Iterator<Item = BytesMut> {
    std::iter::from_fn(move || parts.blocking_recv())
}

/// What a found row carries for its fetch: when the manifest was written, and its bytes.
fn ticket(modified: i64, manifest: &[u8]) -> Bytes {
    [&modified.to_le_bytes(), manifest].concat().into()
}

fn open_ticket(ticket: &[u8]) -> Option<(i64, &[u8])> {
    let (modified, manifest) = ticket.split_first_chunk()?;
    Some((i64::from_le_bytes(*modified), manifest))
}
