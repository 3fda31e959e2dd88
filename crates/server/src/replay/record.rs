//! A turn with tool calls as it is kept: what the client was told, and the tokens that the model wrote for it.
//!
//! Written to the journal as one line: a checksum, a space, JSON. A line whose checksum is wrong is no record.

use poncho_engine::Model;
use poncho_engine::backend::ChatOutput;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Hex digits of the checksum: 64 bits of SHA-256.
const CHECKSUM_DIGITS: usize = 16;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallTurn {
    /// The model whose tokens these are.
    pub(crate) fingerprint: [u8; 32],
    /// The ids of the calls, in order.
    pub(crate) ids: Vec<String>,
    /// Name and arguments of each.
    calls: Vec<(String, String)>,
    content: String,
    /// What the prompt had written of the turn when the model went on.
    pub(crate) opening: String,
    /// What it wrote, without the end of the turn.
    pub(crate) tokens: Vec<u32>,
    /// The model and the prompt's tokens, hashed; older records have none.
    #[serde(default)]
    pub(super) before: Option<[u8; 32]>,
    /// The key of a turn whose ids could be guessed.
    #[serde(default)]
    pub(super) said: Option<String>,
}

impl CallTurn {
    pub(super) fn new(model: &Model, output: &ChatOutput, opening: &str, tokens: &[u32]) -> Self {
        Self {
            fingerprint: model.namespace().fingerprint,
            ids: output.tool_calls.iter().map(|call| call.id.clone()).collect(),
            calls: output.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect(),
            content: output.content.clone(),
            opening: opening.to_owned(),
            tokens: tokens.to_vec(),
            before: None,
            said: None,
        }
    }

    /// Under what the turn is found.
    pub(super) fn key(&self) -> Option<String> {
        self.said.as_ref().or(self.ids.first()).cloned()
    }

    /// Whether a hash of model and tokens is that of the prompt which the model went on from.
    pub(super) fn was_written_after(&self, before: Sha256) -> bool {
        self.before.is_none_or(|known| <[u8; 32]>::from(before.finalize()) == known)
    }

    /// Whether a message says exactly what the client was told: same calls in the same order, same text. Arguments may
    /// be written in another way as long as they mean the same.
    pub(super) fn is_told_by(&self, message: &Value) -> bool {
        let calls = message.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let content = match message.get("content") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => {
                parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect()
            }
            _ => String::new(),
        };
        calls.len() == self.ids.len()
            && content.trim() == self.content.trim()
            && calls.iter().zip(&self.ids).zip(&self.calls).all(|((call, id), (name, arguments))| {
                call.get("id").and_then(Value::as_str) == Some(id)
                    && call.pointer("/function/name").and_then(Value::as_str) == Some(name)
                    && call.pointer("/function/arguments").is_some_and(|told| means_the_same(told, arguments))
            })
    }

    /// The line of the journal, with its end.
    pub(super) fn encode(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        format!("{} {json}\n", checksum(&json))
    }

    /// The record of a line, if it is whole.
    pub(super) fn decode(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let (sum, json) = line.split_at_checked(CHECKSUM_DIGITS)?;
        let json = json.strip_prefix(' ')?;
        let turn: Self = (sum == checksum(json)).then(|| serde_json::from_str(json).ok()).flatten()?;
        (!turn.ids.is_empty() && turn.ids.len() == turn.calls.len()).then_some(turn)
    }
}

fn means_the_same(told: &Value, kept: &str) -> bool {
    let kept_value = || serde_json::from_str::<Value>(kept).ok();
    match told {
        Value::String(text) => {
            text == kept || serde_json::from_str::<Value>(text).is_ok_and(|told| Some(told) == kept_value())
        }
        object => Some(object) == kept_value().as_ref(),
    }
}

fn checksum(text: &str) -> String {
    let mut digits = poncho_cache::to_hex(&Sha256::digest(text));
    digits.truncate(CHECKSUM_DIGITS);
    digits
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::replay) fn turn(id: &str) -> CallTurn {
        CallTurn {
            fingerprint: [3; 32],
            ids: vec![id.to_owned()],
            calls: vec![("f".into(), r#"{"b": 1, "a": "x\ny"}"#.into())],
            content: "Look:".into(),
            opening: "<a>".into(),
            tokens: vec![1, 2, u32::MAX],
            before: Some([9; 32]),
            said: None,
        }
    }

    #[test]
    fn a_line_comes_back_and_a_damaged_one_does_not() {
        let line = turn("call_1").encode();
        let whole = line.trim_end().as_bytes();
        assert_eq!(CallTurn::decode(whole), Some(turn("call_1")));
        for at in 0..whole.len() {
            let mut damaged = whole.to_vec();
            damaged[at] ^= 1;
            assert_eq!(CallTurn::decode(&damaged), None, "byte {at}");
            assert_eq!(CallTurn::decode(&whole[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn only_the_same_turn_is_replayed() {
        let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "function": {"name": name, "arguments": arguments}});
        let message =
            |calls: Vec<Value>, content: Value| json!({"role": "assistant", "content": content, "tool_calls": calls});
        let same = json!("{\"a\":\"x\\ny\",\"b\":1}");
        let kept = turn("1");
        assert!(kept.is_told_by(&message(vec![call("1", "f", same.clone())], json!("Look:\n"))));
        assert!(kept.is_told_by(&message(
            vec![call("1", "f", json!({"a": "x\ny", "b": 1}))],
            json!([{"type": "text", "text": "Look:"}])
        )));
        for changed in [
            message(vec![call("2", "f", same.clone())], json!("Look:")),
            message(vec![call("1", "g", same.clone())], json!("Look:")),
            message(vec![call("1", "f", json!("{\"a\":\"z\",\"b\":1}"))], json!("Look:")),
            message(vec![call("1", "f", same.clone())], json!("Look there:")),
            message(vec![call("1", "f", same.clone())], Value::Null),
            message(vec![call("1", "f", same.clone()), call("2", "f", same)], json!("Look:")),
        ] {
            assert!(!kept.is_told_by(&changed), "{changed}");
        }
    }
}
