//! Collection: rows that were not used for longest leave a store that is over its quota, then the segments that no row
//! needs.
//!
//! Called by `poncho cache gc`, `poncho cluster gc` and by an upload that finds no room. Safe beside uploads, reads and another collection:
//! manifests go before segments, a segment is condemned a grace period before it goes (`condemned.rs`), and a reader that
//! comes too late sees a missing object, which is a miss.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use object_store::path::Path;

use super::condemned::Condemned;
use super::lease::Lease;
use super::{ledger, now_ms};
use crate::content::manifest::{self, StoredSegment};
use crate::content::names::{self, Named};
use crate::error::SharedError;
use crate::objects::access::{Objects, Trouble};

/// A collection leaves this much of the quota in use, so that the next one is not due at once.
const TARGET_PERCENT: u64 = 90;
/// Requests at once.
const PARALLEL: usize = 16;

/// What a collection did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collection {
    /// Rows in the store before.
    pub rows: u64,
    /// Bytes in the store before.
    pub bytes: u64,
    /// Rows removed.
    pub removed_rows: u64,
    /// Segments removed.
    pub removed_segments: u64,
    /// Bytes removed.
    pub removed_bytes: u64,
    /// Bytes of segments that no row needs, to be removed after the grace period.
    pub condemned_bytes: u64,
}

/// Manifests that were read before, by name: they rarely change, and each one read is a request.
#[derive(Debug, Default)]
pub(crate) struct ReadBefore {
    heads: HashMap<Path, (Option<String>, i64, Vec<StoredSegment>)>,
}

struct Row {
    meta: ObjectMeta,
    /// `None`: unreadable.
    segments: Option<Vec<Path>>,
}

/// How much may stay.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limit {
    /// `None`: all rows stay.
    pub(crate) quota: Option<u64>,
    /// What somebody wants to write takes this much of the quota.
    pub(crate) wanted: u64,
}

impl Limit {
    /// How much of the quota rows and their segments may take, besides the store's other objects.
    fn target(self, others: u64) -> u64 {
        let Some(quota) = self.quota else { return u64::MAX };
        (quota / 100 * TARGET_PERCENT).min(quota.saturating_sub(self.wanted)).saturating_sub(others)
    }
}

/// Collects once.
pub(crate) async fn collect(
    objects: &Objects,
    limit: Limit,
    read_before: &mut ReadBefore,
) -> Result<Collection, SharedError> {
    let lease = Lease::take(objects).await.map_err(objects.error("take the lease on collection"))?;
    let Some(lease) = lease else { return Err(SharedError::Leased { location: objects.name().to_owned() }) };
    let outcome = under_lease(objects, limit, read_before, &lease).await;
    let released = lease.release(objects).await;
    let outcome = outcome.map_err(objects.error("collect garbage"))?;
    released.map_err(objects.error("release the lease on collection"))?;
    Ok(outcome)
}

/// What a collection would do at this moment. Nothing is written and no lease is needed; another machine may change the
/// store before the collection itself. Times are compared with the clock of this machine.
pub(crate) async fn foresee(objects: &Objects, limit: Limit) -> Result<Collection, SharedError> {
    foreseen(objects, limit).await.map_err(objects.error("look for garbage"))
}

async fn foreseen(objects: &Objects, limit: Limit) -> Result<Collection, Trouble> {
    let now = i64::try_from(now_ms()).unwrap_or(i64::MAX);
    let all = objects.list(&names::root()).await?;
    let mut done = Collection { bytes: all.iter().map(|meta| meta.size).sum(), ..Collection::default() };
    let cost = all.iter().map(ledger::cost).sum();
    let (rows, segments) = sort(objects, all, &mut ReadBefore::default()).await?;
    done.rows = rows.len() as u64;
    let target = limit.target(others(&rows, &segments, cost));
    let (leaving, kept) = split(rows, &segments, target, (now, objects.timing().grace));
    let used: HashSet<&Path> = kept.iter().flat_map(|row| row.segments.iter().flatten()).collect();
    let unused: Vec<&ObjectMeta> = segments.values().filter(|meta| !used.contains(&meta.location)).collect();
    let due = due(&unused, &Condemned::read(objects).await?, now, objects.timing().grace);
    let size = |metas: &[&ObjectMeta]| metas.iter().map(|meta| meta.size).sum::<u64>();
    done.removed_rows = leaving.len() as u64;
    done.removed_segments = due.len() as u64;
    done.removed_bytes = leaving.iter().map(|row| row.meta.size).sum::<u64>().saturating_add(size(&due));
    done.condemned_bytes = size(&unused).saturating_sub(size(&due));
    Ok(done)
}

