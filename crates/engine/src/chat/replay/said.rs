//! A hash of what was said before a turn. It names turns with ids that can be guessed.
//!
//! Some models write the ids of their calls themselves, `functions.lamp:0` in every conversation. Such a turn is kept
//! under the messages before it, as the client sends them each time, together with its ids. `replay.rs` asks when a turn
//! is kept, `splice.rs` while it goes through a conversation.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// See the module.
#[derive(Clone)]
pub(crate) struct Said(Sha256);

impl Said {
    /// Before any message; `before` has hashed the model and the owner of the conversation.
    pub(super) fn new(before: Sha256) -> Self {
        Self(before)
    }

    /// After all of these messages.
    pub(super) fn all(before: Sha256, messages: &[Value]) -> Self {
        let mut said = Self::new(before);
        messages.iter().for_each(|message| said.add(message));
        said
    }

    /// One message more.
    pub(super) fn add(&mut self, message: &Value) {
        self.0.update(message.to_string());
        // No JSON text has this byte, so two messages cannot be taken for one.
        self.0.update([0]);
    }

    /// The key of a turn with these ids; no id of a call looks like it.
    pub(super) fn key<'i>(&self, ids: impl Iterator<Item = &'i str>) -> String {
        let mut hash = self.0.clone();
        for id in ids {
            hash.update(id);
            hash.update([0]);
        }
        format!("said {}", poncho_cache::to_hex(&hash.finalize()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_ids_in_another_conversation_are_another_turn() {
        let (hi, there, both) = (json!("hi"), json!("there"), json!("hi\"\"there"));
        let key = |messages: &[Value], ids: &[&str]| {
            Said::all(Sha256::new_with_prefix([1; 32]), messages).key(ids.iter().copied())
        };
        let one = key(&[hi.clone(), there.clone()], &["f:0"]);
        assert_eq!(one, key(&[hi.clone(), there.clone()], &["f:0"]));
        for other in [key(std::slice::from_ref(&hi), &["f:0"]), key(&[both], &["f:0"]), key(&[hi, there], &["f:1"])] {
            assert_ne!(one, other);
        }
    }
}
