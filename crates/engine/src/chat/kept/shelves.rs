//! The turns that are remembered, bounded, with a share for every owner.
//!
//! Filled by `kept.rs` while a server runs and by `journal.rs` from the file, in the same order: the same lines always
//! leave the same turns. It must never depend on anything else, or a restart would change prompts.

use std::sync::Arc;

use poncho_cache::OwnerId;

use super::record::{CallTurn, Name, Record, TextKey, TextTurn};
use poncho_kinds::FairLru;

/// Turns of each kind that are remembered; a long agent session makes a few hundred.
const MOST_TURNS: usize = 16_384;
/// Bytes of all turns with calls, as they stand in the file.
const MOST_CALL_BYTES: usize = 64 << 20;
/// Bytes of all turns of text.
const MOST_TEXT_BYTES: usize = 32 << 20;

/// A remembered turn.
#[derive(Debug)]
pub(in crate::chat) struct Kept<T> {
    pub(in crate::chat) turn: Arc<T>,
    /// The line of the journal that it may be used after; 0 if it was read from there.
    pub(in crate::chat) line: u64,
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self { turn: Arc::clone(&self.turn), line: self.line }
    }
}

/// The owner of a turn, where there are several keys.
type Share = Option<[u8; OwnerId::LENGTH]>;

/// Turns of one kind.
pub(in crate::chat) type Shelf<K, T> = FairLru<Share, K, Kept<T>>;

/// See the module.
pub(in crate::chat) struct Shelves {
    pub(in crate::chat) calls: Shelf<String, CallTurn>,
    pub(in crate::chat) texts: Shelf<TextKey, TextTurn>,
}

impl Default for Shelves {
    fn default() -> Self {
        Self::new(MOST_TURNS, MOST_CALL_BYTES, MOST_TEXT_BYTES)
    }
}

impl Shelves {
    pub(in crate::chat) fn new(most_turns: usize, most_call_bytes: usize, most_text_bytes: usize) -> Self {
        let (calls, texts) = (FairLru::new(most_turns, most_call_bytes), FairLru::new(most_turns, most_text_bytes));
        Self { calls, texts }
    }

    /// Does what a line of the journal says.
    pub(in crate::chat) fn put(&mut self, record: Record, bytes: usize, line: u64) {
        match record {
            Record::Call(turn) => {
                if let Some(key) = turn.key() {
                    self.calls.put(turn.owner, key, Kept { turn, line }, bytes);
                }
            }
            Record::Text(turn) => {
                self.texts.put(turn.owner, turn.text, Kept { turn, line }, bytes);
            }
            Record::Forget(Name::Call(key)) => drop(self.calls.remove(&key)),
            Record::Forget(Name::Text(key)) => drop(self.texts.remove(&key)),
        }
    }

    /// Forgets a turn after its line could not be written.
    pub(in crate::chat) fn take_back(&mut self, name: &Name, line: u64) {
        match name {
            Name::Call(key) if self.calls.peek(key).is_some_and(|kept| kept.line == line) => {
                self.calls.remove(key);
            }
            Name::Text(key) if self.texts.peek(key).is_some_and(|kept| kept.line == line) => {
                self.texts.remove(key);
            }
            Name::Call(_) | Name::Text(_) => {}
        }
    }

    /// All turns, each kind in its order.
    pub(in crate::chat) fn records(&self) -> Vec<Record> {
        let calls = self.calls.values().into_iter().map(|kept| Record::Call(Arc::clone(&kept.turn)));
        calls.chain(self.texts.values().into_iter().map(|kept| Record::Text(Arc::clone(&kept.turn)))).collect()
    }

    /// Bytes that a file needs for all of them.
    pub(in crate::chat) fn bytes(&self) -> u64 {
        (self.calls.bytes() + self.texts.bytes()) as u64
    }
}
