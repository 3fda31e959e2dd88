//! One connection to a node: typed calls, and what went wrong with them.
//!
//! Used by `remote.rs`. A link is made for one process on the other end and is never mended: when that process is gone,
//! every call on it ends with `LinkError::Lost`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use poncho_api::EngineError;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tower::service_fn;

use crate::codec::{LARGEST, Packed};
use crate::methods::{Method, VERSION, VERSION_HEADER};

/// Why a call over a link failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum LinkError {
    /// The process on the other end is gone.
    #[error("the connection to the node was lost: {0}")]
    Lost(String),
    /// The other end refuses the call.
    #[error("the node refused the call: {0}")]
    Refused(String),
}

impl From<Status> for LinkError {
    fn from(status: Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::Unimplemented
            | Code::NotFound
            | Code::OutOfRange
            | Code::ResourceExhausted => Self::Refused(message),
            // Codes of tonic and of HTTP/2 for a connection that ended: unavailable, unknown, internal, cancelled.
            _ => Self::Lost(message),
        }
    }
}

impl From<LinkError> for EngineError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Lost(reason) => Self::NodeLost { reason },
            LinkError::Refused(reason) => Self::Backend { call: "the node".to_owned(), reason },
        }
    }
}

/// See the module. A clone is the same connection.
#[derive(Debug, Clone)]
pub(crate) struct Link(Channel);

impl Link {
    /// Connects to a socket; tries again until `within` is over.
    pub(crate) async fn connect(socket: &Path, within: Duration) -> Result<Self, LinkError> {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            match Self::try_connect(socket.to_owned()).await {
                Ok(link) => return Ok(link),
                Err(error) if tokio::time::Instant::now() >= deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn try_connect(socket: PathBuf) -> Result<Self, LinkError> {
        let connector = service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The address is never looked up: the connector knows the socket.
        let endpoint = Endpoint::from_static("http://node.invalid")
            .initial_connection_window_size(16 << 20)
            .initial_stream_window_size(1 << 20);
        let channel = endpoint.connect_with_connector(connector).await;
        channel.map(Self).map_err(|error| LinkError::Lost(error.to_string()))
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
    grpc.ready().await.map_err(|error| LinkError::Lost(error.to_string()))
}

fn request<T>(ask: T) -> Request<T> {
    let mut request = Request::new(ask);
    request.metadata_mut().insert(VERSION_HEADER, MetadataValue::from(VERSION));
    request
}
