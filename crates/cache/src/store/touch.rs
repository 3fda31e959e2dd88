//! Hit counts and last uses on their way into the files.
//!
//! Called by the writers when they are idle, and by `Cache::flush`. Best effort, because they only order evictions. It
//! must never write older counts over newer ones.

use std::sync::Arc;

use super::shared_index::SharedIndex;
use super::tier::FileTiers;
use crate::format;
use crate::io::sync::Mutex;

/// See the module.
pub(crate) struct Touches {
    index: Arc<SharedIndex>,
    tiers: Arc<FileTiers>,
    /// Held while counts are written; never taken under the index lock.
    turn: Mutex<()>,
}

impl Touches {
    pub(crate) fn new(index: Arc<SharedIndex>, tiers: Arc<FileTiers>) -> Self {
        Self { index, tiers, turn: Mutex::new(()) }
    }

    /// Writes hit counts and last uses into the files, in place.
    pub(crate) fn write(&self) {
        // One at a time: older counts must not be written over newer ones, and a caller that waits finds them written.
        let _turn = self.turn.lock();
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
    }
}
