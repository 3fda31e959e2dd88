//! The turns that models wrote, kept so that they can be replayed: in memory, and in a file that outlives the server.
//!
//! Filled and asked by `replay.rs`; one store serves all conversations of a host. It knows keys and tokens only, never a
//! model or a template, and no fault of the file reaches a client.
//!
//! The same request must get the same prompt before and after a restart. A turn is therefore returned only once it is in
//! the file, and which turns are evicted depends on the order of the file's lines alone.

mod journal;
mod record;
mod shelves;

use std::borrow::Borrow;
use std::hash::Hash;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use poncho_api::ReplayScope;
use poncho_cache::OwnerId;

use journal::{Journal, Line};
use record::Record;
pub(crate) use record::{CallTurn, TextKey, TextTurn};
use shelves::{Shelf, Shelves};

/// How long a request waits for the line of a turn that it sends back; after that the turn is forgotten for good.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct KeptTurns {
    shelves: Arc<Mutex<Shelves>>,
    journal: Option<Journal>,
    scope: ReplayScope,
}

impl KeptTurns {
    /// Reads what an earlier server kept at that path; without one nothing outlives this one.
    pub(crate) fn open(path: Option<&Path>, scope: ReplayScope) -> Self {
        let shelves: Arc<Mutex<Shelves>> = Arc::default();
        let journal = path.map(|path| Journal::open(path.to_owned(), Arc::clone(&shelves)));
        Self { shelves, journal, scope }
    }

    pub(in crate::chat) fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn with calls under this key.
    pub(crate) fn find_call(&self, key: &str) -> Option<Arc<CallTurn>> {
        if self.scope == ReplayScope::Nothing {
            return None;
        }
        self.find(|shelves| &mut shelves.calls, key)
    }

    /// The turn of text under this key.
    pub(crate) fn find_text(&self, key: &TextKey) -> Option<Arc<TextTurn>> {
        if self.scope != ReplayScope::All {
            return None;
        }
        self.find(|shelves| &mut shelves.texts, key)
    }

    /// Whether any turn of text is kept.
    pub(crate) fn has_texts(&self) -> bool {
        self.scope == ReplayScope::All && !self.shelves().texts.is_empty()
    }

    /// A kept turn, once it is in the file. One that does not get there in time is forgotten, in the file too.
    fn find<K, Q, T>(&self, shelf: impl Fn(&mut Shelves) -> &mut Shelf<K, T>, key: &Q) -> Option<Arc<T>>
    where
        K: Borrow<Q> + Clone + Eq + Hash,
        Q: Hash + Eq + ?Sized,
        Arc<T>: Into<Record>,
    {
        let mut shelves = self.shelves();
        let kept = shelf(&mut shelves).peek(key).cloned()?;
        let Some(journal) = &self.journal else {
            shelf(&mut shelves).touch(key);
            return Some(kept.turn);
        };
        if !journal.is_written(kept.line) {
            drop(shelves);
            journal.wait_for(kept.line, PATIENCE);
            shelves = self.shelves();
            let still = shelf(&mut shelves).peek(key).is_some_and(|now| now.line == kept.line);
            if !still || !journal.is_written(kept.line) {
                let record: Record = kept.turn.into();
                if let Some(name) = record.name().filter(|_| still) {
                    shelf(&mut shelves).remove(key);
                    journal.forget(name);
                }
                return None;
            }
        }
        // Moved to the end in memory and in the file alike, and so rarely that it costs nothing.
        if shelf(&mut shelves).is_old(key) && journal.append(Line::of(&kept.turn.clone().into())).is_some() {
            shelf(&mut shelves).touch(key);
        }
        Some(kept.turn)
    }

    /// Remembers a turn, in memory and in the file in the same order. A turn that the file has no place for is not
    /// remembered at all.
    fn keep(&self, record: Record) {
        let line = Line::of(&record);
        let bytes = line.bytes();
        let mut shelves = self.shelves();
        let number = match &self.journal {
            Some(journal) => journal.append(line),
            None => Some(0),
        };
        match number {
            Some(number) => shelves.put(record, bytes, number),
            None => tracing::debug!("a turn is not kept: too many wait to be written"),
        }
    }

    pub(crate) fn keep_calls(&self, turn: CallTurn) {
        if turn.key().is_some() && self.scope != ReplayScope::Nothing {
            self.keep(Record::Call(Arc::new(turn)));
        }
    }

    pub(crate) fn keep_text(&self, text: TextKey, tokens: &[u32], owner: Option<OwnerId>) {
        if self.scope == ReplayScope::All {
            let owner = owner.map(|owner| *owner.as_bytes());
            self.keep(Record::Text(Arc::new(TextTurn { text, tokens: tokens.to_vec(), owner })));
        }
    }
}
