//! A real MCP server with tools that succeed, fail, hang and talk too much, and requests that use it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::{Next, from_fn};
use poncho_mcp::RemoteServer;
use poncho_server::{ServerConfig, ToolServer};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::support::Poncho;

/// The tools. A session counts its calls of `count`.
#[derive(Default)]
struct Tools {
    counted: AtomicUsize,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        rmcp::model::ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema =
            |fields: &Value| Arc::new(json!({"type": "object", "properties": fields}).as_object().unwrap().clone());
        let numbers = schema(&json!({"a": {"type": "integer"}, "b": {"type": "integer"}}));
        let none = schema(&json!({}));
        let tools = vec![
            Tool::new("add", "Adds.", numbers),
            Tool::new("count", "Counts.", none.clone()),
            Tool::new("fail", "Fails.", none.clone()),
            Tool::new("hang", "Hangs.", none.clone()),
            Tool::new("talk", "Talks.", none),
        ];
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let number = |name: &str| call.arguments.as_ref().and_then(|all| all.get(name)).and_then(Value::as_i64);
        let text = |text: String| CallToolResult::success(vec![ContentBlock::text(text)]);
        Ok(match call.name.as_ref() {
            "add" => text((number("a").unwrap_or(0) + number("b").unwrap_or(0)).to_string()),
            "count" => text(format!("{}", self.counted.fetch_add(1, Ordering::SeqCst) + 1)),
            "fail" => CallToolResult::error(vec![ContentBlock::text("no disk")]),
            "hang" => std::future::pending().await,
            "talk" => text("x".repeat(300 << 10)),
            other => return Err(ErrorData::invalid_params(format!("there is no tool {other}"), None)),
        }
        .into())
    }
}

/// A running MCP server.
pub(crate) struct Remote {
    pub(crate) url: String,
    /// Messages that came.
    pub(crate) requests: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// The header that the operator sets, and what it must be.
const KEY: (&str, &str) = ("x-operator", "secret");

impl Remote {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let sessions = Arc::new(LocalSessionManager::default());
        let service =
            StreamableHttpService::new(|| Ok(Tools::default()), sessions, StreamableHttpServerConfig::default());
        let requests = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&requests);
        let check = move |request: Request, next: Next| {
            // The end of a session comes later, with another method.
            if request.method() == Method::POST {
                seen.fetch_add(1, Ordering::SeqCst);
            }
            let sent: Vec<_> =
                request.headers().get_all(KEY.0).iter().map(|value| value.to_str().unwrap().to_owned()).collect();
            assert_eq!(sent, [KEY.1], "the operator's header comes once, whatever a client sends");
            next.run(request)
        };
        let routes = Router::new().route_service("/mcp", service).layer(from_fn(check));
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, requests, task }
    }

    /// Ends it, with all connections.
    pub(crate) async fn stop(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// The settings of a server that may use it as `docs`.
    pub(crate) fn config(&self) -> ServerConfig {
        listing(&self.url)
    }
}

/// The settings of a server that may use the MCP server at an address as `docs`.
pub(crate) fn listing(url: &str) -> ServerConfig {
    let headers = [(KEY.0.to_owned(), KEY.1.to_owned())];
    let server: Arc<dyn ToolServer> = Arc::new(RemoteServer::new(url, &headers).unwrap());
    let tool_servers = BTreeMap::from([("docs".to_owned(), server)]);
    ServerConfig { tool_servers, tool_timeout: Duration::from_secs(30), ..ServerConfig::default() }
}

/// The tools as the model sees them.
pub(crate) fn described(names: &[&str]) -> String {
    let none = r#"{"properties":{},"type":"object"}"#;
    let numbers = r#"{"properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"type":"object"}"#;
    let tool = |name: &&str| {
        let (first, rest) = name.split_at(1);
        let description = format!("{}{rest}s.", first.to_uppercase());
        let schema = if *name == "add" { numbers } else { none };
        format!(
            r#"{{"type":"function","function":{{"name":"docs__{name}","description":"{description}","parameters":{schema}}}}}"#
        )
    };
    format!("[{}]", names.iter().map(tool).collect::<Vec<_>>().join(","))
}

/// A prompt before the first reply.
pub(crate) fn opening(tools: &str, asked: &str) -> String {
    let system =
        if tools.is_empty() { String::new() } else { format!("<|im_start|>system\nTools:\n{tools}<|im_end|>\n") };
    format!("<s>{system}<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n")
}

/// A call as the model writes it.
pub(crate) fn call(name: &str, arguments: &str) -> String {
    format!(r#"<tool_call>{{"name":"{name}","arguments":{arguments}}}</tool_call>"#)
}

/// The prompt after a reply and results of its calls.
pub(crate) fn after(prompt: &str, reply: &str, results: &[&str]) -> String {
    let results: String = results.iter().map(|text| format!("<|im_start|>tool\n{text}<|im_end|>\n")).collect();
    format!("{prompt}{reply}<|im_end|>\n{results}<|im_start|>assistant\n")
}

/// What a model replies.
pub(crate) fn says(prompt: &str, reply: &str) -> (String, String) {
    (prompt.to_owned(), format!("{reply}<|im_end|>"))
}

impl Poncho {
    /// Posts to `/v1/responses`; status and text.
    pub(crate) async fn respond(&self, body: &Value) -> (u16, String) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let request = reqwest::Client::new().post(format!("{}/v1/responses", self.url));
        let answer = request.header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// The response object.
    pub(crate) async fn response(&self, body: &Value) -> Value {
        let (status, text) = self.respond(body).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// The events of a stream.
    pub(crate) async fn events(&self, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let (status, text) = self.respond(&body).await;
        assert_eq!(status, 200, "{text}");
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

/// A request that may use some tools of the MCP server.
pub(crate) fn asking(url: &str, tools: &[&str], input: &Value) -> Value {
    json!({"model": "stub", "temperature": 0, "input": input, "tools": [{"type": "mcp", "server_label": "docs",
        "server_url": url, "require_approval": "never", "allowed_tools": tools}]})
}

/// The types of a response's items.
pub(crate) fn kinds(response: &Value) -> Vec<&str> {
    response["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect()
}
