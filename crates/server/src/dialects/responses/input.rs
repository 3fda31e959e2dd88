//! From the items that a client sends to items as they are stored.
//!
//! Called by `create`. Items are rebuilt field by field: short forms become whole ones, missing ids are given,
//! references are looked up. Every refusal names the field.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::types::{Input, InputItem};
use crate::dialects::openai::types::{Content, Part};
use crate::error::{ApiError, NO_IMAGES};
use crate::http::body::Object;
use crate::request_id::random_id;
use crate::responses::item::{CallOutput, ContentPart, Item, Role, Status, ThinkingPart};
use crate::responses::store::OwnResponses;

/// The items of a request.
pub(crate) fn items(input: Option<&Input>, store: &OwnResponses<'_>) -> Result<Vec<Arc<Item>>, ApiError> {
    match input {
        None => Ok(Vec::new()),
        Some(Input::Text(text)) => {
            let content = vec![ContentPart::InputText { text: text.clone() }];
            let (id, status) = (random_id("msg_"), Status::Completed);
            Ok(vec![Arc::new(Item::Message { id, status, role: Role::User, content })])
        }
        Some(Input::Items(items)) => {
            items.iter().enumerate().map(|(at, item)| Place { at }.item(item, store)).collect()
        }
    }
}

/// Refuses outputs of calls that nobody made: a template would show them without what they answer.
pub(crate) fn check_calls(context: &[Arc<Item>], own: &[Arc<Item>]) -> Result<(), ApiError> {
    let call = |item: &Arc<Item>| match &**item {
        Item::FunctionCall { call_id, .. } | Item::CustomToolCall { call_id, .. } => Some(call_id.clone()),
        _ => None,
    };
    let mut made: HashSet<String> = context.iter().filter_map(call).collect();
    for (at, item) in own.iter().enumerate() {
        made.extend(call(item));
        if let Item::FunctionCallOutput { call_id, .. } | Item::CustomToolCallOutput { call_id, .. } = &**item
            && !made.contains(call_id)
        {
            let reason = format!("there is no call {call_id:?} before it; send the call before its output");
            return Err(ApiError::field(Place { at }.field("call_id"), reason));
        }
    }
    Ok(())
}

/// Where an item stands in the input.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
}

impl Place {
    fn field(self, name: &str) -> String {
        format!("input[{}].{name}", self.at)
    }

    fn item(self, item: &InputItem, store: &OwnResponses<'_>) -> Result<Arc<Item>, ApiError> {
        let needed = |value: &Option<String>, name: &str, item: &str| {
            value.clone().ok_or_else(|| ApiError::field(self.field(name), format!("{item} needs it")))
        };
        let id = |prefix: &str| item.id.clone().filter(|id| !id.is_empty()).unwrap_or_else(|| random_id(prefix));
        let status = if item.status.as_deref() == Some("incomplete") { Status::Incomplete } else { Status::Completed };
        // A message may leave its type out, and so may a reference, which is nothing but an id.
        let kind = match (item.kind.as_deref(), &item.role, &item.id) {
            (Some(kind), _, _) => kind,
            (None, None, Some(_)) => "item_reference",
            (None, _, _) => "message",
        };
        Ok(Arc::new(match kind {
            "message" => {
                let role = self.role(item.role.as_deref())?;
                let content = item.content.as_ref();
                let content = content.ok_or_else(|| ApiError::field(self.field("content"), "a message needs it"))?;
                Item::Message { id: id("msg_"), status, role, content: self.content(role, content)? }
            }
            "function_call" => Item::FunctionCall {
                id: id("fc_"),
                call_id: needed(&item.call_id, "call_id", "a function call")?,
                name: needed(&item.name, "name", "a function call")?,
                namespace: item.namespace.clone().filter(|namespace| !namespace.is_empty()),
                arguments: needed(&item.arguments, "arguments", "a function call")?,
                status,
            },
            "function_call_output" => {
                let call_id = needed(&item.call_id, "call_id", "an output")?;
                Item::FunctionCallOutput { id: id("fco_"), call_id, output: self.output(item)?, status }
            }
            "custom_tool_call" => Item::CustomToolCall {
                id: id("ctc_"),
                call_id: needed(&item.call_id, "call_id", "a call of a custom tool")?,
                name: needed(&item.name, "name", "a call of a custom tool")?,
                input: needed(&item.input, "input", "a call of a custom tool")?,
                status,
            },
            "custom_tool_call_output" => {
                let call_id = needed(&item.call_id, "call_id", "an output")?;
                Item::CustomToolCallOutput { id: id("ctco_"), call_id, output: self.output(item)?, status }
            }
            "mcp_list_tools" => Item::McpListTools {
                id: id("mcpl_"),
                server_label: needed(&item.server_label, "server_label", "a list of tools")?,
                tools: item.tools.iter().flatten().map(|tool| tool.0.clone()).collect(),
                error: error_text(item),
            },
            "mcp_call" => Item::McpCall {
                id: id("mcp_"),
                server_label: needed(&item.server_label, "server_label", "a call of an MCP server")?,
                name: needed(&item.name, "name", "a call of an MCP server")?,
                arguments: needed(&item.arguments, "arguments", "a call of an MCP server")?,
                output: item.output.as_ref().map(|_| self.output(item)).transpose()?.map(|output| output.text()),
                error: error_text(item),
                approval_request_id: item.approval_request_id.clone(),
                status,
            },
            "mcp_approval_request" => Item::McpApprovalRequest {
                id: needed(&item.id, "id", "an approval request")?,
                server_label: needed(&item.server_label, "server_label", "an approval request")?,
                name: needed(&item.name, "name", "an approval request")?,
                arguments: needed(&item.arguments, "arguments", "an approval request")?,
            },
            "mcp_approval_response" => Item::McpApprovalResponse {
                id: id("mcpa_"),
                approval_request_id: needed(&item.approval_request_id, "approval_request_id", "an approval")?,
                approve: item.approve.ok_or_else(|| ApiError::field(self.field("approve"), "an approval needs it"))?,
                reason: item.reason.clone().filter(|reason| !reason.is_empty()),
            },
            "reasoning" => Item::Reasoning {
                id: id("rs_"),
                summary: self.thinking("summary", item.summary.as_deref().unwrap_or_default())?,
                content: match &item.content {
                    Some(Content::Parts(parts)) => self.thinking("content", parts)?,
                    Some(Content::Text(text)) => vec![ThinkingPart::ReasoningText { text: text.clone() }],
                    None => Vec::new(),
                },
                encrypted_content: item.encrypted_content.clone(),
                status,
            },
            "item_reference" => {
                let id = needed(&item.id, "id", "a reference")?;
                return store.item(&id).ok_or(ApiError::NoItem { id });
            }
            other => {
                let known = "message, function_call, function_call_output, custom_tool_call, \
                    custom_tool_call_output, mcp_list_tools, mcp_call, mcp_approval_request, mcp_approval_response, \
                    reasoning or item_reference";
                return Err(ApiError::field(self.field("type"), format!("it is {other:?} and must be {known}")));
            }
        }))
    }

