//! The rows of a node, for everything that is kept in step with them.
//!
//! One reader for all of them: announcements to routers, and KV events for routers of other projects. A stream that ends is
//! opened again; its first batch says that everything starts over.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use poncho_api::{Node, RowBatch, RowChange};
use poncho_cluster::kv_events::{BlockLog, Event, KvEvents};

/// Before a stream that ended is opened again: the engine may be starting.
const PAUSE: Duration = Duration::from_millis(500);

/// Takes batches of rows in their order.
pub trait RowSink: Send + 'static {
    /// The next batch.
    fn take(&mut self, batch: RowBatch);
}

/// Reads the rows of a node until the task is dropped.
pub async fn follow(node: Arc<dyn Node>, mut sink: impl RowSink) {
    loop {
        let mut batches = node.follow_rows();
        while let Some(batch) = batches.next().await {
            // Hashing a million tokens takes a while.
            let Ok(back) = tokio::task::spawn_blocking(move || {
                sink.take(batch);
                sink
            })
            .await
            else {
                return;
            };
            sink = back;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Rows as KV events in the format of vLLM.
pub struct KvRows {
    log: BlockLog,
    events: KvEvents,
}

impl KvRows {
    /// Publishes blocks of that many tokens.
    #[must_use]
    pub fn new(events: KvEvents, block_size: usize) -> Self {
        Self { log: BlockLog::new(block_size), events }
    }
}

impl RowSink for KvRows {
    fn take(&mut self, batch: RowBatch) {
        if !self.events.publish(of_batch(&mut self.log, &batch)) {
            tracing::warn!("KV events were dropped because their queue is full; subscribers see a gap");
        }
    }
}

/// The first events after a start say that all blocks are gone: a router must not keep what an earlier process had.
fn of_batch(log: &mut BlockLog, batch: &RowBatch) -> Vec<Event> {
    let mut events = if batch.resets { log.cleared() } else { Vec::new() };
    for change in &batch.changes {
        events.extend(match change {
            RowChange::Stored(row) => log.stored(row.key, &row.tokens, row.tier),
            RowChange::Removed(key) => log.removed(key),
        });
    }
    events
}

#[cfg(test)]
mod tests {
    use poncho_api::{Key, StoredRow, Tier};

    use super::*;

    #[test]
    fn events_begin_with_nothing_and_follow_the_rows() {
        let key = Key::from_bytes([1; 32]);
        let stored = |tokens: &[u32], tier| {
            RowChange::Stored(StoredRow {
                key,
                parent: None,
                namespace: [0; 32],
                start: 0,
                tokens: tokens.to_vec(),
                resumable: true,
                tier,
                bytes: 1,
            })
        };
        let mut log = BlockLog::new(2);
        let first = of_batch(&mut log, &RowBatch { resets: true, changes: vec![stored(&[1, 2, 3, 4], Tier::Ram)] });
        assert!(matches!(&first[..], [Event::AllBlocksCleared, Event::BlockStored { .. }]), "{first:?}");
        let batch = |changes| RowBatch { resets: false, changes };
        let moved = of_batch(&mut log, &batch(vec![stored(&[1, 2, 3, 4], Tier::Disk)]));
        assert!(
            matches!(&moved[..], [Event::BlockRemoved { .. }, Event::BlockStored { medium: "DISK", .. }]),
            "{moved:?}"
        );
        let gone = of_batch(&mut log, &batch(vec![RowChange::Removed(key), RowChange::Removed(key)]));
        assert!(matches!(&gone[..], [Event::BlockRemoved { block_hashes, .. }] if block_hashes.len() == 2), "{gone:?}");
    }
}
