//! Items as the messages of a chat: what a template can render.
//!
//! Called by `turn`. What one assistant's turn was made of (thinking, text, calls) becomes one message again, as the
//! template wrote it, so that the prompt of the next turn starts with the tokens of the last one.

use std::borrow::Borrow;

use serde_json::{Map, Value, json};

use super::custom;
use super::mcp::approval::Answers;
use super::namespace::joined;
use crate::responses::item::{CallOutput, ContentPart, Item, Role, batch_of};

/// The messages of a conversation. Instructions and the system messages right after them become one message: many
/// templates know only one, and only at the start.
pub(crate) fn messages<I: Borrow<Item>>(instructions: Option<&str>, items: &[I]) -> Vec<Value> {
    let mut written = Vec::new();
    let mut system: Vec<&str> = instructions.into_iter().collect();
    let mut rest = items.iter().map(Borrow::borrow).peekable();
    if !system.is_empty() {
        while let Some(Item::Message { content, .. }) = rest.next_if(|item| is_system(item)) {
            system.extend(content.iter().map(ContentPart::text));
        }
        written.push(json!({"role": "system", "content": system.join("\n\n")}));
    }
    let answers = Answers::of(items.iter().map(Borrow::borrow));
    let mut assistant = Assistant::default();
    for item in rest {
        match item {
            Item::Reasoning { .. } => {
                assistant.end_if(|open| open.content.is_some() || !open.calls.is_empty(), &mut written);
                assistant.thinking = item.thinking().filter(|text| !text.is_empty());
            }
            Item::Message { role: Role::Assistant, content, .. } => {
                assistant.end_if(|open| open.content.is_some() || !open.calls.is_empty(), &mut written);
                assistant.content = Some(text_value(content));
            }
            // The list is a part of the prompt as tools.
            Item::McpListTools { .. } | Item::McpApprovalResponse { .. } => {}
            // It stands where the model asked for it.
            Item::McpCall { approval_request_id, .. } if answers.shows(approval_request_id.as_deref()) => {}
            Item::McpCall { id, server_label, name, arguments, output, error, .. } => {
                let text = error.as_ref().or(output.as_ref()).map_or("", String::as_str);
                assistant.calls_with_result(id, &joined(server_label, name), arguments, text, &mut written);
            }
            Item::McpApprovalRequest { id, server_label, name, arguments } => {
                let text = answers.result(id);
                assistant.calls_with_result(id, &joined(server_label, name), arguments, &text, &mut written);
            }
            Item::FunctionCall { id, call_id, name, namespace, arguments, .. } => {
                let batch = batch_of(id).map(|(batch, _)| batch);
                assistant.end_if(|open| !open.outputs.is_empty() && !open.is_of(batch), &mut written);
                assistant.batch = batch.map(str::to_owned);
                let called = namespace.as_ref().map_or_else(|| name.clone(), |group| joined(group, name));
                let function = json!({"name": called, "arguments": arguments});
                assistant.calls.push(json!({"id": call_id, "type": "function", "function": function}));
            }
            Item::CustomToolCall { call_id, name, input, .. } => {
                let function = json!({"name": name, "arguments": custom::arguments(input)});
                assistant.calls.push(json!({"id": call_id, "type": "function", "function": function}));
            }
            Item::FunctionCallOutput { call_id, output, .. } | Item::CustomToolCallOutput { call_id, output, .. } => {
                assistant.end_if(|_| true, &mut written);
                let content = match output {
                    CallOutput::Text(text) => Value::from(text.as_str()),
                    CallOutput::Parts(parts) => text_value(parts),
                };
                written.push(json!({"role": "tool", "tool_call_id": call_id, "content": content}));
            }
            Item::Message { role, content, .. } => {
                assistant.end_if(|_| true, &mut written);
                // Templates know one role for instructions.
                let role = if *role == Role::User { "user" } else { "system" };
                written.push(json!({"role": role, "content": text_value(content)}));
            }
        }
    }
    assistant.end_if(|_| true, &mut written);
    written
}

