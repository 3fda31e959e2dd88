//! The rows of the cache as a stream: all of them first, then what the journal of the index notes.
//!
//! Read by the process that announces rows to other machines. It keeps neither the cache nor the engine: the stream ends
//! when they are gone. Nothing in the cache waits for a reader.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use poncho_api::{RowBatch, RowChange, RowStream, StoredRow};
use poncho_cache::{Cache, Key, Namespace, PartKind, Tier};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::Engine;

/// Between two looks at the journal.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Rows of one batch, and tokens after which a batch ends.
const MOST_ROWS: usize = 1000;
const MOST_TOKENS: usize = 1 << 20;

/// A namespace as other machines know it: equal ones have interchangeable states.
pub(super) fn digest(namespace: &Namespace) -> [u8; 32] {
    *namespace.key(&[]).as_bytes()
}

/// See the module. Must be called inside a runtime.
pub(super) fn rows(engine: &Arc<Engine>) -> RowStream {
    let follower = Follower { engine: Arc::downgrade(engine), left: VecDeque::new(), point: None };
    let (sender, receiver) = channel(1);
    tokio::spawn(follow(follower, sender));
    Box::pin(Batches(receiver))
}

/// Sends batches until the reader or the engine is gone.
async fn follow(mut follower: Follower, sender: Sender<RowBatch>) {
    loop {
        let looked = tokio::task::spawn_blocking(move || {
            let batch = follower.look();
            (follower, batch)
        });
        let Ok((back, Some(batch))) = looked.await else { return };
        follower = back;
        if batch.resets || !batch.changes.is_empty() {
            if sender.send(batch).await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

struct Batches(Receiver<RowBatch>);

impl Stream for Batches {
    type Item = RowBatch;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<RowBatch>> {
        self.0.poll_recv(context)
    }
}

struct Follower {
    engine: Weak<Engine>,
    /// Rows that changed and were not sent yet.
    left: VecDeque<Key>,
    /// How far the journal was read.
    point: Option<u64>,
}

impl Follower {
    /// The next changes; `None` when the engine is gone.
    fn look(&mut self) -> Option<RowBatch> {
        let engine = self.engine.upgrade()?;
        let cache = engine.cache();
        let mut batch = RowBatch::default();
        if self.left.is_empty() {
            let changes = cache.changes_since(self.point.unwrap_or(u64::MAX));
            batch.resets = self.point.is_none() || changes.keys.is_none();
            self.point = Some(changes.next);
            // Read after the point: a row that comes meanwhile is sent twice, which changes nothing.
            let keys = match changes.keys.filter(|_| !batch.resets) {
                Some(keys) => keys,
                None => cache.rows().into_iter().map(|row| row.key).collect(),
            };
            let mut seen = HashSet::new();
            self.left = keys.into_iter().filter(|key| seen.insert(*key)).collect();
        }
        let mut tokens = 0;
        while batch.changes.len() < MOST_ROWS && tokens < MOST_TOKENS {
            let Some(key) = self.left.pop_front() else { break };
            let row = stored(&engine, cache, &key);
            tokens += row.as_ref().map_or(0, |row| row.tokens.len());
            batch.changes.push(row.map_or(RowChange::Removed(key), RowChange::Stored));
        }
        Some(batch)
    }
}

fn stored(engine: &Engine, cache: &Cache, key: &Key) -> Option<StoredRow> {
    let row = cache.row(key)?;
    let tokens = cache.tokens_of(key)?;
    let namespace = row.meta.namespace;
    let is_of = |other: &[u8; 32]| *other == namespace.fingerprint;
    let models = engine.models();
    let model = models.iter().find(|model| is_of(&model.current_namespace().fingerprint));
    // Without its model, nobody goes on from it here.
    let can_cut = model.is_some_and(|model| model.info().memory.can_cut());
    let resumable = can_cut || row.parts.iter().any(|part| matches!(part, PartKind::Partial | PartKind::Whole));
    // A row that waits for its write is read from memory.
    let tier = row.tiers.first().copied().unwrap_or(Tier::Ram);
    Some(StoredRow {
        key: row.key,
        parent: row.meta.parent,
        namespace: digest(&namespace),
        start: row.meta.start,
        tokens,
        resumable,
        tier,
        bytes: row.bytes / row.tiers.len().max(1) as u64,
    })
}
