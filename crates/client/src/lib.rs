//! HTTP client of the command line: JSON calls, and streamed replies as server-sent events.
//!
//! Used by the binaries `poncho` and `poncho-bench` for a server on this machine or near it. Each call has a connection of
//! its own, so a restarted server needs no special care. Plain HTTP only; it must never follow a redirect.

mod events;
mod refusal;
mod runtime;

use anyhow::{Context, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::Value;
use tokio::net::TcpStream;

pub use events::Events;
pub use refusal::Refusal;
pub use runtime::{runtime, single_thread_runtime};

/// The address of a server, and the key that it asks for.
#[derive(Clone)]
pub struct Client {
    /// Host and port.
    authority: String,
    /// Precedes every path.
    prefix: String,
    key: Option<String>,
}

impl Client {
    /// A client for the server at this address.
    ///
    /// # Errors
    /// If the text is not an `http://` URL.
    pub fn new(url: &str, key: Option<String>) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("`{url}` is not a URL; write http://127.0.0.1:8080"))?;
        ensure!(uri.scheme_str() == Some("http"), "`{url}` is not supported; only http:// URLs are");
        let authority = uri.authority().with_context(|| format!("`{url}` has no host"))?;
        let port = authority.port_u16().unwrap_or(80);
        // The base URL of an OpenAI client works too.
        let prefix = uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Ok(Self { authority: format!("{}:{port}", authority.host()), prefix, key })
    }

    /// Fetches a JSON document; `None` if the server does not have the path.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, or does not answer with JSON.
    pub async fn get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        self.call_if_known(Method::GET, path, Vec::new()).await
    }

    /// Fetches plain text.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub async fn get_text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.send(Method::GET, path, Vec::new()).await?;
        self.text(path, response).await
    }

    /// Posts a JSON document.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, or does not answer with JSON.
    pub async fn post(&self, path: &str, body: &(impl Serialize + Sync)) -> anyhow::Result<Value> {
        let response = self.send(Method::POST, path, serde_json::to_vec(body)?).await?;
        self.json(path, response).await
    }

    /// Posts a JSON document; `None` if the server does not have the path.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, or does not answer with JSON.
    pub async fn post_if_known(&self, path: &str, body: &(impl Serialize + Sync)) -> anyhow::Result<Option<Value>> {
        self.call_if_known(Method::POST, path, serde_json::to_vec(body)?).await
    }

    /// Posts a JSON document and returns the events of the answer. Dropping them cancels the request.
    ///
    /// # Errors
    /// If the server cannot be reached, or answers with anything but a stream.
    pub async fn stream(&self, path: &str, body: &(impl Serialize + Sync)) -> anyhow::Result<Events> {
        let response = self.send(Method::POST, path, serde_json::to_vec(body)?).await?;
        if response.status() != StatusCode::OK {
            self.text(path, response).await?;
            anyhow::bail!("{path} answered without a stream");
        }
        Ok(Events::new(path, response.into_body()))
    }

    /// Host and port, for messages.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The address, as clients of other programs take it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{}", self.authority, self.prefix)
    }

    /// The key that it sends.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    async fn call_if_known(&self, method: Method, path: &str, body: Vec<u8>) -> anyhow::Result<Option<Value>> {
        let response = self.send(method, path, body).await?;
        if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return Ok(None);
        }
        self.json(path, response).await.map(Some)
    }

    /// The body of a good answer; any other is an error.
    async fn text(&self, path: &str, response: Response<Incoming>) -> anyhow::Result<String> {
        let status = response.status();
        let bytes = response.into_body().collect().await.with_context(|| format!("the answer of {path} broke off"))?;
        let text = String::from_utf8_lossy(&bytes.to_bytes()).into_owned();
        if status.is_success() {
            return Ok(text);
        }
        Err(Refusal::read(&self.authority, path, status, self.key.is_some(), &text).into())
    }

    async fn json(&self, path: &str, response: Response<Incoming>) -> anyhow::Result<Value> {
        let text = self.text(path, response).await?;
        serde_json::from_str(&text).with_context(|| format!("the answer of {path} is not JSON"))
    }

    /// Sends a request and returns the answer, good or bad, before its body is read.
    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> anyhow::Result<Response<Incoming>> {
        let unreachable = || format!("cannot reach the server at {}; is it running?", self.authority);
        let stream = TcpStream::connect(&self.authority).await.with_context(unreachable)?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.with_context(unreachable)?;
        // It ends with the response, which carries its errors.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header("host", &self.authority)
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        sender.send_request(request).await.with_context(|| format!("the server did not answer {path}"))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Client").field("authority", &self.authority).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_host_a_port_and_a_prefix() {
        for (url, authority, prefix) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", ""),
            ("http://localhost/", "localhost:80", ""),
            ("http://localhost:1/v1/", "localhost:1", ""),
            ("http://[::1]:9/poncho", "[::1]:9", "/poncho"),
        ] {
            let client = Client::new(url, None).unwrap();
            assert_eq!((client.authority.as_str(), client.prefix.as_str()), (authority, prefix), "{url}");
        }
        for wrong in ["", "localhost:8080", "https://localhost", "http://", "/v1"] {
            assert!(Client::new(wrong, None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        let client = Client::new("http://127.0.0.1:1", Some("secret".to_owned())).unwrap();
        assert!(!format!("{client:?}").contains("secret"));
    }
}
