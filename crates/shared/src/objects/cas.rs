//! Read, change, write back: as one step that no other machine can come between.
//!
//! Used by the ledger and the lease. A cloud store checks the version on the write; a folder has a lock file. A store
//! that can do neither is written without a check: the ledger may then be wrong until the next collection counts again.

use std::fs::{File, OpenOptions};
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;

use super::access::{Objects, Trouble, Write};

/// Longest object that is changed this way.
const MOST_BYTES: u64 = 8 << 20;
/// Attempts before contention counts as a failure.
const ATTEMPTS: u32 = 24;

/// What a change decides after it saw the object.
pub(crate) enum Decision<T> {
    /// Write these bytes.
    Write(Bytes, T),
    /// Leave the object as it is.
    Leave(T),
}

/// Changes one object. `change` may run several times.
pub(crate) async fn update<T>(
    objects: &Objects,
    path: &Path,
    mut change: impl FnMut(Option<&[u8]>) -> Decision<T>,
) -> Result<T, Trouble> {
    let _lock = lock(objects).await?;
    for attempt in 0..ATTEMPTS {
        let current = match objects.get(path, MOST_BYTES).await {
            Ok(object) => Some(object),
            Err(Trouble::Missing) => None,
            Err(trouble) => return Err(trouble),
        };
        let (bytes, outcome) = match change(current.as_ref().map(|object| &object.bytes[..])) {
            Decision::Leave(outcome) => return Ok(outcome),
            Decision::Write(bytes, outcome) => (bytes, outcome),
        };
        let write = match current {
            // The lock is enough, and a folder cannot compare versions.
            _ if objects.folder().is_some() => Write::Replace,
            None => Write::Create,
            Some(object) => Write::IfUnchanged(object.meta),
        };
        match objects.put(path, bytes.clone(), write).await {
            Ok(()) => return Ok(outcome),
            Err(Trouble::Unsupported) => {
                objects.put(path, bytes, Write::Replace).await?;
                return Ok(outcome);
            }
            Err(Trouble::Conflict) => tokio::time::sleep(pause(attempt)).await,
            Err(trouble) => return Err(trouble),
        }
    }
    Err(Trouble::Conflict)
}

/// Grows with the attempts, and differs between machines.
fn pause(attempt: u32) -> Duration {
    let random = getrandom::u32().unwrap_or(attempt) % 16;
    Duration::from_millis(u64::from(random * (attempt.min(8) + 1)))
}

/// The lock of a folder, released when the file is dropped.
async fn lock(objects: &Objects) -> Result<Option<File>, Trouble> {
    let Some(folder) = objects.folder() else { return Ok(None) };
    let path = folder.join(".poncho-lock");
    let locked = tokio::task::spawn_blocking(move || {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.lock()?;
        Ok::<_, std::io::Error>(file)
    });
    match locked.await {
        Ok(Ok(file)) => Ok(Some(file)),
        Ok(Err(error)) => Err(Trouble::Failed(format!("cannot lock the folder: {error}"))),
        Err(error) => Err(Trouble::Failed(error.to_string())),
    }
}