    fn role(self, role: Option<&str>) -> Result<Role, ApiError> {
        match role {
            Some("user") => Ok(Role::User),
            Some("assistant") => Ok(Role::Assistant),
            Some("system") => Ok(Role::System),
            Some("developer") => Ok(Role::Developer),
            other => {
                let got = other.map_or("missing".to_owned(), |other| format!("{other:?}"));
                let reason = format!("it is {got} and must be user, assistant, system or developer");
                Err(ApiError::field(self.field("role"), reason))
            }
        }
    }

    fn output(self, item: &InputItem) -> Result<CallOutput, ApiError> {
        match &item.output {
            None => Err(ApiError::field(self.field("output"), "an output needs it")),
            Some(Content::Text(text)) => Ok(CallOutput::Text(text.clone())),
            Some(Content::Parts(parts)) => Ok(CallOutput::Parts(self.parts(Role::User, "output", parts)?)),
        }
    }

    fn content(self, role: Role, content: &Content) -> Result<Vec<ContentPart>, ApiError> {
        match content {
            Content::Text(text) => Ok(vec![text_part(role, text.clone())]),
            Content::Parts(parts) => self.parts(role, "content", parts),
        }
    }

    fn parts(self, role: Role, list: &str, parts: &[Object<Part>]) -> Result<Vec<ContentPart>, ApiError> {
        let read = |(place, part): (usize, &Object<Part>)| {
            let field = |name: &str| self.field(&format!("{list}[{place}].{name}"));
            let needed = |text: &Option<String>, name: &str| {
                text.clone()
                    .ok_or_else(|| ApiError::field(field(name), format!("a part of type {} needs it", part.kind)))
            };
            match part.kind.as_str() {
                "input_text" | "output_text" | "text" => Ok(text_part(role, needed(&part.text, "text")?)),
                "refusal" => Ok(ContentPart::Refusal { refusal: needed(&part.refusal, "refusal")? }),
                "input_image" => Err(ApiError::field(field("type"), NO_IMAGES)),
                other => {
                    let reason = format!("{other} parts cannot be read by this model; send input_text");
                    Err(ApiError::field(field("type"), reason))
                }
            }
        };
        parts.iter().enumerate().map(read).collect()
    }

    fn thinking(self, list: &str, parts: &[Object<Part>]) -> Result<Vec<ThinkingPart>, ApiError> {
        let read = |(place, part): (usize, &Object<Part>)| {
            let field = |name: &str| self.field(&format!("{list}[{place}].{name}"));
            let text = part.text.clone().ok_or_else(|| ApiError::field(field("text"), "thinking needs a text"))?;
            match part.kind.as_str() {
                "summary_text" => Ok(ThinkingPart::SummaryText { text }),
                "reasoning_text" | "text" => Ok(ThinkingPart::ReasoningText { text }),
                other => {
                    let reason = format!("it is {other:?} and must be summary_text or reasoning_text");
                    Err(ApiError::field(field("type"), reason))
                }
            }
        };
        parts.iter().enumerate().map(read).collect()
    }
}

/// The error of an item, which some clients send as an object.
fn error_text(item: &InputItem) -> Option<String> {
    match item.error.as_ref()? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn text_part(role: Role, text: String) -> ContentPart {
    match role {
        Role::Assistant => ContentPart::output_text(text, Vec::new()),
        Role::User | Role::System | Role::Developer => ContentPart::InputText { text },
    }
}
