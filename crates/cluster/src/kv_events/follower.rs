//! Rows of a cache as events: compares what there is with what was announced.
//!
//! A node runs it beside its cache, a few times in a second. It reads the cache through [`RowSource`], so that nothing in
//! the cache waits for a subscriber. The first events after a start say that all blocks are gone: a router must not keep
//! what an earlier process had.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use poncho_kinds::{Key, Tier};

use super::{BlockLog, Event, KvEvents};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// A cache as the follower reads it.
pub trait RowSource: Send + Sync {
    /// A number that changes whenever rows come or go. It may change without that.
    fn version(&self) -> u64;

    /// All rows that are stored, with the fastest tier of each.
    fn rows(&self) -> Vec<(Key, Tier)>;

    /// The tokens of a row, if it is still there.
    fn tokens(&self, key: &Key) -> Option<Vec<u32>>;
}

/// What was announced so far.
#[derive(Debug)]
pub struct RowFollower {
    log: BlockLog,
    known: HashMap<Key, Tier>,
    version: Option<u64>,
}

impl RowFollower {
    /// Nothing was announced yet. Blocks have that many tokens.
    #[must_use]
    pub fn new(block_size: usize) -> Self {
        Self { log: BlockLog::new(block_size), known: HashMap::new(), version: None }
    }

    /// The events since the last look.
    pub fn look(&mut self, source: &dyn RowSource) -> Vec<Event> {
        // Read first: a row that comes after it changes it again.
        let version = source.version();
        if self.version == Some(version) {
            return Vec::new();
        }
        let mut events = if self.version.is_none() { self.log.cleared() } else { Vec::new() };
        self.version = Some(version);
        let now: HashMap<Key, Tier> = source.rows().into_iter().collect();
        let gone: Vec<Key> = self.known.keys().filter(|key| !now.contains_key(*key)).copied().collect();
        for key in gone {
            self.known.remove(&key);
            events.extend(self.log.removed(&key));
        }
        for (key, tier) in now {
            if self.known.get(&key) == Some(&tier) {
                continue;
            }
            if let Some(tokens) = source.tokens(&key) {
                events.extend(self.log.stored(key, &tokens, tier));
                self.known.insert(key, tier);
            }
        }
        events
    }
}

/// Publishes the rows of a cache until the task is dropped.
pub async fn follow(events: KvEvents, source: Arc<dyn RowSource>, block_size: usize) {
    let mut follower = RowFollower::new(block_size);
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let source = Arc::clone(&source);
        // A cache of a million rows takes a while to list.
        let looked = tokio::task::spawn_blocking(move || {
            let new = follower.look(source.as_ref());
            (follower, new)
        });
        let Ok((back, new)) = looked.await else { return };
        follower = back;
        if !events.publish(new) {
            tracing::warn!("KV events were dropped because their queue is full; subscribers see a gap");
        }
    }
}
