//! Blocking calls over a runtime: a future runs on threads of its own, and its caller waits as long as its patience lasts.
//!
//! Each tier of other machines has one, so that its blocking calls work on any thread. A caller must never wait past its
//! patience, and the end of a waiter must never wait for a request that hangs.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use poncho_cache::{Patience, RemoteError};
use tokio::runtime::{Builder, Runtime};

use crate::error::SharedError;

/// How often a waiting call looks whether it is cancelled.
const LOOK: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Taken when the waiter is dropped.
    runtime: Option<Runtime>,
}

impl Waiter {
    /// Starts two threads of this name.
    pub(crate) fn start(name: &str) -> Result<Self, SharedError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(name)
            .enable_all()
            .build()
            .map_err(|error| SharedError::Threads { detail: error.to_string() })?;
        Ok(Self { runtime: Some(runtime) })
    }

    /// Runs a future until it ends or the waiter is dropped.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(future);
        }
    }

    /// Runs a future and waits for it as long as the patience lasts.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        patience: &Patience,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, RemoteError> {
        let Some(runtime) = &self.runtime else { return Err(RemoteError::Unavailable { retry_in: Duration::ZERO }) };
        let (send, receive) = sync_channel(1);
        let task = runtime.spawn(async move {
            let _ = send.send(future.await);
        });
        loop {
            let left = patience.deadline.saturating_duration_since(Instant::now());
            match receive.recv_timeout(left.min(LOOK)) {
                Ok(outcome) => return Ok(outcome),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RemoteError::Failed { detail: "the request ended without a result".to_owned() });
                }
                Err(RecvTimeoutError::Timeout) if patience.is_over(Instant::now()) => {
                    task.abort();
                    let cancelled = patience.cancelled.is_cancelled();
                    return Err(if cancelled { RemoteError::Cancelled } else { RemoteError::Late });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // Never waits: a request may hang in a store that does not answer.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
