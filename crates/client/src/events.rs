//! The server-sent events of a streamed reply.
//!
//! Made by the client and read by chats and benchmarks. Comments, which servers send to keep a connection open, are
//! skipped.

use anyhow::Context;
use futures_util::StreamExt;
use hyper::body::{Body, Incoming};
use sse_stream::SseStream;

/// A stream of events. Dropping it closes the connection, which cancels the request at the server.
pub struct Events<B: Body = Incoming> {
    path: String,
    stream: SseStream<B>,
}

impl<B> Events<B>
where
    B: Body + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    pub(crate) fn new(path: &str, body: B) -> Self {
        Self { path: path.to_owned(), stream: SseStream::new(body) }
    }

    /// The data of the next event; `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// If the connection breaks or sends text that is not UTF-8.
    pub async fn next(&mut self) -> anyhow::Result<Option<String>> {
        while let Some(event) = self.stream.next().await {
            let event = event.with_context(|| format!("the stream of {} broke off", self.path))?;
            if let Some(data) = event.data {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

impl<B: Body> std::fmt::Debug for Events<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Events").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::{Bytes, Frame};

    use super::*;

    #[test]
    fn events_are_found_wherever_the_bytes_are_cut() {
        let text = ": waiting\n\ndata: {\"a\":\"\u{e9}\"}\n\ndata:[DONE]\r\n\r\n".as_bytes();
        for cut in 0..text.len() {
            let frames =
                [&text[..cut], &text[cut..]].map(|part| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(part))));
            let mut events = Events::new("/x", StreamBody::new(stream::iter(frames)));
            let found = crate::single_thread_runtime().unwrap().block_on(async {
                let mut found = Vec::new();
                while let Some(event) = events.next().await.unwrap() {
                    found.push(event);
                }
                found
            });
            assert_eq!(found, ["{\"a\":\"\u{e9}\"}", "[DONE]"], "cut at {cut}");
        }
    }
}
