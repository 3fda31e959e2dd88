//! A connection that gives up on a client which does not read: a write that takes nothing for too long fails.
//!
//! `serve` puts one around every connection. A failed write ends the connection, which drops the answer and so cancels
//! the request: no sequence, queue slot or model is held for somebody who keeps a connection open and reads nothing.
//! Until then nothing piles up beyond the length of the reply, because the HTTP library asks for more of it only when
//! there is room. It must never limit how long an answer may take to be made, only how long it may wait for its reader.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// A connection that can be given up together with what the system still holds of it.
pub(crate) trait Abandon {
    /// Written data no longer has to arrive.
    fn abandon(&self);
}

impl Abandon for TcpStream {
    fn abandon(&self) {
        // Otherwise the system would go on offering megabytes to a client that takes none, long after the close.
        if let Err(error) = self.set_zero_linger() {
            tracing::debug!(%error, "what was not read stays in the system's memory for a while");
        }
    }
}

/// See the module.
pub(crate) struct TimedStream<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits for room.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S: Abandon> TimedStream<S> {
    /// Writes to `stream` fail once they got nowhere for so long.
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, waiting: None }
    }

    fn watch(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        if waiting.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        tracing::info!(seconds = limit.as_secs_f64(), "a client did not read its answer; its connection is closed");
        self.stream.abandon();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client did not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Abandon + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has nothing to flush, so this says nothing about the client.
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{Instant, advance};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    struct Pipe(DuplexStream, AtomicBool);

    impl Abandon for Pipe {
        fn abandon(&self) {
            self.1.store(true, Ordering::SeqCst);
        }
    }

    impl AsyncWrite for Pipe {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }

    fn pipe(room: usize) -> (TimedStream<Pipe>, DuplexStream) {
        let (near, far) = duplex(room);
        (TimedStream::new(Pipe(near, AtomicBool::new(false)), LIMIT), far)
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_given_up_after_the_limit() {
        let (mut stream, _far) = pipe(4);
        let begun = Instant::now();
        let failed = stream.write_all(b"more than there is room for").await.unwrap_err();
        assert_eq!((failed.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, LIMIT));
        assert!(stream.stream.1.load(Ordering::SeqCst), "what was written is not offered any longer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_waited_for_as_long_as_it_reads() {
        let (mut stream, mut far) = pipe(1);
        let writing = tokio::spawn(async move { stream.write_all(&[7; 100]).await });
        for _ in 0..100 {
            // Just within the limit, each time.
            advance(LIMIT.checked_sub(Duration::from_secs(1)).unwrap()).await;
            assert_eq!(far.read_u8().await.unwrap(), 7);
        }
        writing.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_as_long_as_it_needs_to_be_made() {
        let (mut stream, mut far) = pipe(8);
        for _ in 0..3 {
            stream.write_all(b"12345678").await.unwrap();
            let mut read = [0; 8];
            far.read_exact(&mut read).await.unwrap();
            advance(LIMIT * 100).await;
        }
    }
}
