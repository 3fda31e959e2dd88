//! The ledger: one object that counts the bytes in the store, so that all machines together respect the quota.
//!
//! An upload reserves its bytes before it writes any, and settles afterwards. A reservation of a machine that died counts
//! as used until the next collection, which counts the objects themselves. The ledger counts itself, the lease, and for
//! each segment the line that condemns it: the list of condemned segments grows when a store is full, and finds its room
//! reserved. Errors are on the safe side: the ledger may count too much, never too little.

use bytes::Bytes;
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{now_ms, random_name};
use crate::content::names::{self, Named};
use crate::objects::access::{Objects, Trouble};
use crate::objects::cas::{Decision, update};

/// Room for a segment's line in the list of condemned segments: its name, a time, and punctuation.
const CONDEMNED_LINE: u64 = 144;
/// Room for the ledger without its reservations, the lease and the empty list of condemned segments.
const OWN_BYTES: u64 = 512;
/// Room for a reservation in the ledger.
const OWN_ENTRY: u64 = 128;

/// Bytes that a new segment takes of the quota.
pub(crate) fn cost_of_segment(bytes: u64) -> u64 {
    bytes.saturating_add(CONDEMNED_LINE)
}

/// Bytes that an object takes of the quota. The cluster's own objects have their room elsewhere.
pub(crate) fn cost(meta: &ObjectMeta) -> u64 {
    match names::classify(&meta.location) {
        Some(Named::Segment { .. }) => cost_of_segment(meta.size),
        Some(Named::Cluster) if OWN_NAMES.iter().any(|name| meta.location == names::cluster(name)) => 0,
        Some(Named::Row { .. } | Named::Cluster) | None => meta.size,
    }
}

/// Bytes that the cluster's own objects take of the quota while nothing is uploaded.
pub(crate) const fn own_cost() -> u64 {
    OWN_BYTES + OWN_ENTRY
}

/// Objects that have their room in [`OWN_BYTES`], [`OWN_ENTRY`] and [`CONDEMNED_LINE`].
const OWN_NAMES: [&str; 3] = ["ledger", "lease", "condemned"];

/// The stored form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Account {
    /// Bytes of finished uploads and of everything that was there.
    settled: u64,
    /// Uploads on their way.
    reserved: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    until_ms: u64,
}

impl Account {
    fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Bytes that are used or reserved, the cluster's own objects included.
    fn total(&self) -> u64 {
        let add = |sum: u64, entry: &Entry| sum.saturating_add(entry.bytes).saturating_add(OWN_ENTRY);
        self.reserved.iter().fold(self.settled.saturating_add(OWN_BYTES), add)
    }

    /// Reservations of machines that did not come back: their bytes may be in the store.
    fn expire(&mut self, now: u64) {
        let (dead, alive): (Vec<Entry>, Vec<Entry>) = self.reserved.drain(..).partition(|entry| entry.until_ms < now);
        self.reserved = alive;
        self.settled = dead.iter().fold(self.settled, |sum, entry| sum.saturating_add(entry.bytes));
    }

    fn write<T>(&self, outcome: T) -> Decision<T> {
        Decision::Write(Bytes::from(serde_json::to_vec(self).unwrap_or_default()), outcome)
    }
}

/// Room for an upload. Settle it, whatever became of the upload.
#[derive(Debug)]
pub(crate) struct Reservation {
    name: String,
}

/// Reserves bytes below the quota, as [`cost`] counts them. `None` if the store is full.
pub(crate) async fn reserve(objects: &Objects, quota: u64, bytes: u64) -> Result<Option<Reservation>, Trouble> {
    let path = names::cluster("ledger");
    let known = update(objects, &path, |current| Decision::Leave(current.and_then(Account::parse).is_some())).await?;
    let counted = if known { 0 } else { objects.list(&names::root()).await?.iter().map(cost).sum() };
    let now = now_ms();
    let grace = u64::try_from(objects.timing().grace.as_millis()).unwrap_or(u64::MAX);
    let name = random_name();
    update(objects, &path, |current| {
        let mut account =
            current.and_then(Account::parse).unwrap_or(Account { settled: counted, reserved: Vec::new() });
        account.expire(now);
        account.reserved.push(Entry { name: name.clone(), bytes, until_ms: now.saturating_add(grace) });
        if account.total() > quota {
            return Decision::Leave(None);
        }
        account.write(Some(Reservation { name: name.clone() }))
    })
    .await
}