/// What objects that are neither rows nor segments take of the quota.
fn others(rows: &[Row], segments: &HashMap<Path, ObjectMeta>, all: u64) -> u64 {
    let sorted = rows.iter().map(|row| &row.meta).chain(segments.values()).map(ledger::cost).sum::<u64>();
    all.saturating_sub(sorted).saturating_add(ledger::own_cost())
}

async fn under_lease(
    objects: &Objects,
    limit: Limit,
    read_before: &mut ReadBefore,
    lease: &Lease,
) -> Result<Collection, Trouble> {
    let settled_before = ledger::settled(objects).await?;
    let Some(now) = lease.touch(objects).await? else { return Ok(Collection::default()) };
    let all = objects.list(&names::root()).await?;
    let mut done = Collection { bytes: all.iter().map(|meta| meta.size).sum(), ..Collection::default() };
    let cost = all.iter().map(ledger::cost).sum::<u64>();
    let (rows, segments) = sort(objects, all, read_before).await?;
    done.rows = rows.len() as u64;

    let target = limit.target(others(&rows, &segments, cost));
    let kept = remove_rows(objects, rows, &segments, target, now, &mut done).await?;
    let used: HashSet<&Path> = kept.iter().flat_map(|row| row.segments.iter().flatten()).collect();
    let unused: Vec<&ObjectMeta> = segments.values().filter(|meta| !used.contains(&meta.location)).collect();

    let before = Condemned::read(objects).await?;
    let due = due(&unused, &before, now, objects.timing().grace);
    let Some(condemned_at) = lease.touch(objects).await? else { return Ok(done) };
    let mut after = Condemned::default();
    for meta in &unused {
        let since = before.since(&meta.location, meta.last_modified.timestamp_millis());
        after.add(&meta.location, since.unwrap_or(condemned_at));
    }
    if !(before.is_empty() && after.is_empty()) {
        after.write(objects).await?;
    }
    let removed = remove(objects, &due).await;
    let size = |metas: &[&ObjectMeta]| metas.iter().map(|meta| meta.size).sum::<u64>();
    done.removed_segments = removed.len() as u64;
    done.removed_bytes += size(&removed);
    done.condemned_bytes = size(&unused).saturating_sub(size(&removed));
    // The lines of removed segments stay in the list until the next collection, and so does their room.
    ledger::recount(objects, settled_before, cost.saturating_sub(done.removed_bytes)).await?;
    Ok(done)
}

/// Segments by name, and rows with what they need, oldest first.
async fn sort(
    objects: &Objects,
    all: Vec<ObjectMeta>,
    read_before: &mut ReadBefore,
) -> Result<(Vec<Row>, HashMap<Path, ObjectMeta>), Trouble> {
    let mut segments = HashMap::new();
    let mut manifests = Vec::new();
    for meta in all {
        match names::classify(&meta.location) {
            Some(Named::Segment { .. }) => drop(segments.insert(meta.location.clone(), meta)),
            Some(Named::Row { tenant }) => manifests.push((tenant, meta)),
            Some(Named::Cluster) | None => {}
        }
    }
    let mut known = std::mem::take(&mut read_before.heads);
    let read = |(tenant, meta): (String, ObjectMeta)| {
        let stamp = (meta.e_tag.clone(), meta.last_modified.timestamp_millis());
        let before =
            known.remove(&meta.location).filter(|(e_tag, modified, _)| (e_tag, modified) == (&stamp.0, &stamp.1));
        let objects = objects.clone();
        async move {
            if let Some((_, _, stored)) = before {
                return Ok(Some((tenant, meta, stamp, Some(stored))));
            }
            match objects.get(&meta.location, manifest::MOST_BYTES).await {
                Ok(object) => Ok(Some((tenant, meta, stamp, manifest::head(&object.bytes).map(|head| head.segments)))),
                Err(Trouble::Missing) => Ok(None),
                Err(Trouble::TooLarge) => Ok(Some((tenant, meta, stamp, None))),
                Err(trouble) => Err(trouble),
            }
        }
    };
    let read: Vec<_> = stream::iter(manifests).map(read).buffer_unordered(PARALLEL).try_collect().await?;
    let mut rows = Vec::with_capacity(read.len());
    for (tenant, meta, stamp, stored) in read.into_iter().flatten() {
        let paths =
            |stored: &Vec<StoredSegment>| stored.iter().map(|one| names::segment(&tenant, &one.digest)).collect();
        let paths = stored.as_ref().map(paths);
        if let Some(stored) = stored {
            read_before.heads.insert(meta.location.clone(), (stamp.0, stamp.1, stored));
        }
        rows.push(Row { meta, segments: paths });
    }
    rows.sort_by_key(|row| row.meta.last_modified);
    Ok((rows, segments))
}

