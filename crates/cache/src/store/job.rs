//! Work for the writer threads: a row to write, and where its caller waits for the end.
//!
//! Made by saves and compactions, carried by the queue, done by the writers. A job always ends, also when its writer
//! panics; it must never be dropped without an end.

use std::sync::Arc;
use std::time::Duration;

use super::lease::Lease;
use crate::format::{FilePart, HEADER_LENGTH, RowMeta};
use crate::identity::key::Key;
use crate::identity::owner::OwnerId;
use crate::index::rows::{Payload, RowId, payload_bytes};
use crate::io::sync::{Condvar, Mutex};
use crate::kinds::Tier;

/// A row that is to be stored, without its payload.
#[derive(Debug, Clone)]
pub(crate) struct RowDraft {
    pub(crate) key: Key,
    pub(crate) meta: RowMeta,
    /// The owners that sent all of its tokens.
    pub(crate) owners: Vec<OwnerId>,
    /// The tokens from `meta.start` on.
    pub(crate) tokens: Vec<u32>,
    /// The prompt, for people.
    pub(crate) text: String,
}

impl RowDraft {
    /// Bytes of the file that it becomes, a little on the safe side: records besides texts and tokens are short.
    pub(crate) fn file_bytes(&self, payload: &Payload) -> u64 {
        const OTHER_RECORDS: usize = 512;
        let owners = self.owners.len() * OwnerId::LENGTH;
        let prefix = HEADER_LENGTH + OTHER_RECORDS + self.tokens.len() * 4 + self.text.len() + owners;
        payload_bytes(payload) + prefix as u64
    }
}

/// One row to write.
pub(crate) struct Job {
    pub(crate) row: RowId,
    pub(crate) tier: Tier,
    pub(crate) draft: RowDraft,
    pub(crate) payload: Payload,
    /// What was set aside for it in the tier's quota.
    pub(crate) bytes: u64,
    /// Where a caller waits for the end, if one does.
    pub(crate) done: Option<Arc<Done>>,
    /// If it replaces the file of a row with a chain that becomes shorter: the old chain.
    pub(crate) old_base: Option<OldBase>,
}

/// The row that a compacted row was built on, held until the new file is in its place.
#[derive(Debug)]
pub(crate) struct OldBase {
    pub(crate) start: u32,
    pub(crate) parent: Option<RowId>,
    /// Keeps the parent. `None` if there is none.
    pub(crate) hold: Option<Lease>,
    /// Rows of the old chain that may leave although they have a partial state.
    pub(crate) give_up: Vec<Key>,
    /// The parts of the old file. `None` if there was none.
    pub(crate) parts: Option<Arc<[FilePart]>>,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobEnd {
    Published,
    Failed,
}

/// Where the caller of a synchronous save waits.
#[derive(Debug, Default)]
pub(crate) struct Done {
    end: Mutex<Option<JobEnd>>,
    changed: Condvar,
}

impl Done {
    /// The job has ended.
    pub(crate) fn report(&self, end: JobEnd) {
        *self.end.lock() = Some(end);
        self.changed.notify_all();
    }

    /// Waits for the end, at most for `limit`.
    pub(crate) fn wait(&self, limit: Duration) -> Option<JobEnd> {
        *self.changed.wait_until(self.end.lock(), limit, Option::is_some).0
    }
}
