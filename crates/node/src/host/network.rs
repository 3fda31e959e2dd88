//! Serves a node to servers on other machines, over TCP with certificates of both ends.
//!
//! Run by `poncho node`. Without certificates it serves this machine only. It must never let a caller end the process.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use poncho_api::Node;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::{MOST_STREAMS, NodeService, Served, Tickets};
use crate::link::SIGN_OF_LIFE;
use crate::tls::Credentials;

/// Why a node is not served on the network.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Other machines can reach the address, and no certificates are set.
    #[error(
        "other machines can reach {address}, which requires certificates; set --node-cert, --node-key and --node-ca \
         (`poncho node cert` makes them), or listen on 127.0.0.1"
    )]
    NeedsTls {
        /// Where it would listen.
        address: SocketAddr,
    },
    /// The certificates cannot be used.
    #[error("the certificates cannot be used: {reason}; make them with `poncho node cert`")]
    Certificates {
        /// What TLS said.
        reason: String,
    },
    /// The port cannot be served.
    #[error("cannot serve the port: {0}")]
    Port(#[from] io::Error),
}

/// Serves a node until `stop` is ready. Then it takes no more calls, and replies may finish for `grace`. Those that are
/// cut off continue on another node, or on this one when it is back.
///
/// # Errors
/// The port cannot be served, or certificates are missing or wrong.
pub async fn serve_network(
    listener: TcpListener,
    credentials: Option<&Credentials>,
    node: Arc<dyn Node>,
    stop: impl Future<Output = ()> + Send,
    grace: Duration,
) -> Result<(), HostError> {
    let address = listener.local_addr()?;
    let mut server = Server::builder()
        .max_concurrent_streams(Some(MOST_STREAMS))
        .http2_keepalive_interval(Some(SIGN_OF_LIFE.0))
        .http2_keepalive_timeout(Some(SIGN_OF_LIFE.1));
    match credentials {
        Some(credentials) => {
            let wrong = |error: tonic::transport::Error| HostError::Certificates {
                reason: std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string),
            };
            server = server.tls_config(credentials.server()).map_err(wrong)?;
        }
        None if !address.ip().is_loopback() => return Err(HostError::NeedsTls { address }),
        None => {}
    }
    let (end, ending) = watch::channel(false);
    let mut is_ending = ending.clone();
    let service = NodeService(Arc::new(Served { node, stop: None, ending, tickets: Tickets::default() }));
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let told = async move {
        let _ = is_ending.wait_for(|is_ending| *is_ending).await;
    };
    let served = server.add_service(service).serve_with_incoming_shutdown(incoming, told);
    tokio::pin!(served);
    tokio::select! {
        ended = &mut served => return ended.map_err(|error| HostError::Port(io::Error::other(error))),
        () = stop => {}
    }
    end.send_replace(true);
    // What is not done by then is cut off.
    let _ = tokio::time::timeout(grace, served).await;
    Ok(())
}
