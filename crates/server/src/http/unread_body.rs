//! What becomes of a request body that no handler read: a refusal (a wrong key, an unknown path, a body that is too long)
//! is often made before the body has arrived.
//!
//! The outermost layer of the router uses this. The HTTP library closes a connection if a request on it was not read to
//! its end, without saying so in the answer; a client that keeps connections open would send its next request into
//! that close and see it lost. So a short rest is read and thrown away before the answer goes out, and the connection stays
//! open; otherwise the answer says `connection: close`. It must never hold a body in memory or wait for long.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The most that is read of a body that nobody wants.
const MOST_BYTES: u64 = 16 << 20;

/// How long the rest of such a body may take.
const LONGEST: Duration = Duration::from_secs(1);

/// Where the body of one request comes back if it was not read to its end.
pub(crate) struct UnreadBody {
    returned: Option<oneshot::Receiver<Body>>,
    /// The client sends its body only once it is asked for: a refusal comes without asking.
    is_withheld: bool,
}

impl UnreadBody {
    /// Lends the body of `request` to the handlers.
    pub(crate) fn watch(request: Request) -> (Request, Self) {
        if request.body().is_end_stream() {
            return (request, Self { returned: None, is_withheld: false });
        }
        let is_withheld = request.headers().contains_key(header::EXPECT);
        let (owner, returned) = oneshot::channel();
        let request = request.map(|body| Body::new(LentBody { body, owner: Some(owner) }));
        (request, Self { returned: Some(returned), is_withheld })
    }

    /// Makes sure that `response` says whether its connection stays open.
    pub(crate) async fn settle(self, response: &mut Response) {
        // A handler that still holds the body reads it while it answers.
        let Some(Ok(rest)) = self.returned.map(|mut returned| returned.try_recv()) else { return };
        if self.is_withheld || !drain(rest).await {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Whether the body ended within the bounds.
async fn drain(mut body: Body) -> bool {
    if body.size_hint().lower() > MOST_BYTES {
        return false;
    }
    let to_the_end = async {
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
            if bytes > MOST_BYTES {
                return false;
            }
        }
        true
    };
    timeout(LONGEST, to_the_end).await.unwrap_or(false)
}

/// A body that goes back to its owner when it is dropped before its end.
struct LentBody {
    body: Body,
    owner: Option<oneshot::Sender<Body>>,
}

impl http_body::Body for LentBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.owner = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for LentBody {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take().filter(|_| !self.body.is_end_stream()) {
            // The answer may be on its way already: then the HTTP library closes the connection.
            let _ = owner.send(std::mem::replace(&mut self.body, Body::empty()));
        }
    }
}
