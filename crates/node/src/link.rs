//! One connection to a node: typed calls, and what went wrong with them.
//!
//! Used by `remote.rs`. A link is made for one process on the other end and is never mended: when that process is gone,
//! every call on it ends with `LinkError::Lost`. Over TCP, both ends ask each other for a sign of life, so that a machine
//! that is gone without a word is noticed.

mod address;

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use poncho_api::EngineError;
use tokio::net::{TcpStream, UnixStream};
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tower::service_fn;

pub use self::address::NodeAddress;
use crate::codec::{LARGEST, Packed};
use crate::methods::{Method, VERSION, VERSION_HEADER};
use crate::tls::Credentials;

/// How often the other machine is asked for a sign of life, and how long it may take to give one.
pub(crate) const SIGN_OF_LIFE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));
/// The same for a child: it answers also while its model computes, unless all of it hangs.
const SIGN_OF_A_CHILD: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// A machine that does not answer is not there.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A process that was just started takes a moment to open its socket.
const SOCKET_PAUSE: Duration = Duration::from_millis(10);

/// Why a call over a link failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum LinkError {
    /// The process on the other end is gone.
    #[error("the connection to the node was lost: {0}")]
    Lost(String),
    /// One end refuses the certificate of the other.
    #[error("{0}")]
    Untrusted(String),
    /// The other end is of another version.
    #[error("{0}")]
    Version(String),
    /// The other end refuses the call.
    #[error("the node refused the call: {0}")]
    Refused(String),
}

impl From<Status> for LinkError {
    fn from(status: Status) -> Self {
        if let Some(untrusted) = status.source().and_then(untrusted) {
            return untrusted;
        }
        let message = status.message().to_owned();
        match status.code() {
            Code::FailedPrecondition => Self::Version(message),
            Code::InvalidArgument
            | Code::Unimplemented
            | Code::NotFound
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::ResourceExhausted => Self::Refused(message),
            // Codes of tonic and of HTTP/2 for a connection that ended: unavailable, unknown, internal, cancelled.
            _ => Self::Lost(message),
        }
    }
}

impl From<LinkError> for EngineError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Lost(reason) | LinkError::Untrusted(reason) => Self::NodeLost { reason },
            LinkError::Version(reason) | LinkError::Refused(reason) => {
                Self::Backend { call: "the node".to_owned(), reason }
            }
        }
    }
}

/// Why a node cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answers there. It may be on its way.
    #[error("the node {address} does not answer: {reason}")]
    Unreachable {
        /// The node.
        address: NodeAddress,
        /// What the system said.
        reason: String,
    },
    /// One of the two certificates is refused.
    #[error(
        "the node {address} and this machine do not trust each other: {reason}; both need certificates of one authority (`poncho node cert`)"
    )]
    Untrusted {
        /// The node.
        address: NodeAddress,
        /// What TLS said.
        reason: String,
    },
    /// The node is of another release.
    #[error("the node {address} cannot be used: {reason}")]
    Version {
        /// The node.
        address: NodeAddress,
        /// Both versions.
        reason: String,
    },
    /// A node on another machine without certificates.
    #[error(
        "the node {address} is on another machine, which requires certificates; set --node-cert, --node-key and --node-ca (`poncho node cert` makes them)"
    )]
    NeedsTls {
        /// The node.
        address: NodeAddress,
    },
}

impl ConnectError {
    /// The error of a link to this node.
    pub(crate) fn new(address: &NodeAddress, error: LinkError) -> Self {
        let address = address.clone();
        match error {
            LinkError::Lost(reason) => Self::Unreachable { address, reason },
            LinkError::Untrusted(reason) => Self::Untrusted { address, reason },
            LinkError::Version(reason) | LinkError::Refused(reason) => Self::Version { address, reason },
        }
    }

    /// Whether the node may answer later although nothing is changed.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

/// Where a node listens.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// A child of this process.
    Socket(PathBuf),
    /// A machine; the same one needs no certificates.
    Network(NodeAddress, Option<Arc<Credentials>>),
}

/// See the module. A clone is the same connection.
#[derive(Debug, Clone)]
pub(crate) struct Link(Channel);

