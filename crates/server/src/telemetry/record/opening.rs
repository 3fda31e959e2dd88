//! What the record learns from a prompt before it is submitted: its conversation, a title, and a copy to explain it later.
//!
//! Called once for each prompt, so it reads one message and copies the rest. It must never fail a request.

use std::hash::{DefaultHasher, Hash, Hasher};

use poncho_api::{ChatTurn, Generate, Input, Prompt};
use serde_json::Value;

/// Letters of a title.
const TITLE: usize = 80;
/// Letters of the beginning by which two plain prompts are distinguished.
const BEGINNING: usize = 200;
/// Longer prompts are not kept.
const MOST_BYTES: usize = 4 << 20;

/// See the module.
pub(super) struct Opening {
    /// The same for all turns of a conversation.
    pub(super) conversation: u64,
    pub(super) title: String,
    /// The prompt and about how many bytes it has; `None` if it is too long to be kept.
    pub(super) prompt: Option<(Box<Generate>, usize)>,
}

impl Opening {
    pub(super) fn of(prompt: &Generate) -> Self {
        let text = beginning(&prompt.prompt);
        let mut hasher = DefaultHasher::new();
        match &prompt.request.session_id {
            Some(session) => session.hash(&mut hasher),
            None => text.chars().take(BEGINNING).collect::<String>().hash(&mut hasher),
        }
        let bytes = size(prompt);
        Self {
            conversation: hasher.finish(),
            title: text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(TITLE).collect(),
            prompt: (bytes <= MOST_BYTES).then(|| (Box::new(prompt.clone()), bytes)),
        }
    }
}

/// The text that stays the same while a conversation grows, also if its system prompt has a clock: the first message of
/// the user.
fn beginning(prompt: &Prompt) -> String {
    match prompt {
        Prompt::Chat(turn) => first_user_text(turn),
        Prompt::Written(Input::Text(text)) => text.chars().take(BEGINNING).collect(),
        Prompt::Written(Input::Tokens(tokens)) => format!("{:?}", tokens.get(..8).unwrap_or(tokens)),
        Prompt::Parts(parts) => {
            parts.first().map(|part| part.text.chars().take(BEGINNING).collect()).unwrap_or_default()
        }
        Prompt::Fill { before: Input::Text(text), .. } => text.chars().take(BEGINNING).collect(),
        Prompt::Fill { .. } => String::new(),
    }
}

fn first_user_text(turn: &ChatTurn) -> String {
    let of_role = |role: &str| turn.messages.iter().find(|message| message.get("role").is_some_and(|is| is == role));
    let content = of_role("user").or_else(|| turn.messages.first()).and_then(|message| message.get("content"));
    match content {
        Some(Value::String(text)) => text.chars().take(BEGINNING).collect(),
        Some(Value::Array(blocks)) => {
            let text = blocks.iter().find_map(|block| block.get("text")?.as_str());
            text.unwrap_or_default().chars().take(BEGINNING).collect()
        }
        _ => String::new(),
    }
}

/// About how many bytes a prompt has.
fn size(prompt: &Generate) -> usize {
    let input = |input: &Input| match input {
        Input::Text(text) => text.len(),
        Input::Tokens(tokens) => size_of_val(tokens.as_slice()),
    };
    let text = match &prompt.prompt {
        Prompt::Chat(turn) => {
            let messages: usize = turn.messages.iter().map(value).sum();
            messages + turn.tools.iter().map(|tool| tool.json.len()).sum::<usize>() + turn.template_kwargs.len()
        }
        Prompt::Written(written) => input(written),
        Prompt::Parts(parts) => parts.iter().map(|part| part.text.len()).sum(),
        Prompt::Fill { before, after } => input(before) + after.len(),
    };
    text + size_of_val(prompt.request.tokens.as_slice()) + size_of::<Generate>()
}

fn value(json: &Value) -> usize {
    match json {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(value).sum(),
        Value::Object(fields) => fields.iter().map(|(name, field)| name.len() + value(field)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

#[cfg(test)]
mod tests {
    use poncho_api::Request;
    use serde_json::json;

    use super::*;

    fn opening(messages: &[Value]) -> Opening {
        let turn = ChatTurn { messages: messages.to_vec(), ..ChatTurn::default() };
        Opening::of(&Generate::chat(turn, Request::default()))
    }

    #[test]
    fn the_turns_of_a_conversation_have_one_number_although_its_clock_moves() {
        let system = |clock: &str| json!({"role": "system", "content": format!("It is {clock}.")});
        let user = json!({"role": "user", "content": "Fix the\n  login page."});
        let one = opening(&[system("12:00"), user.clone()]);
        let two = opening(&[
            system("12:01"),
            user,
            json!({"role": "assistant", "content": "Done."}),
            json!({"role": "user", "content": "Thanks."}),
        ]);
        assert_eq!((one.conversation, one.title.as_str()), (two.conversation, "Fix the login page."));
        let other = opening(&[system("12:00"), json!({"role": "user", "content": [{"type": "text", "text": "Hi"}]})]);
        assert!(other.conversation != one.conversation && other.title == "Hi");
    }
}
