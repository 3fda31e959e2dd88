//! Work that may block, off the async threads.
//!
//! Used by everything that waits for a disk or a registry. A handler must never block a thread of the runtime itself.

use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Models that are looked for at the same time.
static PLACES: Semaphore = Semaphore::const_new(8);

/// Runs what may wait long, for a disk or a registry, off the async threads. It goes on when the client leaves.
pub(crate) async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // Log lines of the work belong to the request too.
    let span = tracing::Span::current();
    let work = move || span.in_scope(work);
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::Internal { doing })?
}

/// Looks something up off the async threads. Only a few at a time; the others wait without a thread.
pub(crate) async fn looking_up<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = PLACES.acquire().await.map_err(|_| ApiError::Internal { doing })?;
    let work = move || {
        let _permit = permit;
        work()
    };
    blocking(doing, work).await
}
