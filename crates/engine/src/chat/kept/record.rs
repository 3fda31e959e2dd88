//! Turns as they are kept: what the client was told, and the tokens that the model wrote for it.
//!
//! Written to the journal as one line: a checksum, a space, JSON. A line with a wrong checksum is skipped. A record
//! must be found under the same key after any restart.

use std::sync::Arc;

use poncho_api::ChatOutput;
use poncho_cache::OwnerId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Names a text turn: a hash of the model, the owner, every token before the turn, and its text.
pub(crate) type TextKey = [u8; 32];

/// Hex digits of the checksum: 64 bits of SHA-256.
const CHECKSUM_DIGITS: usize = 16;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallTurn {
    /// The fingerprint of the model that wrote the tokens.
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
    pub(crate) before: Option<[u8; 32]>,
    /// The key of a turn with ids that could be guessed.
    #[serde(default)]
    pub(crate) said: Option<String>,
    /// For whom alone it is put back, where several keys come in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<[u8; OwnerId::LENGTH]>,
}

/// A turn of text as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextTurn {
    /// See [`TextKey`].
    pub(crate) text: TextKey,
    /// What the model wrote, without the end of the turn.
    pub(crate) tokens: Vec<u32>,
    /// For whom alone it is put back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<[u8; OwnerId::LENGTH]>,
}

/// Under what a turn is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Name {
    Call(String),
    Text(TextKey),
}

/// A record as it is written.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Forget(Forget),
    Text(TextTurn),
    Call(CallTurn),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Forget {
    forget: Name,
}

/// One line of the journal. A turn that comes again takes the place of the earlier one and counts as used then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Call(Arc<CallTurn>),
    Text(Arc<TextTurn>),
    /// A turn that must not be put back from here on.
    Forget(Name),
}

impl From<Arc<CallTurn>> for Record {
    fn from(turn: Arc<CallTurn>) -> Self {
        Self::Call(turn)
    }
}

impl From<Arc<TextTurn>> for Record {
    fn from(turn: Arc<TextTurn>) -> Self {
        Self::Text(turn)
    }
}

impl Record {
    /// Under what it is found; a turn without ids is found under nothing.
    pub(crate) fn name(&self) -> Option<Name> {
        match self {
            Self::Call(turn) => turn.key().map(Name::Call),
            Self::Text(turn) => Some(Name::Text(turn.text)),
            Self::Forget(name) => Some(name.clone()),
        }
    }

    /// The line of the journal, with its end.
    pub(crate) fn encode(&self) -> String {
        let json = match self {
            Self::Call(turn) => serde_json::to_string(&**turn),
            Self::Text(turn) => serde_json::to_string(&**turn),
            Self::Forget(name) => serde_json::to_string(&Forget { forget: name.clone() }),
        };
        let json = json.unwrap_or_default();
        format!("{} {json}\n", checksum(&json))
    }

    /// The record of a line, if it is whole.
    pub(crate) fn decode(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let (sum, json) = line.split_at_checked(CHECKSUM_DIGITS)?;
        let json = json.strip_prefix(' ')?;
        match (sum == checksum(json)).then(|| serde_json::from_str(json).ok()).flatten()? {
            Written::Call(turn) if turn.ids.is_empty() || turn.ids.len() != turn.calls.len() => None,
            Written::Call(turn) => Some(Self::Call(Arc::new(turn))),
            Written::Text(turn) => Some(Self::Text(Arc::new(turn))),
            Written::Forget(Forget { forget }) => Some(Self::Forget(forget)),
        }
    }
}

impl CallTurn {
    pub(crate) fn new(
        fingerprint: [u8; 32],
        owner: Option<OwnerId>,
        output: &ChatOutput,
        opening: &str,
        tokens: &[u32],
    ) -> Self {
        Self {
            fingerprint,
            ids: output.tool_calls.iter().map(|call| call.id.clone()).collect(),
            calls: output.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect(),
            content: output.content.clone(),
            opening: opening.to_owned(),
            tokens: tokens.to_vec(),
            before: None,
            said: None,
            owner: owner.map(|owner| *owner.as_bytes()),
        }
    }

    /// Under what the turn is found.
    pub(crate) fn key(&self) -> Option<String> {
        self.said.as_ref().or(self.ids.first()).cloned()
    }

    /// Whether a hash of model and tokens is that of the prompt which the model went on from.
    pub(crate) fn was_written_after(&self, before: Sha256) -> bool {
        self.before.is_none_or(|known| <[u8; 32]>::from(before.finalize()) == known)
    }

    /// Whether a message says exactly what the client was told: same calls in the same order, same text. Arguments may
    /// be written in another way as long as they mean the same.
    pub(crate) fn is_told_by(&self, message: &Value) -> bool {
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
pub(in crate::chat) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::chat) fn turn(id: &str) -> CallTurn {
        CallTurn {
            fingerprint: [3; 32],
            ids: vec![id.to_owned()],
            calls: vec![("f".into(), r#"{"b": 1, "a": "x\ny"}"#.into())],
            content: "Look:".into(),
            opening: "<a>".into(),
            tokens: vec![1, 2, u32::MAX],
            before: Some([9; 32]),
            said: None,
            owner: None,
        }
    }

    #[test]
    fn a_line_comes_back_and_a_damaged_one_does_not() {
        let text = TextTurn { text: [7; 32], tokens: vec![1, u32::MAX], owner: Some([4; 16]) };
        for record in [
            Record::Call(Arc::new(turn("call_1"))),
            Record::Call(Arc::new(CallTurn { owner: Some([5; 16]), ..turn("call_2") })),
            Record::Text(Arc::new(TextTurn { owner: None, ..text.clone() })),
            Record::Text(Arc::new(text)),
            Record::Forget(Name::Call("call_1".into())),
            Record::Forget(Name::Text([8; 32])),
        ] {
            let line = record.encode();
            let whole = line.trim_end().as_bytes();
            assert_eq!(Record::decode(whole), Some(record));
            for at in 0..whole.len() {
                let mut damaged = whole.to_vec();
                damaged[at] ^= 1;
                assert_eq!(Record::decode(&damaged), None, "byte {at}");
                assert_eq!(Record::decode(&whole[..at]), None, "cut at {at}");
            }
        }
    }

    #[test]
    fn a_line_of_an_older_server_is_read() {
        let json = r#"{"fingerprint":[3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3],"ids":["call_1"],"calls":[["f","{}"]],"content":"","opening":"<a>","tokens":[1,2]}"#;
        let line = format!("{} {json}", checksum(json));
        let Some(Record::Call(turn)) = Record::decode(line.as_bytes()) else { panic!("not read") };
        assert_eq!((turn.ids[0].as_str(), turn.owner, turn.before), ("call_1", None, None));
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
