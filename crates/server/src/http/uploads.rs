//! Files that clients send for models they want to make: how large, how long, how many at once, and for how long they stay.
//!
//! Called by `POST /api/blobs/{digest}`; `serve` runs the sweep. A file goes to the disk as it comes, because it may be
//! larger than the memory. Whatever a client does, the disk keeps its reserve and half a file is never taken for a whole
//! one.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout_at};

use crate::blocking::blocking;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::library::{ModelLibrary, UploadLimits};

/// Pieces of an uploaded file that wait for the disk.
const WAITING_PIECES: usize = 16;

/// Takes a file that must have this hash.
pub(crate) async fn receive(
    app: &SharedApp,
    library: Arc<dyn ModelLibrary>,
    digest: String,
    headers: &HeaderMap,
    body: Body,
) -> Result<(), ApiError> {
    let rules = app.config.uploads;
    let Ok(_place) = app.uploads.try_acquire() else {
        return Err(ApiError::TooManyUploads { limit: rules.at_once });
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let limits = UploadLimits { announced, most_bytes: rules.most_bytes, reserve: rules.reserve };
    let (send, receive) = mpsc::channel(WAITING_PIECES);
    let mut pieces = Pieces { receive, piece: Bytes::new() };
    let keeping = blocking("kept a file", move || Ok(library.add_blob(&digest, &mut pieces, &limits)?));
    let sending = send_pieces(body, send, app.config.body_timeout, rules.time);
    let (sent, kept) = tokio::join!(sending, keeping);
    sent.and(kept)
}

/// Hands the pieces of a body on. `wait` counts for each of them, `time` for all.
async fn send_pieces(
    mut body: Body,
    send: mpsc::Sender<Result<Bytes, String>>,
    wait: Duration,
    time: Duration,
) -> Result<(), ApiError> {
    // A time beyond what the clock can say is none.
    let end = Instant::now().checked_add(time);
    loop {
        let next = Instant::now().checked_add(wait);
        let (until, limit) = match (next, end) {
            (Some(next), Some(end)) if next < end => (Some(next), wait),
            (Some(next), None) => (Some(next), wait),
            (_, end) => (end, time),
        };
        let frame = match within(until, body.frame()).await {
            Err(_) => Err(ApiError::SlowBody { limit }),
            Ok(None) => return Ok(()),
            Ok(Some(Err(error))) => Err(ApiError::BodyBroken { reason: error.to_string() }),
            Ok(Some(Ok(frame))) => Ok(frame),
        };
        let failed = frame.as_ref().err().cloned();
        let piece = frame.map(|frame| frame.into_data().unwrap_or_default());
        // A library that stopped reading has an error of its own.
        if send.send(piece.map_err(|error| error.to_string())).await.is_err() {
            return Ok(());
        }
        if let Some(error) = failed {
            return Err(error);
        }
    }
}

/// Waits until a moment, or indefinitely.
async fn within<F: Future>(until: Option<Instant>, future: F) -> Result<F::Output, tokio::time::error::Elapsed> {
    match until {
        Some(until) => timeout_at(until, future).await,
        None => Ok(future.await),
    }
}

/// The pieces of a body as a file; a piece that did not come is an error, so that half a file is never taken for one.
struct Pieces {
    receive: mpsc::Receiver<Result<Bytes, String>>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.piece.is_empty() {
            match self.receive.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.piece = piece.map_err(std::io::Error::other)?,
            }
        }
        let taken = self.piece.split_to(buffer.len().min(self.piece.len()));
        for (place, byte) in buffer.iter_mut().zip(&taken) {
            *place = *byte;
        }
        Ok(taken.len())
    }
}

/// Removes files that nobody made a model of, again and again, until it is dropped.
pub(crate) async fn sweep(library: Arc<dyn ModelLibrary>, every: Duration) {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let library = Arc::clone(&library);
        let swept = blocking("removed old uploads", move || {
            library.sweep();
            Ok(())
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "old uploads were not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::stream;

    use super::*;
    use crate::config::UploadRules;
    use crate::library::{LibraryError, LibraryModel};

    /// Counts its sweeps.
    #[derive(Default)]
    struct Swept(AtomicUsize);

    impl ModelLibrary for Swept {
        fn find(&self, _: &str) -> Result<Option<LibraryModel>, LibraryError> {
            Ok(None)
        }

        fn list(&self) -> Result<Vec<LibraryModel>, LibraryError> {
            Ok(Vec::new())
        }

        fn sweep(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Hardening 10: uploads that nobody made a model of were removed at the next start only.
    #[tokio::test(start_paused = true)]
    async fn old_uploads_are_removed_while_the_server_runs() {
        let library = Arc::new(Swept::default());
        let every = UploadRules::default().sweep_every;
        let sweeping = tokio::spawn(sweep(Arc::clone(&library) as Arc<dyn ModelLibrary>, every));
        let began = Instant::now();
        for count in 1..=3 {
            // The clock moves when nothing else can, so each look is after the sweep that is due.
            while library.0.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert!(began.elapsed() < every * 5, "sweep {count} did not come");
            }
            assert!(began.elapsed() >= every * u32::try_from(count).unwrap());
        }
        sweeping.abort();
    }

    /// Hardening 10: a client that sent one byte in time, again and again, could go on forever.
    #[tokio::test(start_paused = true)]
    async fn an_upload_that_never_ends_is_given_up() {
        let drip = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(50)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        let (send, mut receive) = mpsc::channel::<Result<Bytes, String>>(WAITING_PIECES);
        let reading = tokio::spawn(async move { while receive.recv().await.is_some_and(|piece| piece.is_ok()) {} });
        let (wait, time) = (Duration::from_secs(60), Duration::from_secs(3600));
        let began = Instant::now();
        let ended = send_pieces(Body::from_stream(drip), send, wait, time).await;
        assert!(matches!(ended, Err(ApiError::SlowBody { limit }) if limit == time), "{ended:?}");
        assert!(began.elapsed() >= time && began.elapsed() < time + wait, "{:?}", began.elapsed());
        reading.await.unwrap();
        // A piece that does not come is given up much earlier.
        let silent = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        let (send, _receive) = mpsc::channel(WAITING_PIECES);
        let ended = send_pieces(silent, send, wait, time).await;
        assert!(matches!(ended, Err(ApiError::SlowBody { limit }) if limit == wait), "{ended:?}");
    }
}
