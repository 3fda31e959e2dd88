//! Blocking calls over a runtime: a future runs on threads of its own, and its caller waits as long as its patience lasts.
//!
//! Each tier of other machines has one, so that its blocking calls work on any thread. A caller must never wait past its
//! patience, and the end of a waiter must never wait for a request that hangs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use poncho_cache::{Patience, RemoteError};
use tokio::runtime::{Builder, Runtime};

use crate::error::SharedError;

/// How often a waiting call looks whether it is cancelled.
const LOOK: Duration = Duration::from_millis(5);
/// A transfer with this many quarters at its deadline is nearly complete.
const MOST_OF: (u64, u64) = (4, 3);
/// It then gets this part of its time again. The deadline is half of the time for computing, so it still comes before.
const EXTENSION_SHARE: u32 = 2;

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
        self.wait_longer(patience, || None, future)
    }

    /// The same for a transfer of this many bytes, of which `arrived` counts those that came. One that has brought most
    /// of them by the deadline gets half as long again: throwing them away would cost more.
    pub(crate) fn wait_for_transfer<T: Send + 'static>(
        &self,
        patience: &Patience,
        (bytes, arrived): (u64, &AtomicU64),
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, RemoteError> {
        let more = patience.deadline.saturating_duration_since(Instant::now()) / EXTENSION_SHARE;
        let is_nearly_there = || {
            let (whole, most) = MOST_OF;
            arrived.load(Ordering::Relaxed).saturating_mul(whole) >= bytes.max(1).saturating_mul(most)
        };
        self.wait_longer(patience, || is_nearly_there().then_some(more), future)
    }

    /// Waits until the deadline, and once more for as long as `more` allows then.
    fn wait_longer<T: Send + 'static>(
        &self,
        patience: &Patience,
        more: impl FnOnce() -> Option<Duration>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, RemoteError> {
        let Some(runtime) = &self.runtime else { return Err(RemoteError::Unavailable { retry_in: Duration::ZERO }) };
        let (send, receive) = sync_channel(1);
        let task = runtime.spawn(async move {
            let _ = send.send(future.await);
        });
        let (mut deadline, mut more) = (patience.deadline, Some(more));
        loop {
            let now = Instant::now();
            let is_cancelled = patience.cancelled.is_cancelled();
            if now >= deadline && !is_cancelled {
                let extension = more.take().and_then(|more| more());
                deadline += extension.unwrap_or(Duration::ZERO);
            }
            let left = deadline.saturating_duration_since(now);
            match receive.recv_timeout(left.min(LOOK)) {
                Ok(outcome) => return Ok(outcome),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RemoteError::Failed { detail: "the request ended without a result".to_owned() });
                }
                Err(RecvTimeoutError::Timeout) if is_cancelled || now >= deadline => {
                    task.abort();
                    return Err(if is_cancelled { RemoteError::Cancelled } else { RemoteError::Late });
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use poncho_cache::Cancellation;

    use super::*;

    /// Waits two seconds for a transfer that ends shortly after, with this many of 100 bytes there at the deadline.
    fn transfer(arrived: u64, cancelled: bool) -> Result<u8, RemoteError> {
        let waiter = Waiter::start("poncho-test").unwrap();
        let patience =
            Patience { deadline: Instant::now() + Duration::from_secs(2), cancelled: Cancellation::default() };
        if cancelled {
            patience.cancelled.cancel();
        }
        let counted = Arc::new(AtomicU64::new(arrived));
        waiter.wait_for_transfer(&patience, (100, &counted), async {
            tokio::time::sleep(Duration::from_millis(2200)).await;
            7
        })
    }

    #[test]
    fn a_transfer_that_is_nearly_complete_at_its_deadline_is_not_thrown_away() {
        assert_eq!(transfer(75, false).unwrap(), 7);
    }

    #[test]
    fn a_transfer_that_is_far_from_complete_ends_at_its_deadline() {
        assert!(matches!(transfer(74, false), Err(RemoteError::Late)));
        assert!(matches!(transfer(99, true), Err(RemoteError::Cancelled)));
    }
}
