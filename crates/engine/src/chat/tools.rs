//! Tools on every model: what its template knows of them, and the generic way where it knows nothing.
//!
//! Asked by `turn.rs` for each turn that has tools or past calls. A template is probed with a tiny conversation, rendered
//! with and without a tool: one that writes the same text twice ignores tools, and the generic rendering, grammar and
//! parser of the files beside this one take over. docs/tools-and-hygiene.md shows the format. Nothing here may make
//! a call that the client's choice forbids possible.

mod grammar;
mod parser;
mod rendering;
mod scan;
mod short_ids;

use poncho_api::{ChatTurn, Choice};
use serde_json::Value;

use crate::backend::{ChatRequest, ToolChoice};
use crate::chat::model::ChatModel;

pub(crate) use grammar::{bad_schema, generic_grammar};
pub(crate) use parser::GenericParser;
pub(crate) use rendering::generic_messages;
pub(crate) use short_ids::with_short_ids;

/// Opens a call.
pub(crate) const CALL_OPEN: &str = "<tool_call>";
/// Closes a call.
pub(crate) const CALL_CLOSE: &str = "</tool_call>";
/// Opens a tool's answer.
const RESULT_OPEN: &str = "<tool_response>";
/// Closes a tool's answer.
const RESULT_CLOSE: &str = "</tool_response>";

/// Who writes tools and calls into the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolStyle {
    /// There are none in this turn.
    Unused,
    /// The model's template.
    Template,
    /// This crate, in plain messages.
    Generic,
}

const PROBE_MESSAGES: &str = r#"[{"role":"user","content":"x"}]"#;
const PROBE_TOOLS: &str = r#"[{"type":"function","function":{"name":"probe_tool","description":"probe","parameters":{"type":"object","properties":{}}}}]"#;
const PROBE_CALL: &str = r#"<tool_call>{"name":"probe_tool","arguments":{}}</tool_call>"#;

/// Who writes the tools of this turn.
pub(crate) fn style(model: &ChatModel, turn: &ChatTurn) -> ToolStyle {
    if !offers_tools(turn) && !turn.messages.iter().any(is_about_calls) {
        return ToolStyle::Unused;
    }
    if model.knows_tools(template_knows_tools) { ToolStyle::Template } else { ToolStyle::Generic }
}

/// Whether the reply may call tools.
pub(crate) fn offers_tools(turn: &ChatTurn) -> bool {
    !turn.tools.is_empty() && turn.choice != Choice::None
}

fn is_about_calls(message: &Value) -> bool {
    let calls = message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    calls || message.get("role").and_then(Value::as_str) == Some("tool")
}

/// A template knows tools if it lists them for the model and calls can be read back: by a grammar and a parser of its
/// own, or because it writes calls as the generic format does.
fn template_knows_tools(model: &ChatModel) -> bool {
    let without = ChatRequest { messages_json: PROBE_MESSAGES.to_owned(), ..ChatRequest::default() };
    let tool_choice = ToolChoice::Required;
    let with = ChatRequest { tools_json: PROBE_TOOLS.to_owned(), tool_choice, ..without.clone() };
    let (Ok(with), Ok(without)) = (model.apply_chat_template(&with), model.apply_chat_template(&without)) else {
        // A template that refuses the probe says more about it when it meets the real conversation.
        return true;
    };
    let reads_calls = || with.parser.parse(PROBE_CALL, false).is_ok_and(|output| !output.tool_calls.is_empty());
    with.text != without.text && (!with.grammar.is_empty() || reads_calls())
}
