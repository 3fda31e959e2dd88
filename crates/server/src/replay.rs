//! Exact replay: what the model sampled for a turn is put back token by token when the client sends the turn again.
//!
//! Clients send a turn back as JSON. Rendered anew it rarely has the tokens that the model wrote (spaces in arguments, the
//! order of keys, a word cut in another way), and from the first other token on nothing is found in the cache. So turns
//! with tool calls are kept under their unguessable id, also across restarts, and the last text turns under everything
//! that came before them. `chat.rs` asks here while it renders, `reply.rs` tells what was written. A turn that the client
//! changed in any way is never replayed, and no fault of the file reaches a client.

mod aligned;
mod journal;
mod lru;
mod record;
mod said;
mod splice;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use poncho_engine::backend::{ChatOutput, SpecialText};
use poncho_engine::{Completion, FinishReason, Model};
use serde_json::Value;
use sha2::{Digest, Sha256};

use journal::Journal;
use lru::Lru;
pub(crate) use record::CallTurn;
use said::Said;
pub(crate) use splice::{Check, Scene, splice};

use crate::served::ServedModel;

/// Turns with calls that are remembered; a long agent session makes a few hundred.
const MOST_CALLS: usize = 16_384;
/// Bytes of all of them.
const MOST_CALL_BYTES: usize = 64 << 20;
/// Text turns that are remembered; they only serve conversations that go on soon.
const MOST_TEXTS: usize = 4096;
/// Bytes of all of them.
const MOST_TEXT_BYTES: usize = 16 << 20;

type Calls = Arc<Mutex<Lru<String, Arc<CallTurn>>>>;
/// Names a text turn: the model, every token before it, and its text.
type TextKey = [u8; 32];

/// See the module.
pub(crate) struct Replay {
    calls: Calls,
    texts: Mutex<Lru<TextKey, Arc<[u32]>>>,
    journal: Option<Journal>,
}

impl Replay {
    /// Reads what an earlier server kept at that path; without one nothing outlives this one.
    pub(crate) fn open(path: Option<&Path>) -> Self {
        let calls: Calls = Arc::new(Mutex::new(Lru::new(MOST_CALLS, MOST_CALL_BYTES)));
        let journal = path.map(|path| Journal::open(path.to_owned(), Arc::clone(&calls)));
        Self { calls, texts: Mutex::new(Lru::new(MOST_TEXTS, MOST_TEXT_BYTES)), journal }
    }

    /// What the model wrote for this message, if it is one of its own and nobody changed it.
    fn find_calls(&self, fingerprint: &[u8; 32], message: &Value, before: &Said) -> Option<Arc<CallTurn>> {
        let calls = message.get("tool_calls")?.as_array()?;
        let ids = || calls.iter().filter_map(|call| call.get("id")?.as_str());
        let mut kept = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = kept.get(ids().next()?).or_else(|| kept.get(before.key(ids()).as_str()));
        drop(kept);
        let turn = turn?;
        (turn.fingerprint == *fingerprint && turn.is_told_by(message)).then_some(turn)
    }

    fn find_text(&self, key: &TextKey) -> Option<Arc<[u32]>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).get(key)
    }

    fn has_texts(&self) -> bool {
        !self.texts.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn keep_calls(&self, turn: CallTurn) {
        let Some(id) = turn.key() else { return };
        let line = turn.encode();
        let size = line.len();
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).put(id, Arc::new(turn), size);
        if let Some(journal) = &self.journal {
            journal.append(line);
        }
    }

    fn keep_text(&self, key: TextKey, tokens: &[u32]) {
        let size = size_of::<TextKey>() + size_of_val(tokens);
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).put(key, tokens.into(), size);
    }
}

/// Everything about a prompt that is needed to keep the reply to it.
#[derive(Clone)]
pub(crate) struct Recording {
    model: ServedModel,
    /// What the prompt wrote of the reply's turn.
    opening: String,
    /// The model and the prompt's tokens, hashed.
    before: Sha256,
    /// The messages of the prompt.
    said: Said,
}

impl Recording {
    pub(crate) fn new(model: &ServedModel, prompt: &[u32], opening: &str, messages: &[Value]) -> Self {
        let mut before = begin(model);
        add_tokens(&mut before, prompt);
        let said = Said::all(&model.namespace().fingerprint, messages);
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
            replay.keep_text(text_key(self.before.clone(), &output.content), tokens);
        }
    }
}

fn begin(model: &Model) -> Sha256 {
    Sha256::new_with_prefix(model.namespace().fingerprint)
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
