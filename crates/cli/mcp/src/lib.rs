//! Poncho as a server of the Model Context Protocol: tools that show an agent why it is slow.
//!
//! Called by `poncho mcp`. A client of a running `poncho serve`: it loads no model and opens no cache folder. Over a pair
//! of streams it serves one client; `http.rs` serves many. It must never write to the streams of the process itself.
//! `remote.rs` is the other side: `poncho serve` calls MCP servers for a model.

mod error;
mod http;
mod remote;
mod tools;

use poncho_client::Client;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio::io::{AsyncRead, AsyncWrite};

pub use error::{RemoteError, ServeError};
pub use http::{PATH, listen, serve_http};
pub use remote::RemoteServer;

use crate::tools::Tools;

/// Serves one client until it closes its stream. A client that goes away before it says hello is not an error.
///
/// # Errors
/// If the client does not speak the protocol.
pub async fn serve_streams(
    client: Client,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<(), ServeError> {
    let running = match Tools::new(client).serve((input, output)).await {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(ServeError::Greeting { reason: error.to_string() }),
    };
    running.waiting().await.map_err(|error| ServeError::Broken { reason: error.to_string() })?;
    Ok(())
}