/// Ends a reservation with the bytes that were written.
pub(crate) async fn settle(objects: &Objects, reservation: &Reservation, written: u64) -> Result<(), Trouble> {
    update(objects, &names::cluster("ledger"), |current| {
        let Some(mut account) = current.and_then(Account::parse) else { return Decision::Leave(()) };
        let before = account.reserved.len();
        account.reserved.retain(|entry| entry.name != reservation.name);
        // An expired reservation is part of the settled bytes already.
        if account.reserved.len() < before {
            account.settled = account.settled.saturating_add(written);
        }
        account.write(())
    })
    .await
}

/// The settled bytes, before a count of the objects.
pub(crate) async fn settled(objects: &Objects) -> Result<u64, Trouble> {
    update(objects, &names::cluster("ledger"), |current| {
        Decision::Leave(current.and_then(Account::parse).map_or(0, |account| account.settled))
    })
    .await
}

/// Sets the settled bytes to a count of the objects' [`cost`]. What was settled since the count began may be missing from it.
pub(crate) async fn recount(objects: &Objects, settled_before: u64, counted: u64) -> Result<(), Trouble> {
    update(objects, &names::cluster("ledger"), |current| {
        let mut account = current.and_then(Account::parse).unwrap_or_default();
        let since = account.settled.saturating_sub(settled_before);
        account.settled = counted.saturating_add(since);
        account.write(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;
    use crate::objects::access::Write;
    use crate::objects::location::Location;
    use crate::quota::condemned::Condemned;
    use crate::settings::Timing;

    fn store() -> Objects {
        let location = Location { store: Arc::new(InMemory::new()), name: "test".to_owned(), folder: None };
        Objects::new(location, Timing::default())
    }

    async fn size(objects: &Objects, name: &str) -> u64 {
        objects.head(&names::cluster(name)).await.expect("there").size
    }

    #[tokio::test]
    async fn the_room_of_the_clusters_own_objects_is_enough() {
        let objects = store();
        for number in 1..40 {
            assert!(reserve(&objects, u64::MAX, u64::MAX >> 8).await.expect("answered").is_some());
            assert!(size(&objects, "ledger").await <= OWN_BYTES / 2 + number * OWN_ENTRY);
        }
        let lease = crate::quota::lease::Lease::take(&objects).await.expect("answered");
        assert!(lease.is_some() && size(&objects, "lease").await <= OWN_BYTES / 4);
        let mut list = Condemned::default();
        for number in 0..100 {
            list.add(&names::segment(&"f".repeat(32), &[number; 32]), i64::MAX);
        }
        list.write(&objects).await.expect("written");
        assert!(size(&objects, "condemned").await <= OWN_BYTES / 4 + 100 * CONDEMNED_LINE);
    }

    /// A ledger that could not be read counted as empty: the whole quota was free again.
    #[tokio::test]
    async fn a_damaged_ledger_is_counted_again() {
        let objects = store();
        let row = names::row(&"a".repeat(32), "b", "c");
        objects.put(&row, Bytes::from(vec![1; 5000]), Write::Replace).await.expect("written");
        objects.put(&names::cluster("ledger"), Bytes::from_static(b"{"), Write::Replace).await.expect("written");
        assert!(reserve(&objects, 9000, 5000).await.expect("answered").is_none());
        assert!(reserve(&objects, 9000, 3000).await.expect("answered").is_some());
    }
}
