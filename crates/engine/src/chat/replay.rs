//! Exact replay: what the model sampled for a turn is put back token by token when the client sends the turn again.
//!
//! Clients send a turn back as JSON. Rendered anew it rarely has the tokens that the model wrote (spaces in arguments, the
//! order of keys, a word cut in another way), and from the first other token on nothing is found in the cache. So turns
//! with tool calls are kept under their unguessable id and text turns under everything that came before them. `turn.rs`
//! asks here while it renders a request that need not be exact, `reply.rs` tells what was written. A turn that the client
//! changed in any way is never replayed, nor one of another API key, and no fault of the file reaches a client.
//!
//! The same request must get the same prompt before and after a restart. So a turn is put back only once it is in the
//! file, and what is forgotten for want of room depends on the order of the file's lines alone.

mod aligned;
mod journal;
mod record;
mod said;
mod shelves;
mod splice;

use std::borrow::Borrow;
use std::hash::Hash;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use poncho_api::{ChatOutput, Completion, FinishReason, ReplayScope, SpecialText};
use poncho_cache::OwnerId;
use serde_json::Value;
use sha2::{Digest, Sha256};

use journal::{Journal, Line};
pub(crate) use record::CallTurn;
use record::{Record, TextTurn};
use said::Said;
use shelves::{Shelf, Shelves};
pub(crate) use splice::{Check, Scene, splice};

use crate::chat::model::ChatModel;

/// How long a request waits for the line of a turn that it sends back; after that the turn is forgotten for good.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names a text turn: the model, whose it is, every token before it, and its text.
type TextKey = [u8; 32];

/// See the module.
pub(crate) struct Replay {
    shelves: Arc<Mutex<Shelves>>,
    journal: Option<Journal>,
    scope: ReplayScope,
}

impl Replay {
    /// Reads what an earlier server kept at that path; without one nothing outlives this one.
    pub(crate) fn open(path: Option<&Path>, scope: ReplayScope) -> Self {
        let shelves: Arc<Mutex<Shelves>> = Arc::default();
        let journal = path.map(|path| Journal::open(path.to_owned(), Arc::clone(&shelves)));
        Self { shelves, journal, scope }
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the model wrote for this message, if it is one of its own and nobody changed it.
    fn find_calls(&self, model: &ChatModel, message: &Value, before: &Said) -> Option<Arc<CallTurn>> {
        if self.scope == ReplayScope::Nothing {
            return None;
        }
        let calls = message.get("tool_calls")?.as_array()?;
        let ids = || calls.iter().filter_map(|call| call.get("id")?.as_str());
        let by_id = || self.find(|shelves| &mut shelves.calls, ids().next()?);
        let turn = by_id().or_else(|| self.find(|shelves| &mut shelves.calls, before.key(ids()).as_str()))?;
        let is_own = turn.owner == model.private_to().map(|owner| *owner.as_bytes());
        (is_own && turn.fingerprint == model.namespace().fingerprint && turn.is_told_by(message)).then_some(turn)
    }

    fn find_text(&self, key: &TextKey) -> Option<Arc<TextTurn>> {
        if self.scope != ReplayScope::All {
            return None;
        }
        self.find(|shelves| &mut shelves.texts, key)
    }

    fn has_texts(&self) -> bool {
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

    fn keep_calls(&self, turn: CallTurn) {
        if turn.key().is_some() && self.scope != ReplayScope::Nothing {
            self.keep(Record::Call(Arc::new(turn)));
        }
    }

    fn keep_text(&self, text: TextKey, tokens: &[u32], owner: Option<OwnerId>) {
        if self.scope == ReplayScope::All {
            let owner = owner.map(|owner| *owner.as_bytes());
            self.keep(Record::Text(Arc::new(TextTurn { text, tokens: tokens.to_vec(), owner })));
        }
    }
}

/// Everything about a prompt that is needed to keep the reply to it.
#[derive(Clone)]
pub(crate) struct Recording {
    model: ChatModel,
    /// What the prompt wrote of the reply's turn.
    opening: String,
    /// The model and the prompt's tokens, hashed.
    before: Sha256,
    /// The messages of the prompt.
    said: Said,
}

impl Recording {
    pub(crate) fn new(model: &ChatModel, prompt: &[u32], opening: &str, messages: &[Value]) -> Self {
        let mut before = begin(model);
        add_tokens(&mut before, prompt);
        let said = Said::all(begin(model), messages);
        Self { model: model.clone(), opening: opening.to_owned(), before, said }
    }

    /// Keeps a reply that ended by itself. `output` has the ids that the client was told; `own_ids` says that none of
    /// them was written by the model: those could be guessed, so they do not name a turn alone.
    pub(crate) fn keep(&self, output: &ChatOutput, own_ids: bool, completion: &Completion) {
        if completion.finish_reason != FinishReason::Stop || completion.stop_sequence.is_some() {
            return;
        }
        let mut tokens = completion.generated.as_slice();
        while let Some((last, others)) = tokens.split_last()
            && self.model.is_end_of_generation(*last)
        {
            tokens = others;
        }
        if tokens.is_empty() {
            return;
        }
        let replay = &self.model.conversations().replay;
        if !output.tool_calls.is_empty() {
            let mut turn = CallTurn::new(&self.model, output, &self.opening, tokens);
            turn.before = Some(self.before.clone().finalize().into());
            if !own_ids {
                turn.said = Some(self.said.key(turn.ids.iter().map(String::as_str)));
            }
            replay.keep_calls(turn);
            return;
        }
        // The text alone must be what the model wrote: thinking that a client does not send back stays out.
        if output.reasoning.is_empty() && self.model.detokenize(tokens, SpecialText::Render) == output.content {
            replay.keep_text(text_key(self.before.clone(), &output.content), tokens, self.model.private_to());
        }
    }
}

/// The model, and whose conversation it is where several keys come in.
fn begin(model: &ChatModel) -> Sha256 {
    let mut hash = Sha256::new_with_prefix(model.namespace().fingerprint);
    if let Some(owner) = model.private_to() {
        hash.update("owner");
        hash.update(owner.as_bytes());
    }
    hash
}

fn add_tokens(hash: &mut Sha256, tokens: &[u32]) {
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
}

fn text_key(mut before: Sha256, content: &str) -> TextKey {
    // No token has this number, so a text cannot be taken for tokens.
    add_tokens(&mut before, &[u32::MAX]);
    before.update(content);
    before.finalize().into()
}

#[cfg(test)]
mod tests;