fn is_system(item: &Item) -> bool {
    matches!(item, Item::Message { role: Role::System | Role::Developer, .. })
}

/// One text as such, several as parts: some templates read only the first form.
fn text_value(parts: &[ContentPart]) -> Value {
    match parts {
        [] => Value::from(""),
        [only] => Value::from(only.text()),
        several => several.iter().map(|part| json!({"type": "text", "text": part.text()})).collect(),
    }
}

/// An assistant's message that may still grow.
#[derive(Default)]
struct Assistant {
    thinking: Option<String>,
    content: Option<Value>,
    calls: Vec<Value>,
    /// What follows the message: results of calls that the server made itself.
    outputs: Vec<Value>,
    /// The reply that the calls were a part of.
    batch: Option<String>,
}

impl Assistant {
    /// Whether calls of a batch belong to this message.
    fn is_of(&self, batch: Option<&str>) -> bool {
        batch.is_some() && self.batch.as_deref() == batch
    }

    /// Adds a call that this server makes, with its result.
    fn calls_with_result(&mut self, id: &str, called: &str, arguments: &str, result: &str, written: &mut Vec<Value>) {
        let (batch, call_id) = batch_of(id).map_or((None, id), |(batch, call)| (Some(batch), call));
        self.end_if(|open| !open.calls.is_empty() && !open.is_of(batch), written);
        let function = json!({"name": called, "arguments": arguments});
        self.calls.push(json!({"id": call_id, "type": "function", "function": function}));
        self.outputs.push(json!({"role": "tool", "tool_call_id": call_id, "content": result}));
        self.batch = batch.map(str::to_owned);
    }

