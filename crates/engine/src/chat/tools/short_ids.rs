//! Ids of calls for templates that take nine letters and digits only, as Mistral's do.
//!
//! Asked by `turn.rs` when a template refused a conversation. Clients keep the ids that they were told; only the prompt has
//! the short ones. The same id must always become the same short one, or the cache would be of no use.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Letters and digits of a short id.
const LENGTH: usize = 9;

/// The messages with short ids, in calls and in their answers.
pub(crate) fn with_short_ids(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Some(id) = message.get_mut("tool_call_id") {
            shorten(id);
        }
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.into_iter().flatten().filter_map(|call| call.get_mut("id")).for_each(shorten);
    }
    messages
}

fn shorten(id: &mut Value) {
    let Some(text) = id.as_str() else { return };
    if text.len() == LENGTH && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return;
    }
    let mut short = poncho_cache::to_hex(&Sha256::digest(text));
    short.truncate(LENGTH);
    *id = short.into();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_and_its_answer_keep_the_same_id() {
        let messages = [
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "tool_calls": [{"id": "call_1"}, {"id": "abcdEF123"}]}),
            json!({"role": "tool", "tool_call_id": "call_1"}),
            json!({"role": "tool", "tool_call_id": "abcdEF123"}),
        ];
        let short = with_short_ids(&messages);
        assert_eq!(short, with_short_ids(&messages), "always the same");
        let id = short[1]["tool_calls"][0]["id"].as_str().unwrap();
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(short[2]["tool_call_id"], id);
        assert_eq!(short[1]["tool_calls"][1]["id"], "abcdEF123", "one that fits stays");
        assert_eq!((&short[0], &short[3]), (&messages[0], &messages[3]));
    }
}
