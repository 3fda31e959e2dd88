//! Where messages end in a prompt: hints for models with a state that can be resumed at saved places only, and for all
//! models that share their rows with other machines.
//!
//! Called by `turn.rs` after the prompt was rendered. A message's end is found by rendering the conversation up to it
//! and looking how far the tokens agree with the whole prompt, which is right for any template. What an earlier turn has
//! found is in `known.rs`, so that a turn renders the beginnings that are new in it. Only advice: a template that refuses
//! a shortened conversation costs a hint, never the request.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::chat::model::ChatModel;
use crate::chat::model::known_ends::{Digests, HeadKey};

/// The ends of older messages were hinted when they were new. Agents that shorten old tool results keep the last five,
/// so each turn parts from the one before it eleven messages from its end.
const RECENT_MESSAGES: usize = 12;
/// Marks of a client that are used: each costs a rendering. Anthropic's API allows four.
const MOST_MARKED: usize = 4;

/// Token offsets at which messages end; none for a model that can resume anywhere and shares nothing. `settings` is a hash of what the
/// rendering depends on besides the messages; `render` has the tokens of the first messages of the conversation, without
/// the opening of a reply. `marked` has numbers of messages that the client marked itself.
pub(crate) fn hints(
    model: &ChatModel,
    settings: &Sha256,
    messages: &[Value],
    marked: &[usize],
    tokens: &[u32],
    mut render: impl FnMut(&[Value]) -> Option<Vec<u32>>,
) -> Vec<usize> {
    // Another machine can ask for a prefix only by the name of a row, so the ends of messages count there.
    if model.info().memory.can_cut() && model.cache().remote().is_none() {
        return Vec::new();
    }
    let ends = &model.conversations().ends;
    let mut prompt = Digests::new(model.namespace(), tokens);
    let mut found = Vec::new();
    for (count, key) in keys(settings, messages, &places(messages, marked)) {
        let end = ends.find(&key, &mut prompt).or_else(|| {
            let head = render(messages.get(..count)?)?;
            Some(ends.put(model.share(), key, &head, &mut prompt))
        });
        found.extend(end.filter(|end| *end > 0));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The keys of the beginnings with these numbers of messages, which ascend.
fn keys(settings: &Sha256, messages: &[Value], counts: &[usize]) -> Vec<(usize, HeadKey)> {
    let mut hash = settings.clone();
    let mut hashed = 0;
    let mut keys = Vec::with_capacity(counts.len());
    for count in counts {
        for message in messages.iter().take(*count).skip(hashed) {
            hash.update(message.to_string());
            // No JSON text has this byte, so two messages cannot be taken for one.
            hash.update([0]);
        }
        hashed = *count;
        keys.push((*count, hash.clone().finalize().into()));
    }
    keys
}

/// After how many messages to look: the system's, which every conversation shares, the last ones, and those that the client
/// marked.
fn places(messages: &[Value], marked: &[usize]) -> Vec<usize> {
    let system =
        messages.iter().take_while(|message| message.get("role").and_then(Value::as_str) == Some("system")).count();
    let recent = messages.len().saturating_sub(RECENT_MESSAGES);
    let marked = marked.iter().copied().filter(|count| *count <= messages.len()).take(MOST_MARKED);
    let all = (recent + 1..=messages.len()).chain([system]).chain(marked);
    let mut counts: Vec<usize> = all.filter(|count| *count > 0).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conversation(roles: &[&str]) -> Vec<Value> {
        roles.iter().map(|role| json!({"role": role})).collect()
    }

    #[test]
    fn the_systems_end_and_the_last_ones_are_looked_at() {
        assert_eq!(places(&conversation(&["system", "system", "user"]), &[]), [1, 2, 3]);
        assert_eq!(places(&conversation(&["user"]), &[]), [1]);
        let long: Vec<&str> = std::iter::once("system").chain(std::iter::repeat_n("user", 19)).collect();
        assert_eq!(places(&conversation(&long), &[]), [1, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
        let marked = places(&conversation(&long), &[4, 0, 21, 20]);
        assert_eq!(marked, [1, 4, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20], "with what the client marked");
        assert_eq!(places(&[], &[]), [0_usize; 0]);
    }

    #[test]
    fn a_beginning_has_the_same_key_in_every_longer_conversation() {
        let messages = conversation(&["system", "user", "assistant", "user"]);
        let settings = Sha256::new_with_prefix("settings");
        let all = keys(&settings, &messages, &[1, 2, 3, 4]);
        assert_eq!(keys(&settings, &messages[..3], &[1, 3]), [all[0], all[2]]);
        assert_ne!(keys(&Sha256::new(), &messages, &[2])[0].1, all[1].1, "other settings");
        let joined = [messages[0].clone(), json!({"role": "assistant"})];
        assert_ne!(keys(&settings, &joined, &[2])[0].1, all[1].1, "other messages");
    }
}
