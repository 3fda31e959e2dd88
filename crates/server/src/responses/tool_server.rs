//! Tool servers: programs with tools that this server calls for a model, over the Model Context Protocol (MCP).
//!
//! The operator lists them in [`ServerConfig::tool_servers`](crate::ServerConfig::tool_servers); the crate that speaks the
//! protocol implements the traits, and tests do. An implementation must never contact an address other than its own, and
//! its errors must never hold a header.

use std::fmt;

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A server with tools.
pub trait ToolServer: Send + Sync + fmt::Debug {
    /// The address that clients name.
    fn url(&self) -> &str;

    /// Opens a session. The headers are a client's own; they must not replace those of the operator.
    fn connect<'s>(
        &'s self,
        headers: &'s [(String, String)],
    ) -> BoxFuture<'s, Result<Box<dyn ToolSession>, ToolServerError>>;
}

/// A session with a tool server. It ends when it is dropped.
pub trait ToolSession: Send + Sync {
    /// All tools.
    fn list(&self) -> BoxFuture<'_, Result<Vec<RemoteTool>, ToolServerError>>;

    /// Calls a tool. Dropping the future cancels the call.
    fn call<'s>(
        &'s self,
        name: &'s str,
        arguments: Map<String, Value>,
    ) -> BoxFuture<'s, Result<RemoteResult, ToolServerError>>;
}

/// A tool of a server, as `mcp_list_tools` items have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteTool {
    /// Its name at the server.
    pub name: String,
    /// For the model.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub input_schema: Map<String, Value>,
    /// Hints of the server, such as `readOnlyHint`.
    #[serde(default)]
    #[schemars(with = "Option<Map<String, Value>>")]
    pub annotations: Option<Value>,
}

/// What a tool returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteResult {
    /// For the model.
    pub text: String,
    /// Whether the tool reports a failure.
    pub is_error: bool,
}

/// Why a tool server gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolServerError {
    /// No connection, or not the protocol.
    #[error("the MCP server cannot be used: {reason}; check that it runs, and that its address is an MCP endpoint")]
    Unusable {
        /// What failed.
        reason: String,
    },
    /// The server refused a request.
    #[error("the MCP server refused the request: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// The answer is larger than the model should read.
    #[error("the result of the MCP server is larger than {limit} bytes; ask for less at once")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// No answer in time.
    #[error("the MCP server did not answer within {seconds} s; try again, or raise --mcp-timeout")]
    Late {
        /// The limit.
        seconds: u64,
    },
}
