//! Work that keeps a processor busy, off the async threads: rendering, tokenizing, compiling a grammar.
//!
//! Called by the host. Only a few prompts are prepared at a time; the others wait without a thread. Work goes on when its
//! caller leaves, but can see it (`client_left`), and long work asks between its steps.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;

use crate::error::EngineError;

/// Prompts that are prepared at the same time, for all models. More threads than processors only cost memory.
static PREPARING: Semaphore = Semaphore::const_new(8);

thread_local! {
    /// Whether the caller of the work on this thread has left.
    static CLIENT_LEFT: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Whether nobody waits for the work that this thread does.
pub(crate) fn client_left() -> bool {
    CLIENT_LEFT.with_borrow(|left| left.as_ref().is_some_and(|left| left.load(Ordering::Relaxed)))
}

/// Marks the work as given up when it is dropped.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs work that computes. Only a few at a time.
pub(crate) async fn preparing<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    let permit = PREPARING.acquire().await.map_err(|_| EngineError::internal(doing))?;
    let work = move || {
        let _permit = permit;
        work()
    };
    blocking(doing, work).await
}

/// Runs work that may wait long, for a disk or a worker.
pub(crate) async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    // Log lines of the work belong to the request too.
    let span = tracing::Span::current();
    let waiting = Waiting(Arc::default());
    let left = Arc::clone(&waiting.0);
    let work = move || {
        CLIENT_LEFT.set(Some(left));
        let done = span.in_scope(work);
        CLIENT_LEFT.set(None);
        done
    };
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| EngineError::internal(doing))?;
    drop(waiting);
    done
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Hardening 14.2: work for a schema went on after its client had left.
    #[tokio::test]
    async fn work_sees_that_its_client_has_left() {
        let (begun, is_begun) = channel();
        let (left, has_left) = channel::<()>();
        let (told, seen) = channel();
        let work = blocking("waited", move || {
            let before = client_left();
            let _ = begun.send(());
            let _ = has_left.recv();
            let _ = told.send((before, client_left()));
            Ok(())
        });
        let task = tokio::spawn(work);
        tokio::task::spawn_blocking(move || is_begun.recv()).await.unwrap().unwrap();
        task.abort();
        assert!(task.await.is_err());
        drop(left);
        assert_eq!(tokio::task::spawn_blocking(move || seen.recv()).await.unwrap(), Ok((false, true)));
        assert!(!client_left());
        assert_eq!(blocking("worked", || Ok(client_left())).await.ok(), Some(false), "the thread starts afresh");
    }
}
