//! Hit counts and last uses on their way into the files, and the evictions of the last days beside them.
//!
//! Called by the writers when they are idle, and by `Cache::flush`. Best effort, because they only order evictions. It
//! must never write older counts over newer ones.

use std::sync::Arc;
use std::time::Duration;

use super::shared_index::SharedIndex;
use super::tier::FileTiers;
use crate::folder::notes;
use crate::format;
use crate::io::clock::Clock;
use crate::io::sync::Mutex;
use crate::stats::evictions::EvictionLog;

/// The least time between two notes of evictions while the cache is in use.
const NOTE_EVERY: Duration = Duration::from_secs(30);

/// See the module.
pub(crate) struct Touches {
    index: Arc<SharedIndex>,
    tiers: Arc<FileTiers>,
    evictions: Arc<EvictionLog>,
    clock: Arc<dyn Clock>,
    /// Held while counts are written; never taken under the index lock. The time of the last note of evictions.
    turn: Mutex<Option<Duration>>,
}

/// Whether a note may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The writers are idle for the moment.
    Idle,
    /// Somebody waits for it, or the cache ends.
    Now,
}

impl Touches {
    pub(crate) fn new(
        index: Arc<SharedIndex>,
        tiers: Arc<FileTiers>,
        evictions: Arc<EvictionLog>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { index, tiers, evictions, clock, turn: Mutex::new(None) }
    }

    /// Writes hit counts and last uses into the files, in place.
    pub(crate) fn write(&self, urgency: Urgency) {
        // One at a time: older counts must not be written over newer ones, and a caller that waits finds them written.
        let mut noted = self.turn.lock();
        let touched = self.index.lock().take_touched();
        for row in touched {
            let touch = format::encode_touch(row.hits, row.last_used);
            for tier in row.tiers {
                let path = self.tiers.of(tier).row_path(&row.key);
                for (offset, bytes) in touch.writes() {
                    if let Err(error) = self.tiers.fs().write_at(&path, bytes, offset) {
                        tracing::trace!(key = %row.key, %error, "hit count not written");
                    }
                }
            }
        }
        if !self.evictions.is_changed() {
            return;
        }
        let now = self.clock.now();
        if urgency == Urgency::Now || noted.is_none_or(|last| now.saturating_sub(last) >= NOTE_EVERY) {
            *noted = Some(now);
            self.note_evictions();
        }
    }

    fn note_evictions(&self) {
        let Some(folder) = self.tiers.notes() else { return };
        let Some(text) = self.evictions.take_text() else { return };
        if let Err(error) = notes::write(folder, notes::EVICTIONS, &text, false) {
            tracing::debug!(%error, "the evictions were not noted");
        }
    }
}
