//! Finding and fetching a chain: one round for the manifests, one for the segments.
//!
//! Called by the tier on its own runtime. Nothing is handed out before its length and its SHA-256 are checked. Dropping
//! the future ends the requests.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use poncho_cache::{Chain, HitTier, Key, Namespace, OwnerId, RemoteRow};
use tokio::sync::mpsc;

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

        // What the caller agreed to may be an estimate; nothing far beyond it is allocated.
        let stored = manifest.segments.iter().map(|plan| plan.stored.length).fold(0, u64::saturating_add);
        let agreed = row.bytes.saturating_mul(2).saturating_add(MORE_THAN_ESTIMATED);
        let stored = usize::try_from(stored).ok().filter(|_| stored <= agreed);
        let stored = stored.ok_or(NotFetched::Damaged(Damage::MissingSegment))?;
        let is_one = !tenant.encrypts() && manifest.rows.len() == 1;
        let mut room = if is_one { Room::Whole(BytesMut::with_capacity(stored)) } else { Room::Each };

        let parts: Vec<Part> =
            manifest.segments.iter().enumerate().flat_map(|plan| self.parts(plan, &mut room)).collect();
        let read = |part: Part| self.read(&tenant, &manifest, part, progress);
        let mut read = stream::iter(parts).map(read).buffered(self.sizes.parallel_parts.max(1));
        let mut checks = Vec::with_capacity(manifest.segments.len());
        // A segment is hashed while the next parts are on their way. Without a sender its check ends.
        let mut hashing = None;
        while let Some(part) = read.try_next().await? {
            if part.start == 0 {
                let (send, receive) = mpsc::unbounded_channel();
                hashing = Some(send);
                let plan = manifest.segments.get(part.segment).cloned();
                let plan = plan.ok_or(NotFetched::Damaged(Damage::Malformed))?;
                let tenant = tenant.clone();
                checks.push(tokio::task::spawn_blocking(move || segments::open(received(receive), &plan, &tenant)));
            }
            if let Some(hashing) = &hashing {
                // A check that is over has found damage, which is reported below.
                let _ = hashing.send(part.room);
            }
            if part.is_last {
                hashing = None;
            }
        }
        let mut plain = segments::Joined::default();
        for check in checks {
            let checked = check.await.map_err(|error| NotFetched::Trouble(Trouble::Failed(error.to_string())))?;
            plain.push(checked.map_err(NotFetched::Damaged)?);
        }
        let rows = segments::unpack(&manifest, plain.into_pieces()).map_err(NotFetched::Damaged)?;
        self.refresh(&path, modified, bytes);
        Ok(Chain { owner: row.owner, namespace: row.namespace, rows })
    }

    /// The ranges of a segment, each with its room.
    fn parts(&self, (segment, plan): (usize, &SegmentPlan), room: &mut Room) -> Vec<Part> {
        let (length, step) = (plan.stored.length, self.sizes.part.max(1) as u64);
        let mut of_segment = room.take(length);
        let mut part = |start: u64| {
            let end = (start + step).min(length);
            let room = split_room(&mut of_segment, end - start);
            Part { segment, start, end, is_last: end == length, room }
        };
        (0..length.div_ceil(step)).map(|number| part(number * step)).collect()
    }

    async fn read(
        &self,
        tenant: &Tenant,
        manifest: &Manifest,
        mut part: Part,
        progress: &AtomicU64,
    ) -> Result<Part, NotFetched> {
        let plan = manifest.segments.get(part.segment).ok_or(NotFetched::Damaged(Damage::Malformed))?;
        let path = names::segment(tenant.name(), &plan.stored.digest);
        match self.objects.read_part(&path, part.start..part.end, &mut part.room, progress).await {
            Ok(()) if part.room.len() as u64 == part.end - part.start => Ok(part),
            Ok(()) | Err(Trouble::TooLarge) => Err(NotFetched::Damaged(Damage::Length)),
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

/// A range of a segment and the memory for it.
struct Part {
    segment: usize,
    start: u64,
    end: u64,
    is_last: bool,
    room: BytesMut,
}

/// The memory of a chain. A single row gets one piece, so that it is put together without a copy. Otherwise each segment
/// has its own: encrypted ones are decrypted in place, and a row that stays must not keep the memory of a whole chain.
enum Room {
    Whole(BytesMut),
    Each,
}

impl Room {
    fn take(&mut self, bytes: u64) -> BytesMut {
        match self {
            Self::Whole(rest) => split_room(rest, bytes),
            Self::Each => BytesMut::with_capacity(usize::try_from(bytes).unwrap_or(0)),
        }
    }
}

/// The first bytes of an empty buffer, still empty; the rest stays. They touch, and can be put together again.
fn split_room(rest: &mut BytesMut, bytes: u64) -> BytesMut {
    let bytes = usize::try_from(bytes).unwrap_or(0).min(rest.capacity());
    let after = rest.split_off(bytes);
    std::mem::replace(rest, after)
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
