//! Tools of MCP servers: which servers a request may use, what tools they have, and what the model sees of them.
//!
//! Called by `create` before the turn is made, and by `tools`. The model sees each tool as a function with a joined name, as
//! it does with groups. It must never contact an address that the operator has not listed, and never show a header.

pub(crate) mod approval;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use futures_util::future::join_all;
use serde_json::Value;
use serde_json::value::RawValue;

use self::approval::Approval;
use super::namespace::joined;
use super::types::ToolBody;
use crate::dialects::openai::convert::function_tool;
use crate::dialects::openai::types::FunctionDefinition;
use crate::error::ApiError;
use crate::http::body::Object;
use crate::responses::item::Item;
use crate::responses::tool_lists::ToolLists;
use crate::responses::tool_server::{RemoteTool, ToolServer};
use poncho_api::Tool;

/// The `type` of such a tool.
pub(crate) const MCP: &str = "mcp";

/// Servers in one request.
const MOST_SERVERS: usize = 8;
/// Characters of a label, as the API has it.
const LONGEST_LABEL: usize = 64;

/// A server that a request uses.
#[derive(Debug, Clone)]
pub(crate) struct McpServer {
    pub(crate) label: String,
    pub(crate) server: Arc<dyn ToolServer>,
    /// The client's own.
    pub(crate) headers: Vec<(String, String)>,
    allowed: ToolFilter,
    approval: Approval,
}

/// A choice among the tools of a server. The default is all of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolFilter {
    names: Option<Vec<String>>,
    only_reading: bool,
}

/// The tools of a server, as far as a request wants them.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) label: String,
    pub(crate) tools: Vec<RemoteTool>,
    /// Which calls the client wants to be asked about.
    pub(crate) approval: Approval,
    /// The item that reports the list; `None` if the conversation has it already.
    pub(crate) item: Option<Result<Vec<RemoteTool>, String>>,
}

impl Listed {
    /// A tool by the name that the model uses.
    pub(crate) fn called(&self, name: &str) -> Option<&RemoteTool> {
        self.tools.iter().find(|tool| joined(&self.label, &tool.name) == name)
    }

    /// The tools as functions.
    pub(crate) fn functions(&self, field: impl Fn(&str) -> String) -> Result<Vec<Tool>, ApiError> {
        let function = |tool: &RemoteTool| {
            let schema = serde_json::to_string(&tool.input_schema).unwrap_or_default();
            let parameters = RawValue::from_string(schema).ok();
            let (name, description) = (joined(&self.label, &tool.name), tool.description.clone());
            function_tool(&FunctionDefinition { name, description, parameters, strict: None }, &field)
        };
        self.tools.iter().map(function).collect()
    }
}

/// Whether a request uses MCP servers.
pub(crate) fn is_used(bodies: &[Object<ToolBody>]) -> bool {
    bodies.iter().any(|body| body.kind == MCP)
}

/// The servers that a request names, each of them listed by the operator.
pub(crate) fn servers(
    bodies: &[Object<ToolBody>],
    known: &BTreeMap<String, Arc<dyn ToolServer>>,
) -> Result<Vec<McpServer>, ApiError> {
    let mut servers: Vec<McpServer> = Vec::new();
    for (at, body) in bodies.iter().enumerate().filter(|(_, body)| body.kind == MCP) {
        let field = |name: &str| format!("tools[{at}].{name}");
        if known.is_empty() {
            let reason = "this server does not call MCP servers; let the client call them, define functions, or start \
                the server with --mcp-server LABEL=URL";
            return Err(ApiError::field(field("type"), reason));
        }
        let label = label(body, field)?;
        if servers.iter().any(|server| server.label == label) {
            return Err(ApiError::field(field("server_label"), format!("{label:?} is there twice; use another label")));
        }
        if servers.len() == MOST_SERVERS {
            return Err(ApiError::field("tools", format!("it has more than {MOST_SERVERS} MCP servers; use fewer")));
        }
        let server = Arc::clone(find(body, &label, known, field)?);
        let (headers, allowed) = (headers(body, field)?, allowed(body, field)?);
        let approval = Approval::read(body.require_approval.as_ref(), || field("require_approval"))?;
        servers.push(McpServer { label, server, headers, allowed, approval });
    }
    Ok(servers)
}

fn label(body: &ToolBody, field: impl Fn(&str) -> String) -> Result<String, ApiError> {
    let label = body.server_label.as_deref().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if (1..=LONGEST_LABEL).contains(&label.len()) && label.bytes().all(is_plain) {
        return Ok(label.to_owned());
    }
    let reason = format!("it must have 1 to {LONGEST_LABEL} letters, digits, - and _");
    Err(ApiError::field(field("server_label"), reason))
}

fn find<'k>(
    body: &ToolBody,
    label: &str,
    known: &'k BTreeMap<String, Arc<dyn ToolServer>>,
    field: impl Fn(&str) -> String,
) -> Result<&'k Arc<dyn ToolServer>, ApiError> {
    let listed = known.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    if body.connector_id.is_some() {
        let reason = format!("connectors are OpenAI's own; name an MCP server of this server: {listed}");
        return Err(ApiError::field(field("connector_id"), reason));
    }
    let (name, found) = match body.server_url.as_deref() {
        Some(url) => ("server_url", known.values().find(|server| is_same(server.url(), url))),
        // An operator's label is enough.
        None => ("server_label", known.get(label)),
    };
    found.ok_or_else(|| {
        let reason = format!(
            "only MCP servers that this server was started with can be called: {listed}; name one of them as \
             server_label without server_url, or add this one with --mcp-server LABEL=URL"
        );
        ApiError::field(field(name), reason)
    })
}