/// The rows that leave, and those that stay: unreadable ones leave, and the oldest ones until the rest is within the quota.
fn split(
    rows: Vec<Row>,
    segments: &HashMap<Path, ObjectMeta>,
    target: u64,
    (now, grace): (i64, Duration),
) -> (Vec<Row>, Vec<Row>) {
    let grace = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    let is_old = |row: &Row| row.meta.last_modified.timestamp_millis().saturating_add(grace) < now;
    let (broken, rows): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.segments.is_none() && is_old(row));

    let size = |path: &Path| segments.get(path).map_or(0, ledger::cost);
    let mut users: HashMap<&Path, u64> = HashMap::new();
    let mut live = 0_u64;
    for row in &rows {
        live += row.meta.size;
        for path in row.segments.iter().flatten() {
            let count = users.entry(path).or_default();
            live += if *count == 0 { size(path) } else { 0 };
            *count += 1;
        }
    }
    let mut leaving = 0;
    for row in &rows {
        if live <= target {
            break;
        }
        leaving += 1;
        live = live.saturating_sub(row.meta.size);
        for path in row.segments.iter().flatten() {
            if let Some(count) = users.get_mut(path) {
                *count -= 1;
                live = live.saturating_sub(if *count == 0 { size(path) } else { 0 });
            }
        }
    }
    let mut rows = rows;
    let kept = rows.split_off(leaving);
    (broken.into_iter().chain(rows).collect(), kept)
}

/// Removes the rows that leave. Returns the others.
async fn remove_rows(
    objects: &Objects,
    rows: Vec<Row>,
    segments: &HashMap<Path, ObjectMeta>,
    target: u64,
    now: i64,
    done: &mut Collection,
) -> Result<Vec<Row>, Trouble> {
    let (rows, kept) = split(rows, segments, target, (now, objects.timing().grace));
    let leaving: Vec<&ObjectMeta> = rows.iter().map(|row| &row.meta).collect();
    let removed = remove(objects, &leaving).await;
    done.removed_rows = removed.len() as u64;
    done.removed_bytes += removed.iter().map(|meta| meta.size).sum::<u64>();
    // A row that could not be removed still needs its segments.
    let gone: HashSet<&Path> = removed.iter().map(|meta| &meta.location).collect();
    let failed: HashSet<Path> =
        leaving.iter().map(|meta| &meta.location).filter(|path| !gone.contains(path)).cloned().collect();
    Ok(rows.into_iter().filter(|row| failed.contains(&row.meta.location)).chain(kept).collect())
}

/// Segments that were condemned a grace period ago.
fn due<'a>(unused: &[&'a ObjectMeta], before: &Condemned, now: i64, grace: Duration) -> Vec<&'a ObjectMeta> {
    let grace = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    let is_due = |meta: &&&ObjectMeta| {
        let since = before.since(&meta.location, meta.last_modified.timestamp_millis());
        since.is_some_and(|since| since.saturating_add(grace) <= now)
    };
    unused.iter().filter(is_due).copied().collect()
}

/// Removes objects; returns those that are gone.
async fn remove<'a>(objects: &Objects, metas: &[&'a ObjectMeta]) -> Vec<&'a ObjectMeta> {
    let delete = |path: Path| {
        let objects = objects.clone();
        async move { objects.delete(&path).await.is_ok() }
    };
    let paths: Vec<Path> = metas.iter().map(|meta| meta.location.clone()).collect();
    let gone: Vec<bool> = stream::iter(paths).map(delete).buffered(PARALLEL).collect().await;
    metas.iter().zip(gone).filter(|(_, gone)| *gone).map(|(meta, _)| *meta).collect()
}
