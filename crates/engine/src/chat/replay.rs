//! Exact replay: what the model sampled for a turn is put back token by token when the client sends the turn again.
//!
//! Clients send a turn back as JSON. Rendered again, it rarely has the tokens that the model wrote (spaces in arguments,
//! the order of keys, a word cut in another way), and the cache has no match from the first different token on. So turns
//! with tool calls are kept under their unguessable id, and text turns under everything that came before them
//! (`kept.rs`). `turn.rs` calls this module while it renders a request that need not be exact; `reply.rs` reports what was
//! written. A turn that the client changed in any way is never replayed, nor one of another API key.

mod aligned;
mod said;
mod splice;

use std::sync::Arc;

use poncho_api::{ChatOutput, Completion, FinishReason, SpecialText};
use serde_json::Value;
use sha2::{Digest, Sha256};

use said::Said;
pub(crate) use splice::{Check, Scene, splice};

use crate::chat::kept::{CallTurn, TextKey};
use crate::chat::model::ChatModel;

/// The tokens that the model wrote for this message, if the message is the model's own and unchanged.
fn find_calls(model: &ChatModel, message: &Value, before: &Said) -> Option<Arc<CallTurn>> {
    let kept = &model.conversations().replay;
    let calls = message.get("tool_calls")?.as_array()?;
    let ids = || calls.iter().filter_map(|call| call.get("id")?.as_str());
    let by_id = || kept.find_call(ids().next()?);
    let turn = by_id().or_else(|| kept.find_call(&before.key(ids())))?;
    let is_own = turn.owner == model.share();
    (is_own && turn.fingerprint == model.namespace().fingerprint && turn.is_told_by(message)).then_some(turn)
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

    /// Keeps a reply that ended by itself. `output` has the ids that the client got. `own_ids` says that the
    /// server made all of them: an id that a model wrote could be guessed, so it does not name a turn alone.
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
            let mut turn = CallTurn::new(
                self.model.namespace().fingerprint,
                self.model.private_to(),
                output,
                &self.opening,
                tokens,
            );
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

/// Starts a hash with the model and, where there are several keys, the owner of the conversation.
fn begin(model: &ChatModel) -> Sha256 {
    let mut hash = Sha256::new_with_prefix(model.namespace().fingerprint);
    if let Some(owner) = model.private_to() {
        hash.update("owner");
        hash.update(owner.as_bytes());
    }
    hash
}

fn add_tokens(hash: &mut Sha256, tokens: &[u32]) {
    // In long runs: a hash is slow with four bytes at a time.
    let mut block = [0_u8; 1024];
    for run in tokens.chunks(block.len() / 4) {
        for (bytes, token) in block.chunks_exact_mut(4).zip(run) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        let (filled, _) = block.split_at(run.len() * 4);
        hash.update(filled);
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