impl Link {
    /// Connects to a socket; tries again until `within` is over.
    pub(crate) async fn connect(place: &Place, within: Duration) -> Result<Self, LinkError> {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let connected = match place {
                Place::Socket(socket) => Self::to_socket(socket.clone()).await,
                Place::Network(address, credentials) => Self::to_network(address, credentials.as_deref()).await,
            };
            match connected {
                Ok(link) => return Ok(link),
                Err(LinkError::Lost(_)) if tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(SOCKET_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn to_socket(socket: PathBuf) -> Result<Self, LinkError> {
        let connector = service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The address is never looked up: the connector knows the socket.
        let endpoint = Endpoint::from_static("http://node.invalid")
            .http2_keep_alive_interval(SIGN_OF_A_CHILD.0)
            .keep_alive_timeout(SIGN_OF_A_CHILD.1)
            .keep_alive_while_idle(true);
        let endpoint = with_windows(endpoint);
        let channel = endpoint.connect_with_connector(connector).await;
        channel.map(Self).map_err(|error| of_transport(&error))
    }

    async fn to_network(address: &NodeAddress, credentials: Option<&Credentials>) -> Result<Self, LinkError> {
        let scheme = if credentials.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| LinkError::Refused(error.to_string()))?
            .connect_timeout(CONNECT_WITHIN)
            .http2_keep_alive_interval(SIGN_OF_LIFE.0)
            .keep_alive_timeout(SIGN_OF_LIFE.1)
            .keep_alive_while_idle(true);
        if let Some(credentials) = credentials {
            let tls = endpoint.tls_config(credentials.client(address.host()));
            endpoint = tls.map_err(|error| LinkError::Untrusted(innermost(&error)))?;
        }
        // A channel would connect again by itself, to whatever listens there then.
        let is_connected = Arc::new(AtomicBool::new(false));
        let address = address.clone();
        let connector = service_fn(move |_| {
            let (address, is_connected) = (address.clone(), Arc::clone(&is_connected));
            async move {
                if is_connected.swap(true, Ordering::Relaxed) {
                    return Err(io::Error::from(io::ErrorKind::NotConnected));
                }
                let stream = TcpStream::connect((address.host(), address.port())).await?;
                stream.set_nodelay(true)?;
                Ok(TokioIo::new(stream))
            }
        });
        let channel = with_windows(endpoint).connect_with_connector(connector).await;
        channel.map(Self).map_err(|error| of_transport(&error))
    }

    /// One answer.
    pub(crate) async fn call<M: Method>(&self, ask: M::Ask) -> Result<M::Answer, LinkError> {
        let mut grpc = self.grpc();
        ready(&mut grpc).await?;
        let codec = Packed::<M::Ask, M::Answer>::default();
        let answer = grpc.unary(request(ask), PathAndQuery::from_static(M::PATH), codec).await?;
        Ok(answer.into_inner())
    }

    /// Many answers. Dropping the stream gives the call up.
    pub(crate) async fn stream<M: Method>(
        &self,
        ask: M::Ask,
    ) -> Result<BoxStream<'static, Result<M::Answer, LinkError>>, LinkError> {
        let mut grpc = self.grpc();
        ready(&mut grpc).await?;
        let codec = Packed::<M::Ask, M::Answer>::default();
        let answers = grpc.server_streaming(request(ask), PathAndQuery::from_static(M::PATH), codec).await?;
        Ok(answers.into_inner().map(|answer| answer.map_err(LinkError::from)).boxed())
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.0.clone()).max_decoding_message_size(LARGEST).max_encoding_message_size(LARGEST)
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), LinkError> {
    grpc.ready().await.map_err(|error| of_transport(&error))
}

fn request<T>(ask: T) -> Request<T> {
    let mut request = Request::new(ask);
    request.metadata_mut().insert(VERSION_HEADER, MetadataValue::from(VERSION));
    request
}

fn with_windows(endpoint: Endpoint) -> Endpoint {
    endpoint.initial_connection_window_size(16 << 20).initial_stream_window_size(1 << 20)
}

fn of_transport(error: &tonic::transport::Error) -> LinkError {
    untrusted(error).unwrap_or_else(|| LinkError::Lost(innermost(error)))
}

/// What TLS said, if it was TLS that failed.
fn untrusted(error: &(dyn Error + 'static)) -> Option<LinkError> {
    causes(error).find_map(|cause| {
        // An I/O error has what it was made of inside, and not as its source.
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref).map(|inner| inner as &dyn Error);
        let tls = cause.downcast_ref::<rustls::Error>().or_else(|| inner?.downcast_ref::<rustls::Error>())?;
        Some(LinkError::Untrusted(tls.to_string()))
    })
}

/// The cause of all causes, in words.
fn innermost(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}
