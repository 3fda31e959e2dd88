//! Items and events of tool servers: lists of tools, and calls that this server makes itself.
//!
//! Used by `rounds`. A call's item stays unfinished when its arguments are written; it ends when the call returned.

use serde_json::{Value, json};

use super::Composer;
use crate::dialects::responses::mcp::Listed;
use crate::dialects::responses::mcp::approval::ApprovedCall;
use crate::http::sse::Frame;
use crate::request_id::random_id;
use crate::responses::item::{CallBatch, Item, Status, approved_id};

/// A call that waits to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitingCall {
    /// Where its item stands.
    pub(crate) index: usize,
    pub(crate) label: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl Composer {
    /// With tools that this server calls.
    pub(crate) fn with_tool_servers(self, listed: Vec<Listed>) -> Self {
        let batch = (!listed.is_empty()).then(CallBatch::new);
        Self { listed, batch, ..self }
    }

    /// The items of lists that were made for this response.
    pub(crate) fn lists(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        for at in 0..self.listed.len() {
            let Some(listed) = self.listed.get_mut(at) else { continue };
            let Some(told) = listed.item.take() else { continue };
            let (id, server_label) = (random_id("mcpl_"), listed.label.clone());
            let index = self.items.len();
            let about = json!({"item_id": id, "output_index": index});
            let begun = Item::McpListTools { id, server_label, tools: Vec::new(), error: None };
            frames.push(self.event("response.output_item.added", json!({"output_index": index, "item": begun})));
            frames.push(self.event("response.mcp_list_tools.in_progress", about.clone()));
            let (name, item) = match (told, begun) {
                (Ok(tools), Item::McpListTools { id, server_label, .. }) => {
                    let item = Item::McpListTools { id, server_label, tools, error: None };
                    ("response.mcp_list_tools.completed", item)
                }
                (Err(error), Item::McpListTools { id, server_label, tools, .. }) => {
                    let item = Item::McpListTools { id, server_label, tools, error: Some(error) };
                    ("response.mcp_list_tools.failed", item)
                }
                (_, other) => ("response.mcp_list_tools.failed", other),
            };
            frames.push(self.event(name, about));
            frames.push(self.event("response.output_item.done", json!({"output_index": index, "item": item})));
            self.items.push(item);
        }
        self.round_start = self.items.len();
        frames
    }

    /// From now on the next reply of the model.
    pub(crate) fn next_round(&mut self) {
        self.round_start = self.items.len();
        self.batch = self.batch.is_some().then(CallBatch::new);
        self.calls.clear();
        self.drawn.clear();
    }

    /// The items so far.
    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Whether it is the client's turn after the last reply: it calls functions of the client, or asks for approval.
    pub(crate) fn awaits_client(&self) -> bool {
        let last = self.items.get(self.round_start..).unwrap_or_default();
        let awaits = |item: &Item| {
            matches!(item, Item::FunctionCall { .. } | Item::CustomToolCall { .. } | Item::McpApprovalRequest { .. })
        };
        last.iter().any(awaits)
    }

    /// Whether the request offers a tool to the model.
    pub(crate) fn offers(&self, label: &str, name: &str) -> bool {
        self.listed.iter().any(|listed| listed.label == label && listed.tools.iter().any(|tool| tool.name == name))
    }

    /// Begins a call that the client approved. It is a waiting call from then on.
    pub(crate) fn begin_approved(&mut self, approved: &ApprovedCall) -> Vec<Frame> {
        let ApprovedCall { request_id, label, name, arguments } = approved.clone();
        let id = approved_id(&request_id);
        let index = self.items.len();
        self.items.push(Item::McpCall {
            id: id.clone(),
            server_label: label,
            name,
            arguments: arguments.clone(),
            output: None,
            error: None,
            approval_request_id: Some(request_id),
            status: Status::InProgress,
        });
        let added = json!({"output_index": index, "item": self.items.last()});
        let about = self.about_call(index);
        let done = json!({"item_id": id, "output_index": index, "arguments": arguments});
        vec![
            self.event("response.output_item.added", added),
            self.event("response.mcp_call.in_progress", about),
            self.event("response.mcp_call_arguments.done", done),
        ]
    }

    /// The calls of the last reply that this server makes.
    pub(crate) fn waiting_calls(&self) -> Vec<WaitingCall> {
        let waiting = |(index, item): (usize, &Item)| match item {
            Item::McpCall { server_label, name, arguments, status: Status::InProgress, .. } => Some(WaitingCall {
                index,
                label: server_label.clone(),
                name: name.clone(),
                arguments: arguments.clone(),
            }),
            _ => None,
        };
        self.items.iter().enumerate().filter_map(waiting).collect()
    }

    /// The item of a call that the model begins, if this server makes it.
    pub(super) fn begun_here(&self, call_id: &str, called: &str) -> Option<Item> {
        let (listed, tool) = self.listed.iter().find_map(|listed| Some((listed, listed.called(called)?)))?;
        let id = |prefix: &str| {
            self.batch.as_ref().map_or_else(|| random_id(prefix), |batch| batch.item_id(prefix, call_id))
        };
        let (server_label, name, arguments) = (listed.label.clone(), tool.name.clone(), String::new());
        if listed.approval.is_needed(tool) {
            return Some(Item::McpApprovalRequest { id: id("mcpr_"), server_label, name, arguments });
        }
        Some(Item::McpCall {
            id: id("mcp_"),
            server_label,
            name,
            arguments,
            output: None,
            error: None,
            approval_request_id: None,
            status: Status::InProgress,
        })
    }

    /// The result of a call, or why there is none.
    pub(crate) fn called(&mut self, index: usize, result: Result<String, String>) -> Vec<Frame> {
        let name = match self.items.get_mut(index) {
            Some(Item::McpCall { output, error, status, .. }) => match result {
                Ok(text) => {
                    (*output, *status) = (Some(text), Status::Completed);
                    "response.mcp_call.completed"
                }
                Err(reason) => {
                    (*error, *status) = (Some(reason), Status::Failed);
                    "response.mcp_call.failed"
                }
            },
            _ => return Vec::new(),
        };
        let about = self.about_call(index);
        vec![self.event(name, about), self.item_done(index)]
    }

    /// Ends the calls of a reply that was cut: nobody makes them.
    pub(crate) fn abandon_calls(&mut self) -> Vec<Frame> {
        let waiting: Vec<usize> = self.waiting_calls().into_iter().map(|call| call.index).collect();
        let end = |index: usize| {
            if let Some(Item::McpCall { status, .. }) = self.items.get_mut(index) {
                *status = Status::Incomplete;
            }
            self.item_done(index)
        };
        waiting.into_iter().map(end).collect()
    }

    pub(super) fn about_call(&self, index: usize) -> Value {
        json!({"item_id": self.items.get(index).map(Item::id), "output_index": index})
    }

    fn item_done(&mut self, index: usize) -> Frame {
        let fields = json!({"output_index": index, "item": self.items.get(index)});
        self.event("response.output_item.done", fields)
    }
}
