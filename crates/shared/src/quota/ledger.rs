//! The ledger: one object that counts the bytes in the store, so that all machines together respect the quota.
//!
//! An upload reserves its bytes before it writes any, and settles afterwards. A reservation of a machine that died counts
//! as used until the next collection, which counts the objects themselves. Errors are on the safe side: the ledger may
//! count too much, never too little.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{now_ms, random_name};
use crate::content::names;
use crate::objects::access::{Objects, Trouble};
use crate::objects::cas::{Decision, update};

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

    fn total(&self) -> u64 {
        self.reserved.iter().fold(self.settled, |sum, entry| sum.saturating_add(entry.bytes))
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

/// Reserves bytes below the quota. `None`: there is no room.
pub(crate) async fn reserve(objects: &Objects, quota: u64, bytes: u64) -> Result<Option<Reservation>, Trouble> {
    let path = names::cluster("ledger");
    let counted = match objects.head(&path).await {
        Ok(_) => 0,
        Err(Trouble::Missing) => objects.list(&names::root()).await?.iter().map(|meta| meta.size).sum(),
        Err(trouble) => return Err(trouble),
    };
    let now = now_ms();
    let grace = u64::try_from(objects.timing().grace.as_millis()).unwrap_or(u64::MAX);
    let name = random_name();
    update(objects, &path, |current| {
        let mut account =
            current.and_then(Account::parse).unwrap_or(Account { settled: counted, reserved: Vec::new() });
        account.expire(now);
        if account.total().saturating_add(bytes) > quota {
            return Decision::Leave(None);
        }
        account.reserved.push(Entry { name: name.clone(), bytes, until_ms: now.saturating_add(grace) });
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

/// Sets the settled bytes to a count of the objects. What was settled since the count began may be missing from it.
pub(crate) async fn recount(objects: &Objects, settled_before: u64, counted: u64) -> Result<(), Trouble> {
    update(objects, &names::cluster("ledger"), |current| {
        let mut account = current.and_then(Account::parse).unwrap_or_default();
        let since = account.settled.saturating_sub(settled_before);
        account.settled = counted.saturating_add(since);
        account.write(())
    })
    .await
}
