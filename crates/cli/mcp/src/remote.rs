//! MCP servers that Poncho's server calls for a model: the client of the protocol, over streamable HTTP.
//!
//! Made by `poncho serve --mcp-server`, used through the traits of the server. It follows no redirects and contacts its own
//! address only; its errors never hold a header.

mod bounded;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};
use futures_util::future::{BoxFuture, FutureExt as _};
use poncho_server::{RemoteResult, RemoteTool, ToolServer, ToolServerError, ToolSession};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ContentBlock, Implementation,
    PaginatedRequestParams, ResourceContents,
};
use rmcp::service::{RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::NeverRetry;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{RoleClient, ServiceExt};
use serde_json::{Map, Value};

use self::bounded::{Bounded, MOST_BYTES};
use crate::error::RemoteError;

/// How long a connection may take.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Pages of a list of tools; a server that always has one more must end.
const MOST_PAGES: usize = 32;

/// See the module.
#[derive(Clone)]
pub struct RemoteServer {
    url: String,
    /// The operator's own.
    headers: HashMap<HeaderName, HeaderValue>,
    http: reqwest::Client,
}

impl fmt::Debug for RemoteServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RemoteServer").field("url", &self.url).finish_non_exhaustive()
    }
}

impl RemoteServer {
    /// A server at an address, with headers that all requests to it have.
    ///
    /// # Errors
    /// The address or a header cannot be used, or TLS cannot be set up.
    pub fn new(url: &str, headers: &[(String, String)]) -> Result<Self, RemoteError> {
        let address: Option<Uri> = url.parse().ok();
        let is_usable = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        if !address.as_ref().is_some_and(is_usable) {
            return Err(RemoteError::Address { url: url.to_owned() });
        }
        // A provider that is installed already is the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).connect_timeout(CONNECT_TIME);
        let http = http.build().map_err(|error| RemoteError::Client { reason: error.to_string() })?;
        Ok(Self { url: url.to_owned(), headers: read_headers(headers)?, http })
    }
}

fn read_headers(headers: &[(String, String)]) -> Result<HashMap<HeaderName, HeaderValue>, RemoteError> {
    let read = |(name, value): &(String, String)| {
        let wrong = || RemoteError::Header { name: name.clone() };
        let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        Ok((HeaderName::from_str(name).map_err(|_| wrong())?, value))
    };
    headers.iter().map(read).collect()
}

impl ToolServer for RemoteServer {
    fn url(&self) -> &str {
        &self.url
    }

    fn connect<'s>(
        &'s self,
        headers: &'s [(String, String)],
    ) -> BoxFuture<'s, Result<Box<dyn ToolSession>, ToolServerError>> {
        async move {
            let mut all = read_headers(headers).map_err(|error| unusable(&error))?;
            all.extend(self.headers.clone());
            let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str())
                .custom_headers(all)
                .max_sse_event_size(MOST_BYTES);
            // The deadline of the call decides, and the next call opens a session again.
            config.retry_config = std::sync::Arc::new(NeverRetry::default());
            let transport = StreamableHttpClientTransport::with_client(Bounded::new(self.http.clone()), config);
            let poncho = Implementation::new("poncho", env!("CARGO_PKG_VERSION"));
            let client = ClientConfig::new(ClientCapabilities::default(), poncho);
            let session = client.serve(transport).await.map_err(|error| unusable(&error))?;
            Ok(Box::new(Session(session)) as Box<dyn ToolSession>)
        }
        .boxed()
    }
}

struct Session(RunningService<RoleClient, ClientConfig>);

impl ToolSession for Session {
    fn list(&self) -> BoxFuture<'_, Result<Vec<RemoteTool>, ToolServerError>> {
        async move {
            let (mut tools, mut cursor) = (Vec::new(), None);
            for _ in 0..MOST_PAGES {
                let page = PaginatedRequestParams::default().with_cursor(cursor);
                let page = self.0.list_tools(Some(page)).await.map_err(|error| told(&error))?;
                tools.extend(page.tools.iter().map(tool));
                cursor = page.next_cursor;
                if cursor.is_none() {
                    return Ok(tools);
                }
            }
            let reason = format!("its list of tools has more than {MOST_PAGES} pages");
            Err(ToolServerError::Unusable { reason })
        }
        .boxed()
    }

    fn call<'s>(
        &'s self,
        name: &'s str,
        arguments: Map<String, Value>,
    ) -> BoxFuture<'s, Result<RemoteResult, ToolServerError>> {
        async move {
            let call = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
            let result = self.0.call_tool(call).await.map_err(|error| told(&error))?;
            Ok(RemoteResult { text: text(&result), is_error: result.is_error == Some(true) })
        }
        .boxed()
    }
}

fn tool(tool: &rmcp::model::Tool) -> RemoteTool {
    RemoteTool {
        name: tool.name.to_string(),
        description: tool.description.as_ref().map(ToString::to_string),
        input_schema: (*tool.input_schema).clone(),
        annotations: tool.annotations.as_ref().and_then(|hints| serde_json::to_value(hints).ok()),
    }
}

/// What a model can read of a result.
fn text(result: &CallToolResult) -> String {
    let block = |block: &ContentBlock| match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image of the type {}, which cannot be shown]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[a sound of the type {}, which cannot be played]", audio.mime_type),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, .. } => format!("[the file {uri}, which is not text]"),
            _ => "[a resource of an unknown kind]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[{}]", link.uri),
        _ => "[content of an unknown kind]".to_owned(),
    };
    let blocks: Vec<String> = result.content.iter().map(block).collect();
    match &result.structured_content {
        // Most servers send the same as text.
        Some(value) if blocks.is_empty() => value.to_string(),
        _ => blocks.join("\n"),
    }
}

fn told(error: &ServiceError) -> ToolServerError {
    match error {
        ServiceError::McpError(error) => ToolServerError::Refused { reason: error.message.to_string() },
        other if is_too_large(other) => ToolServerError::TooLarge { limit: MOST_BYTES },
        other => unusable(other),
    }
}

fn is_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    chain(error).any(|error| error.to_string().contains(bounded::TOO_LARGE))
}

/// The last reason says most.
fn unusable(error: &(dyn std::error::Error + 'static)) -> ToolServerError {
    let reasons: Vec<String> = chain(error).map(ToString::to_string).collect();
    ToolServerError::Unusable { reason: reasons.last().cloned().unwrap_or_default() }
}

fn chain<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}
