//! Serves the rows of a cache to other nodes of the cluster, over HTTP with range requests.
//!
//! Started by the process that has the cache. Off loopback callers must show a certificate; everywhere requests must be
//! signed with the cluster's secret. Everything else gets the answer of a row that does not exist: a stranger learns
//! nothing. Connections, memory and times are bounded; it must never end the process or hold up a request to a model.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_RANGE, CONTENT_TYPE, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use poncho_cache::Cache;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::exports::{Exports, NotServed};
use super::protocol::{FIND, MOST_KEYS, MOST_QUESTION, OPEN, Question, SIGNATURE, Signed, range_of};
use super::{PullError, PullLimits, PullSecret, PullTls};
use crate::content::names::digest_of;
use crate::content::tenant::ClusterSecret;
use crate::transfer::vitals::add;

/// For the handshake, the head and the body of a question.
const PATIENCE: Duration = Duration::from_secs(5);
/// After a failed accept, which is mostly a lack of file handles.
const PAUSE: Duration = Duration::from_millis(100);

/// What was served.
#[derive(Debug, Default)]
pub(crate) struct ServedCounters {
    pub(crate) rows: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// See the module. Ends when it is dropped.
#[derive(Debug)]
pub struct RowServer {
    address: SocketAddr,
    counters: Arc<ServedCounters>,
    accepting: JoinHandle<()>,
}

struct Served {
    exports: Exports,
    secret: ClusterSecret,
    counters: Arc<ServedCounters>,
}

impl RowServer {
    /// Serves the rows of a cache on a port, until it is dropped. Must be called on a runtime. Does not keep the cache.
    ///
    /// # Errors
    /// Other machines can reach the port, and there are no certificates.
    pub fn start(
        listener: TcpListener,
        cache: &Arc<Cache>,
        secret: PullSecret,
        tls: Option<&PullTls>,
        limits: PullLimits,
    ) -> Result<Self, PullError> {
        let address = listener.local_addr()?;
        if tls.is_none() && !address.ip().is_loopback() {
            return Err(PullError::NeedsTls { address });
        }
        let secret = ClusterSecret::for_transport(secret.0);
        let counters = Arc::new(ServedCounters::default());
        let exports = Exports::new(cache, secret.clone(), limits);
        let served = Arc::new(Served { exports, secret, counters: Arc::clone(&counters) });
        let acceptor = tls.map(|tls| TlsAcceptor::from(Arc::clone(&tls.server)));
        let accepting = tokio::spawn(accept(listener, acceptor, served, limits));
        Ok(Self { address, counters, accepting })
    }

    /// Where it listens; the port is the real one.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn counters(&self) -> &ServedCounters {
        &self.counters
    }
}

impl Drop for RowServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, served: Arc<Served>, limits: PullLimits) {
    let places = Arc::new(Semaphore::new(limits.connections));
    // Connections end with the server.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (acceptor, served) = (acceptor.clone(), Arc::clone(&served));
        connections.spawn(async move {
            let _ = tokio::time::timeout(limits.connection, serve(stream, acceptor, served)).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, acceptor: Option<TlsAcceptor>, served: Arc<Served>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let served = Arc::clone(&served);
        async move { Ok::<_, Infallible>(answer(&served, request).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let ended = match acceptor {
        Some(acceptor) => {
            let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await else { return };
            http.serve_connection(TokioIo::new(stream), service).await
        }
        None => http.serve_connection(TokioIo::new(stream), service).await,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of another node ended");
    }
}

type Answer = Response<Full<Bytes>>;

async fn answer(served: &Served, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = match tokio::time::timeout(PATIENCE, Limited::new(body, MOST_QUESTION).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) | Err(_) => return missing(),
    };
    let (path, range) = (head.uri.path(), header(RANGE.as_str()));
    let signed = Signed { method: head.method.as_str(), path, range, body: &body };
    if !signed.is_signed(&served.secret, header(SIGNATURE)) {
        add(&served.counters.refused, 1);
        tracing::debug!(path, "a request without the cluster key was refused");
        return missing();
    }
    match (&head.method, path) {
        (&Method::POST, FIND) => match question(&body).and_then(|question| served.exports.find(&question)) {
            Some(found) => whole(serde_json::to_vec(&found).unwrap_or_default().into()),
            None => missing(),
        },
        (&Method::POST, OPEN) => {
            let Some(question) = question(&body) else { return missing() };
            match served.exports.manifest(&question).await {
                Ok(manifest) => {
                    add(&served.counters.rows, 1);
                    whole(manifest)
                }
                Err(NotServed::Missing) => missing(),
                Err(NotServed::Busy) => status(StatusCode::SERVICE_UNAVAILABLE),
            }
        }
        (&Method::GET, path) => segment(served, path, range).unwrap_or_else(missing),
        _ => missing(),
    }
}

fn question(body: &[u8]) -> Option<Question> {
    let question: Question = serde_json::from_slice(body).ok()?;
    (question.keys.len() <= MOST_KEYS).then_some(question)
}

/// A range of a segment.
fn segment(served: &Served, path: &str, range: &str) -> Option<Answer> {
    let (tenant, digest) = path.strip_prefix("/v1/")?.split_once("/seg/")?;
    let bytes = served.exports.segment(tenant, &digest_of(digest)?)?;
    let range = range_of(range)?;
    let end = range.end.min(bytes.len() as u64);
    if range.start >= end {
        return Some(status(StatusCode::RANGE_NOT_SATISFIABLE));
    }
    let content_range = format!("bytes {}-{}/{}", range.start, end - 1, bytes.len());
    let part = bytes.slice(usize::try_from(range.start).ok()?..usize::try_from(end).ok()?);
    add(&served.counters.bytes, part.len() as u64);
    let mut answer = whole(part);
    *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    answer.headers_mut().insert(CONTENT_RANGE, content_range.parse().ok()?);
    Some(answer)
}

fn whole(bytes: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(bytes));
    let kind = hyper::header::HeaderValue::from_static("application/octet-stream");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn status(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::new()));
    *answer.status_mut() = status;
    answer
}

fn missing() -> Answer {
    status(StatusCode::NOT_FOUND)
}
