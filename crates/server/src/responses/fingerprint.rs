//! What a request consisted of, as hashes: enough to say which part of it changed between two requests.
//!
//! Made by the dialects for requests that ask for diagnostics, compared with the record of an earlier one. It must never
//! hold a word of a prompt.

use poncho_api::{ChatTurn, Generate};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The first bytes of a SHA-256. Two texts that share them by accident cost a wrong diagnosis, nothing else.
type Hash = u64;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    model: Hash,
    system: Hash,
    tools: Hash,
    /// Everything else that the prompt depends on.
    other: Hash,
    /// Messages without those of the system.
    count: usize,
    /// Of all of them in their order.
    messages: Hash,
}

/// The first part of a request that differs from an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Model,
    System,
    Tools,
    Messages,
    /// Neither of these, such as the choice of tools or a variable of the template.
    Other,
}

impl Fingerprint {
    /// The fingerprint of a conversation; `None` for any other prompt.
    pub(crate) fn of(model: &str, generate: &Generate) -> Option<Self> {
        let turn = generate.turn()?;
        let (system, messages) = split(turn);
        Some(Self {
            model: hash([model.as_bytes()]),
            system: hash_values(system),
            tools: hash(turn.tools.iter().map(|tool| tool.json.as_bytes())),
            other: other(generate, turn),
            count: messages.len(),
            messages: hash_values(messages),
        })
    }

    /// What changed since an earlier request; `None` if messages were appended and nothing else.
    pub(crate) fn change_since(&self, earlier: &Self, generate: &Generate) -> Option<Change> {
        let beginning = generate.turn().and_then(|turn| split(turn).1.get(..earlier.count));
        let parts = [
            (self.model == earlier.model, Change::Model),
            (self.system == earlier.system, Change::System),
            (self.tools == earlier.tools, Change::Tools),
            (beginning.map(hash_values) == Some(earlier.messages), Change::Messages),
            (self.other == earlier.other, Change::Other),
        ];
        parts.into_iter().find(|(is_same, _)| !is_same).map(|(_, change)| change)
    }
}

/// The system's messages at the start, and all others.
fn split(turn: &ChatTurn) -> (&[Value], &[Value]) {
    let is_system =
        |message: &&Value| matches!(message.get("role").and_then(Value::as_str), Some("system" | "developer"));
    let count = turn.messages.iter().take_while(is_system).count();
    turn.messages.split_at(count)
}

fn other(generate: &Generate, turn: &ChatTurn) -> Hash {
    let choice = format!("{:?} {} {:?}", turn.choice, turn.parallel_calls, generate.request.thinking);
    let schema = turn.json_schema.as_deref().unwrap_or_default();
    let template = turn.template.as_deref().unwrap_or_default();
    hash([choice.as_bytes(), turn.template_kwargs.as_bytes(), schema.as_bytes(), template.as_bytes()])
}

fn hash_values(values: &[Value]) -> Hash {
    let texts: Vec<String> = values.iter().map(Value::to_string).collect();
    hash(texts.iter().map(String::as_bytes))
}

fn hash<'t>(texts: impl IntoIterator<Item = &'t [u8]>) -> Hash {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let [a, b, c, d, e, f, g, h, ..] = <[u8; 32]>::from(hash.finalize());
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use poncho_api::{Choice, Request, Tool};
    use serde_json::json;

    use super::*;

    fn asked(system: &str, tools: &[&str], messages: &[&str]) -> Generate {
        let system = json!({"role": "system", "content": system});
        let messages = messages.iter().map(|text| json!({"role": "user", "content": text}));
        let tools = tools.iter().map(|name| Tool { name: (*name).to_owned(), json: format!("{{\"{name}\":1}}") });
        let turn = ChatTurn {
            messages: std::iter::once(system).chain(messages).collect(),
            tools: tools.collect(),
            ..ChatTurn::default()
        };
        Generate::chat(turn, Request::default())
    }

    #[test]
    fn the_first_part_that_differs_is_named() {
        let before = Fingerprint::of("m", &asked("s", &["f"], &["a", "b"])).unwrap();
        let changed = |model: &str, now: &Generate| Fingerprint::of(model, now).unwrap().change_since(&before, now);
        for (model, now, expected) in [
            ("m", asked("s", &["f"], &["a", "b"]), None),
            ("m", asked("s", &["f"], &["a", "b", "c"]), None),
            ("n", asked("t", &["f"], &["a", "b"]), Some(Change::Model)),
            ("m", asked("t", &["g"], &["a", "b"]), Some(Change::System)),
            ("m", asked("s", &["f", "g"], &["x", "b"]), Some(Change::Tools)),
            ("m", asked("s", &["f"], &["x", "b", "c"]), Some(Change::Messages)),
            ("m", asked("s", &["f"], &["a"]), Some(Change::Messages)),
        ] {
            assert_eq!(changed(model, &now), expected, "{now:?}");
        }
        let mut required = asked("s", &["f"], &["a", "b"]);
        if let poncho_api::Prompt::Chat(turn) = &mut required.prompt {
            turn.choice = Choice::Required;
        }
        assert_eq!(changed("m", &required), Some(Change::Other));
        let written =
            Generate::new(poncho_api::Prompt::Written(poncho_api::Input::Text(String::new())), Request::default());
        assert_eq!(Fingerprint::of("m", &written), None);
    }
}
