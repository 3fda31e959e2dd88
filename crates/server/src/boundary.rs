//! Where messages end in a prompt: hints for models whose state can be resumed at saved places only.
//!
//! Called by `chat.rs` after the prompt was rendered. A message's end is found by rendering the conversation up to it
//! and looking how far the tokens agree with the whole prompt, which is right for any template. Only advice: a template
//! that refuses a shortened conversation costs a hint, never the request.

use poncho_engine::Model;
use serde_json::Value;

/// The ends of older messages were hinted when they were new. Agents that shorten old tool results keep the last five,
/// so each turn parts from the one before it eleven messages from its end.
const RECENT_MESSAGES: usize = 12;

/// Token offsets at which messages end; none for a model that can resume anywhere. `tokenize` renders the first messages
/// of the conversation without the opening of a reply.
pub(crate) fn hints(
    model: &Model,
    messages: &[Value],
    tokens: &[u32],
    tokenize: impl Fn(&[Value]) -> Option<Vec<u32>>,
) -> Vec<usize> {
    if model.info().memory.can_cut() {
        return Vec::new();
    }
    let mut found: Vec<usize> = places(messages)
        .into_iter()
        .filter_map(|count| {
            let head = tokenize(messages.get(..count)?)?;
            Some(head.iter().zip(tokens).take_while(|(one, other)| one == other).count())
        })
        .filter(|end| *end > 0)
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// After how many messages to look: the system's, which every conversation shares, and the last ones.
fn places(messages: &[Value]) -> Vec<usize> {
    let system =
        messages.iter().take_while(|message| message.get("role").and_then(Value::as_str) == Some("system")).count();
    let recent = messages.len().saturating_sub(RECENT_MESSAGES);
    let mut counts: Vec<usize> = (recent + 1..=messages.len()).chain([system]).filter(|count| *count > 0).collect();
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
        assert_eq!(places(&conversation(&["system", "system", "user"])), [1, 2, 3]);
        assert_eq!(places(&conversation(&["user"])), [1]);
        let long: Vec<&str> = std::iter::once("system").chain(std::iter::repeat_n("user", 19)).collect();
        assert_eq!(places(&conversation(&long)), [1, 13, 14, 15, 16, 17, 18, 19, 20]);
        assert_eq!(places(&[]), [0_usize; 0]);
    }
}
