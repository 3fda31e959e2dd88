//! Requests to the nodes that serve rows: questions, manifests, and segments as an object store.
//!
//! Used by the tier of peers. A node without TLS is asked on this machine only, so that no question and no row crosses a
//! network in plain. It must never read more bytes than it asked for.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, stream};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use reqwest::header::RANGE;
use reqwest::{Client, StatusCode};
use rustls::{ClientConfig, RootCertStore};

use super::protocol::{FIND, Found, MOST_FOUND, OPEN, Question, SIGNATURE, Signed, range_header};
use super::{PullError, PullSecret, PullTls};
use crate::content::manifest;
use crate::content::tenant::ClusterSecret;

/// The longest time to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// The longest silence of a node while it sends.
const SILENCE: Duration = Duration::from_secs(10);

/// Why a node gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// It does not have the row.
    #[error("the node does not have the row")]
    Missing,
    /// It has no room to serve it now.
    #[error("the node has no room to serve the row now")]
    Busy,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl From<reqwest::Error> for Refusal {
    fn from(error: reqwest::Error) -> Self {
        let error = error.without_url();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::Failed(text)
    }
}

/// See the module.
#[derive(Clone)]
pub(super) struct PeerClient {
    http: Client,
    secret: ClusterSecret,
    has_tls: bool,
}

impl fmt::Debug for PeerClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PeerClient(tls: {})", self.has_tls)
    }
}

impl PeerClient {
    pub(super) fn new(secret: PullSecret, tls: Option<&PullTls>, parallel: usize) -> Result<Self, PullError> {
        let failed = |detail: String| PullError::Client { detail };
        let config = match tls {
            Some(tls) => ClientConfig::clone(&tls.client),
            None => no_tls().map_err(|error| failed(error.to_string()))?,
        };
        let http = Client::builder()
            .tls_backend_preconfigured(config)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .pool_max_idle_per_host(parallel.max(1))
            .build()
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { http, secret: ClusterSecret::for_transport(secret.0), has_tls: tls.is_some() })
    }

    pub(super) fn secret(&self) -> &ClusterSecret {
        &self.secret
    }

    /// Whether a node may be asked at all: on another machine, with TLS alone.
    pub(super) fn may_ask(&self, address: &str) -> bool {
        self.has_tls || is_this_machine(address)
    }

    fn url(&self, address: &str, path: &str) -> String {
        let scheme = if self.has_tls { "https" } else { "http" };
        format!("{scheme}://{address}{path}")
    }

    async fn ask(&self, address: &str, path: &'static str, question: &Question, most: usize) -> Result<Bytes, Refusal> {
        let body = serde_json::to_vec(question).map_err(|error| Refusal::Failed(error.to_string()))?;
        let signature = Signed { method: "POST", path, range: "", body: &body }.sign(&self.secret);
        let request = self.http.post(self.url(address, path)).header(SIGNATURE, signature).body(body);
        let answer = request.send().await?;
        match answer.status() {
            StatusCode::OK => read(answer, most).await,
            other => Err(refusal(other)),
        }
    }

    /// The best of some rows that a node has.
    pub(super) async fn find(&self, address: &str, question: &Question) -> Result<Found, Refusal> {
        let answer = self.ask(address, FIND, question, MOST_FOUND).await?;
        let found: Found = serde_json::from_slice(&answer).map_err(|error| Refusal::Failed(error.to_string()))?;
        if question.keys.contains(&found.key) {
            return Ok(found);
        }
        Err(Refusal::Failed("the node answered with a row that nobody asked for".to_owned()))
    }

    /// The manifest of a row; the node keeps its bytes for a while.
    pub(super) async fn open(&self, address: &str, question: &Question) -> Result<Bytes, Refusal> {
        self.ask(address, OPEN, question, usize::try_from(manifest::MOST_BYTES).unwrap_or(usize::MAX)).await
    }

    async fn segment(&self, address: &str, path: &str, range: &Range<u64>) -> Result<Bytes, Refusal> {
        let (path, range_text) = (format!("/{path}"), range_header(range));
        let signature = Signed { method: "GET", path: &path, range: &range_text, body: b"" }.sign(&self.secret);
        let request = self.http.get(self.url(address, &path)).header(SIGNATURE, signature).header(RANGE, range_text);
        let answer = request.send().await?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {
                read(answer, usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0)).await
            }
            other => Err(refusal(other)),
        }
    }
}

/// A configuration that trusts nobody: plain HTTP on this machine needs none, the library wants one.
fn no_tls() -> Result<ClientConfig, rustls::Error> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn refusal(status: StatusCode) -> Refusal {
    match status {
        StatusCode::NOT_FOUND => Refusal::Missing,
        StatusCode::SERVICE_UNAVAILABLE => Refusal::Busy,
        other => Refusal::Failed(format!("status {}", other.as_u16())),
    }
}

/// A body of at most that many bytes.
async fn read(mut answer: reqwest::Response, most: usize) -> Result<Bytes, Refusal> {
    let expected = answer.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    let mut body = BytesMut::with_capacity(expected.min(most));
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > most {
            return Err(Refusal::Failed("the answer is longer than asked for".to_owned()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Whether an address is one of this machine.
fn is_this_machine(address: &str) -> bool {
    let Some((host, _)) = address.rsplit_once(':') else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The segments of one node as an object store, for the code that reads those of the shared tier.
#[derive(Debug)]
pub(super) struct PeerStore {
    pub(super) client: PeerClient,
    pub(super) address: String,
}

impl fmt::Display for PeerStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the rows of {}", self.address)
    }
}

impl PeerStore {
    fn unsupported(&self, operation: &str) -> Error {
        Error::NotImplemented { operation: operation.to_owned(), implementer: self.to_string() }
    }
}

#[async_trait]
impl ObjectStore for PeerStore {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> object_store::Result<PutResult> {
        Err(self.unsupported("put"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Err(self.unsupported("put"))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let Some(GetRange::Bounded(range)) = options.range.filter(|_| !options.head) else {
            return Err(self.unsupported("get without a range"));
        };
        let bytes = self.client.segment(&self.address, location.as_ref(), &range).await.map_err(|refusal| {
            let (path, source) = (location.to_string(), Box::new(refusal.clone()));
            match refusal {
                Refusal::Missing => Error::NotFound { path, source },
                Refusal::Busy | Refusal::Failed(_) => Error::Generic { store: "peer", source },
            }
        })?;
        let length = bytes.len() as u64;
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: Default::default(),
            size: range.start.saturating_add(length),
            e_tag: None,
            version: None,
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed()),
            meta,
            range: range.start..range.start.saturating_add(length),
            attributes: Attributes::new(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let error = self.unsupported("delete");
        stream::once(async { Err(error) }).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let error = self.unsupported("list");
        stream::once(async { Err(error) }).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> object_store::Result<ListResult> {
        Err(self.unsupported("list"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        Err(self.unsupported("copy"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_tls_only_this_machine_is_asked() {
        for here in ["127.0.0.1:1", "[::1]:7", "localhost:80", "127.8.8.8:1"] {
            assert!(is_this_machine(here), "{here}");
        }
        for there in ["10.0.0.7:1", "node-1:7070", "localhost", "[2001:db8::1]:1", "localhost.evil.example:1"] {
            assert!(!is_this_machine(there), "{there}");
        }
        let client = PeerClient::new(PullSecret::from_bytes([1; 32]), None, 4).unwrap();
        assert!(client.may_ask("127.0.0.1:1") && !client.may_ask("10.0.0.7:1"));
    }
}
