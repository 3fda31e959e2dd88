//! The lease on collection: at most one machine collects at a time.
//!
//! Used by collection. It ends by itself, so that a machine that dies while it collects blocks the others for some
//! minutes only. Two holders at once would waste work and never remove what is in use: the rules of collection hold for
//! each of them.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{now_ms, random_name};
use crate::content::names;
use crate::objects::access::{Objects, Trouble};
use crate::objects::cas::{Decision, update};

/// Longer than a collection takes.
const LENGTH: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    holder: String,
    until_ms: u64,
}

/// A lease that this process holds.
#[derive(Debug)]
pub(crate) struct Lease {
    holder: String,
}

impl Lease {
    /// Takes the lease. `None`: another machine has it.
    pub(crate) async fn take(objects: &Objects) -> Result<Option<Self>, Trouble> {
        let holder = random_name();
        let taken = write(objects, &holder, LENGTH).await?;
        Ok(taken.then_some(Self { holder }))
    }

    /// Writes the lease again and returns the store's own time of that, in milliseconds: clocks of machines differ.
    pub(crate) async fn touch(&self, objects: &Objects) -> Result<Option<i64>, Trouble> {
        if !write(objects, &self.holder, LENGTH).await? {
            return Ok(None);
        }
        let meta = objects.head(&names::cluster("lease")).await?;
        Ok(Some(meta.last_modified.timestamp_millis()))
    }

    pub(crate) async fn release(self, objects: &Objects) -> Result<(), Trouble> {
        write(objects, &self.holder, Duration::ZERO).await.map(|_| ())
    }
}

/// Writes the lease unless another holder has it.
async fn write(objects: &Objects, holder: &str, length: Duration) -> Result<bool, Trouble> {
    let now = now_ms();
    update(objects, &names::cluster("lease"), |current| {
        let stored = current.and_then(|bytes| serde_json::from_slice::<Stored>(bytes).ok());
        if stored.is_some_and(|stored| stored.until_ms > now && stored.holder != holder) {
            return Decision::Leave(false);
        }
        let until_ms = now.saturating_add(u64::try_from(length.as_millis()).unwrap_or(0));
        let stored = Stored { holder: holder.to_owned(), until_ms };
        Decision::Write(Bytes::from(serde_json::to_vec(&stored).unwrap_or_default()), true)
    })
    .await
}
