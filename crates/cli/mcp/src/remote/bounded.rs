//! The HTTP client of a session, with a bound on what an MCP server may answer.
//!
//! The SDK bounds events, but reads a JSON body to its end; a server that never stops would fill the memory. Everything but
//! the answer to a message is the SDK's own client.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

/// Bytes of one answer.
pub(super) const MOST_BYTES: usize = 4 << 20;
/// How an answer beyond that is reported.
pub(super) const TOO_LARGE: &str = "the answer is too large";

const SESSION: &str = "mcp-session-id";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

type Failure = StreamableHttpError<reqwest::Error>;

/// See the module.
#[derive(Clone)]
pub(super) struct Bounded(reqwest::Client);

impl Bounded {
    pub(super) fn new(client: reqwest::Client) -> Self {
        Self(client)
    }
}

impl StreamableHttpClient for Bounded {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let body = serde_json::to_vec(&message)?;
        let mut request = self.0.post(uri.as_ref()).headers(custom_headers.into_iter().collect());
        request = request.header(header::ACCEPT, format!("{EVENTS}, {JSON}")).header(header::CONTENT_TYPE, JSON);
        if let Some(key) = auth_header {
            request = request.bearer_auth(key);
        }
        if let Some(session) = &session_id {
            request = request.header(SESSION, session.as_ref());
        }
        let response = request.body(body).send().await.map_err(StreamableHttpError::Client)?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (kind, session) = (text("content-type").unwrap_or_default(), text(SESSION));
        if status.is_success() && kind.starts_with(EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(bounded_events(response), session));
        }
        let body = read(response).await?;
        let parsed = serde_json::from_slice::<ServerJsonRpcMessage>(&body);
        let awaits_reply = matches!(message, ClientJsonRpcMessage::Request(_));
        match parsed {
            Ok(answer) if status.is_success() => Ok(StreamableHttpPostResponse::Json(answer, session)),
            // A refusal of the protocol; the status repeats it. A missing key is one of HTTP.
            Ok(answer @ ServerJsonRpcMessage::Error(_))
                if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
            {
                Ok(StreamableHttpPostResponse::Json(answer, session))
            }
            _ if status.is_success() && !awaits_reply => Ok(StreamableHttpPostResponse::Accepted),
            _ if status.is_success() => {
                Err(StreamableHttpError::UnexpectedServerResponse("its answer is not a message of MCP".into()))
            }
            _ => Err(StreamableHttpError::UnexpectedServerResponse(format!("it answered with HTTP {status}").into())),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        self.0.delete_session(uri, session_id, auth_header, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        // Every event is bounded; the stream goes on for as long as the session.
        let (client, bound) = (&self.0, MOST_BYTES);
        client
            .get_stream_with_max_sse_event_size(uri, session_id, last_event_id, auth_header, custom_headers, bound)
            .await
    }
}

fn too_large() -> std::io::Error {
    std::io::Error::other(TOO_LARGE)
}

async fn read(mut response: reqwest::Response) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(StreamableHttpError::Client)? {
        if body.len() + chunk.len() > MOST_BYTES {
            return Err(too_large().into());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn bounded_events(response: reqwest::Response) -> BoxStream<'static, Result<Sse, SseError>> {
    let chunks = stream::unfold(Some((response, 0_usize)), |state| async move {
        let (mut response, read) = state?;
        match response.chunk().await {
            Ok(None) => None,
            Ok(Some(chunk)) if read + chunk.len() > MOST_BYTES => Some((Err(too_large()), None)),
            Ok(Some(chunk)) => {
                let read = read + chunk.len();
                Some((Ok(chunk), Some((response, read))))
            }
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
        }
    });
    SseStream::from_bytes_stream(chunks).boxed()
}
