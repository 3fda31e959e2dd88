//! Streamable HTTP: the same tools for many clients, on the loopback.
//!
//! Called by `poncho mcp --listen`. Requests carry everything, so no session is kept. A page in a browser is refused by its
//! origin and a name that was made to point here by its host. If this server has a key for Poncho, its clients must send
//! the same one: it must never lend a key to a program that does not have it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use poncho_client::Client;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;

use crate::error::ServeError;
use crate::tools::Tools;

/// Where the endpoint is.
pub const PATH: &str = "/mcp";

/// The largest request: an agent may ask about the messages of a long conversation.
const MOST_BYTES: usize = 32 << 20;

/// Takes a port of the loopback.
///
/// # Errors
/// If the address is not of the loopback, or in use.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    if !address.ip().to_canonical().is_loopback() {
        return Err(ServeError::NotLoopback { address });
    }
    TcpListener::bind(address).await.map_err(|source| ServeError::Address { address, source })
}

/// Serves clients until `shutdown`; calls that run then end with it.
///
/// # Errors
/// If the listener fails.
pub async fn serve_http(
    listener: TcpListener,
    client: Client,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MOST_BYTES)
        .enforce_origin_validation();
    let ending = config.cancellation_token.clone();
    let key: Option<Arc<str>> = client.key().map(Arc::from);
    let tools = move || Ok(Tools::new(client.clone()));
    let service = StreamableHttpService::new(tools, Arc::new(NeverSessionManager::default()), config);
    let routes = Router::new().route_service(PATH, service).layer(from_fn_with_state(key, check_key));
    let shutdown = async move {
        shutdown.await;
        ending.cancel();
    };
    Ok(axum::serve(listener, routes).with_graceful_shutdown(shutdown).await?)
}

async fn check_key(State(key): State<Option<Arc<str>>>, request: Request, next: Next) -> Response {
    let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let sent = sent.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    if key.is_none_or(|key| bool::from(key.as_bytes().ct_eq(sent.as_bytes()))) {
        return next.run(request).await;
    }
    let advice = "the server behind this one has a key; send the same one as `Authorization: Bearer KEY`\n";
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], advice).into_response()
}