    fn end_if(&mut self, ends: impl FnOnce(&Self) -> bool, written: &mut Vec<Value>) {
        let is_empty = self.content.is_none() && self.calls.is_empty();
        if !ends(self) {
            return;
        }
        let Self { thinking, content, calls, outputs, .. } = std::mem::take(self);
        // Thinking alone is not a message.
        if is_empty {
            return;
        }
        let mut message = Map::from_iter([("role".to_owned(), Value::from("assistant"))]);
        message.insert("content".to_owned(), content.unwrap_or(Value::Null));
        if let Some(thinking) = thinking {
            message.insert("reasoning_content".to_owned(), Value::from(thinking));
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        written.push(Value::Object(message));
        written.extend(outputs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::responses::item::{CallBatch, Status, ThinkingPart};

    fn says(role: Role, texts: &[&str]) -> Item {
        let part = |text: &&str| ContentPart::InputText { text: (*text).to_owned() };
        Item::Message { id: "m".into(), status: Status::Completed, role, content: texts.iter().map(part).collect() }
    }

    fn thinks(text: &str) -> Item {
        let content = vec![ThinkingPart::ReasoningText { text: text.to_owned() }];
        Item::Reasoning {
            id: "r".into(),
            summary: Vec::new(),
            content,
            encrypted_content: None,
            status: Status::Completed,
        }
    }

    fn calls(call_id: &str) -> Item {
        let (name, arguments) = ("f".to_owned(), "{}".to_owned());
        let (call_id, status) = (call_id.into(), Status::Completed);
        Item::FunctionCall { id: "c".into(), call_id, name, namespace: None, arguments, status }
    }

    fn gives(call_id: &str) -> Item {
        let output = CallOutput::Text("ok".into());
        Item::FunctionCallOutput { id: "o".into(), call_id: call_id.into(), output, status: Status::Completed }
    }

    #[test]
    fn a_turn_of_the_assistant_is_one_message() {
        let items = [
            says(Role::User, &["a", "b"]),
            thinks("hm"),
            says(Role::Assistant, &["Let me look."]),
            calls("1"),
            calls("2"),
            gives("1"),
            gives("2"),
            thinks("so"),
            says(Role::Assistant, &["Fine."]),
        ];
        let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        assert_eq!(
            messages(None, &items),
            [
                json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
                json!({"role": "assistant", "content": "Let me look.", "reasoning_content": "hm",
                    "tool_calls": [call("1"), call("2")]}),
                json!({"role": "tool", "tool_call_id": "1", "content": "ok"}),
                json!({"role": "tool", "tool_call_id": "2", "content": "ok"}),
                json!({"role": "assistant", "content": "Fine.", "reasoning_content": "so"}),
            ]
        );
    }

    /// Calls of MCP servers have their results inside; which calls were one reply is in their ids.
    #[test]
    fn calls_of_one_reply_are_one_message_and_their_results_follow_it() {
        let called = |id: &str, output: Option<&str>, error: Option<&str>| Item::McpCall {
            id: id.into(),
            server_label: "docs".into(),
            name: "read".into(),
            arguments: "{}".into(),
            output: output.map(Into::into),
            error: error.map(Into::into),
            approval_request_id: None,
            status: Status::Completed,
        };
        let (one, two) = (CallBatch::new(), CallBatch::new());
        let with_id = |item: Item, id: String| match item {
            Item::FunctionCall { call_id, name, namespace, arguments, status, .. } => {
                Item::FunctionCall { id, call_id, name, namespace, arguments, status }
            }
            other => other,
        };
        let items = [
            says(Role::User, &["a"]),
            called(&one.item_id("mcp_", "c1"), Some("r1"), None),
            called(&one.item_id("mcp_", "c2"), None, Some("e2")),
            called(&two.item_id("mcp_", "c3"), Some("r3"), None),
            with_id(calls("c4"), two.item_id("fc_", "c4")),
            gives("c4"),
            called("mcp_foreign", Some("r5"), None),
            calls("c6"),
            gives("c6"),
        ];
        let call =
            |id: &str| json!({"id": id, "type": "function", "function": {"name": "docs__read", "arguments": "{}"}});
        let own = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let says = |calls: Value| json!({"role": "assistant", "content": null, "tool_calls": calls});
        let tool = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        assert_eq!(
            messages(None, &items),
            [
                json!({"role": "user", "content": "a"}),
                says(json!([call("c1"), call("c2")])),
                tool("c1", "r1"),
                tool("c2", "e2"),
                says(json!([call("c3"), own("c4")])),
                tool("c3", "r3"),
                tool("c4", "ok"),
                says(json!([call("mcp_foreign")])),
                tool("mcp_foreign", "r5"),
                says(json!([own("c6")])),
                tool("c6", "ok"),
            ]
        );
    }

    #[test]
    fn neighbouring_turns_stay_apart() {
        let items = [says(Role::Assistant, &["a"]), says(Role::Assistant, &["b"]), calls("1"), thinks("x"), calls("2")];
        let written = messages(None, &items);
        let texts: Vec<&Value> = written.iter().map(|message| &message["content"]).collect();
        assert_eq!(texts, [&json!("a"), &json!("b"), &Value::Null]);
        assert_eq!(
            (written[1]["tool_calls"][0]["id"].as_str(), written[2]["tool_calls"][0]["id"].as_str()),
            (Some("1"), Some("2"))
        );
        assert!(messages(None, &[thinks("for nothing")]).is_empty());
    }

    #[test]
    fn instructions_and_what_follows_them_are_one_system_message() {
        let items = [
            says(Role::Developer, &["Be kind."]),
            says(Role::System, &["Be short."]),
            says(Role::User, &["Hi"]),
            says(Role::Developer, &["Now be long."]),
        ];
        let roles = |written: &[Value]| -> Vec<String> {
            written.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
        };
        let written = messages(Some("You are Poncho."), &items);
        assert_eq!(written[0], json!({"role": "system", "content": "You are Poncho.\n\nBe kind.\n\nBe short."}));
        assert_eq!(roles(&written), ["system", "user", "system"]);
        assert_eq!(roles(&messages(None, &items)), ["system", "system", "user", "system"], "nothing to merge into");
    }
}
