//! The tools: their list, and the way of a call from its arguments to its result.
//!
//! Used by both transports. Each tool has a file with its arguments and its result, which also give the schemas that clients
//! see. A call that fails is a result with an error text, because models do not see errors of the protocol.

mod ask;
mod cache;
mod explain;
mod models;
mod reading;
mod requests;
mod schema;

use poncho_client::Client;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::ToolError;

/// For a model: when to use the tools.
const INSTRUCTIONS: &str = "Poncho serves local models and caches what it has read of prompts. If replies start slowly, \
    call `requests` to see how much of the last prompts was cached, then `explain` with the id of one of them: it names \
    the first difference to the cached prompt and what to change.";

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    client: Client,
}

impl Tools {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("poncho", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = vec![explain::tool(), requests::tool(), cache::tool(), models::tool(), ask::tool()];
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let client = &self.client;
        let arguments = call.arguments.unwrap_or_default();
        let result = match call.name.as_ref() {
            explain::NAME => answer(arguments, async |read| explain::call(client, read).await).await,
            requests::NAME => answer(arguments, async |read| requests::call(client, read).await).await,
            cache::NAME => answer(arguments, async |read| cache::call(client, read).await).await,
            models::NAME => answer(arguments, async |read| models::call(client, read).await).await,
            ask::NAME => answer(arguments, async |read| ask::call(client, read, &context).await).await,
            other => {
                let reason = format!("unknown tool {other:?}; the tools are explain, requests, cache, models, ask");
                return Err(ErrorData::invalid_params(reason, None));
            }
        };
        Ok(result.unwrap_or_else(|error| CallToolResult::error(vec![ContentBlock::text(error.to_string())])).into())
    }
}

async fn answer<Arguments: DeserializeOwned, Output: Serialize>(
    arguments: JsonObject,
    call: impl AsyncFnOnce(Arguments) -> Result<Output, ToolError>,
) -> Result<CallToolResult, ToolError> {
    let read = serde_path_to_error::deserialize(Value::Object(arguments));
    let read = read.map_err(|error| ToolError::Arguments { reason: error.to_string() })?;
    let output = serde_json::to_value(call(read).await?);
    output.map(CallToolResult::structured).map_err(|error| ToolError::Refused(error.into()))
}