fn is_same(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

fn headers(body: &ToolBody, field: impl Fn(&str) -> String) -> Result<Vec<(String, String)>, ApiError> {
    let bearer = body.authorization.as_ref().map(|key| ("authorization".to_owned(), format!("Bearer {key}")));
    let own = body.headers.iter().flatten().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
    let headers: Vec<(String, String)> = own.chain(bearer).collect();
    for (name, value) in &headers {
        let is_transport = ["accept", "connection", "content-length", "content-type", "host", "transfer-encoding"]
            .contains(&name.as_str())
            || name.starts_with("mcp-")
            || name == "last-event-id";
        if is_transport || HeaderName::from_str(name).is_err() || HeaderValue::from_str(value).is_err() {
            let reason = format!("the header {name:?} cannot be sent; leave it out");
            return Err(ApiError::field(field("headers"), reason));
        }
    }
    Ok(headers)
}

fn allowed(body: &ToolBody, field: impl Fn(&str) -> String) -> Result<ToolFilter, ApiError> {
    match &body.allowed_tools {
        None | Some(Value::Null) => Ok(ToolFilter::default()),
        Some(filter) => ToolFilter::read(filter).ok_or_else(|| {
            ApiError::field(field("allowed_tools"), "it must be a list of names, or an object with tool_names")
        }),
    }
}

impl ToolFilter {
    /// A list of names, or an object with names and `read_only`; `None` if it is neither.
    pub(crate) fn read(filter: &Value) -> Option<Self> {
        let names = |list: &Value| {
            let list = list.as_array()?;
            list.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>()
        };
        let Value::Object(fields) = filter else {
            return Some(Self { names: Some(names(filter)?), only_reading: false });
        };
        let chosen = match fields.get("tool_names") {
            None | Some(Value::Null) => None,
            Some(list) => Some(names(list)?),
        };
        let only_reading = fields.get("read_only").and_then(Value::as_bool).unwrap_or(false);
        Some(Self { names: chosen, only_reading })
    }

    pub(crate) fn has(&self, tool: &RemoteTool) -> bool {
        let hints = tool.annotations.as_ref();
        let reads = || hints.and_then(|hints| hints.get("readOnlyHint")).and_then(Value::as_bool) == Some(true);
        self.names.as_ref().is_none_or(|names| names.contains(&tool.name)) && (!self.only_reading || reads())
    }

    fn of(&self, tools: &[RemoteTool]) -> Vec<RemoteTool> {
        tools.iter().filter(|tool| self.has(tool)).cloned().collect()
    }
}

/// The tools of the servers: from the conversation where it has them, so that the prompt stays what it was, else from the
/// servers themselves. A server that cannot be asked has no tools, and an item that says why.
pub(crate) async fn list(lists: &ToolLists, servers: &[McpServer], conversation: &[Arc<Item>]) -> Vec<Listed> {
    let one = |server: McpServer| async move {
        let McpServer { label, server, headers, allowed, approval } = server;
        if let Some(tools) = known(&label, conversation) {
            return Listed { tools: allowed.of(tools), label, approval, item: None };
        }
        match lists.get(&*server, &headers).await {
            Ok(tools) => {
                let tools = allowed.of(&tools);
                Listed { label, approval, item: Some(Ok(tools.clone())), tools }
            }
            Err(error) => {
                tracing::warn!(label, %error, "cannot list the tools of an MCP server");
                Listed { label, tools: Vec::new(), approval, item: Some(Err(error.to_string())) }
            }
        }
    };
    join_all(servers.iter().cloned().map(one)).await
}

/// The same for a request that is only looked at: from the conversation alone.
pub(crate) fn list_of(bodies: &[Object<ToolBody>], conversation: &[Arc<Item>]) -> Result<Vec<Listed>, ApiError> {
    let one = |(at, body): (usize, &Object<ToolBody>)| {
        let field = |name: &str| format!("tools[{at}].{name}");
        let (label, allowed) = (label(body, field)?, allowed(body, field)?);
        let tools = known(&label, conversation).ok_or_else(|| {
            let reason = "the tools of the MCP server are not known here; send the mcp_list_tools item of a response \
                as input, or name the response as previous_response_id";
            ApiError::field(field("server_label"), reason)
        })?;
        Ok(Listed { tools: allowed.of(tools), label, approval: Approval::default(), item: None })
    };
    bodies.iter().enumerate().filter(|(_, body)| body.kind == MCP).map(one).collect()
}

fn known<'c>(label: &str, conversation: &'c [Arc<Item>]) -> Option<&'c [RemoteTool]> {
    conversation.iter().rev().find_map(|item| match &**item {
        Item::McpListTools { server_label, tools, error: None, .. } if server_label == label => Some(tools.as_slice()),
        _ => None,
    })
}
